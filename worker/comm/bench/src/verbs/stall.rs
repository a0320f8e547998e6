//! End of a measurement that makes no progress.

use super::{Subject, VerbsBenchError};
use std::time::{Duration, Instant};

/// Time without progress after which a measurement fails, and the rate in bytes per second of the
/// slowest device, whose messages may take longer.
const TIMEOUT: Duration = Duration::from_secs(30);
const SLOWEST: u64 = 1 << 20;
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
    /// progress for a time that depends on the size.
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
        let (name, bytes) = (self.subject.name(), self.subject.bytes);
        let timeout = TIMEOUT + Duration::from_secs(bytes as u64 / SLOWEST);
        if self.since.get_or_insert_with(Instant::now).elapsed() < timeout {
            return Ok(());
        }
        Err(VerbsBenchError::Stalled { name, bytes, seconds: timeout.as_secs() })
    }
}
