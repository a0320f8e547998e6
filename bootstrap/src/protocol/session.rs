//! Sessions beside a rank of a running job: a command in the rank's place (`rlaunch exec`), or the
//! debugger at which the rank waits (`rlaunch attach`).
//!
//! ```text
//! client            launcher            agent
//!   Start      ──────▶   ──────▶               one process, or a connection to the debugger
//!              ◀──────   ◀──────   Started
//!   Stdin      ──────▶   ──────▶
//!              ◀──────   ◀──────   StdinTaken  the next input may be sent
//!              ◀──────   ◀──────   Output
//!   OutputTaken──────▶   ──────▶               the next output may be sent
//!   Resize     ──────▶   ──────▶
//!              ◀──────   ◀──────   Resized     the next size may be sent
//!   End        ──────▶   ──────▶               the client is gone
//!              ◀──────   ◀──────   Ended, Detached or Failed
//! ```
//!
//! Each of input, output and size has at most one message on its way, so a session takes a bounded
//! amount of memory at every hop, and an end that sends more breaks the protocol.

pub use crate::job::TerminalSize;

use crate::id::Rank;
use crate::job::ExitStatus;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;

/// Maximum amount of input or output in one message, in bytes.
pub const MAX_SESSION_DATA: usize = 32 << 10;

/// Maximum number of sessions on a node at a time.
pub const MAX_SESSIONS: usize = 8;

/// Message from the client of a session to the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToSession {
    Start(SessionStart),
    /// Input, at most [`MAX_SESSION_DATA`] bytes. An empty part marks the end of the input.
    Stdin(#[serde(with = "serde_bytes")] Vec<u8>),
    /// The last output is written, so the next may be sent.
    OutputTaken,
    /// Size of the client's terminal has changed.
    Resize(TerminalSize),
    /// The client is gone, so the session ends.
    End,
}

/// Session to begin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionStart {
    /// Rank beside which the session runs.
    pub rank: Rank,
    pub kind: SessionKind,
}

/// Kind of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SessionKind {
    /// Command in the rank's place.
    Command {
        /// Words of the command; none for the rank's shell.
        argv: Vec<OsString>,
        /// Terminal of the command; `None` if its streams are pipes.
        terminal: Option<Terminal>,
    },
    /// Connection to the debugger at which the rank waits.
    Debugger,
}

/// Terminal of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terminal {
    /// Type of the client's terminal, as in its variable TERM; `None` if it has no such variable.
    pub term: Option<OsString>,
    pub size: TerminalSize,
}

/// Output stream of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// Message from the agent to the client of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromSession {
    Started {
        /// Process that ends as the command does; that of the rank, for the debugger.
        pid: u32,
    },
    /// Output, at most [`MAX_SESSION_DATA`] bytes.
    Output {
        /// Stream that it was written to; always stdout if the session has a terminal.
        stream: Stream,
        /// Bytes that were written.
        #[serde(with = "serde_bytes")]
        data: Vec<u8>,
    },
    /// The last input is on its way to the command, so the next may be sent.
    StdinTaken,
    /// The last size is set, so the next may be sent.
    Resized,
    /// The command has ended, and all its output was sent; or the debugger has let the rank go on.
    Ended(ExitStatus),
    /// The debugger has closed the connection, and the rank waits for the next one.
    Detached,
    /// The session could not begin, or cannot go on.
    Failed(SessionError),
}

impl FromSession {
    /// Tells whether the session is over with this message.
    pub fn is_last(&self) -> bool {
        matches!(self, Self::Ended(_) | Self::Detached | Self::Failed(_))
    }
}

/// Reason why a session cannot begin or go on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum SessionError {
    /// The rank waits for an application that starts before it.
    #[error("it has not started: its program waits for another one")]
    NotStarted,
    /// The rank's process has ended.
    #[error("its process has ended")]
    RankEnded,
    /// The job ends, or has ended.
    #[error("the job is ending")]
    JobEnding,
    /// No process of the rank waits in `breakpoint()`.
    #[error("it does not wait in breakpoint()")]
    NotAtBreakpoint,
    /// Every process of the rank that waits in `breakpoint()` has a client already.
    #[error("another `rlaunch attach` is connected to it")]
    Attached,
    /// The node has as many sessions as it may have.
    #[error("its node has {MAX_SESSIONS} sessions already")]
    TooMany,
    /// The other end of the session has broken the protocol.
    #[error("the other end has broken the protocol")]
    Protocol,
    /// An operation failed on the node.
    #[error("cannot {operation}: {cause}")]
    Cannot {
        operation: String,
        /// Error of the operating system.
        cause: String,
    },
}

impl SessionError {
    /// Makes the error of an operation that failed on the node.
    pub fn cannot(operation: impl Into<String>, cause: &impl ToString) -> SessionError {
        SessionError::Cannot { operation: operation.into(), cause: cause.to_string() }
    }

    /// Returns advice for the user.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            SessionError::NotAtBreakpoint => Some(
                "`breakpoint()` in the rank's Python code makes it wait; `rlaunch exec RANK` runs a \
                 command beside it",
            ),
            SessionError::TooMany => Some("end another `rlaunch exec` or `rlaunch attach` first"),
            SessionError::Protocol => Some("use the rlaunch that started the job"),
            _ => None,
        }
    }
}
