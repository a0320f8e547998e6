//! What threads of one rank leave each other to know. One sleeps on the links, and others wait for
//! that one; whoever looks meanwhile may find what is theirs.

use crate::progress::idle::Idle;
use std::sync::Arc;

/// The thread that sleeps on the links.
#[derive(Debug, Default, PartialEq, Eq)]
enum Sleeper {
    #[default]
    None,
    Asleep,
    /// It has been woken, and is not back.
    Woken,
}

/// Read and written under the engine lock.
#[derive(Debug, Default)]
pub(crate) struct Threads {
    sleeper: Sleeper,
    /// So many wait for the sleeper.
    pub(crate) waiting_threads: u32,
    /// Something has happened that who waits does not know of.
    has_changed: bool,
    /// Wakes the sleeper.
    waker: Option<Arc<dyn Idle>>,
}

impl Threads {
    pub(crate) fn set_waker(&mut self, waker: Arc<dyn Idle>) {
        self.waker = Some(waker);
    }

    /// Whether a thread sleeps on the links.
    pub(crate) fn has_sleeper(&self) -> bool {
        self.sleeper != Sleeper::None
    }

    /// This thread is about to. It has looked at everything.
    pub(crate) fn begin_sleep(&mut self) {
        self.sleeper = Sleeper::Asleep;
        self.has_changed = false;
    }

    pub(crate) fn end_sleep(&mut self) {
        self.sleeper = Sleeper::None;
    }

    /// Something has come, has failed or is to be sent.
    #[inline]
    pub(crate) fn note_change(&mut self) {
        self.has_changed = true;
    }

    /// A thread releases the engine lock.
    #[inline]
    pub(crate) fn on_unlock(&mut self) {
        if std::mem::take(&mut self.has_changed) && self.sleeper == Sleeper::Asleep {
            self.sleeper = Sleeper::Woken;
            self.waker.iter().for_each(|waker| waker.wake());
        }
    }
}
