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
pub(crate) enum Arrival<T> {
    Message(T),
    /// The stream ended, and how it was noticed.
    Gone(String),
}

/// Where bytes come from.
pub(crate) trait Source: Send + 'static {
    /// Replaces what is in `into` by the next bytes; `false` at the end.
    fn read(&mut self, into: &mut Vec<u8>) -> impl Future<Output = io::Result<bool>> + Send;
}

impl Source for pipe::Receiver {
    async fn read(&mut self, into: &mut Vec<u8>) -> io::Result<bool> {
        into.clear();
        Ok(self.read_buf(into).await? > 0)
    }
}

/// Hands on what arrives, the end last. `first` has been read already.
pub(crate) async fn read_all<T: DeserializeOwned>(
    mut input: impl Source,
    first: Vec<u8>,
    arrivals: mpsc::Sender<Arrival<T>>,
) {
    let gone = read_frames(&mut input, first, &arrivals).await;
    // Nobody listens any more once the agent is leaving.
    let _ = arrivals.send(Arrival::Gone(gone)).await;
}

/// Reads until the stream ends, and says how it did.
async fn read_frames<T: DeserializeOwned>(
    input: &mut impl Source,
    first: Vec<u8>,
    arrivals: &mpsc::Sender<Arrival<T>>,
) -> String {
    let mut frames = FrameReader::default();
    frames.push(&first);
    let mut buffer = Vec::with_capacity(CHUNK);
    loop {
        loop {
            match frames.next_frame() {
                Ok(Some(message)) => {
                    if arrivals.send(Arrival::Message(message)).await.is_err() {
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
