//! Exit codes of rlaunch.
//!
//! The code of the first rank that failed is passed through; a rank that a signal killed gives
//! 128 + signal. Codes of rlaunch's own:
//!
//! | code | meaning |
//! |---|---|
//! | 0 | every rank succeeded |
//! | 1 | a rank aborted the job |
//! | 124 | `--timeout` |
//! | 126, 127 | the program may not be executed, or was not found |
//! | 129, 130, 143 | the user ended the job with SIGHUP, SIGINT or SIGTERM |
//! | 141 | the reader of the output closed it |
//! | 200 | usage, configuration, slots |
//! | 201 | a host was not reached, or refused the login |
//! | 202 | the agent cannot run on a host |
//! | 203 | a file or directory is missing |
//! | 204 | the nodes cannot connect to each other (rendezvous) |
//! | 205 | RDMA does not connect the hosts under `--transport rdma`; a link is down, if that ends the job |
//! | 206 | a node was lost |
//! | 207 | several ranks run MPI without a server for it |
//! | 210 | a bug in rlaunch |

use rlaunch_bootstrap::job::ExitStatus;
use std::process::ExitCode;

/// Exit code of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit(pub u8);

impl Exit {
    /// Every rank succeeded, or the verb did.
    pub const SUCCESS: Exit = Exit(0);
    /// A rank aborted the job.
    pub const ABORTED: Exit = Exit(1);
    /// `--timeout` expired; the code of timeout(1).
    pub const TIMEOUT: Exit = Exit(124);
    /// The program may not be executed; the code of shells.
    pub const NOT_EXECUTABLE: Exit = Exit(126);
    /// The program was not found; the code of shells.
    pub const NOT_FOUND: Exit = Exit(127);
    /// The reader of the output closed it: 128 + SIGPIPE.
    pub const READER_GONE: Exit = Exit(141);
    /// A mistake in the command line, a configuration file or the count of slots.
    pub const USAGE: Exit = Exit(200);
    /// A host was not reached, or refused the login.
    pub const HOST: Exit = Exit(201);
    /// The agent cannot run on a host.
    pub const AGENT: Exit = Exit(202);
    /// A file or directory of the job is missing on a host.
    pub const FILES: Exit = Exit(203);
    /// The nodes cannot connect to each other.
    pub const RENDEZVOUS: Exit = Exit(204);
    /// RDMA does not connect the hosts under `--transport rdma`; or a link failed, with `--on-link-down kill`.
    pub const MESH: Exit = Exit(205);
    /// A node stopped answering or its agent died.
    pub const NODE_LOST: Exit = Exit(206);
    /// Several ranks run MPI without a server for it.
    pub const SINGLETON: Exit = Exit(207);
    /// A bug in rlaunch.
    pub const BUG: Exit = Exit(210);

    /// Makes the code that shells give to a signal: 128 + its number.
    pub fn signal(signal: i32) -> Exit {
        Exit(u8::try_from(128 + signal).unwrap_or(Exit::BUG.0))
    }

    /// Makes the code for a rank's status.
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
