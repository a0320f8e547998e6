//! What an agent is to be told: frames in order, those that let all others go first, and the credit that
//! its output has.

use bytes::Bytes;
use rlaunch_bootstrap::wire::{self, ToAgent, WireError};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::mpsc;

/// The way to one agent; clones share it. What is told to an agent that is gone goes nowhere: its
/// loss has been reported as an event.
#[derive(Clone)]
pub(crate) struct Outbox {
    first: mpsc::UnboundedSender<Bytes>,
    last: mpsc::UnboundedSender<Bytes>,
    credit: Credit,
}

/// What an agent is to be told.
pub(crate) struct OutboxReceiver {
    /// In this order, and before all else.
    pub(crate) first: mpsc::UnboundedReceiver<Bytes>,
    /// When nothing else is to be said.
    pub(crate) last: mpsc::UnboundedReceiver<Bytes>,
    pub(crate) credit: Credit,
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
        let orders =
            OutboxReceiver { first: first_orders, last: last_orders, credit: credit.clone() };
        (Outbox { first, last, credit }, orders)
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

    /// Sends a small command.
    pub(crate) fn tell(&self, message: &ToAgent) {
        match wire::encode(message) {
            Ok(frame) => self.send_frame(frame.into()),
            Err(error) => tracing::error!("{error}"),
        }
    }

    /// Sends something whose size the user decides.
    pub(crate) fn try_tell(&self, message: &ToAgent) -> Result<(), WireError> {
        self.send_frame(wire::encode(message)?.into());
        Ok(())
    }

    /// Sends a frame that was encoded once for many nodes.
    pub(crate) fn send_frame(&self, frame: Bytes) {
        let _ = self.first.send(frame);
    }

    /// The same for one that lets everything else go first.
    pub(crate) fn send_last(&self, frame: Bytes) {
        let _ = self.last.send(frame);
    }
}
