//! Time limits on machines that now and then stand still: a virtual one is paused, a busy one gives
//! its processors to others.

use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How often it is looked whether this machine runs.
const LOOK: Duration = Duration::from_millis(10);
/// Between two looks, this is standing still.
const STANDSTILL: Duration = Duration::from_millis(500);

/// Measures what must happen soon. What this machine did while it stood still says nothing about
/// that, and programs under test forgive each other's silence of that time, so the count begins
/// anew with its end.
#[derive(Debug, Clone, Copy)]
pub struct Stopwatch {
    started: Instant,
}

impl Stopwatch {
    /// Begins to count.
    pub fn start() -> Stopwatch {
        // From now on at the latest, it is felt.
        drop(pulse());
        Stopwatch { started: Instant::now() }
    }

    /// Since the start, or since this machine stood still last.
    pub fn elapsed(&self) -> Duration {
        let now = Instant::now();
        now - pulse().felt(now).map_or(self.started, |ran_again| ran_again.max(self.started))
    }

    /// Since the start, whatever happened: what must not happen earlier is held against this.
    pub fn in_all(&self) -> Duration {
        self.started.elapsed()
    }
}

/// When this machine was seen to run.
#[derive(Debug)]
struct Pulse {
    last: Instant,
    /// The end of the last standstill.
    ran_again: Option<Instant>,
}

impl Pulse {
    fn begin() -> Pulse {
        Pulse { last: Instant::now(), ran_again: None }
    }

    /// It is seen to run at `now`; when it began to after its last standstill.
    fn felt(&mut self, now: Instant) -> Option<Instant> {
        if now.saturating_duration_since(self.last) > STANDSTILL {
            self.ran_again = Some(now);
        }
        self.last = self.last.max(now);
        self.ran_again
    }
}

/// That of this process, felt by a thread of its own from the first use on.
static PULSE: LazyLock<Mutex<Pulse>> = LazyLock::new(|| {
    thread::spawn(|| {
        loop {
            thread::sleep(LOOK);
            pulse().felt(Instant::now());
        }
    });
    Mutex::new(Pulse::begin())
});

fn pulse() -> MutexGuard<'static, Pulse> {
    PULSE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stood_still_begins_anew() {
        let mut pulse = Pulse::begin();
        let begin = pulse.last;
        let second = |seconds| begin + Duration::from_secs_f64(seconds);
        assert_eq!(pulse.felt(second(0.4)), None);
        assert_eq!(pulse.felt(second(0.8)), None);
        assert_eq!(pulse.felt(second(4.0)), Some(second(4.0)));
        assert_eq!(pulse.felt(second(4.1)), Some(second(4.0)));
    }

    #[test]
    fn a_machine_that_runs_is_measured_as_by_any_clock() {
        let stopwatch = Stopwatch::start();
        thread::sleep(LOOK * 3);
        let (elapsed, in_all) = (stopwatch.elapsed(), stopwatch.in_all());
        assert!(elapsed <= in_all && in_all >= LOOK * 3, "{elapsed:?} {in_all:?}");
    }
}
