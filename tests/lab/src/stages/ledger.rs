//! Results of the stages of a test run: counts, times against budgets, and the totals as the last
//! line.

use std::path::PathBuf;
use std::time::{Duration, Instant};
use std::{fmt, fs};

/// Budget of a whole run on two processors. Beyond it a warning is printed.
const BUDGET: Duration = Duration::from_secs(30 * 60);
/// Limit of a whole run. Beyond it the run has failed; between the two the machine may have
/// stalled.
const LIMIT: Duration = Duration::from_secs(60 * 60);
/// Number of tests passing only at the second attempt that fails the run: fewer may be bad luck.
pub(crate) const FLAKY_LIMIT: usize = 3;
/// Number of tests that are listed as the slowest ones.
const LISTED: usize = 10;

/// Counts of one stage.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    /// Number of tests and checks that passed.
    pub passed: usize,
    /// Number of tests and checks that failed.
    pub failed: usize,
    /// Numbers of tests that could not run here, each with the reason.
    pub skipped: Vec<(usize, String)>,
    /// Tests that passed at the second attempt, with the output file of the first.
    pub flaky: Vec<(String, PathBuf)>,
    /// Names and times of tests.
    pub times: Vec<(String, Duration)>,
}

impl Tally {
    /// Counts one check as passed or failed.
    pub fn check(passed: bool) -> Tally {
        Tally { passed: usize::from(passed), failed: usize::from(!passed), ..Tally::default() }
    }

    /// Counts one check as skipped.
    pub fn skip(reason: impl Into<String>) -> Tally {
        Tally { skipped: vec![(1, reason.into())], ..Tally::default() }
    }

    /// Adds the counts of `other`.
    pub fn add(&mut self, other: Tally) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped.extend(other.skipped);
        self.flaky.extend(other.flaky);
        self.times.extend(other.times);
    }

    /// Counts a failed test as passed, and keeps the output file of its first attempt.
    pub fn passed_on_retry(&mut self, test: String, first: PathBuf) {
        self.failed -= 1;
        self.passed += 1;
        self.flaky.push((test, first));
    }
}

/// Result of one stage.
#[derive(Debug)]
struct Entry {
    stage: &'static str,
    time: StageTime,
    budget: Duration,
    tally: Tally,
}

/// Results of all stages of a run, in order.
#[derive(Debug, Default)]
pub struct Ledger {
    entries: Vec<Entry>,
}

impl Ledger {
    /// Adds the result of a stage.
    pub fn record(&mut self, stage: &'static str, time: StageTime, budget: Duration, tally: Tally) {
        self.entries.push(Entry { stage, time, budget, tally });
    }

    /// Returns whether `stage` ran and something in it failed.
    pub fn has_failed(&self, stage: &str) -> bool {
        self.entries.iter().any(|entry| entry.stage == stage && entry.tally.failed > 0)
    }

    /// Returns the sum over all stages. A run that took too long or had too many second attempts
    /// counts as one more failure each.
    pub fn total(&self) -> Tally {
        let mut total = Tally::default();
        for entry in &self.entries {
            total.add(entry.tally.clone());
        }
        total.failed += usize::from(self.took() > LIMIT);
        total.failed += usize::from(total.flaky.len() >= FLAKY_LIMIT);
        total
    }

    /// Returns whether something passed in every stage, so that none was skipped as a whole.
    pub fn ran_all(&self) -> bool {
        self.entries.iter().all(|entry| entry.tally.passed > 0)
    }

    /// Returns the time of all stages together.
    pub fn took(&self) -> Duration {
        self.entries.iter().map(|entry| entry.time.took).sum()
    }
}

impl fmt::Display for Ledger {
    /// Writes a table, what was skipped, what was slow or needed a second attempt, and the totals
    /// as the last line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<8} {:>9} {:>9} {:>7} {:>7} {:>7}",
            "stage", "time", "budget", "idle", "passed", "failed"
        )?;
        for Entry { stage, time, budget, tally } in &self.entries {
            let (took, budget) = (minutes(time.took), minutes(*budget));
            let idle = time.idle.map_or("-".into(), |idle| format!("{} s", idle.as_secs()));
            let (passed, failed) = (tally.passed, tally.failed);
            writeln!(f, "{stage:<8} {took:>9} {budget:>9} {idle:>7} {passed:>7} {failed:>7}")?;
        }
        writeln!(f, "{:<8} {:>9} {:>9}", "in all", minutes(self.took()), minutes(BUDGET))?;
        for entry in &self.entries {
            for (count, reason) in &entry.tally.skipped {
                writeln!(f, "skipped in {}: {count}: {reason}", entry.stage)?;
            }
        }
        self.write_slow(f)?;
        let total = self.total();
        write_slowest(f, &total)?;
        write_flaky(f, &total)?;
        write!(f, "{} passed, {} failed", total.passed, total.failed)?;
        let skipped: usize = total.skipped.iter().map(|(count, _)| count).sum();
        if skipped > 0 { write!(f, ", {skipped} skipped") } else { Ok(()) }
    }
}

impl Ledger {
    fn write_slow(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for entry in self.entries.iter().filter(|entry| entry.time.took > entry.budget) {
            writeln!(f, "slow: {} took over its budget", entry.stage)?;
        }
        match self.took() {
            took if took > LIMIT => {
                writeln!(f, "failed: the run took longer than {}", minutes(LIMIT))
            }
            took if took > BUDGET => writeln!(f, "slow: the run took over its budget"),
            _ => Ok(()),
        }
    }
}

fn write_slowest(f: &mut fmt::Formatter<'_>, total: &Tally) -> fmt::Result {
    let mut times: Vec<_> = total.times.iter().collect();
    times.sort_by_key(|(_, took)| std::cmp::Reverse(*took));
    if !times.is_empty() {
        writeln!(f, "slowest tests:")?;
    }
    let mut slowest = times.into_iter().take(LISTED);
    slowest.try_for_each(|(name, took)| writeln!(f, "{:>6.1} s  {name}", took.as_secs_f64()))
}

fn write_flaky(f: &mut fmt::Formatter<'_>, total: &Tally) -> fmt::Result {
    if total.flaky.is_empty() {
        return Ok(());
    }
    writeln!(f, "passed at the second attempt:")?;
    for (test, first) in &total.flaky {
        writeln!(f, "  {test} (first: {})", first.display())?;
    }
    if total.flaky.len() >= FLAKY_LIMIT {
        writeln!(f, "failed: {} tests needed a second attempt", total.flaky.len())?;
    }
    Ok(())
}

fn minutes(time: Duration) -> String {
    let seconds = time.as_secs();
    format!("{}:{:02} min", seconds / 60, seconds % 60)
}

/// Time of a stage.
#[derive(Debug, Clone, Copy)]
pub struct StageTime {
    pub(super) took: Duration,
    /// Time that the processors were idle, all together, if it is known.
    pub(super) idle: Option<Duration>,
}

/// Stopwatch for a stage.
#[derive(Debug)]
pub(super) struct StageClock {
    start: Instant,
    idle: Option<Duration>,
}

impl StageClock {
    pub(super) fn start() -> StageClock {
        StageClock { start: Instant::now(), idle: idle_time() }
    }

    pub(super) fn stop(self) -> StageTime {
        let idle = self.idle.zip(idle_time()).map(|(before, now)| now.saturating_sub(before));
        StageTime { took: self.start.elapsed(), idle }
    }
}

/// Returns how long all processors together have been idle since the machine started, waiting for a disk
/// included; `None` where `/proc/stat` is not as proc(5) describes it.
fn idle_time() -> Option<Duration> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let columns: Vec<u64> =
        line.split_whitespace().map_while(|number| number.parse().ok()).collect();
    let [_, _, _, idle, waiting_for_disk, ..] = columns[..] else { return None };
    // In hundredths of a second, on every architecture that rlaunch is built for.
    Some(Duration::from_millis((idle + waiting_for_disk) * 10))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn time(took: Duration) -> StageTime {
        StageTime { took, idle: None }
    }

    #[test]
    fn slowness_is_named_and_then_fails() {
        let mut ledger = Ledger::default();
        ledger.record("unit", time(MINUTE * 3 / 2), MINUTE, Tally::check(true));
        assert!(ledger.to_string().contains("slow: unit took over its budget"));
        ledger.record("netns", time(MINUTE * 30), MINUTE, Tally::check(true));
        assert!(ledger.to_string().contains("slow: the run took over its budget"));
        assert_eq!(ledger.to_string().lines().last(), Some("2 passed, 0 failed"));
        ledger.record("vm", time(MINUTE * 30), MINUTE, Tally::check(true));
        assert_eq!(ledger.to_string().lines().last(), Some("3 passed, 1 failed"));
    }

    #[test]
    fn second_attempts_are_named_and_count_while_they_are_few() {
        let mut ledger = Ledger::default();
        let unlucky = |tests: &[&str]| {
            let mut tally = Tally { passed: 5, failed: tests.len(), ..Tally::default() };
            tests.iter().for_each(|test| tally.passed_on_retry((*test).into(), "/one.log".into()));
            tally
        };
        ledger.record("netns", time(MINUTE), MINUTE, unlucky(&["a::b", "c::d"]));
        let text = ledger.to_string();
        assert!(
            text.contains("passed at the second attempt:\n  a::b (first: /one.log)\n"),
            "{text}"
        );
        assert_eq!(text.lines().last(), Some("7 passed, 0 failed"));
        ledger.record("vm", time(MINUTE), MINUTE, unlucky(&["e::f"]));
        let text = ledger.to_string();
        assert!(text.contains("failed: 3 tests needed a second attempt"), "{text}");
        assert_eq!(text.lines().last(), Some("13 passed, 1 failed"));
    }
}
