//! The rank that failed first, which decides the outcome of a job. Ranks that fail after it are only counted.

use nix::sys::signal::Signal;
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::job::ExitStatus;
use rlaunch_text::printable;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::time::Instant;

/// Exit of a rank's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RankExit {
    pub rank: Rank,
    pub pid: u32,
    pub status: ExitStatus,
    /// Whether the rank died by SIGKILL, and the kernel's out-of-memory killer has killed a process on its
    /// host.
    pub(crate) out_of_memory: bool,
    /// Whether the rank exited after `MPI_Init` but without `MPI_Finalize`.
    pub(crate) unfinalized: bool,
    /// Whether the rank had begun to exit before its agent began to end the ranks of the node.
    pub(crate) by_itself: bool,
    /// Time of the exit by the launcher's clock.
    pub at: Instant,
}

impl RankExit {
    /// Tells whether the exit is a failure. A rank that ends with code 0 in place of `MPI_Finalize` leaves the
    /// others waiting for it.
    pub(crate) fn has_failed(self) -> bool {
        !self.status.success() || self.unfinalized
    }

    /// Tells whether the exit may be the cause of an `MPI_Abort` of another rank that was received at
    /// `aborted_at`. A rank that fails because of an abort exits later than that, with an error or by
    /// `abort(3)`.
    pub(crate) fn may_cause_abort(self, aborted_at: Instant) -> bool {
        let is_own = match self.status {
            ExitStatus::Code(code) => code == 0,
            ExitStatus::Signal(number) => {
                ![Signal::SIGABRT, Signal::SIGPIPE].iter().any(|signal| *signal as i32 == number)
            }
        };
        self.has_failed() && self.by_itself && (is_own || self.at < aborted_at)
    }
}

/// Earliest failure of a rank, whatever the order in which exits are reported.
#[derive(Debug, Default)]
pub(crate) struct FirstFailure {
    first: Option<RankExit>,
    others: u32,
    /// Time at which the launcher began to end the job. Later failures are ignored, because ending the ranks
    /// may have caused them.
    ended_at: Option<Instant>,
    /// Errors that ranks have left in files.
    errors: BTreeMap<Rank, String>,
}

/// Number of ranks whose errors are kept. The first failure is among the first of them.
const KEPT_ERRORS: usize = 1024;
/// Maximum length of an error that a rank has left, in characters.
const LONGEST_ERROR: usize = 300;

/// File that torch's `record` writes. The message has a message where torch knows more, such as the traceback.
#[derive(Deserialize)]
struct ErrorFile {
    message: ErrorMessage,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum ErrorMessage {
    Text(String),
    Described { message: String },
}

/// Returns the first line of the error in a file that torch has written; `None` of other content.
fn recorded_error(content: &[u8]) -> Option<String> {
    let file: ErrorFile = serde_json::from_slice(content).ok()?;
    let (ErrorMessage::Text(text) | ErrorMessage::Described { message: text }) = file.message;
    let line = text.lines().map(str::trim).find(|line| !line.is_empty())?;
    let mut line = printable::text(line).into_owned();
    if let Some((end, _)) = line.char_indices().nth(LONGEST_ERROR) {
        line.truncate(end);
        line.push('…');
    }
    Some(line)
}

impl FirstFailure {
    /// Notes the error that a rank has left in a file, if it is one.
    pub(crate) fn note_error(&mut self, rank: Rank, content: &[u8]) {
        if let Some(error) = recorded_error(content).filter(|_| self.errors.len() < KEPT_ERRORS) {
            self.errors.insert(rank, error);
        }
    }

    pub(crate) fn error_of(&self, rank: Rank) -> Option<&str> {
        self.errors.get(&rank).map(String::as_str)
    }

    /// Adds an exit. The exit counts only if it is a failure and happened before the launcher began to end
    /// the job.
    pub(crate) fn observe(&mut self, exit: RankExit) {
        let is_consequence = self.ended_at.is_some_and(|ended_at| exit.at >= ended_at);
        if !exit.has_failed() || is_consequence {
            return;
        }
        match &mut self.first {
            None => self.first = Some(exit),
            Some(first) => {
                self.others += 1;
                if exit.at < first.at {
                    *first = exit;
                }
            }
        }
    }

    /// Records that the launcher begins to end the job at `now`. Only the first call counts.
    pub(crate) fn begin_ending(&mut self, now: Instant) {
        self.ended_at.get_or_insert(now);
    }

    /// Makes an exit the first failure, although it was reported after the launcher began to end the job.
    pub(crate) fn blame(&mut self, exit: RankExit) {
        self.first = Some(exit);
    }

    /// Returns the first failure and the number of other failures.
    pub(crate) fn first(&self) -> Option<(RankExit, u32)> {
        self.first.map(|first| (first, self.others))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_error_that_torch_has_recorded_is_one_line() {
        let full =
            br#"{"message": {"message": "ValueError: lr\nis 0", "extraInfo": {"timestamp": "1"}}}"#;
        assert_eq!(recorded_error(full).as_deref(), Some("ValueError: lr"));
        let text = br#"{"message": "Signal 9 \u001b[2J"}"#;
        assert!(recorded_error(text).is_some_and(|line| !line.contains('\x1b')));
        for none in [&b""[..], b"{}", b"[]", b"\xff", br#"{"message": ""}"#, br#"{"message": 3}"#] {
            assert_eq!(recorded_error(none), None, "{none:?}");
        }
        let long = format!(r#"{{"message": "{}"}}"#, "x".repeat(1000));
        assert_eq!(recorded_error(long.as_bytes()).unwrap().chars().count(), LONGEST_ERROR + 1);
    }

    fn exit(rank: u32, code: i32, at: Instant) -> RankExit {
        let status = ExitStatus::Code(code);
        RankExit {
            rank: Rank(rank),
            pid: 1,
            status,
            out_of_memory: false,
            unfinalized: false,
            by_itself: true,
            at,
        }
    }

    #[test]
    fn the_earliest_counts_and_not_the_first_to_be_heard_of() {
        let t0 = Instant::now();
        let mut failures = FirstFailure::default();
        failures.observe(exit(0, 0, t0));
        failures.observe(exit(1, 3, t0 + Duration::from_millis(20)));
        failures.begin_ending(t0 + Duration::from_millis(30));
        failures.observe(exit(2, 4, t0 + Duration::from_millis(10)));
        failures.observe(exit(3, 5, t0 + Duration::from_millis(40)));
        let (first, others) = failures.first().unwrap();
        assert_eq!((first.rank, others), (Rank(2), 1));
    }
}
