//! Results of subcommands, on stdout. Failed writes are ignored: a program that has closed the pipe has
//! read all it wanted, so the subcommand has not failed.

use rlaunch_text::printable;
use std::io::Write;

/// Prints text that may quote other programs, with invisible characters escaped.
pub fn print(text: &str) {
    write(printable::text(text).as_bytes());
}

/// Prints text as [`print`] does, and tells whether it was written, for results that come one after the other.
pub fn try_print(text: &str) -> std::io::Result<()> {
    std::io::stdout().lock().write_all(printable::text(text).as_bytes())
}

/// Writes bytes unchanged.
pub fn write(bytes: &[u8]) {
    let _ = std::io::stdout().lock().write_all(bytes);
}

/// Prints text with escape sequences for colours, which are removed if stdout does not support colours.
pub fn print_styled(text: &str) {
    let _ = anstream::stdout().lock().write_all(text.as_bytes());
}
