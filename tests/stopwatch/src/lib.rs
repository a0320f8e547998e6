//! Time limits for tests on machines that sometimes stall: a virtual machine is paused, or a busy
//! one runs other processes.

use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Interval at which the machine is observed.
const INTERVAL: Duration = Duration::from_millis(10);
/// Gap between two observations that counts as a stall.
const STALL: Duration = Duration::from_millis(500);

/// Stopwatch for events that must happen soon. It restarts after each stall of the machine, since
/// the programs under test do not count a stall as silence of their peers either.
#[derive(Debug, Clone, Copy)]
pub struct Stopwatch {
    started: Instant,
}

impl Stopwatch {
    /// Starts the stopwatch.
    pub fn start() -> Stopwatch {
        // Makes sure that the machine is observed from now on.
        drop(detector());
        Stopwatch { started: Instant::now() }
    }

    /// Returns the time since the start, or since the end of the last stall if that is later.
    pub fn elapsed(&self) -> Duration {
        let now = Instant::now();
        now - detector().observe(now).map_or(self.started, |resumed| resumed.max(self.started))
    }

    /// Returns the time since the start, stalls included: for events that must not happen too
    /// early.
    pub fn total_elapsed(&self) -> Duration {
        self.started.elapsed()
    }
}

/// Detector of times at which the machine has stalled, from the gaps between observations.
#[derive(Debug)]
struct StallDetector {
    last: Instant,
    /// End of the last stall.
    resumed: Option<Instant>,
}

impl StallDetector {
    fn begin() -> StallDetector {
        StallDetector { last: Instant::now(), resumed: None }
    }

    /// Observes the machine at `now`; returns the end of its last stall.
    fn observe(&mut self, now: Instant) -> Option<Instant> {
        if now.saturating_duration_since(self.last) > STALL {
            self.resumed = Some(now);
        }
        self.last = self.last.max(now);
        self.resumed
    }
}

/// Detector of this process. From the first use on, a thread observes the machine.
static DETECTOR: LazyLock<Mutex<StallDetector>> = LazyLock::new(|| {
    thread::spawn(|| {
        loop {
            thread::sleep(INTERVAL);
            detector().observe(Instant::now());
        }
    });
    Mutex::new(StallDetector::begin())
});

fn detector() -> MutexGuard<'static, StallDetector> {
    DETECTOR.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stood_still_begins_anew() {
        let mut detector = StallDetector::begin();
        let begin = detector.last;
        let second = |seconds| begin + Duration::from_secs_f64(seconds);
        assert_eq!(detector.observe(second(0.4)), None);
        assert_eq!(detector.observe(second(0.8)), None);
        assert_eq!(detector.observe(second(4.0)), Some(second(4.0)));
        assert_eq!(detector.observe(second(4.1)), Some(second(4.0)));
    }
}
