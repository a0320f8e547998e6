//! Time limits that count only while the process that waits runs: no clock of their own.

use std::time::{Duration, Instant};

/// Delay of a timer that shows its process to have been suspended or starved of CPU time: what the
/// process waits for may have arrived meanwhile without being read.
pub const SUSPENSION_THRESHOLD: Duration = Duration::from_millis(500);

/// How often a limit begins anew at most. A machine that is late all the time would wait for ever.
const MAX_RESTARTS: u32 = 3;

/// Between two looks at a limit that a standstill in its middle must not use up.
pub const CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// A limit that begins anew where its process is found to have stood still: what is waited for may
/// have come without being read yet, or have stood still as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    limit: Duration,
    /// Between two looks.
    interval: Duration,
    due: Instant,
    next_check: Instant,
    restarts: u32,
}

impl Deadline {
    /// A limit that is looked at when it is due, and not before.
    pub fn after(limit: Duration, now: Instant) -> Deadline {
        let due = now + limit;
        Deadline { limit, interval: limit, due, next_check: due, restarts: 0 }
    }

    /// The same, looked at in between as well: a standstill that ends before it is due shortens it
    /// by `every` and [`SUSPENSION_THRESHOLD`] at most.
    pub fn checked_every(self, interval: Duration) -> Deadline {
        let begin = self.due - self.limit;
        Deadline { interval, next_check: self.due.min(begin + interval), ..self }
    }

    /// The time for all that is waited for.
    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// When it is over, as far as can be told.
    pub fn due(&self) -> Instant {
        self.due
    }

    /// When [`Deadline::is_over`] is to be asked: a process that asks later stood still.
    pub fn next_check(&self) -> Instant {
        self.next_check
    }

    /// How often it has begun anew because its process stood still, since it was last renewed.
    pub fn restarts(&self) -> u32 {
        self.restarts
    }

    /// Does not count the time that has passed until `now` since `since`.
    pub fn exclude(&mut self, since: Instant, now: Instant) {
        let passed = now.saturating_duration_since(since);
        self.due += passed;
        self.next_check += passed;
    }

    /// Begins anew, as if it never had.
    pub fn restart(&mut self, now: Instant) {
        *self = Deadline::after(self.limit, now).checked_every(self.interval);
    }

    /// Whether it is over at `now`. Where this is asked late, it begins anew.
    pub fn has_expired(&mut self, now: Instant) -> bool {
        if now > self.next_check + SUSPENSION_THRESHOLD && self.restarts < MAX_RESTARTS {
            let restarts = self.restarts + 1;
            self.restart(now);
            self.restarts = restarts;
            return false;
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
        let awake = begin + LIMIT + 2 * SUSPENSION_THRESHOLD;
        assert!(!deadline.has_expired(awake));
        assert_eq!((deadline.due(), deadline.restarts()), (awake + LIMIT, 1));
        assert!(!deadline.has_expired(awake + LIMIT / 2));
        assert!(deadline.has_expired(awake + LIMIT));
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
        // Its last moment is all that would be left.
        let awake = begin + LIMIT;
        assert!(!deadline.has_expired(awake));
        assert_eq!((deadline.due(), deadline.next_check()), (awake + LIMIT, awake + EVERY));
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
