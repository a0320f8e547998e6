//! Clock that is cheap to read. On emulated hosts, reading the system's clock takes microseconds.

use std::time::{Duration, Instant};

/// Time for which the processor's counter is compared with the system's clock, at least.
const CALIBRATION: Duration = Duration::from_millis(20);
/// Number of attempts to read both clocks at the same time.
const ATTEMPTS: usize = 5;

/// Clock that counts ticks: the timestamp counter of the processor on x86-64, else nanoseconds of
/// the system's clock. The counters of all processors of a host are taken to agree, as on all
/// processors of the last ten years.
#[derive(Debug)]
pub struct Ticks {
    first: u64,
    started: Instant,
}

impl Ticks {
    /// Starts a clock.
    pub fn start() -> Ticks {
        let (first, started) = both();
        Ticks { first, started }
    }

    /// Returns the current count of ticks.
    #[inline]
    pub fn now(&self) -> u64 {
        now()
    }

    /// Returns the length of a tick in seconds, measured from the start of this clock until now.
    /// Waits if the clock was started less than 20 ms ago.
    pub fn seconds_per_tick(&self) -> f64 {
        loop {
            let (now, instant) = both();
            let (ticks, passed) = (now.saturating_sub(self.first), instant - self.started);
            if passed >= CALIBRATION && ticks > 0 {
                return passed.as_secs_f64() / ticks as f64;
            }
            std::hint::spin_loop();
        }
    }
}

/// Reads both clocks at the same time, as nearly as a few attempts come to it: another process may
/// use the processor between two readings.
fn both() -> (u64, Instant) {
    let attempt = || {
        let (before, instant, after) = (now(), Instant::now(), now());
        (after.saturating_sub(before), before, instant)
    };
    let nearest = (1..ATTEMPTS)
        .map(|_| attempt())
        .fold(attempt(), |best, other| if other.0 < best.0 { other } else { best });
    (nearest.1, nearest.2)
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn now() -> u64 {
    // SAFETY: every x86-64 processor has the instruction, and it has no side effects.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// Returns nanoseconds since the first call, by the system's clock, which is cheap to read on
/// architectures other than x86-64.
#[cfg(not(target_arch = "x86_64"))]
fn now() -> u64 {
    use std::sync::OnceLock;
    static FIRST: OnceLock<Instant> = OnceLock::new();
    u64::try_from(FIRST.get_or_init(Instant::now).elapsed().as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_measure_what_the_system_clock_measures() {
        let (ticks, begin) = (Ticks::start(), Instant::now());
        let first = ticks.now();
        while begin.elapsed() < Duration::from_millis(5) {}
        let passed = (ticks.now() - first) as f64 * ticks.seconds_per_tick();
        // A busy machine may stop this thread between two readings, which makes both longer.
        assert!(passed >= 0.0049 && passed <= begin.elapsed().as_secs_f64() + 0.0001, "{passed}");
    }
}
