//! Coordination of the threads that wait in one process. One thread sleeps on the links and the
//! others wait for it; a thread that polls in between may receive messages for any of them.

use crate::progress::idle::Idle;
use std::sync::Arc;

/// State of the thread that sleeps on the links.
#[derive(Debug, Default, PartialEq, Eq)]
enum Sleeper {
    #[default]
    None,
    Asleep,
    /// It has been woken but does not hold the engine lock yet.
    Woken,
}

/// State that the holder of the engine lock reads and writes.
#[derive(Debug, Default)]
pub(crate) struct Threads {
    sleeper: Sleeper,
    /// Number of threads that wait for the sleeper.
    pub(crate) waiting_threads: u32,
    /// Something has happened that the sleeper does not know about.
    has_changed: bool,
    /// Wakes the sleeper.
    waker: Option<Arc<dyn Idle>>,
}

impl Threads {
    pub(crate) fn set_waker(&mut self, waker: Arc<dyn Idle>) {
        self.waker = Some(waker);
    }

    /// Tells whether a thread sleeps on the links.
    pub(crate) fn has_sleeper(&self) -> bool {
        self.sleeper != Sleeper::None
    }

    /// Marks the calling thread as the sleeper. It must have polled everything.
    pub(crate) fn begin_sleep(&mut self) {
        self.sleeper = Sleeper::Asleep;
        self.has_changed = false;
    }

    pub(crate) fn end_sleep(&mut self) {
        self.sleeper = Sleeper::None;
    }

    /// Notes that something was received, has failed or waits to be sent.
    #[inline]
    pub(crate) fn note_change(&mut self) {
        self.has_changed = true;
    }

    /// Wakes the sleeper if something has changed. Runs whenever a thread releases the engine lock.
    #[inline]
    pub(crate) fn on_unlock(&mut self) {
        if std::mem::take(&mut self.has_changed) && self.sleeper == Sleeper::Asleep {
            self.sleeper = Sleeper::Woken;
            self.waker.iter().for_each(|waker| waker.wake());
        }
    }
}
