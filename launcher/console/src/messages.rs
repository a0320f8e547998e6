//! Messages of rlaunch on stderr: errors with details and hints, warnings, progress. They may quote other
//! programs, so each passes through [`printable`].

use crate::exit::Exit;
use crate::open_files;
use crate::printable;
use anstyle::{AnsiColor, Style};
pub use rlaunch_bootstrap::error_chain;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

const ERROR: Style = AnsiColor::Red.on_default().bold();
/// Style of the word `warning:`.
pub const WARNING: Style = AnsiColor::Yellow.on_default().bold();
/// Style of the word `hint:`.
pub const HINT: Style = AnsiColor::Cyan.on_default().bold();

/// Error that ends the process: exit code, message, details and hints.
#[derive(Debug)]
pub struct Failed {
    /// Exit code of the process.
    pub exit: Exit,
    /// Message of one line; empty for a job that ends without one.
    pub message: String,
    /// Lines below the message.
    pub details: Vec<String>,
    /// Lines on what to do, printed last.
    pub hints: Vec<String>,
    /// Whether the exit code is that of a rank.
    pub by_rank: bool,
    /// Whether the job may be restarted.
    pub may_restart: bool,
}

impl Failed {
    /// Makes an error of one line.
    pub fn new(exit: Exit, message: impl Into<String>) -> Failed {
        let message = message.into();
        Failed { exit, message, details: vec![], hints: vec![], by_rank: false, may_restart: false }
    }

    /// Makes an error of a typed one, with its causes on the same line.
    pub fn from_error(exit: Exit, error: &dyn std::error::Error) -> Failed {
        let message = error_chain(error);
        let hint = open_files::hint(&message);
        Failed::new(exit, message).hint(hint)
    }

    /// Adds a hint unless it is already there.
    pub fn hint(mut self, hint: Option<impl Into<String>>) -> Failed {
        let hint = hint.map(Into::into).filter(|hint| !self.hints.contains(hint));
        self.hints.extend(hint);
        self
    }

    /// Prints the error, unless its message is empty.
    pub fn print(&self) {
        if self.message.is_empty() {
            return;
        }
        let mut err = anstream::stderr().lock();
        let _ = writeln!(err, "{ERROR}error:{ERROR:#} {}", printable::message(&self.message));
        for detail in &self.details {
            let _ = writeln!(err, "  {}", printable::message(detail));
        }
        for hint in &self.hints {
            let _ = writeln!(err, "{HINT}hint:{HINT:#} {}", printable::text(hint));
        }
    }
}

/// Set by `--quiet`.
static QUIET: AtomicBool = AtomicBool::new(false);

/// Suppresses everything but errors from now on.
pub fn set_quiet() {
    QUIET.store(true, Ordering::Relaxed);
}

fn is_quiet() -> bool {
    QUIET.load(Ordering::Relaxed)
}

/// Prints a warning.
pub fn warn(message: &str) {
    if is_quiet() {
        return;
    }
    let _ = writeln!(
        anstream::stderr().lock(),
        "{WARNING}warning:{WARNING:#} {}",
        printable::message(message)
    );
}

/// Prints a line that begins with `rlaunch:`.
pub fn info(message: &str) {
    if is_quiet() {
        return;
    }
    let _ = writeln!(anstream::stderr().lock(), "rlaunch: {}", printable::message(message));
}

/// Prints a line as it is.
pub fn line(line: &str) {
    if is_quiet() {
        return;
    }
    let _ = writeln!(anstream::stderr().lock(), "{}", printable::message(line));
}

/// Prints options of other launchers that have no effect.
pub fn ignored(words: &str) {
    if is_quiet() {
        return;
    }
    let _ =
        writeln!(anstream::stderr().lock(), "{HINT}ignored:{HINT:#} {}", printable::message(words));
}

/// Prints a hint.
pub fn hint(message: &str) {
    if is_quiet() {
        return;
    }
    let _ = writeln!(anstream::stderr().lock(), "{HINT}hint:{HINT:#} {}", printable::text(message));
}
