//! Times of a test run: how long each test took, and how much of a stage the processors were idle.
//! They show what to shorten: a slow test, or a stage that waits.

use std::fs;
use std::time::{Duration, Instant};

/// Number of tests that are listed as the slowest ones.
const LISTED: usize = 12;

/// Time of one test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TestTime {
    /// Name as the test program prints it.
    pub(super) name: String,
    pub(super) took: Duration,
}

/// Stopwatch for the tests of a program that runs one at a time: a test took as long as it has been
/// since the result of the test before it.
#[derive(Debug)]
pub(super) struct TestClock {
    last: Instant,
    times: Vec<TestTime>,
}

impl TestClock {
    pub(super) fn start() -> TestClock {
        TestClock { last: Instant::now(), times: Vec::new() }
    }

    /// Reads a line of the program's output, which has just arrived.
    pub(super) fn read(&mut self, line: &str) {
        let is_result =
            |line: &str| [" ... ok", " ... FAILED"].iter().any(|end| line.ends_with(end));
        let Some(name) = line.strip_prefix("test ").filter(|_| is_result(line)) else { return };
        let name = name.split_once(" ... ").map_or(name, |(name, _)| name).to_owned();
        let now = Instant::now();
        self.times.push(TestTime { name, took: now - self.last });
        self.last = now;
    }

    pub(super) fn into_times(self) -> Vec<TestTime> {
        self.times
    }
}

/// Lists the slowest of these tests, a line each.
pub(super) fn slowest(times: &[TestTime]) -> Vec<String> {
    let mut times: Vec<&TestTime> = times.iter().collect();
    times.sort_by_key(|time| std::cmp::Reverse(time.took));
    let line = |time: &&TestTime| format!("{:>6.1} s  {}", time.took.as_secs_f64(), time.name);
    times.iter().take(LISTED).map(line).collect()
}

/// Time of a stage.
#[derive(Debug, Clone, Copy)]
pub struct StageTime {
    pub(super) took: Duration,
    /// Share of the time that the processors were idle, from 0 to 1, if it is known.
    pub(super) idle: Option<f64>,
}

/// Stopwatch for a stage.
#[derive(Debug)]
pub(super) struct StageClock {
    start: Instant,
    processors: Option<ProcessorTime>,
}

impl StageClock {
    pub(super) fn start() -> StageClock {
        StageClock { start: Instant::now(), processors: ProcessorTime::now() }
    }

    pub(super) fn stop(self) -> StageTime {
        let idle = self.processors.zip(ProcessorTime::now());
        let idle = idle.and_then(|(before, now)| now.idle_since(before));
        StageTime { took: self.start.elapsed(), idle }
    }
}

/// Time that all processors together have spent, and spent idle, since the machine started, in
/// units that cancel out.
#[derive(Debug, Clone, Copy)]
struct ProcessorTime {
    all: u64,
    idle: u64,
}

impl ProcessorTime {
    /// Reads it from `/proc/stat`; `None` where that file is not as proc(5) describes it.
    fn now() -> Option<ProcessorTime> {
        ProcessorTime::from_text(&fs::read_to_string("/proc/stat").ok()?)
    }

    fn from_text(text: &str) -> Option<ProcessorTime> {
        let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
        // Guest time, in columns 9 and 10, is part of columns 1 and 2.
        let columns: Vec<u64> =
            line.split_whitespace().take(8).map_while(|number| number.parse().ok()).collect();
        let [_, _, _, idle, iowait, ..] = columns[..] else { return None };
        Some(ProcessorTime { all: columns.iter().sum(), idle: idle + iowait })
    }

    /// Returns the share of idle time since `before`, from 0 to 1.
    fn idle_since(self, before: ProcessorTime) -> Option<f64> {
        let all = self.all.checked_sub(before.all).filter(|all| *all > 0)?;
        Some(self.idle.saturating_sub(before.idle) as f64 / all as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_tests_end_their_time() {
        let mut clock = TestClock::start();
        for line in
            ["test a::one ... ok", "test noise", "test a::two ... FAILED", "test result: ok."]
        {
            clock.read(line);
        }
        let names: Vec<String> = clock.into_times().into_iter().map(|time| time.name).collect();
        assert_eq!(names, ["a::one", "a::two"]);
    }

    #[test]
    fn slow_tests_come_first() {
        let time = |name: &str, seconds| TestTime {
            name: name.into(),
            took: Duration::from_secs(seconds),
        };
        let lines = slowest(&[time("a", 1), time("b", 100)]);
        assert_eq!(lines, [" 100.0 s  b", "   1.0 s  a"]);
    }

    #[test]
    fn waiting_for_a_disk_is_idle_time() {
        let before = ProcessorTime::from_text("cpu  10 0 10 100 0 0 0 0 0 0\n").unwrap();
        let after = ProcessorTime::from_text("cpu  20 0 20 110 10 0 0 0 5 0\n").unwrap();
        assert_eq!(after.idle_since(before), Some(0.5));
        assert!(ProcessorTime::from_text("cpu  1 2 x\n").is_none());
    }
}
