//! The grace period of ranks that are told to end, in memory shared by agent and guardian. If the
//! agent dies, the guardian gives the ranks the rest of their grace period.

use rlaunch_sys::SharedMemory;
use std::ffi::CStr;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Name that the agent gives its process once it has sent SIGTERM to its ranks.
pub(crate) const ENDING: &CStr = c"rlaunch-ending";
/// Grace period if the shared memory could not be created.
const DEFAULT_GRACE: Duration = Duration::from_secs(2);
/// Length of the memory in bytes: one page.
const LENGTH: usize = 4096;
/// Offset in bytes of the word with the grace period, which is set once ranks run.
const GRACE: usize = 0;
/// Offset in bytes of the word with the time of SIGKILL, which is set once SIGTERM was sent.
const KILL_AT: usize = 8;

/// Grace period of a node's ranks. Each word of the memory holds milliseconds plus one; zero means
/// unset.
#[derive(Clone, Debug)]
pub(crate) struct Grace {
    begin: Instant,
    memory: Option<SharedMemory>,
}

/// Rest of the grace period before SIGKILL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Remaining {
    /// Send SIGTERM and wait this long.
    Term(Duration),
    /// Wait this long; SIGTERM was sent.
    Wait(Duration),
}

impl Grace {
    /// Creates the memory, which this process shares with processes that it forks later.
    pub(crate) fn share() -> Grace {
        let memory = SharedMemory::pair(LENGTH, LENGTH).map(|(memory, _)| memory);
        let memory = memory.and_then(|memory| memory.reserve(0..LENGTH).map(|()| memory));
        Grace { begin: Instant::now(), memory: memory.ok() }
    }

    /// Sets the grace period of ranks that are told to end from now on.
    pub(crate) fn grant(&self, grace: Duration) {
        self.write(GRACE, grace);
    }

    /// Records that SIGTERM was sent, and when SIGKILL follows.
    pub(crate) fn kill_at(&self, at: Instant) {
        self.write(KILL_AT, at.saturating_duration_since(self.begin));
    }

    /// Returns what remains of the grace period at `now`.
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
