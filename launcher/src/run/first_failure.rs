//! The first rank to fail decides how the job ends; ranks that fail later are only counted.

use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::job::ExitStatus;
use std::time::Instant;

/// How and when a rank ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RankExit {
    pub(crate) rank: Rank,
    pub(crate) pid: u32,
    pub(crate) status: ExitStatus,
    /// Killed while its host was out of memory.
    pub(crate) out_of_memory: bool,
    /// Time of the exit, on the launcher's clock.
    pub(crate) at: Instant,
}

/// The earliest failure, in whatever order exits are reported.
#[derive(Debug, Default)]
pub(crate) struct FirstFailure {
    first: Option<RankExit>,
    others: u32,
    /// When the job began to be ended; later failures are its consequence.
    ended_at: Option<Instant>,
}

impl FirstFailure {
    /// Adds an exit. It counts only if it is a failure and was before the job began to be ended.
    pub(crate) fn observe(&mut self, exit: RankExit) {
        let is_consequence = self.ended_at.is_some_and(|ended_at| exit.at >= ended_at);
        if exit.status.success() || is_consequence {
            return;
        }
        match &mut self.first {
            None => self.first = Some(exit),
            Some(first) => {
                self.others += 1;
                if exit.at < first.at {
                    *first = exit;
                }
            }
        }
    }

    /// Records that the job is ended from `now` on; only the first call counts.
    pub(crate) fn begin_ending(&mut self, now: Instant) {
        self.ended_at.get_or_insert(now);
    }

    /// Returns the first failure and the number of others.
    pub(crate) fn first(&self) -> Option<(RankExit, u32)> {
        self.first.map(|first| (first, self.others))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn exit(rank: u32, code: i32, at: Instant) -> RankExit {
        let status = ExitStatus::Code(code);
        RankExit { rank: Rank(rank), pid: 1, status, out_of_memory: false, at }
    }

    #[test]
    fn the_earliest_counts_and_not_the_first_to_be_heard_of() {
        let t0 = Instant::now();
        let mut failures = FirstFailure::default();
        failures.observe(exit(0, 0, t0));
        failures.observe(exit(1, 3, t0 + Duration::from_millis(20)));
        failures.begin_ending(t0 + Duration::from_millis(30));
        failures.observe(exit(2, 4, t0 + Duration::from_millis(10)));
        failures.observe(exit(3, 5, t0 + Duration::from_millis(40)));
        let (first, others) = failures.first().unwrap();
        assert_eq!((first.rank, others), (Rank(2), 1));
    }
}
