//! What threads of one rank leave each other to know. One sleeps on the links, and others wait for
//! that one; whoever looks meanwhile may find what is theirs.

use crate::progress::station::Idle;
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
    pub(crate) bystanders: u32,
    /// Something has happened that who waits does not know of.
    is_news: bool,
    /// Wakes the sleeper.
    alarm: Option<Arc<dyn Idle>>,
}

impl Threads {
    pub(crate) fn set_alarm(&mut self, alarm: Arc<dyn Idle>) {
        self.alarm = Some(alarm);
    }

    /// Whether a thread sleeps on the links.
    pub(crate) fn somebody_sleeps(&self) -> bool {
        self.sleeper != Sleeper::None
    }

    /// This thread is about to. It has looked at everything.
    pub(crate) fn falls_asleep(&mut self) {
        self.sleeper = Sleeper::Asleep;
        self.is_news = false;
    }

    pub(crate) fn is_back(&mut self) {
        self.sleeper = Sleeper::None;
    }

    /// Something has come, has failed or is to be sent.
    #[inline]
    pub(crate) fn news(&mut self) {
        self.is_news = true;
    }

    /// A thread releases the engine lock.
    #[inline]
    pub(crate) fn one_leaves(&mut self) {
        if std::mem::take(&mut self.is_news) && self.sleeper == Sleeper::Asleep {
            self.sleeper = Sleeper::Woken;
            self.alarm.iter().for_each(|alarm| alarm.ring());
        }
    }
}
