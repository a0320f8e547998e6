//! Words of rlaunch itself: on stderr one error, its details and what to do, on stdout what it was asked
//! to print. Both may quote others, see [`printable`].

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

/// Why a job could not run, or how it failed.
#[derive(Debug)]
pub struct Failed {
    /// Exit code of the process.
    pub exit: Exit,
    /// One line.
    pub message: String,
    /// Lines below it.
    pub details: Vec<String>,
    /// Lines on what to do, printed last.
    pub hints: Vec<String>,
    /// The exit code is a rank's own and not rlaunch's.
    pub by_rank: bool,
    /// Another attempt at the job may end otherwise.
    pub may_restart: bool,
}

impl Failed {
    /// Makes an error of one line.
    pub fn new(exit: Exit, message: impl Into<String>) -> Failed {
        let message = message.into();
        Failed { exit, message, details: vec![], hints: vec![], by_rank: false, may_restart: false }
    }

    /// From a typed error: its causes follow it on the same line.
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

    /// Prints it; nothing is printed for a job that ended quietly.
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

/// From now on nothing but errors is printed.
pub fn set_quiet() {
    QUIET.store(true, Ordering::Relaxed);
}

fn is_quiet() -> bool {
    QUIET.load(Ordering::Relaxed)
}

/// Something the user should know.
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

/// Something that goes on.
pub fn info(message: &str) {
    if is_quiet() {
        return;
    }
    let _ = writeln!(anstream::stderr().lock(), "rlaunch: {}", printable::message(message));
}

/// A line that begins with what it is about.
pub fn line(line: &str) {
    if is_quiet() {
        return;
    }
    let _ = writeln!(anstream::stderr().lock(), "{}", printable::message(line));
}

/// Words of other launchers that change nothing here.
pub fn ignored(words: &str) {
    if is_quiet() {
        return;
    }
    let _ =
        writeln!(anstream::stderr().lock(), "{HINT}ignored:{HINT:#} {}", printable::message(words));
}

/// What could be done about it.
pub fn hint(message: &str) {
    if is_quiet() {
        return;
    }
    let _ = writeln!(anstream::stderr().lock(), "{HINT}hint:{HINT:#} {}", printable::text(message));
}
