//! Messages of rlaunch on stderr: errors with details and hints, warnings, progress. Since messages may
//! quote other programs, [`printable`] makes each of them safe for a terminal.

use crate::open_files;
use anstyle::{AnsiColor, Style};
pub use rlaunch_bootstrap::error_chain;
use rlaunch_text::message::{Failed, Message};
use rlaunch_text::printable;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

const ERROR: Style = AnsiColor::Red.on_default().bold();
/// Style of the prefix `warning:`.
pub const WARNING: Style = AnsiColor::Yellow.on_default().bold();
/// Style of the prefix `hint:`.
pub const HINT: Style = AnsiColor::Cyan.on_default().bold();

/// Prints an error with its details and hints, unless its message is empty. Adds a hint if the limit of open
/// files caused the error.
pub fn error(failed: &Failed) {
    if failed.message.is_empty() {
        return;
    }
    let mut err = anstream::stderr().lock();
    let label = label("error", failed.finding);
    let _ = writeln!(err, "{ERROR}{label}:{ERROR:#} {}", printable::message(&failed.message));
    for detail in &failed.details {
        let _ = writeln!(err, "  {}", printable::message(detail));
    }
    let about_files = open_files::hint(&failed.message).filter(|hint| !failed.hints.contains(hint));
    for hint in failed.hints.iter().chain(&about_files) {
        let _ = writeln!(err, "{HINT}hint:{HINT:#} {}", printable::text(hint));
    }
    if let Some(id) = failed.finding {
        let _ = writeln!(err, "{HINT}hint:{HINT:#} `rlaunch help {id}` explains this");
    }
}

/// Prints messages in their order.
pub fn print(messages: &[Message]) {
    for message in messages {
        match message {
            Message::Info(text) => info(text),
            Message::Line(text) => line(text),
            Message::Warning { finding, text } => warn_of(*finding, text),
            Message::Hint(text) => hint(text),
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
