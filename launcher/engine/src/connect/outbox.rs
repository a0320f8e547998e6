//! Queue of frames for an agent, with two priorities, and what the agent may send of its ranks' output.
//!
//! Commands have the high priority and stay in order. The number of bytes that the agent has not read is
//! limited, so that an agent that stops reading cannot fill the launcher's memory.

use bytes::Bytes;
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::protocol::control::{self, FrameError, ToAgent};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, watch};

/// Maximum number of bytes of small commands that one agent has not read.
pub(crate) const UNREAD: usize = 32 << 20;

/// Reserved bytes of a bounded buffer, released on drop.
pub(crate) type Reserved = OwnedSemaphorePermit;

/// Encoded frame, with the bytes of a bounded buffer that it occupies until it is written to the agent.
pub(crate) type Queued = (Bytes, Option<Reserved>);

/// Sending end of an agent's queue; clones share the queue. Frames for a lost agent are dropped without an
/// error, since the loss of the agent is reported separately.
#[derive(Clone)]
pub struct Outbox {
    high_priority: mpsc::UnboundedSender<Queued>,
    low_priority: mpsc::UnboundedSender<Bytes>,
    credit: Credit,
    unread: Arc<UnreadCommands>,
    kill_now: watch::Sender<bool>,
}

/// Receiving end of an [`Outbox`], held by the task that writes to the agent.
pub struct OutboxReceiver {
    /// Frames of high priority, in the order in which they are written.
    pub(crate) high_priority: mpsc::UnboundedReceiver<Queued>,
    /// Frames of low priority, written only while `high_priority` is empty.
    pub(crate) low_priority: mpsc::UnboundedReceiver<Bytes>,
    pub(crate) credit: Credit,
    pub unread: Arc<UnreadCommands>,
    /// Becomes true when the ranks are to be killed without grace. A lost agent cannot receive this order
    /// as a frame, so the cleanup on its host reads the order here.
    pub(crate) kill_now: watch::Receiver<bool>,
}

/// Free space for small commands that an agent has not read.
pub struct UnreadCommands {
    pub room: Arc<Semaphore>,
    /// Notified when a command does not fit; the agent counts as lost then.
    pub(crate) is_full: Notify,
}

/// Number of bytes of output that an agent may send, and the ranks that it may speak for; clones share both.
#[derive(Clone, Debug, Default)]
pub(crate) struct Credit(Arc<Allowance>);

#[derive(Debug, Default)]
struct Allowance {
    bytes: AtomicU64,
    /// Ranks of the node, sorted; unset until the agent gets its part of the job.
    ranks: OnceLock<Vec<Rank>>,
}

impl Credit {
    fn grant(&self, bytes: u32) {
        self.0.bytes.fetch_add(bytes.into(), Ordering::Relaxed);
    }

    /// Tells whether the agent runs this rank.
    pub(crate) fn covers(&self, rank: Rank) -> bool {
        self.0.ranks.get().is_some_and(|ranks| ranks.binary_search(&rank).is_ok())
    }

    /// Subtracts `bytes` from the credit. Returns false and changes nothing if less credit is left.
    pub(crate) fn take(&self, bytes: usize) -> bool {
        let taken = |left: u64| left.checked_sub(bytes as u64);
        self.0.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken).is_ok()
    }
}

impl Outbox {
    pub fn new() -> (Outbox, OutboxReceiver) {
        let (high_priority, high_receiver) = mpsc::unbounded_channel();
        let (low_priority, low_receiver) = mpsc::unbounded_channel();
        let credit = Credit::default();
        let (kill_now, kill_now_receiver) = watch::channel(false);
        let room = Arc::new(Semaphore::new(UNREAD));
        let unread = Arc::new(UnreadCommands { room, is_full: Notify::new() });
        let receiver = OutboxReceiver {
            high_priority: high_receiver,
            low_priority: low_receiver,
            credit: credit.clone(),
            unread: unread.clone(),
            kill_now: kill_now_receiver,
        };
        (Outbox { high_priority, low_priority, credit, unread, kill_now }, receiver)
    }

    /// Adds the initial credit, for these ranks. The agent knows both from the description of the job, so no frame is
    /// sent.
    pub(crate) fn open_window(&self, ranks: &[Rank], bytes: u32) {
        let mut ranks = ranks.to_vec();
        ranks.sort_unstable();
        // An error would mean a second call, which a job does not make.
        let _ = self.credit.0.ranks.set(ranks);
        self.credit.grant(bytes);
    }

    /// Permits the agent to send `bytes` more of output. The credit is added here before the frame is
    /// queued, so that the agent's output cannot arrive before its credit is counted.
    pub(crate) fn grant(&self, bytes: u32) {
        self.credit.grant(bytes);
        self.queue_command(&ToAgent::Credit(bytes));
    }

    /// Queues a small command. If more than [`UNREAD`] bytes would then be unread, the command is dropped
    /// and the agent counts as lost.
    pub(crate) fn queue_command(&self, message: &ToAgent) {
        if let ToAgent::End { now: true } = message {
            self.kill_now.send_replace(true);
        }
        let frame = match control::encode(message) {
            Ok(frame) => frame,
            Err(error) => return tracing::error!("{error}"),
        };
        let cost = frame.len() + size_of::<Queued>();
        let cost = u32::try_from(cost).unwrap_or(u32::MAX);
        match self.unread.room.clone().try_acquire_many_owned(cost) {
            Ok(room) => self.queue(frame.into(), Some(room)),
            Err(_) => self.unread.is_full.notify_one(),
        }
    }

    /// Queues a message from another agent. `reserved` is the space that the message occupies in the buffer
    /// for that agent's messages; it is released once the message is written.
    pub fn forward(&self, message: &ToAgent, reserved: Option<Reserved>) {
        match control::encode(message) {
            Ok(frame) => self.queue(frame.into(), reserved),
            Err(error) => tracing::error!("{error}"),
        }
    }

    /// Queues a message whose size depends on the user's input.
    ///
    /// # Errors
    ///
    /// Returns an error if the encoded message is longer than a frame may be.
    pub(crate) fn try_queue_message(&self, message: &ToAgent) -> Result<(), FrameError> {
        self.send_frame(control::encode(message)?.into());
        Ok(())
    }

    /// Queues a frame that was encoded once for several nodes.
    pub(crate) fn send_frame(&self, frame: Bytes) {
        self.queue(frame, None);
    }

    fn queue(&self, frame: Bytes, room: Option<Reserved>) {
        let _ = self.high_priority.send((frame, room));
    }

    /// Queues a frame that is written only while no frame of high priority waits.
    pub(crate) fn send_low_priority(&self, frame: Bytes) {
        let _ = self.low_priority.send(frame);
    }
}
