//! Standard input, from the channel to the ranks that read it.
//!
//! The launcher sends as much as it has credit for. The credit is returned when the slowest reader
//! has the data in its pipe. A rank that does not read therefore stops the launcher from sending
//! input, but fills no memory and blocks no other messages on the channel.

use crate::network::frames::FrameSender;
use crate::ranks::stream_ends::InputEnd;
use rlaunch_bootstrap::protocol::control::{FromAgent, STDIN_WINDOW, stdin_cost};
use std::sync::Arc;
use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Ranks of this node that read standard input.
pub(crate) struct Stdin {
    to_launcher: FrameSender,
    /// Queue of each reader. No queue is left after the end of the input.
    queues: Vec<mpsc::UnboundedSender<Arc<Chunk>>>,
    /// Shared by all readers. Dropping the last clone tells the launcher to send no more input.
    open: Option<Arc<OpenReaders>>,
    readers: JoinSet<()>,
}

impl Stdin {
    pub(crate) fn new(to_launcher: &FrameSender) -> Stdin {
        Stdin {
            to_launcher: to_launcher.clone(),
            queues: Vec::new(),
            open: None,
            readers: JoinSet::new(),
        }
    }

    /// Adds a rank that reads from this pipe, or `None` if the rank could not be started.
    pub(crate) fn add(&mut self, pipe: Option<InputEnd>) {
        let open = self.open.get_or_insert_with(|| Arc::new(OpenReaders(self.to_launcher.clone())));
        if let Some(pipe) = pipe {
            let (queue, chunks) = mpsc::unbounded_channel();
            self.queues.push(queue);
            self.readers.spawn(write_chunks(pipe, chunks, open.clone()));
        }
    }

    /// Grants the launcher its first credit. Must be called after every reader was added.
    pub(crate) fn grant_first_credit(&mut self) {
        if self.open.is_some() && !self.queues.is_empty() {
            self.to_launcher.send(&FromAgent::StdinCredit(STDIN_WINDOW));
        }
        // If no reader has started, this was the last clone.
        self.open = None;
    }

    /// Queues the next chunk; an empty one ends the input.
    pub(crate) fn push(&mut self, data: Vec<u8>) {
        if data.is_empty() {
            self.queues.clear();
            return;
        }
        let chunk = Arc::new(Chunk { data, to_launcher: self.to_launcher.clone() });
        // Sending fails for a rank that has stopped reading.
        self.queues.retain(|queue| queue.send(chunk.clone()).is_ok());
    }

    /// Drops the input that no rank has read. Called when the ranks have ended.
    pub(crate) async fn shut_down(&mut self) {
        self.queues.clear();
        self.readers.shutdown().await;
    }
}

/// Input for all readers. Dropping the last clone returns its credit to the launcher.
struct Chunk {
    data: Vec<u8>,
    to_launcher: FrameSender,
}

impl Drop for Chunk {
    fn drop(&mut self) {
        self.to_launcher.send(&FromAgent::StdinCredit(stdin_cost(self.data.len())));
    }
}

/// Existence of at least one reader. Dropping this value tells the launcher that no rank reads any
/// more.
struct OpenReaders(FrameSender);

impl Drop for OpenReaders {
    fn drop(&mut self) {
        self.0.send(&FromAgent::StdinClosed);
    }
}

/// Writes the input to one rank's pipe until the input ends or the rank stops reading.
async fn write_chunks(
    mut pipe: InputEnd,
    mut chunks: mpsc::UnboundedReceiver<Arc<Chunk>>,
    _open: Arc<OpenReaders>,
) {
    while let Some(chunk) = chunks.recv().await {
        if pipe.write_all(&chunk.data).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::frames::Queue;
    use rlaunch_bootstrap::protocol::control::{FrameReader, MAX_STDIN};
    use std::io::{PipeReader, Read};
    use std::time::Duration;

    /// Time limit for events that must happen. It is long, because a test machine may be suspended
    /// for seconds.
    const BOUND: Duration = Duration::from_secs(60);

    /// Returns the reading end of a pipe, and the agent's end.
    fn pipe() -> (PipeReader, InputEnd) {
        let (reader, writer) = std::io::pipe().unwrap();
        (reader, InputEnd::new(writer).unwrap())
    }

    async fn next_frame(queue: &mut Queue) -> FromAgent {
        let frame = tokio::time::timeout(BOUND, queue.next_control()).await.unwrap().unwrap();
        let mut reader = FrameReader::default();
        reader.push(&frame);
        reader.next_frame().unwrap().unwrap()
    }

    #[tokio::test]
    async fn credit_comes_back_when_the_slowest_has_taken_it() {
        let (to_launcher, mut queue) = FrameSender::new();
        let mut stdin = Stdin::new(&to_launcher);
        let ((mut quick, quick_end), (mut slow, slow_end)) = (pipe(), pipe());
        stdin.add(Some(quick_end));
        stdin.add(Some(slow_end));
        stdin.grant_first_credit();
        assert_eq!(next_frame(&mut queue).await, FromAgent::StdinCredit(STDIN_WINDOW));
        // More than half of a pipe's capacity, so that the second chunk waits for the slow reader.
        let chunk = vec![b'x'; 48 << 10];
        let reader = std::thread::spawn(move || {
            let mut all = Vec::new();
            quick.read_to_end(&mut all).map(|_| all)
        });
        stdin.push(chunk.clone());
        stdin.push(chunk.clone());
        let length = u32::try_from(chunk.len()).unwrap();
        assert_eq!(next_frame(&mut queue).await, FromAgent::StdinCredit(length));
        let early = tokio::time::timeout(Duration::from_millis(50), queue.next_control()).await;
        assert!(early.is_err(), "credit was returned for data that no rank has taken");
        let slow = std::thread::spawn(move || {
            let mut all = Vec::new();
            slow.read_to_end(&mut all).map(|_| all)
        });
        assert_eq!(next_frame(&mut queue).await, FromAgent::StdinCredit(length));
        stdin.push(Vec::new());
        assert_eq!(next_frame(&mut queue).await, FromAgent::StdinClosed);
        let expected = chunk.repeat(2);
        assert!(reader.join().unwrap().unwrap() == expected);
        assert!(slow.join().unwrap().unwrap() == expected);
    }

    #[tokio::test]
    async fn who_reads_no_more_holds_up_nobody() {
        let (to_launcher, mut queue) = FrameSender::new();
        let mut stdin = Stdin::new(&to_launcher);
        let (reader, end) = pipe();
        stdin.add(Some(end));
        stdin.grant_first_credit();
        drop(reader);
        let chunk = vec![b'x'; MAX_STDIN];
        stdin.push(chunk.clone());
        let first = next_frame(&mut queue).await;
        assert_eq!(first, FromAgent::StdinCredit(STDIN_WINDOW));
        let length = u32::try_from(chunk.len()).unwrap();
        let mut rest = [next_frame(&mut queue).await, next_frame(&mut queue).await];
        rest.sort_by_key(|frame| *frame == FromAgent::StdinClosed);
        assert_eq!(rest, [FromAgent::StdinCredit(length), FromAgent::StdinClosed]);
        stdin.push(chunk);
        assert_eq!(next_frame(&mut queue).await, FromAgent::StdinCredit(length));
    }

    #[tokio::test]
    async fn small_parts_count_for_more_than_they_are() {
        let (to_launcher, mut queue) = FrameSender::new();
        let mut stdin = Stdin::new(&to_launcher);
        let (_reader, end) = pipe();
        stdin.add(Some(end));
        stdin.grant_first_credit();
        assert_eq!(next_frame(&mut queue).await, FromAgent::StdinCredit(STDIN_WINDOW));
        stdin.push(b"x".to_vec());
        assert_eq!(next_frame(&mut queue).await, FromAgent::StdinCredit(1 << 10));
    }

    #[tokio::test]
    async fn a_rank_that_did_not_start_reads_nothing() {
        let (to_launcher, mut queue) = FrameSender::new();
        let mut stdin = Stdin::new(&to_launcher);
        stdin.add(None);
        stdin.grant_first_credit();
        assert_eq!(next_frame(&mut queue).await, FromAgent::StdinClosed);
    }
}
