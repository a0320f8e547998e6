//! Aborts: requests by ranks or agents to end the job.

use super::{Supervisor, job_ending};
use crate::run::first_failure::RankExit;
use crate::run::outcome::Reason;
use rlaunch_bootstrap::id::Rank;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use std::time::Instant;

/// Beginning of the text with which MPICH reports an `MPI_Abort` of the program.
const BY_PROGRAM: &str = "application called MPI_Abort";

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

    /// Tells whether the program called `MPI_Abort`, as MPICH says, and not the library after an error. Open MPI does
    /// not tell.
    fn is_by_program(&self) -> bool {
        self.text.trim_start().starts_with(BY_PROGRAM)
    }

    /// Returns the lines of the reason, without those that only repeat that `MPI_Abort` was called: Open MPI
    /// gives `N/A` as the reason, and MPICH a sentence.
    fn reason(&self) -> impl Iterator<Item = &str> {
        let says_more =
            |line: &&str| !line.is_empty() && *line != "N/A" && !line.starts_with(BY_PROGRAM);
        self.text.lines().map(str::trim_end).filter(says_more)
    }
}

impl Supervisor<'_> {
    /// Handles an abort. If the job is being ended because the aborting rank has exited, the abort replaces
    /// that exit as the reason.
    pub(super) fn on_abort(&mut self, now: Instant, host: &str, abort: &Abort) {
        let failed = abort.failed(host);
        // A rank that aborts because another one has is not the cause, whenever its exit is reported.
        self.aborting_ranks.extend(abort.code.and(abort.by));
        if self.is_ending() {
            let first = self.first_failure.first().map(|(exit, _)| exit.rank);
            if matches!(self.reason, Some(Reason::Rank)) && abort.by.is_some() && first == abort.by
            {
                self.reason = Some(Reason::Aborted(failed));
            }
            return;
        }
        let by_library = abort.code.and(abort.by).filter(|_| !abort.is_by_program());
        self.mpi_aborted = by_library.map(|rank| (rank, now));
        let why = job_ending(failed.message.clone());
        self.end(now, Reason::Aborted(failed), why);
    }

    /// Replaces an `MPI_Abort` as the reason for the end of the job by the exit of another rank that was the
    /// cause. MPI libraries call it when the connection to a rank has broken, which often happens before the
    /// exit of that rank is reported.
    pub(super) fn explain_abort(&mut self, exit: RankExit) {
        let Some((rank, at)) = self.mpi_aborted else { return };
        if matches!(self.reason, Some(Reason::Aborted(_)))
            && exit.rank != rank
            && !self.aborting_ranks.contains(&exit.rank)
            && exit.may_cause_abort(at)
        {
            self.first_failure.blame(exit);
            self.reason = Some(Reason::Rank);
        }
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
