//! The way out of the agent: control frames at once, output as far as the launcher granted credit.

use crate::console::errln;
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::protocol::control::{self, FromAgent, Stream};
use std::io;
use std::sync::Arc;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// Handle to the channel's writing end; clones share it.
#[derive(Clone)]
pub(crate) struct Outbox {
    control: mpsc::UnboundedSender<Vec<u8>>,
    /// Bounded by the credit that every frame in it has taken.
    output: mpsc::UnboundedSender<Vec<u8>>,
    credit: Arc<Semaphore>,
    /// One permit.
    turns: Arc<Semaphore>,
}

/// Whoever has it may send output. A line that is longer than a frame keeps it to its end: the
/// launcher shows no other rank's lines in between, and those would take all the credit while they
/// wait for the rest of this one.
pub(crate) struct WriterTurn {
    /// Never taken where the semaphore is closed, which nobody does.
    _permit: Option<OwnedSemaphorePermit>,
}

impl Outbox {
    /// An outbox and the queue that [`write_all`] empties into the channel.
    pub(crate) fn new() -> (Outbox, Queue) {
        let (control, control_queue) = mpsc::unbounded_channel();
        let (output, output_queue) = mpsc::unbounded_channel();
        let credit = Arc::new(Semaphore::new(0));
        let turns = Arc::new(Semaphore::new(1));
        let queue = Queue { control: control_queue, output: output_queue };
        (Outbox { control, output, credit, turns }, queue)
    }

    /// Sends a control frame ahead of all output.
    pub(crate) fn send(&self, message: &FromAgent) {
        push(&self.control, message);
    }

    /// Sends a frame behind all output that was accepted before.
    pub(crate) fn send_last(&self, message: &FromAgent) {
        push(&self.output, message);
    }

    /// Waits until nobody else of this node is in the middle of a line.
    pub(crate) async fn writer_turn(&self) -> WriterTurn {
        WriterTurn { _permit: self.turns.clone().acquire_owned().await.ok() }
    }

    /// Sends output, waiting for credit; `stamp` is when it was read, in microseconds since 1970.
    /// `false` when nobody reads any more.
    pub(crate) async fn output(
        &self,
        (rank, stream): (Rank, Stream),
        stamp: Option<u64>,
        data: Vec<u8>,
    ) -> bool {
        let size = u32::try_from(data.len()).unwrap_or(u32::MAX);
        let Ok(permit) = self.credit.acquire_many(size).await else {
            return false;
        };
        permit.forget();
        push(&self.output, &FromAgent::Output { rank, stream, stamp, data })
    }

    /// The launcher can take this many more bytes.
    pub(crate) fn grant(&self, bytes: u32) {
        // More than the semaphore can hold is more than any launcher grants.
        let room = Semaphore::MAX_PERMITS - self.credit.available_permits();
        self.credit.add_permits((bytes as usize).min(room));
    }

    /// Nobody reads any more: output is dropped from here on.
    pub(crate) fn discard_output(&self) {
        self.credit.close();
    }
}

/// `false` when the channel is gone.
fn push(queue: &mpsc::UnboundedSender<Vec<u8>>, message: &FromAgent) -> bool {
    match control::encode(message) {
        Ok(frame) => queue.send(frame).is_ok(),
        Err(error) => {
            errln!("rlaunch-worker: {error}");
            true
        }
    }
}

/// What waits to be written.
pub(crate) struct Queue {
    control: mpsc::UnboundedReceiver<Vec<u8>>,
    output: mpsc::UnboundedReceiver<Vec<u8>>,
}

#[cfg(test)]
impl Queue {
    /// The next control frame; `None` when no outbox is left.
    pub(crate) async fn next_control(&mut self) -> Option<Vec<u8>> {
        self.control.recv().await
    }
}

/// Where bytes go.
pub(crate) trait ByteSink: Send + 'static {
    /// Writes all of them.
    fn write(&mut self, bytes: &[u8]) -> impl Future<Output = io::Result<()>> + Send;

    /// Lets the other end know that this is all.
    fn end(&mut self) -> impl Future<Output = io::Result<()>> + Send;
}

impl ByteSink for pipe::Sender {
    async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_all(bytes).await
    }

    /// It ends when it is closed.
    async fn end(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes until every [`Outbox`] is gone and the queue is empty, or the channel breaks.
pub(crate) async fn write_all(mut queue: Queue, mut channel: impl ByteSink) -> io::Result<()> {
    loop {
        let frame = tokio::select! {
            biased;
            Some(frame) = queue.control.recv() => frame,
            Some(frame) = queue.output.recv() => frame,
            else => return channel.end().await,
        };
        channel.write(&frame).await?;
    }
}
