//! The terminal at which the user sits.

use rlaunch_bootstrap::job::TerminalSize;
use rustix::termios::tcgetwinsize;
use std::io;

/// Size of a program's terminal if the user has none.
const DEFAULT_SIZE: TerminalSize = TerminalSize { rows: 24, columns: 80 };

/// Returns the size of the terminal at stdout, stdin or stderr.
pub(crate) fn size() -> Option<TerminalSize> {
    let size = tcgetwinsize(io::stdout())
        .or_else(|_| tcgetwinsize(io::stdin()))
        .or_else(|_| tcgetwinsize(io::stderr()));
    let size = size.ok().filter(|size| size.ws_row > 0 && size.ws_col > 0)?;
    Some(TerminalSize { rows: size.ws_row, columns: size.ws_col })
}

/// Returns the size of the user's terminal, or a usual one.
pub(crate) fn size_or_default() -> TerminalSize {
    size().unwrap_or(DEFAULT_SIZE)
}
