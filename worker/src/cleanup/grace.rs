//! The grace that ranks have when they are told to end, in memory that agent and guardian share: what is
//! left of it is the guardian's to give when the agent is gone.

use rlaunch_sys::SharedMemory;
use std::ffi::CStr;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Name of the agent's process once it has told its ranks to end.
pub(crate) const ENDING: &CStr = c"rlaunch-ending";
/// How long processes may take to end on TERM where there is no memory to share.
const DEFAULT_GRACE: Duration = Duration::from_secs(2);
/// Length of the memory: a page is the least that there is.
const LENGTH: usize = 4096;
/// Offset of the grace, which is there once ranks run.
const GRACE: usize = 0;
/// Offset of the time of KILL, which is there once TERM was sent.
const KILL_AT: usize = 8;

/// The grace of a node's ranks. Each word holds milliseconds and one more; zero says nothing.
#[derive(Clone, Debug)]
pub(crate) struct Grace {
    begin: Instant,
    memory: Option<SharedMemory>,
}

/// Work left before KILL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Remaining {
    /// TERM, and to wait for so long.
    Term(Duration),
    /// To wait for so long: TERM was sent.
    Wait(Duration),
}

impl Grace {
    /// Makes the memory, which a process that is forked later has as well.
    pub(crate) fn share() -> Grace {
        let memory = SharedMemory::pair(LENGTH, LENGTH).map(|(memory, _)| memory);
        let memory = memory.and_then(|memory| memory.reserve(0..LENGTH).map(|()| memory));
        Grace { begin: Instant::now(), memory: memory.ok() }
    }

    /// Says how long ranks have from now on when they are told to end.
    pub(crate) fn grant(&self, grace: Duration) {
        self.write(GRACE, grace);
    }

    /// Says that the ranks have been told to end, and when KILL follows.
    pub(crate) fn kill_at(&self, at: Instant) {
        self.write(KILL_AT, at.saturating_duration_since(self.begin));
    }

    /// Returns the rest of the grace at `now`.
    pub(crate) fn remaining(&self, now: Instant) -> Remaining {
        if self.memory.is_none() {
            return Remaining::Term(DEFAULT_GRACE);
        }
        match (self.read(GRACE), self.read(KILL_AT)) {
            (None, _) => Remaining::Wait(Duration::ZERO),
            (Some(grace), None) => Remaining::Term(grace),
            (_, Some(kill_at)) => {
                Remaining::Wait((self.begin + kill_at).saturating_duration_since(now))
            }
        }
    }

    fn write(&self, offset: usize, time: Duration) {
        if let Some(memory) = &self.memory {
            let time = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
            memory.word(offset).store(time.saturating_add(1), Ordering::Release);
        }
    }

    fn read(&self, offset: usize) -> Option<Duration> {
        let word = self.memory.as_ref()?.word(offset).load(Ordering::Acquire);
        word.checked_sub(1).map(|time| Duration::from_millis(time.min(u32::MAX.into())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(5);

    #[test]
    fn a_guardian_gives_what_the_agent_has_not() {
        let of_guardian = Grace::share();
        let of_agent = of_guardian.clone();
        let now = Instant::now();
        assert_eq!(of_guardian.remaining(now), Remaining::Wait(Duration::ZERO), "no rank runs yet");
        of_agent.grant(GRACE);
        assert_eq!(of_guardian.remaining(now), Remaining::Term(GRACE));
        of_agent.kill_at(now + GRACE);
        let left = of_guardian.remaining(now + GRACE / 2);
        let is_half = |left: Duration| left <= GRACE / 2 && left + GRACE / 100 >= GRACE / 2;
        assert!(matches!(left, Remaining::Wait(left) if is_half(left)), "{left:?}");
        of_agent.kill_at(now);
        assert_eq!(of_guardian.remaining(now + GRACE), Remaining::Wait(Duration::ZERO));
    }

    #[test]
    fn a_guardian_without_knowledge_gives_a_short_one() {
        let grace = Grace { begin: Instant::now(), memory: None };
        grace.grant(GRACE);
        assert_eq!(grace.remaining(Instant::now()), Remaining::Term(DEFAULT_GRACE));
    }
}
