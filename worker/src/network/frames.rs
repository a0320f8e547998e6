//! Frames out of a byte stream, until it ends.

use rlaunch_bootstrap::protocol::control::FrameReader;
use serde::de::DeserializeOwned;
use std::io;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::sync::mpsc;

/// How much is read at once, in bytes.
const CHUNK: usize = 64 << 10;

/// What arrives.
#[derive(Debug)]
pub(crate) enum FrameEvent<T> {
    Message(T),
    /// The stream ended, and how it was noticed.
    Closed(String),
}

/// Where bytes come from.
pub(crate) trait ByteSource: Send + 'static {
    /// Replaces what is in `into` by the next bytes; `false` at the end.
    fn read(&mut self, into: &mut Vec<u8>) -> impl Future<Output = io::Result<bool>> + Send;
}

impl ByteSource for pipe::Receiver {
    async fn read(&mut self, into: &mut Vec<u8>) -> io::Result<bool> {
        into.clear();
        Ok(self.read_buf(into).await? > 0)
    }
}

/// Hands on what arrives, the end last. `first` has been read already.
pub(crate) async fn read_all<T: DeserializeOwned>(
    mut input: impl ByteSource,
    first: Vec<u8>,
    events: mpsc::Sender<FrameEvent<T>>,
) {
    let reason = read_frames(&mut input, first, &events).await;
    // Nobody listens any more once the agent is leaving.
    let _ = events.send(FrameEvent::Closed(reason)).await;
}

/// Reads until the stream ends, and says how it did.
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
                        return "nobody listens".to_owned();
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
