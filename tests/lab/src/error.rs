//! What can go wrong in the lab, and what to do about it.

use std::io;

use thiserror::Error;

/// A failed operation of the lab.
#[derive(Debug, Error)]
pub enum LabError {
    /// A system call or a file operation failed.
    #[error("could not {operation}")]
    Io {
        /// What was being done.
        operation: String,
        /// Why it failed.
        source: io::Error,
    },
    /// An external program failed.
    #[error("could not {operation}: {program} ended with {status}{}", tail(.stderr))]
    Tool {
        /// What was being done.
        operation: String,
        /// The program that was run.
        program: String,
        /// How it ended.
        status: String,
        /// The end of what it wrote to stderr.
        stderr: String,
    },
    /// A condition did not come true in time.
    #[error("waited {seconds} s in vain for {what}{}", tail(.detail))]
    Deadline {
        /// The awaited condition.
        what: String,
        /// How long it was awaited.
        seconds: u64,
        /// What is known about the reason.
        detail: String,
    },
    /// The lab is not there.
    #[error("no lab named `{name}` is up")]
    NotUp {
        /// The lab's name.
        name: String,
    },
    /// The lab has no such host.
    #[error("lab `{lab}` has no host `{host}`")]
    NoHost {
        /// The lab's name.
        lab: String,
        /// The name asked for.
        host: String,
    },
    /// The host is there but does not run.
    #[error("host {host} is down")]
    HostDown {
        /// The host.
        host: String,
    },
    /// There are no guests of that lab.
    #[error("no guests of a lab named `{lab}` are up")]
    NoGuests {
        /// The lab's name.
        lab: String,
    },
    /// The lab has no such guest.
    #[error("lab `{lab}` has no guest `{guest}`")]
    NoGuest {
        /// The lab's name.
        lab: String,
        /// The name asked for.
        guest: String,
    },
    /// The guest is there but does not run.
    #[error("guest {guest} is down")]
    GuestDown {
        /// The guest.
        guest: String,
    },
    /// An argument makes no sense.
    #[error("{0}")]
    Usage(String),
    /// Namespaces need root.
    #[error("the lab needs root: it makes network namespaces")]
    NotRoot,
    /// Programs are missing and cannot be installed from here.
    #[error("missing on this machine: {0}")]
    Missing(String),
    /// A stored file of the lab, or what a tool printed, is not what it should be.
    #[error("could not read {what}")]
    Format {
        /// The text in question.
        what: String,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// A measured or shown program did not do what it should.
    #[error("{0}")]
    Unexpected(String),
}

impl LabError {
    /// Wraps an I/O error with what was being done.
    pub(crate) fn io(operation: impl Into<String>) -> impl FnOnce(io::Error) -> LabError {
        let operation = operation.into();
        move |source| LabError::Io { operation, source }
    }

    /// The same for the errors of `nix`.
    pub(crate) fn errno(operation: impl Into<String>) -> impl FnOnce(nix::Error) -> LabError {
        let operation = operation.into();
        move |errno| LabError::Io { operation, source: errno.into() }
    }

    /// What the user can do about it, if anything is known.
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
                Some(format!("`cargo lab vm console {guest}` may say why"))
            }
            LabError::NotRoot => Some("run it as root, or let this account use `sudo -n`".into()),
            LabError::Missing(_) => Some("`cargo lab setup` installs what it can".into()),
            LabError::Deadline { .. } => {
                Some("`cargo lab down` removes whatever is left of the lab".into())
            }
            _ => None,
        }
    }
}

fn tail(text: &str) -> String {
    let text = text.trim_end();
    if text.is_empty() { String::new() } else { format!("\n{text}") }
}
