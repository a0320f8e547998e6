//! Coordination of the threads that wait in one process. One thread, the sleeping thread, sleeps
//! until a link has something to receive; the others wait for the sleeping thread. Any thread that
//! polls meanwhile may receive the messages for which other threads wait.

use crate::progress::idle::Idle;
use std::sync::Arc;

/// State of the thread that sleeps until a link has something to receive.
#[derive(Debug, Default, PartialEq, Eq)]
enum Sleeper {
    #[default]
    None,
    Asleep,
    /// The thread has been woken, but does not hold the engine lock yet.
    Woken,
}

/// State of the waiting threads, protected by the engine lock.
#[derive(Debug, Default)]
pub(crate) struct Threads {
    sleeper: Sleeper,
    /// Number of threads that wait until the sleep of the sleeping thread ends.
    pub(crate) waiting_threads: u32,
    /// Whether something has happened that the sleeping thread may not know about.
    has_changed: bool,
    /// Object whose [`Idle::wake`] ends the sleep of the sleeping thread.
    waker: Option<Arc<dyn Idle>>,
}

impl Threads {
    pub(crate) fn set_waker(&mut self, waker: Arc<dyn Idle>) {
        self.waker = Some(waker);
    }

    /// Tells whether there is a sleeping thread. A thread that has been woken counts as sleeping
    /// until it holds the engine lock.
    pub(crate) fn has_sleeper(&self) -> bool {
        self.sleeper != Sleeper::None
    }

    /// Marks the calling thread as sleeping until a link has something to receive. The thread must
    /// have polled all links.
    pub(crate) fn begin_sleep(&mut self) {
        self.sleeper = Sleeper::Asleep;
        self.has_changed = false;
    }

    pub(crate) fn end_sleep(&mut self) {
        self.sleeper = Sleeper::None;
    }

    /// Records that something was received, has failed or waits to be sent, so that
    /// [`Threads::on_unlock`] wakes the sleeping thread.
    #[inline]
    pub(crate) fn note_change(&mut self) {
        self.has_changed = true;
    }

    /// Wakes the sleeping thread if something has changed. Runs whenever a thread releases the
    /// engine lock.
    #[inline]
    pub(crate) fn on_unlock(&mut self) {
        if std::mem::take(&mut self.has_changed) && self.sleeper == Sleeper::Asleep {
            self.sleeper = Sleeper::Woken;
            if let Some(waker) = &self.waker {
                waker.wake();
            }
        }
    }
}
