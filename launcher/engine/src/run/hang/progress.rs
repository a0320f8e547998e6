//! Progress of ranks, from samples of what they use.
//!
//! Times are added up from sample to sample, so that the time for which the job or the launcher was suspended does not
//! count.

use crate::run::live::LiveStatus;
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::protocol::inspection::RankUsage;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Share of a CPU below which a rank is idle. A rank that only waits uses less: a Python process with a timer or a
/// communicator's thread that looks around now and then.
const IDLE_SHARE: f64 = 0.05;

/// Progress of all ranks.
#[derive(Debug)]
pub(super) struct Progress {
    /// Maximum time that one sample adds, against time that was not watched.
    max_step: Duration,
    last_sample: Option<Instant>,
    ranks: BTreeMap<Rank, RankProgress>,
    /// Time since a rank has printed something.
    silent_for: Duration,
    /// Number of outputs at the last sample.
    outputs: u64,
}

#[derive(Debug)]
struct RankProgress {
    cpu_ms: u64,
    idle_for: Duration,
    /// Whether the last sample had the rank.
    is_present: bool,
}

impl Progress {
    /// Makes the progress of a job that is sampled about every `interval`.
    pub(super) fn new(interval: Duration) -> Progress {
        Progress {
            max_step: interval * 2,
            last_sample: None,
            ranks: BTreeMap::new(),
            silent_for: Duration::ZERO,
            outputs: 0,
        }
    }

    /// Adds a sample of all ranks.
    pub(super) fn sample(&mut self, now: Instant, usage: &[RankUsage], status: &LiveStatus) {
        let elapsed = self.last_sample.map_or(Duration::ZERO, |last| now - last);
        let step = elapsed.min(self.max_step);
        self.last_sample = Some(now);
        let outputs = status.outputs();
        let was_silent = outputs == std::mem::replace(&mut self.outputs, outputs);
        self.silent_for = if was_silent { self.silent_for + step } else { Duration::ZERO };
        self.ranks.values_mut().for_each(|rank| rank.is_present = false);
        for rank in usage {
            let cpu_ms = rank.user_ms + rank.system_ms;
            let new = RankProgress { cpu_ms, idle_for: Duration::ZERO, is_present: true };
            let known = self.ranks.entry(rank.rank).or_insert(new);
            known.is_present = true;
            // A child that ends before it is waited for takes its time with it.
            let used = Duration::from_millis(cpu_ms.saturating_sub(known.cpu_ms));
            let is_idle = used.as_secs_f64() < IDLE_SHARE * elapsed.as_secs_f64();
            known.idle_for = if is_idle { known.idle_for + step } else { Duration::ZERO };
            known.cpu_ms = cpu_ms;
        }
        self.ranks.retain(|_, rank| rank.is_present);
    }

    /// Returns the time for which no rank has printed anything.
    pub(super) fn silent_for(&self) -> Duration {
        self.silent_for
    }

    /// Returns the ranks that have used CPU within `time`, and those that have not.
    pub(super) fn split(&self, time: Duration) -> (Vec<Rank>, Vec<Rank>) {
        let ranks = self.ranks.iter();
        let (idle, busy): (Vec<_>, Vec<_>) = ranks.partition(|(_, rank)| rank.idle_for >= time);
        let names = |ranks: Vec<(&Rank, _)>| ranks.into_iter().map(|(rank, _)| *rank).collect();
        (names(busy), names(idle))
    }

    /// Returns the number of outputs at the last sample.
    pub(super) fn outputs(&self) -> u64 {
        self.outputs
    }

    /// Begins to count anew.
    pub(super) fn restart(&mut self) {
        self.silent_for = Duration::ZERO;
        self.ranks.values_mut().for_each(|rank| rank.idle_for = Duration::ZERO);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn usage(rank: u32, cpu_ms: u64) -> RankUsage {
        let (rank, pid, processes, resident, state) = (Rank(rank), 1, 1, 1, 'S');
        let (user_ms, system_ms, waited_ms) = (cpu_ms, 0, None);
        RankUsage { rank, pid, processes, user_ms, system_ms, resident, state, waited_ms }
    }

    #[test]
    fn a_rank_that_uses_cpu_is_busy() {
        let (mut progress, status) = (Progress::new(SECOND), LiveStatus::new());
        let now = Instant::now();
        for step in 0..=5_u32 {
            let ranks = [usage(0, 1000 * u64::from(step)), usage(1, 20 * u64::from(step))];
            progress.sample(now + step * SECOND, &ranks, &status);
        }
        assert_eq!(progress.split(5 * SECOND), (vec![Rank(0)], vec![Rank(1)]));
        assert_eq!(progress.silent_for(), 5 * SECOND);
        status.printed(Rank(1), b"a line\n");
        progress.sample(now + 6 * SECOND, &[usage(0, 5000)], &status);
        assert_eq!(progress.silent_for(), Duration::ZERO);
        assert_eq!(progress.split(SECOND), (vec![], vec![Rank(0)]), "rank 1 has ended");
    }

    #[test]
    fn time_that_was_not_watched_does_not_count() {
        let (mut progress, status) = (Progress::new(SECOND), LiveStatus::new());
        let now = Instant::now();
        progress.sample(now, &[usage(0, 0)], &status);
        progress.sample(now + 1000 * SECOND, &[usage(0, 0)], &status);
        assert_eq!(progress.silent_for(), 2 * SECOND);
        assert_eq!(progress.split(3 * SECOND), (vec![Rank(0)], vec![]));
    }
}
