//! Messages for the user, as values; `rlaunch_console::messages` prints them.

use crate::exit::Exit;
use rlaunch_bootstrap::error_chain;

/// Message that does not end the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// A step of rlaunch, or its choice where the user's could not be followed.
    Info(String),
    /// A line that begins with its subject, as in `placement: a 0-1 · b 2`.
    Labelled(String),
    Warning {
        /// Id of the finding that the message states.
        finding: Option<&'static str>,
        text: String,
    },
    /// Remedy for the message before it.
    Hint(String),
}

/// Error that ends the process: exit code, message, details and hints.
#[derive(Debug)]
pub struct Failed {
    /// Exit code of the `rlaunch` process.
    pub exit: Exit,
    /// Id of the finding that the message states, such as `mtu.path`; `rlaunch help ID` explains it.
    pub finding: Option<&'static str>,
    /// One-line message; if it is empty, nothing is printed.
    pub message: String,
    pub host: Option<Box<FailedHost>>,
    /// Further lines, printed indented below the message.
    pub details: Vec<String>,
    /// Lines below the details that ask nothing of the user, printed dim.
    pub asides: Vec<String>,
    /// Advice for the user, printed last, each line with the prefix `hint:`.
    pub hints: Vec<String>,
    /// Whether `exit` is the exit code of a rank and not one of rlaunch's own.
    pub by_rank: bool,
    /// Whether the user has asked for this end, as by Ctrl-C, so that it is no error and its message says all.
    pub is_asked: bool,
    /// Whether `--max-restarts` restarts the job after this error, as after a failed rank or a lost node.
    pub may_restart: bool,
}

/// Host without which a failure might not have happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedHost {
    pub name: String,
    /// Whether its agent is gone, rather than one of its ranks.
    pub is_lost: bool,
}

impl Failed {
    pub fn new(exit: Exit, message: impl Into<String>) -> Failed {
        Failed {
            exit,
            finding: None,
            message: message.into(),
            host: None,
            details: vec![],
            asides: vec![],
            hints: vec![],
            by_rank: false,
            is_asked: false,
            may_restart: false,
        }
    }

    /// Makes an error whose message joins `error` and its causes in one line.
    pub fn from_error(exit: Exit, error: &dyn std::error::Error) -> Failed {
        Failed::new(exit, error_chain(error))
    }

    /// Adds a hint, unless it is `None` or already present.
    #[must_use]
    pub fn hint(mut self, hint: Option<impl Into<String>>) -> Failed {
        let hint = hint.map(Into::into).filter(|hint| !self.hints.contains(hint));
        self.hints.extend(hint);
        self
    }

    /// Names the finding that the message states.
    #[must_use]
    pub fn finding(self, id: Option<&'static str>) -> Failed {
        Failed { finding: id, ..self }
    }
}
