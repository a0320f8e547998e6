//! The way to an agent: frames in order, those that let all others go first, and the credit that its
//! output has.

use bytes::Bytes;
use rlaunch_bootstrap::protocol::control::{self, FrameError, ToAgent};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, watch};

/// Bytes of small commands that one agent may leave unread.
pub(crate) const UNREAD: usize = 32 << 20;

/// Part of what may wait, unhandled or unread, given back when it is dropped.
pub(crate) type Reserved = OwnedSemaphorePermit;

/// Frame with what it takes until it is written.
pub(crate) type Queued = (Bytes, Option<Reserved>);

/// The way to one agent; clones share it. What is told to an agent that is gone goes nowhere: its
/// loss has been reported as an event.
#[derive(Clone)]
pub(crate) struct Outbox {
    first: mpsc::UnboundedSender<Queued>,
    last: mpsc::UnboundedSender<Bytes>,
    credit: Credit,
    unread: Arc<UnreadCommands>,
    at_once: watch::Sender<bool>,
}

/// The end of an [`Outbox`] that writes to the agent.
pub(crate) struct OutboxReceiver {
    /// In this order, and before all else.
    pub(crate) first: mpsc::UnboundedReceiver<Queued>,
    /// When nothing else is to be said.
    pub(crate) last: mpsc::UnboundedReceiver<Bytes>,
    pub(crate) credit: Credit,
    pub(crate) unread: Arc<UnreadCommands>,
    /// Whether the ranks are to end now: an agent that is lost cannot be told.
    pub(crate) at_once: watch::Receiver<bool>,
}

/// Room for small commands that an agent has not read.
pub(crate) struct UnreadCommands {
    pub(crate) room: Arc<Semaphore>,
    /// Told when there is none.
    pub(crate) is_full: Notify,
}

/// Bytes of output that an agent may send now; clones share the number.
#[derive(Clone, Debug, Default)]
pub(crate) struct Credit(Arc<AtomicU64>);

impl Credit {
    fn grant(&self, bytes: u32) {
        self.0.fetch_add(bytes.into(), Ordering::Relaxed);
    }

    /// Whether that much had been granted; what is too much is not taken.
    pub(crate) fn take(&self, bytes: usize) -> bool {
        let taken = |left: u64| left.checked_sub(bytes as u64);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken).is_ok()
    }
}

impl Outbox {
    pub(crate) fn new() -> (Outbox, OutboxReceiver) {
        let (first, first_orders) = mpsc::unbounded_channel();
        let (last, last_orders) = mpsc::unbounded_channel();
        let credit = Credit::default();
        let (at_once, told) = watch::channel(false);
        let room = Arc::new(Semaphore::new(UNREAD));
        let unread = Arc::new(UnreadCommands { room, is_full: Notify::new() });
        let orders = OutboxReceiver {
            first: first_orders,
            last: last_orders,
            credit: credit.clone(),
            unread: unread.clone(),
            at_once: told,
        };
        (Outbox { first, last, credit, unread, at_once }, orders)
    }

    /// Lets the agent send this much output from the start, as its job says.
    pub(crate) fn open_window(&self, bytes: u32) {
        self.credit.grant(bytes);
    }

    /// Lets the agent send this much more output. It is counted before the agent can hear of it.
    pub(crate) fn grant(&self, bytes: u32) {
        self.credit.grant(bytes);
        self.tell(&ToAgent::Credit(bytes));
    }

    /// Sends a small command. An agent that leaves too many of them unread is given up.
    pub(crate) fn tell(&self, message: &ToAgent) {
        if let ToAgent::End { now: true } = message {
            self.at_once.send_replace(true);
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

    /// Passes on what another agent has said, which counts as not handled until it is written.
    pub(crate) fn pass_on(&self, message: &ToAgent, said: Option<Reserved>) {
        match control::encode(message) {
            Ok(frame) => self.queue(frame.into(), said),
            Err(error) => tracing::error!("{error}"),
        }
    }

    /// Sends something whose size the user decides.
    pub(crate) fn try_tell(&self, message: &ToAgent) -> Result<(), FrameError> {
        self.send_frame(control::encode(message)?.into());
        Ok(())
    }

    /// Sends a frame that was encoded once for many nodes.
    pub(crate) fn send_frame(&self, frame: Bytes) {
        self.queue(frame, None);
    }

    fn queue(&self, frame: Bytes, room: Option<Reserved>) {
        let _ = self.first.send((frame, room));
    }

    /// Queues a low-priority frame.
    pub(crate) fn send_last(&self, frame: Bytes) {
        let _ = self.last.send(frame);
    }
}
