//! Times of a test run: how long each test took, and how much of a stage the processors were idle.
//! They show what to shorten: a slow test, or a stage that waits.

use std::fs;
use std::time::{Duration, Instant};

/// Number of tests that are listed as the slowest ones.
const LISTED: usize = 10;

/// Lists the slowest of these tests, each with its name and time, a line each.
pub(super) fn slowest(times: &[(String, Duration)]) -> Vec<String> {
    let mut times: Vec<_> = times.iter().collect();
    times.sort_by_key(|(_, took)| std::cmp::Reverse(*took));
    let line =
        |(name, took): &&(String, Duration)| format!("{:>6.1} s  {name}", took.as_secs_f64());
    times.iter().take(LISTED).map(line).collect()
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
