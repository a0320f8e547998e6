//! Decoding of frames from a byte stream.

use rlaunch_bootstrap::protocol::control::FrameReader;
use serde::de::DeserializeOwned;
use std::io;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::sync::mpsc;

/// Capacity of the read buffer in bytes.
const CHUNK: usize = 64 << 10;

/// Event on a stream of frames.
#[derive(Debug)]
pub(crate) enum FrameEvent<T> {
    Message(T),
    /// The stream ended; the text says how. No event follows.
    Closed(String),
}

/// Byte stream that frames are read from: a pipe, or the connection back to the launcher.
pub(crate) trait ByteSource: Send + 'static {
    /// Replaces the content of `into` with the next bytes. Returns false at the end.
    fn read(&mut self, into: &mut Vec<u8>) -> impl Future<Output = io::Result<bool>> + Send;
}

impl ByteSource for pipe::Receiver {
    async fn read(&mut self, into: &mut Vec<u8>) -> io::Result<bool> {
        into.clear();
        Ok(self.read_buf(into).await? > 0)
    }
}

/// Reads frames from `input`. Sends each message to `events`, and [`FrameEvent::Closed`] last.
/// `first` holds bytes that were read from `input` before.
pub(crate) async fn read_all<T: DeserializeOwned>(
    mut input: impl ByteSource,
    first: Vec<u8>,
    events: mpsc::Sender<FrameEvent<T>>,
) {
    let reason = read_frames(&mut input, first, &events).await;
    // The receiver is dropped when the agent leaves.
    let _ = events.send(FrameEvent::Closed(reason)).await;
}

/// Reads frames until the stream ends, and describes how it ended.
async fn read_frames<T: DeserializeOwned>(
    input: &mut impl ByteSource,
    first: Vec<u8>,
    events: &mpsc::Sender<FrameEvent<T>>,
) -> String {
    let mut frames = FrameReader::default();
    frames.push(&first);
    let mut buffer = Vec::with_capacity(CHUNK);
    loop {
        loop {
            match frames.next_frame() {
                Ok(Some(message)) => {
                    if events.send(FrameEvent::Message(message)).await.is_err() {
                        return "the agent is leaving".to_owned();
                    }
                }
                Ok(None) => break,
                Err(error) => return error.to_string(),
            }
        }
        match input.read(&mut buffer).await {
            Ok(true) => frames.push(&buffer),
            Ok(false) => return "it has ended".to_owned(),
            Err(error) => return format!("it cannot be read: {error}"),
        }
    }
}
