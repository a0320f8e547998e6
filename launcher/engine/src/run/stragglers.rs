//! Stragglers (`--straggler-report`): ranks for which the others wait again and again. A state machine without I/O and
//! without a clock asks agents, and compares ranks over the time that the user chose.
//!
//! Two things tell stragglers apart. In a program that uses rlaunch's communicator, a straggler waits less than the others
//! do. In one that prints its speed on each rank, a straggler is slower.

use crate::run::live::{LiveStatus, PrintedSpeed};
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::protocol::inspection::{InspectionResult, RankUsage};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Number of parts of a window. Ranks are stragglers if they are in each part: one slow step, such as the writing of a
/// checkpoint, is in one of them.
const PARTS: u32 = 3;
/// Least difference between the shares of time that stragglers and other ranks wait.
const LEAST_WAIT_GAP: f64 = 0.2;
/// Least part by which stragglers are slower than the others.
const LEAST_SPEED_GAP: f64 = 0.2;

/// Ranks that are slower than the others.
#[derive(Debug, PartialEq)]
pub(crate) struct Stragglers {
    /// In ascending order.
    pub ranks: Vec<Rank>,
    /// Comparison with the others: `410 images/s there, 812 elsewhere`.
    pub comparison: String,
}

/// Search for the stragglers of a running job.
#[derive(Debug)]
pub(crate) struct StragglerWatch {
    status: LiveStatus,
    /// Duration of a part of the window.
    part: Duration,
    /// Time of the next question; `None` while one waits for answers.
    due: Option<Instant>,
    answers: Vec<RankUsage>,
    last: Option<WaitSample>,
    /// Findings of the last parts, oldest first: by waiting, and by speeds.
    parts: Vec<[Option<Outliers>; 2]>,
    /// Ranks that were reported.
    named: BTreeSet<Rank>,
    /// Whether two ranks could be compared in any part.
    has_compared: bool,
}

/// State of the ranks at one time.
#[derive(Debug)]
struct WaitSample {
    at: Instant,
    /// Process ids and times of waiting, in milliseconds, of the ranks that use the communicator.
    waited: BTreeMap<Rank, (u32, u64)>,
}

/// Outliers in one part of a window.
#[derive(Debug)]
struct Outliers {
    ranks: BTreeSet<Rank>,
    comparison: String,
}

impl StragglerWatch {
    /// Begins to watch a job at `now`. Ranks are compared over `window`.
    pub(crate) fn new(window: Duration, status: LiveStatus, now: Instant) -> StragglerWatch {
        let part = window / PARTS;
        StragglerWatch {
            status,
            part,
            due: Some(now + part),
            answers: Vec::new(),
            last: None,
            parts: Vec::new(),
            named: BTreeSet::new(),
            has_compared: false,
        }
    }

    /// Returns the time at which [`StragglerWatch::take_due`] returns true.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.due
    }

    /// Tells whether agents are to be asked for the usage of their ranks now. It is told once.
    pub(crate) fn take_due(&mut self, now: Instant) -> bool {
        self.due.take_if(|due| *due <= now).is_some()
    }

    /// Takes a node's answer.
    pub(crate) fn on_answer(&mut self, result: InspectionResult) {
        if let InspectionResult::Usage(ranks) = result {
            self.answers.extend(ranks);
        }
    }

    /// Handles the end of the answers. Returns the ranks that are found to be stragglers now.
    pub(crate) fn on_complete(&mut self, now: Instant) -> Option<Stragglers> {
        self.due = Some(now + self.part);
        let usage = std::mem::take(&mut self.answers);
        let waited = |rank: RankUsage| Some((rank.rank, (rank.pid, rank.waited_ms?)));
        let sample = WaitSample { at: now, waited: usage.into_iter().filter_map(waited).collect() };
        let last = self.last.replace(sample)?;
        let sample = self.last.as_ref()?;
        let waits = sample.wait_shares(&last);
        let speeds = self.status.speeds_since(now.saturating_duration_since(last.at));
        self.has_compared |= waits.len().max(speeds.len()) > 1;
        self.parts.push([waiting_outliers(waits), speed_outliers(&speeds)]);
        if self.parts.len() > PARTS as usize {
            self.parts.remove(0);
        }
        let [waits, speeds] = [0, 1].map(|kind| self.in_all_parts(kind));
        let found = waits.or(speeds)?;
        self.named.extend(&found.ranks);
        Some(found)
    }

    /// Tells whether nothing could be compared in the first window. It is told once, when that window has passed.
    pub(crate) fn lacks_data(&mut self) -> bool {
        self.parts.len() == PARTS as usize && !std::mem::replace(&mut self.has_compared, true)
    }

    /// Returns the ranks that are outliers in every part, unless they were reported.
    fn in_all_parts(&self, kind: usize) -> Option<Stragglers> {
        let findings: Option<Vec<&Outliers>> =
            self.parts.iter().map(|part| part[kind].as_ref()).collect();
        let findings = findings.filter(|findings| findings.len() == PARTS as usize)?;
        let last = findings.last()?;
        let is_in_all = |rank: &&Rank| findings.iter().all(|found| found.ranks.contains(rank));
        let ranks: Vec<Rank> = last.ranks.iter().filter(is_in_all).copied().collect();
        let is_new = ranks.iter().any(|rank| !self.named.contains(rank));
        is_new.then(|| Stragglers { ranks, comparison: last.comparison.clone() })
    }
}

impl WaitSample {
    /// Returns the share of the time since `before` that each rank has waited. Ranks that were restarted are left out.
    fn wait_shares(&self, before: &WaitSample) -> Vec<(Rank, f64)> {
        let seconds = (self.at - before.at).as_secs_f64().max(1e-3);
        let share = |(rank, (pid, waited)): (&Rank, &(u32, u64))| {
            let (old_pid, old) = before.waited.get(rank)?;
            let passed = waited.checked_sub(*old).filter(|_| pid == old_pid)?;
            Some((*rank, (passed as f64 / 1e3 / seconds).min(1.0)))
        };
        self.waited.iter().filter_map(share).collect()
    }
}

/// Finds ranks that wait far less than the others: these wait for them.
fn waiting_outliers(shares: Vec<(Rank, f64)>) -> Option<Outliers> {
    let Split { low, low_median, high_median } =
        split_at_widest_gap(shares, |low, high| high - low, LEAST_WAIT_GAP)?;
    let percent = |share: f64| format!("{:.0} %", share * 100.0);
    let (own, others) = (percent(low_median), percent(high_median));
    let comparison =
        format!("waiting for others takes {own} of the time there, {others} elsewhere");
    Some(Outliers { ranks: low.into_iter().collect(), comparison })
}

/// Finds ranks that print far lower speeds than the others, all in one unit.
fn speed_outliers(speeds: &[(Rank, PrintedSpeed)]) -> Option<Outliers> {
    let unit = speeds.first()?.1.unit.clone();
    if speeds.iter().any(|(_, speed)| speed.unit != unit) {
        return None;
    }
    let rates = speeds.iter().map(|(rank, speed)| (*rank, speed.rate())).collect();
    let Split { low, .. } =
        split_at_widest_gap(rates, |low, high| 1.0 - low / high, LEAST_SPEED_GAP)?;
    let ranks: BTreeSet<Rank> = low.into_iter().collect();
    let median = |of_low: bool| {
        let values = speeds.iter().filter(|(rank, _)| ranks.contains(rank) == of_low);
        let mut values: Vec<f64> = values.map(|(_, speed)| speed.value).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or_default()
    };
    let comparison = format!("{} {unit} there, {} elsewhere", median(true), median(false));
    Some(Outliers { ranks, comparison })
}

/// Values of ranks, split at their widest gap.
#[derive(Debug, PartialEq)]
struct Split {
    /// Ranks below the gap, at most half of all, in ascending order.
    low: Vec<Rank>,
    /// Median of their values.
    low_median: f64,
    /// Median of the other ranks' values.
    high_median: f64,
}

/// Splits ranks at the widest gap between their values, as `gap` measures it for two neighbouring values, the lower one
/// first. Returns `None` if the gap is below `least`, or more than half of the ranks are below it.
fn split_at_widest_gap(
    mut values: Vec<(Rank, f64)>,
    gap: impl Fn(f64, f64) -> f64,
    least: f64,
) -> Option<Split> {
    values.sort_by(|a, b| a.1.total_cmp(&b.1));
    let gaps = values.windows(2).map(|pair| gap(pair[0].1, pair[1].1));
    let (at, widest) = gaps.enumerate().max_by(|a, b| a.1.total_cmp(&b.1))?;
    let (low, high) = values.split_at(at + 1);
    if widest < least || low.len() > high.len() {
        return None;
    }
    let mut ranks: Vec<Rank> = low.iter().map(|(rank, _)| *rank).collect();
    ranks.sort_unstable();
    let median = |values: &[(Rank, f64)]| values[values.len() / 2].1;
    Some(Split { low: ranks, low_median: median(low), high_median: median(high) })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PART: Duration = Duration::from_secs(20);

    /// Job whose ranks wait, or print their speeds.
    struct Simulation {
        watch: StragglerWatch,
        status: LiveStatus,
        now: Instant,
        waited_ms: Vec<u64>,
    }

    impl Simulation {
        fn new(ranks: usize) -> Simulation {
            let (status, now) = (LiveStatus::new(), Instant::now());
            let watch = StragglerWatch::new(PART * PARTS, status.clone(), now);
            Simulation { watch, status, now, waited_ms: vec![0; ranks] }
        }

        /// Lets one part of the window pass, in which ranks wait for these shares of the time.
        fn part(&mut self, shares: &[f64]) -> Option<Stragglers> {
            self.now += PART;
            assert!(self.watch.take_due(self.now) && !self.watch.take_due(self.now));
            for (at, (waited, share)) in self.waited_ms.iter_mut().zip(shares).enumerate() {
                *waited += (PART.as_secs_f64() * 1e3 * share) as u64;
                let rank = Rank(u32::try_from(at).unwrap());
                let usage = RankUsage { waited_ms: Some(*waited), ..usage(rank) };
                self.watch.on_answer(InspectionResult::Usage(vec![usage]));
            }
            self.watch.on_complete(self.now)
        }

        fn parts(&mut self, count: u32, shares: &[f64]) -> Vec<Stragglers> {
            (0..count).filter_map(|_| self.part(shares)).collect()
        }
    }

    fn usage(rank: Rank) -> RankUsage {
        let (pid, processes, user_ms, system_ms, resident) = (1, 1, 1, 1, 1);
        RankUsage {
            rank,
            pid,
            processes,
            user_ms,
            system_ms,
            main_us: 0,
            main_runs: 0,
            resident,
            state: 'S',
            waited_ms: None,
        }
    }

    #[test]
    fn a_rank_that_never_waits_is_named_once() {
        let mut job = Simulation::new(4);
        let shares = [0.6, 0.61, 0.02, 0.6];
        assert!(job.parts(PARTS, &shares).is_empty());
        let [found] = &job.parts(9, &shares)[..] else { panic!() };
        assert_eq!(found.ranks, [Rank(2)]);
        let expected = "waiting for others takes 2 % of the time there, 60 % elsewhere";
        assert_eq!(found.comparison, expected);
        // Another one is named as well.
        let found = job.parts(9, &[0.02, 0.6, 0.6, 0.6]);
        assert_eq!(found.iter().map(|found| &found.ranks[..]).collect::<Vec<_>>(), [[Rank(0)]]);
    }

    #[test]
    fn a_single_slow_step_makes_no_straggler() {
        let mut job = Simulation::new(3);
        for _ in 0..8 {
            assert_eq!(job.part(&[0.0, 0.9, 0.9]), None);
            assert_eq!(job.part(&[0.1, 0.12, 0.09]), None);
        }
    }

    #[test]
    fn a_rank_that_prints_a_lower_speed_is_named() {
        let mut job = Simulation::new(0);
        let mut found = Vec::new();
        for _ in 0..6 {
            for (rank, line) in ["800 img/s", "810 img/s", "410 img/s"].iter().enumerate() {
                job.status.printed(Rank(u32::try_from(rank).unwrap()), line.as_bytes());
            }
            found.extend(job.part(&[]));
        }
        let comparison = "410 img/s there, 810 elsewhere".to_owned();
        assert_eq!(found, [Stragglers { ranks: vec![Rank(2)], comparison }]);
    }

    #[test]
    fn programs_that_tell_nothing_have_no_stragglers() {
        let mut job = Simulation::new(0);
        let lacks_data = (0..9).map(|_| {
            assert_eq!(job.part(&[]), None);
            job.watch.lacks_data()
        });
        // The first sample has nothing before it. It is said once, at the end of the first window.
        let lacks_data: Vec<bool> = lacks_data.collect();
        assert_eq!(lacks_data, [false, false, false, true, false, false, false, false, false]);
    }

    fn low(values: &[f64]) -> Vec<u32> {
        let ranks = (0..).map(Rank).zip(values.iter().copied()).collect();
        let split = split_at_widest_gap(ranks, |low, high| high - low, 0.2);
        split.map(|split| split.low.iter().map(|rank| rank.0).collect()).unwrap_or_default()
    }

    #[test]
    fn the_minority_below_the_gap_is_found() {
        assert_eq!(low(&[0.6, 0.55, 0.02, 0.7]), [2]);
        assert_eq!(low(&[0.6, 0.1, 0.12, 0.7, 0.65]), [1, 2]);
        assert_eq!(low(&[0.05, 0.6]), [0]);
    }

    #[test]
    fn values_that_are_close_have_no_outlier() {
        assert!(low(&[0.1, 0.2, 0.3, 0.4, 0.5]).is_empty());
        assert!(low(&[0.5]).is_empty() && low(&[]).is_empty());
        // One rank that waits longer than all others makes none of them slow.
        assert!(low(&[0.1, 0.1, 0.12, 0.9]).is_empty());
    }
}
