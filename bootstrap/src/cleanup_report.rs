//! The last line that `rlaunch-worker reap` prints: what was cleaned up after a job on one host.

use std::fmt;
use std::str::FromStr;

/// Separates the numbers in the report's line from the list of processes that could not be
/// inspected.
const HIDDEN: &str = "; could not look into ";

/// Outcome of the clean-up after a job on one host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CleanupReport {
    /// Everything that was found of the job has been removed.
    Clean {
        /// Number of processes of the job that were ended.
        ended: usize,
        /// Number of shared-memory files that were removed.
        segments: u32,
        /// Processes of the user that could not be inspected, each with pid, name and state. They
        /// may belong to the job. Empty if every process could be inspected.
        hidden: String,
    },
    /// Processes of the job that could not be ended, each with pid, name and state.
    Remaining(String),
}

/// Error of parsing a line that is not a [`CleanupReport`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the line does not say what was done")]
pub struct CleanupReportError;

impl fmt::Display for CleanupReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CleanupReport::Clean { ended, segments, hidden } => {
                write!(f, "{ended} ended, {segments} segments removed")?;
                if hidden.is_empty() { Ok(()) } else { write!(f, "{HIDDEN}{hidden}") }
            }
            CleanupReport::Remaining(processes) => write!(f, "left: {processes}"),
        }
    }
}

impl FromStr for CleanupReport {
    type Err = CleanupReportError;

    fn from_str(line: &str) -> Result<CleanupReport, CleanupReportError> {
        if let Some(processes) = line.strip_prefix("left: ").filter(|names| !names.is_empty()) {
            return Ok(CleanupReport::Remaining(processes.to_owned()));
        }
        let (line, hidden) = line.split_once(HIDDEN).unwrap_or((line, ""));
        let numbers = line.strip_suffix(" segments removed").and_then(|l| l.split_once(" ended, "));
        let (ended, segments) = numbers.ok_or(CleanupReportError)?;
        let ended = ended.parse().map_err(|_| CleanupReportError)?;
        let segments = segments.parse().map_err(|_| CleanupReportError)?;
        Ok(CleanupReport::Clean { ended, segments, hidden: hidden.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for reaped in [
            CleanupReport::Clean { ended: 12, segments: 0, hidden: String::new() },
            CleanupReport::Clean {
                ended: 0,
                segments: 1,
                hidden: "7 su (state S), 8 x".to_owned(),
            },
            CleanupReport::Remaining("4711 python3 (state D), 4712 x".to_owned()),
        ] {
            assert_eq!(reaped.to_string().parse(), Ok(reaped));
        }
    }

    #[test]
    fn no_other_line_says_that_nothing_is_left() {
        let wrong = "x ended, 0 segments removed";
        for line in ["", "logout", "left: ", "2 ended", wrong, &wrong.replace('x', "-1")] {
            assert_eq!(line.parse::<CleanupReport>(), Err(CleanupReportError), "{line}");
        }
    }
}
