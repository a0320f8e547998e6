//! Aborts: requests by ranks or agents to end the job.

use rlaunch_bootstrap::id::Rank;
use rlaunch_console::exit::Exit;
use rlaunch_console::messages::Failed;

/// Request to end the job.
pub(super) struct Abort {
    /// Rank that made the request; `None` if an agent did.
    pub(super) by: Option<Rank>,
    /// Reason that was given; may be empty if `code` is set.
    pub(super) text: String,
    /// Argument of `MPI_Abort`; `None` if the request did not come from that function.
    pub(super) code: Option<i32>,
}

impl Abort {
    /// Makes the error of the aborted job. `host` is the host of the rank or agent that made the request.
    pub(super) fn failed(&self, host: &str) -> Failed {
        match (self.by, self.code) {
            (Some(rank), Some(code)) => {
                let message = format!("rank {rank} on {host} called MPI_Abort({code})");
                let mut failed = Failed::new(mpi_exit(code), message);
                failed.details.extend(self.reason().map(|line| format!("  {line}")));
                failed
            }
            (Some(rank), None) => {
                let message = format!("rank {rank} on {host} aborted the job: {}", self.text);
                Failed::new(Exit::ABORTED, message)
            }
            (None, _) => {
                Failed::new(Exit::ABORTED, format!("{host} aborted the job: {}", self.text))
            }
        }
    }

    /// Returns the lines of the reason, without those that only repeat that `MPI_Abort` was called: Open MPI
    /// gives `N/A` as the reason, and MPICH a sentence.
    fn reason(&self) -> impl Iterator<Item = &str> {
        let says_more = |line: &&str| {
            !line.is_empty() && *line != "N/A" && !line.starts_with("application called MPI_Abort")
        };
        self.text.lines().map(str::trim_end).filter(says_more)
    }
}

/// Returns the exit code for `MPI_Abort(code)`: the lowest 8 bits of `code`, as for any process, or 1 if they
/// are 0.
fn mpi_exit(code: i32) -> Exit {
    match code.to_le_bytes()[0] {
        0 => Exit::ABORTED,
        code => Exit(code),
    }
}
