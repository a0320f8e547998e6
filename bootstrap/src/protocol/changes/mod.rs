//! Changes to a host that can be undone, and the messages by which `rlaunch up`, `rlaunch down` and `rlaunch doctor --fix`
//! order them from an agent that was started as `rlaunch-worker changes`.
//!
//! ```text
//! agent                              launcher
//!   Access                ──────▶                        what the account may
//!                         ◀──────   Password              if sudo asks for one; another Access if it is wrong
//!   Ready                 ──────▶                        from the agent's process that runs as root
//!                         ◀──────   Apply, Confirm, RollBack or Undo, any number of times
//!   Outcome, Undone …     ──────▶                        as it goes on
//!   Finished              ──────▶                        the end of each answer
//! ```
//!
//! Both directions carry frames of [`crate::frame`], the agent's first one after
//! [`HELLO_MAGIC`](super::control::HELLO_MAGIC). Every change stands in the [`journal`] of its host before it is made.
//! Those on trial are undone, unless they are confirmed in time, by the agent or, if it was killed, by its guardian.

pub mod journal;

use super::network::NetworkChange;
use crate::shell_safe::word;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Change to a host. Journals keep it by position: later versions add variants at the end, never fields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// Write a file, or remove it.
    File {
        /// Absolute path.
        path: String,
        /// Permissions of a new file; one that is there keeps its own.
        mode: u32,
        /// `None` removes it.
        content: Option<String>,
        /// Text from which the content was made, but for empty lines at its end. If the file has another one by now, it is
        /// not touched: what others have written meanwhile would be lost.
        expected: Option<String>,
    },
    /// Replace a text file by what a line of `sh -c` makes of it: it gets the file at stdin and prints the new content. It
    /// must print the same for the same file, since it is run again to find out what is to be undone.
    Edit {
        /// Absolute path.
        path: String,
        line: String,
    },
    /// Run a line by `sh -c`.
    Run {
        line: String,
        /// Line that prints what is there before, for `undo`.
        save: Option<String>,
        /// Line that undoes the change, also one that was not made or is undone already. It finds in `$SAVED` what `save`
        /// has printed. `None` if there is nothing to undo.
        undo: Option<String>,
    },
    /// Change the network. What undoes it is found out by the host.
    Network(NetworkChange),
    /// Run a line whose effect the next boot takes away, so that from then on there is nothing to undo.
    RunUntilBoot { line: String, save: Option<String>, undo: Option<String> },
}

/// Writes the command that a person would type as root.
impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::File { path, mode, content: Some(content), .. } => {
                let path = word(path);
                let mark = here_mark(content);
                let end = if content.ends_with('\n') { "" } else { "\n" };
                write!(
                    f,
                    "install -D -m {mode:o} /dev/stdin {path} <<'{mark}'\n{content}{end}{mark}"
                )
            }
            Change::File { path, content: None, .. } => write!(f, "rm -f {}", word(path)),
            Change::Edit { path, line } => {
                let new = format!("{path}.new");
                let (new, path) = (word(&new), word(path));
                // In a container the file may be a mount, which cannot be replaced.
                write!(f, "{{ {line}; }} < {path} > {new} && cat {new} > {path} && rm {new}")
            }
            Change::Run { line, .. } | Change::RunUntilBoot { line, .. } => f.write_str(line),
            Change::Network(change) => change.fmt(f),
        }
    }
}

/// Returns a word that ends a here-document with this content.
fn here_mark(content: &str) -> String {
    let mut mark = "END".to_owned();
    while content.lines().any(|line| line == mark) {
        mark.push('_');
    }
    mark
}

impl Change {
    /// Returns a line of at most one row for reports: a file by its path.
    pub fn title(&self) -> String {
        match self {
            Change::File { path, content: Some(_), .. } => format!("write {path}"),
            Change::File { path, content: None, .. } => format!("remove {path}"),
            Change::Edit { path, .. } => format!("edit {path}"),
            Change::Run { line, .. } | Change::RunUntilBoot { line, .. } => {
                line.lines().next().unwrap_or_default().to_owned()
            }
            Change::Network(change) => change.to_string(),
        }
    }
}

/// Rights of an account on its host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Access {
    Root,
    /// `sudo` asks for no password.
    Sudo,
    /// `sudo` asks for the account's password.
    Password,
    /// `sudo` has taken the account's password no more: its message.
    Refused(String),
}

/// Password of an account, which no log may show.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Password(pub String);

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password")
    }
}

/// Message of the launcher.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChangeOrder {
    /// Start root's process by sudo with this password.
    Password(Password),
    /// Run lines by `sh -c` that change nothing, and tell what they print.
    Ask(Vec<String>),
    /// Make changes in order, up to the first that fails.
    Apply {
        /// Command of the user, for the journal.
        by: String,
        changes: Vec<Change>,
        /// Time until changes of this session are undone unless they are confirmed, in milliseconds; `None` keeps them
        /// at once, if none is on trial.
        trial_ms: Option<u32>,
    },
    /// Keep the changes that are on trial.
    Confirm,
    /// Undo those that are on trial.
    RollBack,
    /// Undo all that stand in the journal.
    Undo,
}

/// Answer of the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChangeReply {
    Access(Access),
    Ready(JournalState),
    /// Output of a line of [`ChangeOrder::Ask`], or what it says on stderr if it fails.
    Printed(Result<String, String>),
    /// A change was made or not, in the order of [`ChangeOrder::Apply`].
    Outcome(ChangeOutcome),
    /// A change was undone or not.
    Undone(UndoneChange),
    /// An order is carried out, or the agent has undone changes by itself and ends.
    Finished(JournalState),
    /// The agent cannot work: the reason.
    Unable(String),
}

/// Changes of a host that can be undone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalState {
    /// Number of changes that are not undone.
    pub pending: u32,
    /// Number of lines that this version cannot read.
    pub unreadable: u32,
    /// Whether the last line was cut off, by a crash or a full disk. Its change was not made.
    pub was_torn: bool,
}

/// What became of a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChangeOutcome {
    /// It was made before.
    Already,
    Made,
    /// It was not made, or not as a whole: the reason.
    Failed(String),
}

/// Change that was undone, or could not be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UndoneChange {
    pub change: Change,
    /// Command of the user that made it.
    pub by: String,
    /// Time at which it was made, in seconds since 1970.
    pub time: u64,
    /// Why it could not be undone.
    pub failure: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_lines_for_a_shell() {
        let file = |content: Option<&str>| Change::File {
            path: "/etc/x.conf".into(),
            mode: 0o600,
            content: content.map(str::to_owned),
            expected: None,
        };
        let written = "install -D -m 600 /dev/stdin /etc/x.conf <<'END_'\na = 1\nEND\nEND_";
        assert_eq!(file(Some("a = 1\nEND\n")).to_string(), written);
        assert_eq!(file(Some("a")).to_string().lines().last(), Some("END"));
        assert_eq!(file(None).to_string(), "rm -f /etc/x.conf");
        assert_eq!(file(Some("a")).title(), "write /etc/x.conf");
        let edit = Change::Edit { path: "/etc/x y".into(), line: "sed s/a/b/".into() };
        assert_eq!(
            edit.to_string(),
            "{ sed s/a/b/; } < '/etc/x y' > '/etc/x y.new' && cat '/etc/x y.new' > '/etc/x y' && rm '/etc/x y.new'"
        );
        let removed = Change::File { path: "/a'b".into(), mode: 0, content: None, expected: None };
        assert_eq!(removed.to_string(), r"rm -f '/a'\''b'");
    }

    #[test]
    fn a_password_is_not_shown() {
        let order = ChangeOrder::Password(Password("hunter2".into()));
        assert_eq!(format!("{order:?}"), "Password(Password)");
    }
}
