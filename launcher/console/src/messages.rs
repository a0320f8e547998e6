//! Messages of rlaunch on stderr: errors with details and hints, warnings, progress. Since messages may
//! quote other programs, [`printable`] makes each of them safe for a terminal.

use crate::exit::Exit;
use crate::open_files;
use crate::printable;
use anstyle::{AnsiColor, Style};
pub use rlaunch_bootstrap::error_chain;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

const ERROR: Style = AnsiColor::Red.on_default().bold();
/// Style of the prefix `warning:`.
pub const WARNING: Style = AnsiColor::Yellow.on_default().bold();
/// Style of the prefix `hint:`.
pub const HINT: Style = AnsiColor::Cyan.on_default().bold();

/// Error that ends the process: exit code, message, details and hints.
#[derive(Debug)]
pub struct Failed {
    /// Exit code of the `rlaunch` process.
    pub exit: Exit,
    /// Id of the finding that the message states, such as `mtu.path`; `rlaunch help ID` explains it.
    pub finding: Option<&'static str>,
    /// One-line message; if it is empty, nothing is printed.
    pub message: String,
    /// Further lines, printed indented below the message.
    pub details: Vec<String>,
    /// Advice for the user, printed last, each line with the prefix `hint:`.
    pub hints: Vec<String>,
    /// Whether `exit` is the exit code of a rank and not one of rlaunch's own.
    pub by_rank: bool,
    /// Whether `--max-restarts` restarts the job after this error, as after a failed rank or a lost node.
    pub may_restart: bool,
}

impl Failed {
    /// Makes an error without details and hints.
    pub fn new(exit: Exit, message: impl Into<String>) -> Failed {
        Failed {
            exit,
            finding: None,
            message: message.into(),
            details: vec![],
            hints: vec![],
            by_rank: false,
            may_restart: false,
        }
    }

    /// Makes an error whose message joins `error` and its causes in one line. Adds a hint if the limit of
    /// open files caused the error.
    pub fn from_error(exit: Exit, error: &dyn std::error::Error) -> Failed {
        let message = error_chain(error);
        let hint = open_files::hint(&message);
        Failed::new(exit, message).hint(hint)
    }

    /// Adds a hint, unless it is `None` or already present.
    pub fn hint(mut self, hint: Option<impl Into<String>>) -> Failed {
        let hint = hint.map(Into::into).filter(|hint| !self.hints.contains(hint));
        self.hints.extend(hint);
        self
    }

    /// Names the finding that the message states.
    pub fn finding(self, id: Option<&'static str>) -> Failed {
        Failed { finding: id, ..self }
    }

    /// Prints the error, unless its message is empty.
    pub fn print(&self) {
        if self.message.is_empty() {
            return;
        }
        let mut err = anstream::stderr().lock();
        let label = label("error", self.finding);
        let _ = writeln!(err, "{ERROR}{label}:{ERROR:#} {}", printable::message(&self.message));
        for detail in &self.details {
            let _ = writeln!(err, "  {}", printable::message(detail));
        }
        for hint in &self.hints {
            let _ = writeln!(err, "{HINT}hint:{HINT:#} {}", printable::text(hint));
        }
        if let Some(id) = self.finding {
            let _ = writeln!(err, "{HINT}hint:{HINT:#} `rlaunch help {id}` explains this");
        }
    }
}

/// Returns a message's prefix, as in `error[mtu.path]`.
fn label(word: &str, finding: Option<&str>) -> String {
    finding.map_or_else(|| word.to_owned(), |id| format!("{word}[{id}]"))
}

/// Whether `--quiet` was given.
static QUIET: AtomicBool = AtomicBool::new(false);

/// Suppresses all messages but errors from now on.
pub fn set_quiet() {
    QUIET.store(true, Ordering::Relaxed);
}

/// Suppresses all messages but errors until the returned value is dropped.
pub fn quiet() -> QuietTime {
    QuietTime { was_quiet: QUIET.swap(true, Ordering::Relaxed) }
}

/// Time without messages.
#[derive(Debug)]
#[must_use = "messages are suppressed only while it lives"]
pub struct QuietTime {
    was_quiet: bool,
}

impl Drop for QuietTime {
    fn drop(&mut self) {
        QUIET.store(self.was_quiet, Ordering::Relaxed);
    }
}

fn is_quiet() -> bool {
    QUIET.load(Ordering::Relaxed)
}

/// Prints `message` with the prefix `warning:`.
pub fn warn(message: &str) {
    warn_of(None, message);
}

/// Prints `message` with the prefix `warning[ID]:`, where the id is that of the finding which it states.
pub fn warn_of(finding: Option<&str>, message: &str) {
    if is_quiet() {
        return;
    }
    let label = label("warning", finding);
    let _ = writeln!(
        anstream::stderr().lock(),
        "{WARNING}{label}:{WARNING:#} {}",
        printable::message(message)
    );
}

/// Prints `message` with the prefix `rlaunch:`.
pub fn info(message: &str) {
    if is_quiet() {
        return;
    }
    let _ = writeln!(anstream::stderr().lock(), "rlaunch: {}", printable::message(message));
}

/// Prints `line` without a prefix.
pub fn line(line: &str) {
    if is_quiet() {
        return;
    }
    let _ = writeln!(anstream::stderr().lock(), "{}", printable::message(line));
}

/// Prints options that rlaunch accepts for compatibility with other launchers but ignores.
pub fn ignored(words: &str) {
    if is_quiet() {
        return;
    }
    let _ =
        writeln!(anstream::stderr().lock(), "{HINT}ignored:{HINT:#} {}", printable::message(words));
}

/// Prints `message` with the prefix `hint:`.
pub fn hint(message: &str) {
    if is_quiet() {
        return;
    }
    let _ = writeln!(anstream::stderr().lock(), "{HINT}hint:{HINT:#} {}", printable::text(message));
}
