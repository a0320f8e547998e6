//! Reports of `rlaunch-worker` about a host outside of a job, for `rlaunch cache`, `rlaunch jobs -H` and
//! `rlaunch reap`.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Beginning of the names of files in the cache of an account on a host: for each container engine whose program has started
/// containers for jobs of this account. No other engine is asked what it has kept: podman leaves a process and a segment of
/// its own behind, even if it is only asked.
pub const ENGINE_MARK: &str = ".ran-";

/// Directories that an account keeps on a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheReport(pub Vec<CachedDirectory>);

/// Directory in a cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CachedDirectory {
    #[serde(with = "crate::serde_path")]
    pub path: PathBuf,
    pub kind: CachedKind,
    /// Size of all files in bytes.
    pub size: u64,
    /// Seconds since its last use; updated once an hour at most.
    pub idle: u64,
    /// State of the directory, after a removal if that was asked for.
    pub state: CachedState,
}

/// Content of a directory in a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CachedKind {
    /// An agent, and the prover beside it.
    Agent,
    Library,
}

/// State of a directory in a cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CachedState {
    /// It is not used.
    Idle,
    /// A job uses it, so it is not removed.
    InUse,
    Removed,
    /// It could not be removed, for this reason.
    Failed(String),
}

/// Jobs of an account that have processes on a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostJobs(pub Vec<HostJob>);

/// Processes of a job on a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostJob {
    /// Id of the job, 32 hexadecimal digits.
    pub job: String,
    /// Number of ranks with processes.
    pub ranks: u32,
    pub processes: u32,
    /// Time since the oldest process started, in seconds.
    pub seconds: u64,
    /// CPU time since the start, in milliseconds.
    pub cpu_ms: u64,
    /// Resident memory, in bytes. Pages that several processes share are counted in each.
    pub resident: u64,
    /// Command line of the oldest process.
    pub program: Vec<String>,
    /// Whether an agent looks after the processes. If not, they are left over.
    pub has_agent: bool,
}

/// Separates the numbers in the report's line from the list of processes that could not be
/// inspected.
const HIDDEN: &str = "; could not look into ";

/// Outcome of the clean-up after a job on one host: the last line that `rlaunch-worker reap` prints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CleanupReport {
    /// Everything that was found of the job has been removed.
    Clean {
        /// Number of processes of the job that were ended.
        ended: usize,
        /// Number of shared-memory files that were removed.
        segments: u32,
        /// Number of containers of the job that were removed.
        containers: usize,
        /// Engines that may have containers of the job left, because they do not answer: `docker: may have some left: why`, with `; `
        /// between several. Empty if all were asked.
        unasked: String,
        /// Processes of the user that could not be inspected, each with pid, name and state. They
        /// may belong to the job. Empty if every process could be inspected.
        hidden: String,
    },
    /// Processes of the job that could not be ended, each with pid, name and state.
    Remaining(String),
}

/// Words between an engine that may have containers left, and the reason.
pub const UNASKED: &str = ": may have some left: ";

/// Words behind the number of removed containers.
const CONTAINERS: &str = " containers removed";

/// Error of parsing a line that is not a [`CleanupReport`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the line does not say what was done")]
pub struct CleanupReportError;

impl fmt::Display for CleanupReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CleanupReport::Clean { ended, segments, containers, unasked, hidden } => {
                write!(f, "{ended} ended, {segments} segments removed")?;
                if *containers > 0 {
                    write!(f, ", {containers}{CONTAINERS}")?;
                }
                if !unasked.is_empty() {
                    write!(f, "; {unasked}")?;
                }
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
        let (line, unasked) = line.split_once("; ").unwrap_or((line, ""));
        if !unasked.is_empty() && !unasked.contains(UNASKED) {
            return Err(CleanupReportError);
        }
        let (line, containers) = match line.strip_suffix(CONTAINERS) {
            Some(line) => line.rsplit_once(", ").ok_or(CleanupReportError)?,
            None => (line, "0"),
        };
        let containers = containers.parse().map_err(|_| CleanupReportError)?;
        let numbers = line.strip_suffix(" segments removed").and_then(|l| l.split_once(" ended, "));
        let (ended, segments) = numbers.ok_or(CleanupReportError)?;
        let ended = ended.parse().map_err(|_| CleanupReportError)?;
        let segments = segments.parse().map_err(|_| CleanupReportError)?;
        let (unasked, hidden) = (unasked.to_owned(), hidden.to_owned());
        Ok(CleanupReport::Clean { ended, segments, containers, unasked, hidden })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let clean = |ended, segments, containers, unasked: &str, hidden: &str| {
            let (unasked, hidden) = (unasked.to_owned(), hidden.to_owned());
            CleanupReport::Clean { ended, segments, containers, unasked, hidden }
        };
        let both =
            "docker: may have some left: it is silent; podman: may have some left: exit status: 3";
        for reaped in [
            clean(12, 0, 0, "", ""),
            clean(1, 0, 2, "", ""),
            clean(0, 1, 1, "", "7 su (state S), 8 x"),
            clean(0, 0, 1, both, "7 a; b (state S)"),
            clean(0, 0, 0, both, ""),
            CleanupReport::Remaining("4711 python3 (state D), 4712 x".to_owned()),
        ] {
            assert_eq!(reaped.to_string().parse(), Ok(reaped));
        }
    }

    #[test]
    fn no_other_line_says_that_nothing_is_left() {
        let wrong = "x ended, 0 segments removed";
        let odd = "2 ended, 0 segments removed; but";
        for line in ["", "logout", "left: ", "2 ended", odd, wrong, &wrong.replace('x', "-1")] {
            assert_eq!(line.parse::<CleanupReport>(), Err(CleanupReportError), "{line}");
        }
    }
}
