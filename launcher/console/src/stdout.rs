//! Text that a verb was asked for, on stdout. A reader that has closed the pipe has what it wanted, so a
//! failed write is no error of the verb.

use crate::printable;
use std::io::Write;

/// Prints text that may quote other programs: invisible characters are spelled out.
pub fn print(text: &str) {
    write(printable::text(text).as_bytes());
}

/// Writes bytes as they are.
pub fn write(bytes: &[u8]) {
    let _ = std::io::stdout().lock().write_all(bytes);
}

/// Prints text with escapes for colours, which are left out where the stream does not take them.
pub fn print_styled(text: &str) {
    let _ = anstream::stdout().lock().write_all(text.as_bytes());
}
