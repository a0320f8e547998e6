//! How long the agent waits for a launcher from which nothing comes.
//!
//! The time is counted in beats of this process. It sends none while it or the whole host is suspended, so that time does
//! not count against the launcher.
//!
//! A launcher that sends nothing may be dead with its machine, or may only be stopped or get no CPU, as beside ranks that spin on
//! every processor. If its machine still acknowledges what the agent sends, it gets more time.

use crate::console::errln;
use rlaunch_bootstrap::deadline::SUSPENSION_THRESHOLD;
use rlaunch_bootstrap::protocol::control::BEAT;
use std::time::Duration;

/// Maximum number of late beats in one silence that do not count. Without it, an agent on a host whose timers are always
/// late would wait for ever.
const MAX_LATE_BEATS: u32 = 3;

#[derive(Debug)]
pub(super) struct Silence {
    /// Number of beats since the last message from the launcher.
    beats: u32,
    /// Number of beats that were late, and do not count.
    late_beats: u32,
    /// Time after which a launcher is given up whose machine does not answer.
    node_timeout: Duration,
    /// Time after which any launcher is given up.
    launcher_timeout: Duration,
}

impl Silence {
    pub(super) fn new(node_timeout: Duration, launcher_timeout: Duration) -> Silence {
        Silence { beats: 0, late_beats: 0, node_timeout, launcher_timeout }
    }

    /// Begins anew: something has come from the launcher.
    pub(super) fn end(&mut self) {
        (self.beats, self.late_beats) = (0, 0);
    }

    /// Counts a beat that this process sends `late` after its time. Returns the length of the silence if the launcher has
    /// to be given up. `is_answered` tells whether the launcher's machine answers.
    pub(super) fn beat(
        &mut self,
        late: Duration,
        is_answered: impl FnOnce() -> bool,
    ) -> Option<Duration> {
        // This process has stood still. What has come meanwhile is not read yet.
        if late > SUSPENSION_THRESHOLD && self.late_beats < MAX_LATE_BEATS {
            self.late_beats += 1;
            return None;
        }
        self.beats += 1;
        // The first beat may have been sent right after the launcher's message.
        let length = BEAT * (self.beats - 1);
        if length < self.node_timeout {
            return None;
        }
        if length < self.launcher_timeout && is_answered() {
            if length < self.node_timeout + BEAT {
                errln!(
                    "rlaunch-worker: nothing from the launcher for {} s, but its machine answers; \
                     waiting for {} s",
                    length.as_secs(),
                    self.launcher_timeout.as_secs()
                );
            }
            return None;
        }
        self.end();
        Some(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE_TIMEOUT: Duration = Duration::from_secs(6);
    const LAUNCHER_TIMEOUT: Duration = Duration::from_secs(30);

    fn silence() -> Silence {
        Silence::new(NODE_TIMEOUT, LAUNCHER_TIMEOUT)
    }

    /// Returns the length of a silence with beats in time when the launcher is given up. Its machine answers for the first
    /// `answered`.
    fn given_up_after(silence: &mut Silence, answered: Duration) -> Duration {
        let ends = (0..100).find_map(|beat| {
            let passed = BEAT * beat;
            silence.beat(Duration::ZERO, || passed < answered)
        });
        ends.unwrap()
    }

    #[test]
    fn a_launcher_whose_machine_does_not_answer_is_given_up_in_time() {
        assert_eq!(given_up_after(&mut silence(), Duration::ZERO), NODE_TIMEOUT);
        // Its machine is not asked before.
        assert_eq!(given_up_after(&mut silence(), NODE_TIMEOUT), NODE_TIMEOUT);
        let mut unsure = Silence::new(Duration::from_secs(4), Duration::from_secs(4));
        assert_eq!(given_up_after(&mut unsure, LAUNCHER_TIMEOUT * 2), Duration::from_secs(4));
    }

    #[test]
    fn a_launcher_that_gets_no_cpu_has_more_time() {
        assert_eq!(given_up_after(&mut silence(), LAUNCHER_TIMEOUT * 2), LAUNCHER_TIMEOUT);
        // Its machine is lost meanwhile.
        let length = given_up_after(&mut silence(), Duration::from_secs(15));
        assert_eq!(length, Duration::from_secs(16));
        let mut starved = silence();
        for _ in 0..12 {
            assert_eq!(starved.beat(Duration::ZERO, || true), None);
        }
        starved.end();
        assert_eq!(given_up_after(&mut starved, Duration::ZERO), NODE_TIMEOUT);
    }

    #[test]
    fn time_in_which_the_agent_stood_still_does_not_count() {
        let (mut silence, still) = (silence(), 2 * SUSPENSION_THRESHOLD);
        for _ in 0..3 {
            assert_eq!(silence.beat(Duration::ZERO, || false), None);
        }
        // The next beat would give the launcher up, although its messages may have arrived.
        assert_eq!(silence.beat(still, || false), None);
        assert_eq!(silence.beat(SUSPENSION_THRESHOLD, || false), Some(NODE_TIMEOUT));
        let beats = (1..100).find(|_| silence.beat(still, || false).is_some());
        assert_eq!(beats, Some(MAX_LATE_BEATS + 4), "timers that are always late");
    }
}
