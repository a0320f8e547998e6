//! Time limits that start again if the waiting process was suspended.
//!
//! A process that was stopped (Ctrl-Z, a frozen container, a paused VM) or starved of CPU time
//! finds its timers expired when it runs again, although the awaited answer may already be in a
//! socket buffer. [`Deadline`] detects a suspension by a check that happens late. It has no clock:
//! callers pass the current time.

use std::time::{Duration, Instant};

/// Lateness of a check that counts as proof that the process was suspended or got no CPU time.
pub const SUSPENSION_THRESHOLD: Duration = Duration::from_millis(500);

/// Maximum number of restarts of one deadline. Without it, a process on a host whose timers are
/// always late would wait for ever. Beyond it, only the time in which the process ran counts.
const MAX_RESTARTS: u32 = 3;

/// Usual interval between checks, to be passed to [`Deadline::checked_every`].
pub const CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// Time limit that starts again when a check happens more than [`SUSPENSION_THRESHOLD`] late,
/// because the awaited data may have arrived unread, or its sender may have been suspended as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    limit: Duration,
    /// Planned time between two checks.
    interval: Duration,
    due: Instant,
    next_check: Instant,
    restarts: u32,
}

impl Deadline {
    /// Makes a deadline that expires at `now + limit`. The only check is due at that time.
    pub fn after(limit: Duration, now: Instant) -> Deadline {
        let due = now + limit;
        Deadline { limit, interval: limit, due, next_check: due, restarts: 0 }
    }

    /// Adds a check every `interval`, so that a suspension which ends before the deadline is
    /// detected too. A suspension that remains undetected shortens the wait by at most `interval`
    /// plus [`SUSPENSION_THRESHOLD`].
    pub fn checked_every(self, interval: Duration) -> Deadline {
        let begin = self.due - self.limit;
        Deadline { interval, next_check: self.due.min(begin + interval), ..self }
    }

    /// Returns the full length of the time limit.
    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// Returns the time at which the limit expires if no suspension is detected.
    pub fn due(&self) -> Instant {
        self.due
    }

    /// Returns the time at which [`Deadline::has_expired`] must be called next. A later call counts
    /// as proof of a suspension.
    pub fn next_check(&self) -> Instant {
        self.next_check
    }

    /// Returns how many times a suspension has restarted the limit since the last call of
    /// [`Deadline::restart`].
    pub fn restarts(&self) -> u32 {
        self.restarts
    }

    /// Extends the limit by the time from `since` to `now`, in which the awaited event could not
    /// happen.
    pub fn exclude(&mut self, since: Instant, now: Instant) {
        let passed = now.saturating_duration_since(since);
        self.due += passed;
        self.next_check += passed;
    }

    /// Starts the full time limit again at `now`, and resets the count of restarts.
    pub fn restart(&mut self, now: Instant) {
        *self = Deadline::after(self.limit, now).checked_every(self.interval);
    }

    /// Tells whether the limit has expired at `now`. A check that is too late restarts the limit
    /// and returns `false`, or after [`MAX_RESTARTS`] extends it by the time that it is late.
    pub fn has_expired(&mut self, now: Instant) -> bool {
        if now > self.next_check + SUSPENSION_THRESHOLD {
            if self.restarts < MAX_RESTARTS {
                let restarts = self.restarts + 1;
                self.restart(now);
                self.restarts = restarts;
                return false;
            }
            self.exclude(self.next_check, now);
        }
        if now >= self.next_check {
            self.next_check = self.due.min(now + self.interval);
        }
        now >= self.due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(5);
    const EVERY: Duration = Duration::from_millis(200);

    #[test]
    fn a_process_that_runs_waits_as_long_as_it_is_told() {
        let begin = Instant::now();
        let mut deadline = Deadline::after(LIMIT, begin);
        assert_eq!((deadline.next_check(), deadline.due()), (begin + LIMIT, begin + LIMIT));
        assert!(!deadline.has_expired(begin + LIMIT - Duration::from_millis(1)));
        assert!(deadline.has_expired(begin + LIMIT));
        assert!(
            deadline.has_expired(begin + LIMIT + SUSPENSION_THRESHOLD),
            "a timer may be a little late"
        );
        assert_eq!(deadline.restarts(), 0);
    }

    #[test]
    fn a_process_that_stood_still_waits_once_more() {
        let begin = Instant::now();
        let mut deadline = Deadline::after(LIMIT, begin);
        let resumed = begin + LIMIT + 2 * SUSPENSION_THRESHOLD;
        assert!(!deadline.has_expired(resumed));
        assert_eq!((deadline.due(), deadline.restarts()), (resumed + LIMIT, 1));
        assert!(!deadline.has_expired(resumed + LIMIT / 2));
        assert!(deadline.has_expired(resumed + LIMIT));
    }

    #[test]
    fn a_standstill_that_ends_in_time_is_seen_between_looks() {
        let begin = Instant::now();
        let mut deadline = Deadline::after(LIMIT, begin).checked_every(EVERY);
        let mut now = begin;
        while now < begin + LIMIT / 2 {
            now = deadline.next_check();
            assert!(!deadline.has_expired(now));
        }
        assert_eq!((deadline.due(), deadline.restarts()), (begin + LIMIT, 0));
        // Without a restart only the last moment of the limit would be left.
        let resumed = begin + LIMIT;
        assert!(!deadline.has_expired(resumed));
        assert_eq!((deadline.due(), deadline.next_check()), (resumed + LIMIT, resumed + EVERY));
    }

    #[test]
    fn looks_go_on_until_it_is_over() {
        let begin = Instant::now();
        let mut deadline = Deadline::after(LIMIT, begin).checked_every(EVERY);
        let mut looks = 0;
        while !deadline.has_expired(deadline.next_check()) {
            looks += 1;
        }
        assert_eq!((looks, deadline.next_check()), (24, begin + LIMIT));
    }

    #[test]
    fn a_machine_that_is_always_late_does_not_wait_for_ever() {
        let mut deadline = Deadline::after(LIMIT, Instant::now()).checked_every(EVERY);
        let late = |deadline: &Deadline| deadline.next_check() + 2 * SUSPENSION_THRESHOLD;
        let over = (0..100).find(|_| deadline.has_expired(late(&deadline)));
        assert!(over.is_some(), "{deadline:?}");
    }

    /// As on a machine that is so busy that several processes get no CPU time for long.
    #[test]
    fn no_standstill_counts_however_many_there_were() {
        let begin = Instant::now();
        let mut deadline = Deadline::after(LIMIT, begin).checked_every(EVERY);
        let mut now = begin;
        for _ in 0..10 {
            now = deadline.next_check() + 6 * LIMIT;
            assert!(!deadline.has_expired(now), "{deadline:?}");
        }
        assert_eq!(deadline.restarts(), MAX_RESTARTS);
        // The checks in time and the first moments of the standstills count.
        let left = deadline.due().duration_since(now);
        assert_eq!(left, LIMIT - 7 * EVERY);
    }

    #[test]
    fn time_of_others_does_not_count() {
        let (begin, others) = (Instant::now(), LIMIT * 2);
        let mut deadline = Deadline::after(LIMIT, begin).checked_every(EVERY);
        deadline.exclude(begin, begin + others);
        assert_eq!(deadline.due(), begin + others + LIMIT);
        assert!(!deadline.has_expired(begin + others + EVERY));
        assert_eq!(deadline.restarts(), 0);
    }
}
