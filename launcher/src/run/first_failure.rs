//! The first rank to fail decides how the job ends; the others are only counted.

use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::job::ExitStatus;
use std::time::Instant;

/// A rank that did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) rank: Rank,
    pub(crate) pid: u32,
    pub(crate) status: ExitStatus,
    /// Killed while its host was out of memory.
    pub(crate) out_of_memory: bool,
    /// When it ended, by the launcher's clock.
    pub(crate) at: Instant,
}

/// Keeps the earliest failure, whatever order the news arrives in.
#[derive(Debug, Default)]
pub(crate) struct FirstFailure {
    first: Option<Failure>,
    others: u32,
    /// From here on ranks end because they were told to.
    ended_at: Option<Instant>,
}

impl FirstFailure {
    /// Takes note of how a rank ended.
    pub(crate) fn observe(&mut self, failure: Failure) {
        let told_to = self.ended_at.is_some_and(|ended_at| failure.at >= ended_at);
        if failure.status.success() || told_to {
            return;
        }
        match &mut self.first {
            None => self.first = Some(failure),
            Some(first) => {
                self.others += 1;
                if failure.at < first.at {
                    *first = failure;
                }
            }
        }
    }

    /// The ranks are told to end now.
    pub(crate) fn ending(&mut self, now: Instant) {
        self.ended_at.get_or_insert(now);
    }

    /// The culprit, and how many failed besides it.
    pub(crate) fn verdict(&self) -> Option<(Failure, u32)> {
        self.first.map(|first| (first, self.others))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn failure(rank: u32, code: i32, at: Instant) -> Failure {
        let status = ExitStatus::Code(code);
        Failure { rank: Rank(rank), pid: 1, status, out_of_memory: false, at }
    }

    #[test]
    fn the_earliest_counts_and_not_the_first_to_be_heard_of() {
        let t0 = Instant::now();
        let mut first = FirstFailure::default();
        first.observe(failure(0, 0, t0));
        first.observe(failure(1, 3, t0 + Duration::from_millis(20)));
        first.ending(t0 + Duration::from_millis(30));
        first.observe(failure(2, 4, t0 + Duration::from_millis(10)));
        first.observe(failure(3, 5, t0 + Duration::from_millis(40)));
        let (culprit, others) = first.verdict().unwrap();
        assert_eq!((culprit.rank, others), (Rank(2), 1));
    }
}
