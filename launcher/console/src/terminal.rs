//! Size of the terminal at which the user sits, and whether it shows keys.

use rlaunch_bootstrap::job::TerminalSize;
use rustix::termios::{LocalModes, tcgetattr, tcgetwinsize};
use std::io;
use std::os::fd::AsFd;

/// Size where there is no terminal.
const USUAL: TerminalSize = TerminalSize { rows: 24, columns: 80 };

/// Returns the number of rows of the terminal at stderr.
pub fn rows() -> u16 {
    size_of(io::stderr()).unwrap_or(USUAL).rows
}

/// Returns the number of columns of the terminal at stdout; `None` if that is no terminal, or one without a size.
pub fn columns() -> Option<u16> {
    size_of(io::stdout()).map(|size| size.columns)
}

/// Returns the number of columns of the terminal at stderr, as [`columns`] does.
pub(crate) fn message_columns() -> Option<u16> {
    size_of(io::stderr()).map(|size| size.columns)
}

/// Tells whether the terminal at stderr shows keys that send signals, such as Ctrl-C as `^C`.
pub(crate) fn shows_keys() -> bool {
    let shown = LocalModes::ECHO | LocalModes::ECHOCTL;
    tcgetattr(io::stderr()).is_ok_and(|mode| mode.local_modes.contains(shown))
}

/// Returns the size of the terminal at stdout, stdin or stderr.
pub fn size() -> Option<TerminalSize> {
    let of_input = || size_of(io::stdin());
    size_of(io::stdout()).or_else(of_input).or_else(|| size_of(io::stderr()))
}

/// Returns the size of the user's terminal, or a usual one.
pub fn size_or_default() -> TerminalSize {
    size().unwrap_or(USUAL)
}

fn size_of(terminal: impl AsFd) -> Option<TerminalSize> {
    let size = tcgetwinsize(terminal).ok()?;
    let known = TerminalSize { rows: size.ws_row, columns: size.ws_col };
    (known.rows > 0 && known.columns > 0).then_some(known)
}
