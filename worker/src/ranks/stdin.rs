//! Standard input, from the channel to the ranks that read it: every byte, in order.
//!
//! What the launcher sends is bounded by credit, and credit is given back only for what the last of
//! those ranks has taken into its pipe. So a rank that does not read holds up the sender, fills no
//! memory, and keeps nothing else from the channel.

use crate::network::outbox::Outbox;
use rlaunch_bootstrap::protocol::control::{FromAgent, STDIN_WINDOW, stdin_cost};
use std::sync::Arc;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// The ranks of this node that read standard input.
pub(crate) struct Stdin {
    outbox: Outbox,
    /// By reader; empty once all has been said.
    chunks: Vec<mpsc::UnboundedSender<Arc<Chunk>>>,
    /// Held by each reader: the last to go says so.
    open: Option<Arc<OpenReaders>>,
    readers: JoinSet<()>,
}

impl Stdin {
    pub(crate) fn new(outbox: &Outbox) -> Stdin {
        Stdin { outbox: outbox.clone(), chunks: Vec::new(), open: None, readers: JoinSet::new() }
    }

    /// A rank reads it at the other end of this pipe. `None` when it could not be started.
    pub(crate) fn add(&mut self, pipe: Option<pipe::Sender>) {
        let open = self.open.get_or_insert_with(|| Arc::new(OpenReaders(self.outbox.clone())));
        if let Some(pipe) = pipe {
            let (sender, chunks) = mpsc::unbounded_channel();
            self.chunks.push(sender);
            self.readers.spawn(pass_on(pipe, chunks, open.clone()));
        }
    }

    /// Every reader has been added: lets the launcher begin.
    pub(crate) fn begin(&mut self) {
        if self.open.is_some() && !self.chunks.is_empty() {
            self.outbox.send(&FromAgent::StdinCredit(STDIN_WINDOW));
        }
        self.open = None;
    }

    /// The next chunk, or the end.
    pub(crate) fn push(&mut self, data: Vec<u8>) {
        if data.is_empty() {
            self.chunks.clear();
            return;
        }
        let chunk = Arc::new(Chunk { data, outbox: self.outbox.clone() });
        // To one that reads no more it goes in vain.
        self.chunks.retain(|reader| reader.send(chunk.clone()).is_ok());
    }

    /// The ranks are over: lets go of what none of them has taken.
    pub(crate) async fn shut_down(&mut self) {
        self.chunks.clear();
        self.readers.shutdown().await;
    }
}

/// Bytes that several ranks read. When the last has them, the launcher may send as many.
struct Chunk {
    data: Vec<u8>,
    outbox: Outbox,
}

impl Drop for Chunk {
    fn drop(&mut self) {
        self.outbox.send(&FromAgent::StdinCredit(stdin_cost(self.data.len())));
    }
}

/// Says when nobody holds it any more.
struct OpenReaders(Outbox);

impl Drop for OpenReaders {
    fn drop(&mut self) {
        self.0.send(&FromAgent::StdinClosed);
    }
}

/// Writes until the end, or until the rank reads no more: the rest is not for it.
async fn pass_on(
    mut pipe: pipe::Sender,
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
    use crate::network::outbox::Queue;
    use rlaunch_bootstrap::protocol::control::{FrameReader, MAX_STDIN};
    use std::io::{PipeReader, Read};
    use std::os::fd::OwnedFd;
    use std::time::Duration;

    /// Limit for what must come. It is wide, since a machine may stand still for seconds.
    const BOUND: Duration = Duration::from_secs(60);

    /// A reader's end, and the agent's.
    fn pipe() -> (PipeReader, pipe::Sender) {
        let (reader, writer) = std::io::pipe().unwrap();
        (reader, pipe::Sender::from_owned_fd(OwnedFd::from(writer)).unwrap())
    }

    async fn said(queue: &mut Queue) -> FromAgent {
        let frame = tokio::time::timeout(BOUND, queue.next_control()).await.unwrap().unwrap();
        let mut reader = FrameReader::default();
        reader.push(&frame);
        reader.next_frame().unwrap().unwrap()
    }

    #[tokio::test]
    async fn credit_comes_back_when_the_slowest_has_taken_it() {
        let (outbox, mut queue) = Outbox::new();
        let mut stdin = Stdin::new(&outbox);
        let ((mut quick, quick_end), (mut slow, slow_end)) = (pipe(), pipe());
        stdin.add(Some(quick_end));
        stdin.add(Some(slow_end));
        stdin.begin();
        assert_eq!(said(&mut queue).await, FromAgent::StdinCredit(STDIN_WINDOW));
        // More than a pipe holds, so that the second chunk waits for the slow one.
        let chunk = vec![b'x'; 48 << 10];
        let reader = std::thread::spawn(move || {
            let mut all = Vec::new();
            quick.read_to_end(&mut all).map(|_| all)
        });
        stdin.push(chunk.clone());
        stdin.push(chunk.clone());
        let length = u32::try_from(chunk.len()).unwrap();
        assert_eq!(said(&mut queue).await, FromAgent::StdinCredit(length));
        let early = tokio::time::timeout(Duration::from_millis(50), queue.next_control()).await;
        assert!(early.is_err(), "credit for what nobody has taken");
        let slow = std::thread::spawn(move || {
            let mut all = Vec::new();
            slow.read_to_end(&mut all).map(|_| all)
        });
        assert_eq!(said(&mut queue).await, FromAgent::StdinCredit(length));
        stdin.push(Vec::new());
        assert_eq!(said(&mut queue).await, FromAgent::StdinClosed);
        let expected = chunk.repeat(2);
        assert!(reader.join().unwrap().unwrap() == expected);
        assert!(slow.join().unwrap().unwrap() == expected);
    }

    #[tokio::test]
    async fn who_reads_no_more_holds_up_nobody() {
        let (outbox, mut queue) = Outbox::new();
        let mut stdin = Stdin::new(&outbox);
        let (reader, end) = pipe();
        stdin.add(Some(end));
        stdin.begin();
        drop(reader);
        let chunk = vec![b'x'; MAX_STDIN];
        stdin.push(chunk.clone());
        let first = said(&mut queue).await;
        assert_eq!(first, FromAgent::StdinCredit(STDIN_WINDOW));
        let length = u32::try_from(chunk.len()).unwrap();
        let mut rest = [said(&mut queue).await, said(&mut queue).await];
        rest.sort_by_key(|frame| *frame == FromAgent::StdinClosed);
        assert_eq!(rest, [FromAgent::StdinCredit(length), FromAgent::StdinClosed]);
        stdin.push(chunk);
        assert_eq!(said(&mut queue).await, FromAgent::StdinCredit(length));
    }

    #[tokio::test]
    async fn small_parts_count_for_more_than_they_are() {
        let (outbox, mut queue) = Outbox::new();
        let mut stdin = Stdin::new(&outbox);
        let (_reader, end) = pipe();
        stdin.add(Some(end));
        stdin.begin();
        assert_eq!(said(&mut queue).await, FromAgent::StdinCredit(STDIN_WINDOW));
        stdin.push(b"x".to_vec());
        assert_eq!(said(&mut queue).await, FromAgent::StdinCredit(1 << 10));
    }

    #[tokio::test]
    async fn a_rank_that_did_not_start_reads_nothing() {
        let (outbox, mut queue) = Outbox::new();
        let mut stdin = Stdin::new(&outbox);
        stdin.add(None);
        stdin.begin();
        assert_eq!(said(&mut queue).await, FromAgent::StdinClosed);
    }
}
