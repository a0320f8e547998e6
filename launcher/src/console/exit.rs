//! Every exit code of rlaunch.
//!
//! A rank's own code is passed through, and a rank that a signal killed gives 128 + signal. What
//! rlaunch says for itself:
//!
//! | code | meaning |
//! |---|---|
//! | 0 | every rank succeeded |
//! | 1 | a rank aborted the job |
//! | 124 | `--timeout` |
//! | 126, 127 | the program may not be executed, or is not there |
//! | 129, 130, 143 | the user ended the job by HUP, INT or TERM |
//! | 141 | the reader of the output went away |
//! | 200 | usage, configuration, slots |
//! | 201 | a host was not reached, or refused |
//! | 202 | the agent cannot run on a host |
//! | 203 | a file or directory is missing |
//! | 204 | the nodes cannot meet (rendezvous) |
//! | 205 | hosts that RDMA does not connect, under `--transport rdma`; a link down, if asked |
//! | 206 | a node was lost |
//! | 207 | several ranks run MPI, which nobody serves |
//! | 210 | a bug in rlaunch |

use rlaunch_bootstrap::job::ExitStatus;
use std::process::ExitCode;

/// What the shell sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exit(pub(crate) u8);

impl Exit {
    pub(crate) const SUCCESS: Exit = Exit(0);
    pub(crate) const ABORTED: Exit = Exit(1);
    pub(crate) const TIMEOUT: Exit = Exit(124);
    pub(crate) const NOT_EXECUTABLE: Exit = Exit(126);
    pub(crate) const NOT_FOUND: Exit = Exit(127);
    pub(crate) const READER_GONE: Exit = Exit(141);
    pub(crate) const USAGE: Exit = Exit(200);
    pub(crate) const HOST: Exit = Exit(201);
    pub(crate) const AGENT: Exit = Exit(202);
    pub(crate) const FILES: Exit = Exit(203);
    pub(crate) const RENDEZVOUS: Exit = Exit(204);
    pub(crate) const MESH: Exit = Exit(205);
    pub(crate) const NODE_LOST: Exit = Exit(206);
    pub(crate) const SINGLETON: Exit = Exit(207);
    pub(crate) const BUG: Exit = Exit(210);

    /// The shell's code for a signal.
    pub(crate) fn signal(signal: i32) -> Exit {
        Exit(u8::try_from(128 + signal).unwrap_or(Exit::BUG.0))
    }

    /// A rank's own code.
    pub(crate) fn of_rank(status: ExitStatus) -> Exit {
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
