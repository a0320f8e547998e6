//! The last line that `rlaunch-worker reap` prints: what was cleaned up on a host.

use std::fmt;
use std::str::FromStr;

/// Text before the names of processes that could not be inspected.
const HIDDEN: &str = "; could not look into ";

/// Outcome of cleaning up after a job on one host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CleanupReport {
    /// Nothing of the job is left.
    Clean {
        /// Number of processes that were ended.
        ended: usize,
        /// Number of shared-memory files that were removed.
        segments: u32,
        /// Processes of the user that could not be inspected and may belong to the job; often
        /// empty.
        hidden: String,
    },
    /// Names of processes that could not be ended.
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
