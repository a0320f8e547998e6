//! Frames out of a pipe, until it ends.

use rlaunch_bootstrap::wire::FrameReader;
use serde::de::DeserializeOwned;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::sync::mpsc;

/// What arrives.
#[derive(Debug)]
pub(crate) enum Arrival<T> {
    Message(T),
    /// The pipe ended, and how it was noticed.
    Gone(String),
}

/// Hands on what arrives, the end last.
pub(crate) async fn read_all<T: DeserializeOwned>(
    mut input: pipe::Receiver,
    arrivals: mpsc::Sender<Arrival<T>>,
) {
    let gone = read_frames(&mut input, &arrivals).await;
    // Nobody listens any more once the agent is leaving.
    let _ = arrivals.send(Arrival::Gone(gone)).await;
}

/// Reads until the pipe ends, and says how it did.
async fn read_frames<T: DeserializeOwned>(
    input: &mut pipe::Receiver,
    arrivals: &mpsc::Sender<Arrival<T>>,
) -> String {
    let mut frames = FrameReader::default();
    let mut buffer = vec![0; 64 << 10];
    loop {
        match input.read(&mut buffer).await {
            Ok(0) => return "it has ended".to_owned(),
            Ok(length) => frames.push(&buffer[..length]),
            Err(error) => return format!("it cannot be read: {error}"),
        }
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
    }
}
