//! Time limits that count only while the process that waits runs: no clock of their own.

use std::time::{Duration, Instant};

/// Delay of a timer that shows its process to have been suspended or starved of CPU time: what the
/// process waits for may have arrived meanwhile without being read.
pub const SUSPENSION_THRESHOLD: Duration = Duration::from_millis(500);

/// How often a limit begins anew at most. A machine that is late all the time would wait for ever.
const MOST_ANEW: u32 = 3;

/// Between two looks at a limit that a standstill in its middle must not use up.
pub const LOOK: Duration = Duration::from_millis(250);

/// A limit that begins anew where its process is found to have stood still: what is waited for may
/// have come without being read yet, or have stood still as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    limit: Duration,
    /// Between two looks.
    every: Duration,
    due: Instant,
    look: Instant,
    anew: u32,
}

impl Deadline {
    /// A limit that is looked at when it is due, and not before.
    pub fn after(limit: Duration, now: Instant) -> Deadline {
        let due = now + limit;
        Deadline { limit, every: limit, due, look: due, anew: 0 }
    }

    /// The same, looked at in between as well: a standstill that ends before it is due shortens it
    /// by `every` and [`SUSPENSION_THRESHOLD`] at most.
    pub fn often(self, every: Duration) -> Deadline {
        let begin = self.due - self.limit;
        Deadline { every, look: self.due.min(begin + every), ..self }
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
    pub fn look(&self) -> Instant {
        self.look
    }

    /// How often it has begun anew because its process stood still, since it was last renewed.
    pub fn times_anew(&self) -> u32 {
        self.anew
    }

    /// Does not count the time that has passed until `now` since `since`.
    pub fn leave_out(&mut self, since: Instant, now: Instant) {
        let passed = now.saturating_duration_since(since);
        self.due += passed;
        self.look += passed;
    }

    /// Begins anew, as if it never had.
    pub fn renew(&mut self, now: Instant) {
        *self = Deadline::after(self.limit, now).often(self.every);
    }

    /// Whether it is over at `now`. Where this is asked late, it begins anew.
    pub fn is_over(&mut self, now: Instant) -> bool {
        if now > self.look + SUSPENSION_THRESHOLD && self.anew < MOST_ANEW {
            let anew = self.anew + 1;
            self.renew(now);
            self.anew = anew;
            return false;
        }
        if now >= self.look {
            self.look = self.due.min(now + self.every);
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
        assert_eq!((deadline.look(), deadline.due()), (begin + LIMIT, begin + LIMIT));
        assert!(!deadline.is_over(begin + LIMIT - Duration::from_millis(1)));
        assert!(deadline.is_over(begin + LIMIT));
        assert!(
            deadline.is_over(begin + LIMIT + SUSPENSION_THRESHOLD),
            "a timer may be a little late"
        );
        assert_eq!(deadline.times_anew(), 0);
    }

    #[test]
    fn a_process_that_stood_still_waits_once_more() {
        let begin = Instant::now();
        let mut deadline = Deadline::after(LIMIT, begin);
        let awake = begin + LIMIT + 2 * SUSPENSION_THRESHOLD;
        assert!(!deadline.is_over(awake));
        assert_eq!((deadline.due(), deadline.times_anew()), (awake + LIMIT, 1));
        assert!(!deadline.is_over(awake + LIMIT / 2));
        assert!(deadline.is_over(awake + LIMIT));
    }

    #[test]
    fn a_standstill_that_ends_in_time_is_seen_between_looks() {
        let begin = Instant::now();
        let mut deadline = Deadline::after(LIMIT, begin).often(EVERY);
        let mut now = begin;
        while now < begin + LIMIT / 2 {
            now = deadline.look();
            assert!(!deadline.is_over(now));
        }
        assert_eq!((deadline.due(), deadline.times_anew()), (begin + LIMIT, 0));
        // Its last moment is all that would be left.
        let awake = begin + LIMIT;
        assert!(!deadline.is_over(awake));
        assert_eq!((deadline.due(), deadline.look()), (awake + LIMIT, awake + EVERY));
    }

    #[test]
    fn looks_go_on_until_it_is_over() {
        let begin = Instant::now();
        let mut deadline = Deadline::after(LIMIT, begin).often(EVERY);
        let mut looks = 0;
        while !deadline.is_over(deadline.look()) {
            looks += 1;
        }
        assert_eq!((looks, deadline.look()), (24, begin + LIMIT));
    }

    #[test]
    fn a_machine_that_is_always_late_does_not_wait_for_ever() {
        let mut deadline = Deadline::after(LIMIT, Instant::now()).often(EVERY);
        let late = |deadline: &Deadline| deadline.look() + 2 * SUSPENSION_THRESHOLD;
        let over = (0..100).find(|_| deadline.is_over(late(&deadline)));
        assert!(over.is_some(), "{deadline:?}");
    }

    #[test]
    fn time_of_others_does_not_count() {
        let (begin, others) = (Instant::now(), LIMIT * 2);
        let mut deadline = Deadline::after(LIMIT, begin).often(EVERY);
        deadline.leave_out(begin, begin + others);
        assert_eq!(deadline.due(), begin + others + LIMIT);
        assert!(!deadline.is_over(begin + others + EVERY));
        assert_eq!(deadline.times_anew(), 0);
    }
}
