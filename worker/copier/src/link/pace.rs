//! `--limit`: how fast a host sends.

use super::{TICK, lock};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Limit on the bytes that all streams of a link send together.
#[derive(Debug)]
pub struct Pace {
    /// Bytes per second; `None` without a limit.
    rate: Option<u64>,
    /// When what was sent so far has had its time.
    free_at: Mutex<Instant>,
}

impl Pace {
    /// Makes a limit of `rate` bytes per second.
    pub fn new(rate: Option<u64>) -> Pace {
        Pace { rate: rate.filter(|rate| *rate > 0), free_at: Mutex::new(Instant::now()) }
    }

    /// Waits until `bytes` may be sent, or all `is_over`.
    pub fn wait(&self, bytes: usize, is_over: impl Fn() -> bool) {
        let Some(start) = self.reserve(bytes, Instant::now()) else { return };
        while !is_over() {
            let left = start.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            std::thread::sleep(left.min(TICK));
        }
    }

    /// Returns when `bytes` may be sent, and takes the time for them; `None` without a limit.
    fn reserve(&self, bytes: usize, now: Instant) -> Option<Instant> {
        let seconds = bytes as f64 / self.rate? as f64;
        let mut free_at = lock(&self.free_at);
        let start = now.max(*free_at);
        let takes = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        *free_at = start.checked_add(takes).unwrap_or(start);
        Some(start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_share_a_limit() {
        let pace = Pace::new(Some(1000));
        let now = Instant::now() + Duration::from_secs(1);
        let starts = [500, 500, 1000].map(|bytes| pace.reserve(bytes, now).unwrap() - now);
        assert_eq!(starts, [0, 500, 1000].map(Duration::from_millis));
    }

    #[test]
    fn time_that_nobody_used_is_not_caught_up() {
        let pace = Pace::new(Some(1000));
        let now = Instant::now() + Duration::from_secs(1);
        pace.reserve(1000, now);
        let later = now + Duration::from_secs(60);
        assert_eq!(pace.reserve(1000, later), Some(later));
        assert_eq!(pace.reserve(1, later), Some(later + Duration::from_secs(1)));
    }

    #[test]
    fn without_a_limit_nobody_waits() {
        for none in [None, Some(0)] {
            assert_eq!(Pace::new(none).reserve(usize::MAX, Instant::now()), None);
        }
    }

    #[test]
    fn waiting_ends_with_what_it_is_for() {
        let pace = Pace::new(Some(1));
        pace.wait(1_000_000, || false);
        let begin = Instant::now();
        pace.wait(1, || true);
        assert!(begin.elapsed() < Duration::from_secs(60));
    }
}
