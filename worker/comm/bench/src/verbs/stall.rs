//! End of a measurement that makes no progress.

use super::{Subject, VerbsBenchError};
use std::time::{Duration, Instant};

/// Time without progress after which a measurement fails.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Number of polls without progress between two readings of the clock.
const POLLS: u32 = 1 << 20;

/// Detector of a peer that makes no progress. It reads the clock only once in [`POLLS`] polls,
/// because reading the clock takes microseconds on emulated hosts.
#[derive(Debug)]
pub(super) struct StallTimer {
    subject: Subject,
    polls_left: u32,
    since: Option<Instant>,
}

impl StallTimer {
    pub(super) fn new(subject: Subject) -> StallTimer {
        StallTimer { subject, polls_left: POLLS, since: None }
    }

    /// Counts a poll. `found` tells whether the poll made progress. Fails if no poll has made
    /// progress for [`TIMEOUT`].
    #[inline]
    pub(super) fn polled(&mut self, found: bool) -> Result<(), VerbsBenchError> {
        if found {
            (self.polls_left, self.since) = (POLLS, None);
            return Ok(());
        }
        self.polls_left -= 1;
        if self.polls_left > 0 {
            return Ok(());
        }
        self.polls_left = POLLS;
        if self.since.get_or_insert_with(Instant::now).elapsed() < TIMEOUT {
            return Ok(());
        }
        let (name, bytes) = (self.subject.name(), self.subject.bytes);
        Err(VerbsBenchError::Stalled { name, bytes, seconds: TIMEOUT.as_secs() })
    }
}
