//! Frames of the control channel, as the agent receives and sends them.
//!
//! [`read_all`] decodes messages from a byte stream.
//!
//! [`FrameSender`] queues messages to the launcher, and [`write_all`] writes them. Control frames
//! are sent immediately, output only as far as the launcher has granted credit.

use crate::console::errln;
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::protocol::control::{self, FrameReader, FromAgent, Stream};
use serde::de::DeserializeOwned;
use std::io;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

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

/// Handle for sending frames to the launcher; clones share one queue.
#[derive(Clone)]
pub(crate) struct FrameSender {
    control: mpsc::UnboundedSender<Vec<u8>>,
    /// Unbounded, because output enters this queue only with credit.
    output: mpsc::UnboundedSender<Vec<u8>>,
    credit: Arc<Semaphore>,
    /// Semaphore with a single permit: the stream that has the permit has its turn
    /// ([`WriterTurn`]).
    turns: Arc<Semaphore>,
    /// Semaphore with a single permit, for streams that begin a line longer than a frame.
    long_lines: Arc<Semaphore>,
}

/// Turn of an output stream, during which no other stream of the node sends output. A stream with a
/// line longer than a frame keeps its turn until the end of the line, as long as that is soon
/// ([`LineTurn`](rlaunch_bootstrap::protocol::line_turn::LineTurn)). Until then the launcher could
/// not print lines of other ranks, and these lines would use up the credit that the rest of the
/// long line needs.
pub(crate) struct WriterTurn {
    /// `None` only if the semaphore was closed, which never happens.
    _permit: Option<OwnedSemaphorePermit>,
    /// Permit of a long line. It is given back last, so that the next long line comes behind all
    /// who wait for the turn.
    _long_line: Option<OwnedSemaphorePermit>,
}

impl FrameSender {
    /// Creates a sender, and the queue that [`write_all`] writes to the channel.
    pub(crate) fn new() -> (FrameSender, Queue) {
        let (control, control_queue) = mpsc::unbounded_channel();
        let (output, output_queue) = mpsc::unbounded_channel();
        let credit = Arc::new(Semaphore::new(0));
        let (turns, long_lines) = (Arc::new(Semaphore::new(1)), Arc::new(Semaphore::new(1)));
        let queue = Queue { control: control_queue, output: output_queue };
        (FrameSender { control, output, credit, turns, long_lines }, queue)
    }

    /// Sends a control frame, ahead of all output.
    pub(crate) fn send(&self, message: &FromAgent) {
        push(&self.control, message);
    }

    /// Sends a frame behind all output that was accepted before.
    pub(crate) fn send_last(&self, message: &FromAgent) {
        push(&self.output, message);
    }

    /// Waits until no other stream of this node has its turn. The stream has the turn until the
    /// returned value is dropped. Streams that begin a long line first wait for each other, so that
    /// a short one waits for one of them at most.
    pub(crate) async fn writer_turn(&self, begins_long_line: bool) -> WriterTurn {
        let long_line = if begins_long_line {
            self.long_lines.clone().acquire_owned().await.ok()
        } else {
            None
        };
        let permit = self.turns.clone().acquire_owned().await.ok();
        WriterTurn { _permit: permit, _long_line: long_line }
    }

    /// Sends output of a rank, waiting for credit. `stamp` is the time at which `data` was read
    /// from the rank, in microseconds since 1970. Returns false once output is discarded.
    pub(crate) async fn output(
        &self,
        rank: Rank,
        stream: Stream,
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

    /// Adds credit: the launcher accepts this many more bytes of output.
    pub(crate) fn grant(&self, bytes: u32) {
        // Credit beyond the semaphore's limit is dropped; no launcher grants that much.
        let room = Semaphore::MAX_PERMITS - self.credit.available_permits();
        self.credit.add_permits((bytes as usize).min(room));
    }

    /// Discards all output from now on, since the launcher reads no more.
    pub(crate) fn discard_output(&self) {
        self.credit.close();
    }
}

/// Queues a message as a frame. Returns false if the channel is closed.
fn push(queue: &mpsc::UnboundedSender<Vec<u8>>, message: &FromAgent) -> bool {
    match control::encode(message) {
        Ok(frame) => queue.send(frame).is_ok(),
        // Only this message is lost.
        Err(error) => {
            errln!("rlaunch-worker: {error}");
            true
        }
    }
}

/// Frames that wait to be written, from all clones of a [`FrameSender`].
pub(crate) struct Queue {
    control: mpsc::UnboundedReceiver<Vec<u8>>,
    output: mpsc::UnboundedReceiver<Vec<u8>>,
}

#[cfg(test)]
impl Queue {
    /// Returns the next control frame, or `None` when no sender is left.
    pub(crate) async fn next_control(&mut self) -> Option<Vec<u8>> {
        self.control.recv().await
    }

    /// Returns the next frame of output, or `None` when no sender is left.
    pub(crate) async fn next_output(&mut self) -> Option<Vec<u8>> {
        self.output.recv().await
    }
}

/// Byte stream that frames are written to: a pipe, or the connection back to the launcher.
pub(crate) trait ByteSink: Send + 'static {
    fn write(&mut self, bytes: &[u8]) -> impl Future<Output = io::Result<()>> + Send;

    /// Ends the stream, so that the reader sees its end.
    fn end(&mut self) -> impl Future<Output = io::Result<()>> + Send;
}

impl ByteSink for pipe::Sender {
    async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_all(bytes).await
    }

    /// Does nothing: a pipe ends when it is closed.
    async fn end(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes frames until every [`FrameSender`] is dropped and the queue is empty, or the channel breaks.
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
