//! Exit codes of rlaunch.
//!
//! If a rank fails, rlaunch exits with the exit code of the first failed rank, or with 128 + the signal
//! number if a signal killed that rank. The other exit codes are:
//!
//! | code | meaning |
//! |---|---|
//! | 0 | every rank succeeded |
//! | 1 | a rank aborted the job |
//! | 124 | `--timeout` expired |
//! | 126, 127 | the program cannot be executed, or was not found |
//! | 129, 130, 131, 143 | the user ended the job with SIGHUP, SIGINT, SIGQUIT or SIGTERM; 128 + another signal |
//! | 141 | the process that reads rlaunch's output closed the pipe or the connection, or the terminal is gone |
//! | 200 | mistake in the command line, a configuration file or the number of slots |
//! | 201 | a host could not be reached, or refused the login |
//! | 202 | the agent cannot run on a host |
//! | 203 | a file or directory is missing on a host, or the output cannot be written |
//! | 204 | the nodes cannot connect to each other (rendezvous) |
//! | 205 | RDMA does not connect the hosts, with `--transport rdma`; or a link failed, with `--abort-on-link-down` |
//! | 206 | a node was lost |
//! | 207 | a rank runs MPI without a process manager, so that each rank would be an MPI job of its own |
//! | 210 | bug in rlaunch |

use rlaunch_bootstrap::job::ExitStatus;
use std::process::ExitCode;

/// Exit code of the `rlaunch` process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit(pub u8);

impl Exit {
    /// Every rank succeeded; for a subcommand that runs no job, the subcommand succeeded.
    pub const SUCCESS: Exit = Exit(0);
    /// A rank aborted the job.
    pub const ABORTED: Exit = Exit(1);
    /// `--timeout` expired; the same code as that of timeout(1).
    pub const TIMEOUT: Exit = Exit(124);
    /// The program cannot be executed; shells use the same code.
    pub const NOT_EXECUTABLE: Exit = Exit(126);
    /// The program was not found; shells use the same code.
    pub const NOT_FOUND: Exit = Exit(127);
    /// The process that reads rlaunch's output closed the pipe or the connection, or the terminal is gone: 128 + SIGPIPE.
    pub const READER_GONE: Exit = Exit(141);
    /// Mistake in the command line, a configuration file or the number of slots.
    pub const USAGE: Exit = Exit(200);
    /// A host could not be reached, or refused the login.
    pub const HOST: Exit = Exit(201);
    /// The agent cannot run on a host.
    pub const AGENT: Exit = Exit(202);
    /// A file or directory of the job is missing on a host, or output cannot be written.
    pub const FILES: Exit = Exit(203);
    /// The nodes cannot connect to each other.
    pub const RENDEZVOUS: Exit = Exit(204);
    /// RDMA does not connect the hosts, with `--transport rdma`; or a link failed, with
    /// `--abort-on-link-down`.
    pub const MESH: Exit = Exit(205);
    /// A node stopped answering, or its agent died.
    pub const NODE_LOST: Exit = Exit(206);
    /// A rank runs MPI without a process manager, so that each rank would be an MPI job of its own.
    pub const SINGLETON: Exit = Exit(207);
    /// Bug in rlaunch.
    pub const BUG: Exit = Exit(210);

    /// Returns the exit code that shells use for a process killed by `signal`: 128 + the signal number.
    pub fn signal(signal: i32) -> Exit {
        Exit(u8::try_from(128 + signal).unwrap_or(Exit::BUG.0))
    }

    /// Returns the exit code that passes on a rank's exit status.
    pub fn from_rank(status: ExitStatus) -> Exit {
        match status {
            ExitStatus::Code(code) => Exit(u8::try_from(code & 0xff).unwrap_or(1)),
            ExitStatus::Signal(signal) => Exit::signal(signal),
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit.0)
    }
}
