//! Errors of the lab, and hints for the user.

use std::error::Error as _;
use std::io;

use thiserror::Error;

/// Failed operation of the lab.
#[derive(Debug, Error)]
pub enum LabError {
    /// A system call or a file operation failed.
    #[error("could not {operation}")]
    Io {
        /// Operation that failed, as an infinitive: `read /etc/hosts`.
        operation: String,
        /// Error of the system call.
        source: io::Error,
    },
    /// An external program failed.
    #[error("could not {operation}: {program} ended with {status}{}", tail(.stderr))]
    Tool {
        /// Operation that failed, as an infinitive: `read /etc/hosts`.
        operation: String,
        /// Program that was run.
        program: String,
        /// Exit status or signal, in words.
        status: String,
        /// Last lines of its stderr.
        stderr: String,
    },
    /// A condition did not become true within its time limit.
    #[error("timed out after {seconds} s waiting for {what}{}", tail(.detail))]
    Deadline {
        /// Condition, as a noun and an infinitive: `host a to start`.
        what: String,
        /// Time limit in seconds.
        seconds: u64,
        /// Output that may explain the reason; empty if there is none.
        detail: String,
    },
    /// No lab of this name is up.
    #[error("no lab named `{name}` is up")]
    NotUp { name: String },
    /// The lab has no such host.
    #[error("lab `{lab}` has no host `{host}`")]
    NoHost { lab: String, host: String },
    /// The host exists but has crashed.
    #[error("host {host} is down")]
    HostDown { host: String },
    /// No guests of a lab of this name are up.
    #[error("no guests of a lab named `{lab}` are up")]
    NoGuests { lab: String },
    /// The lab has no such guest.
    #[error("lab `{lab}` has no guest `{guest}`")]
    NoGuest { lab: String, guest: String },
    /// The guest exists but its QEMU process has ended.
    #[error("guest {guest} is down")]
    GuestDown { guest: String },
    /// An argument is invalid.
    #[error("{0}")]
    Usage(String),
    /// The operation needs root, since it makes or enters namespaces.
    #[error("the lab needs root: it makes network namespaces")]
    NotRoot,
    /// Programs are missing and cannot be installed automatically.
    #[error("missing on this machine: {0}")]
    Missing(String),
    /// A file of the lab or the output of a tool is not the JSON that it should be.
    #[error("could not read {what}")]
    Format {
        /// File or tool that the text came from.
        what: String,
        /// Syntax error.
        source: serde_json::Error,
    },
    /// A program misbehaved, or a file has unexpected content.
    #[error("{0}")]
    Unexpected(String),
}

impl LabError {
    /// Wraps an I/O error with the operation that failed.
    pub(crate) fn io(operation: impl Into<String>) -> impl FnOnce(io::Error) -> LabError {
        let operation = operation.into();
        move |source| LabError::Io { operation, source }
    }

    /// Wraps an error of `nix` with the operation that failed.
    pub(crate) fn errno(operation: impl Into<String>) -> impl FnOnce(nix::Error) -> LabError {
        let operation = operation.into();
        move |errno| LabError::Io { operation, source: errno.into() }
    }

    /// Describes the error and its causes, a line each.
    pub fn describe(&self) -> String {
        let (mut text, mut cause) = (self.to_string(), self.source());
        while let Some(source) = cause {
            text += &format!("\n  caused by: {source}");
            cause = source.source();
        }
        text
    }

    /// Returns what the user can do about the error, if that is known.
    pub fn hint(&self) -> Option<String> {
        match self {
            LabError::NotUp { .. } => Some("`cargo lab up 3` makes hosts a, b and c".into()),
            LabError::NoHost { .. } => Some("`cargo lab hosts` lists them".into()),
            LabError::HostDown { host } => Some(format!("`cargo lab boot {host}` starts it")),
            LabError::NoGuests { .. } => {
                Some("`cargo lab vm up 3 triangle` makes guests n1, n2 and n3".into())
            }
            LabError::NoGuest { .. } => Some("`cargo lab vm status` lists them".into()),
            LabError::GuestDown { guest } => {
                Some(format!("`cargo lab vm console {guest}` may show why"))
            }
            LabError::NotRoot => Some("run it as root, or let this account use `sudo -n`".into()),
            LabError::Missing(_) => {
                Some("`cargo lab setup` installs them where apt-get is available".into())
            }
            LabError::Deadline { .. } => {
                Some("`cargo lab down` removes the rest of the lab".into())
            }
            _ => None,
        }
    }
}

fn tail(text: &str) -> String {
    let text = text.trim_end();
    if text.is_empty() { String::new() } else { format!("\n{text}") }
}
