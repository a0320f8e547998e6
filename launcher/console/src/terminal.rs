//! Size of the terminal that this process writes to, and whether it shows keys.

use rlaunch_bootstrap::job::TerminalSize;
use rustix::termios::{LocalModes, tcgetattr, tcgetwinsize};
use std::io;
use std::os::fd::AsFd;

/// Number of rows where there is no terminal.
const ROWS: u16 = 24;

/// Returns the size of the user's terminal, which is at stdout, stdin or stderr.
pub fn user_size() -> Option<TerminalSize> {
    let size = size(io::stdout()).or_else(|| size(io::stdin())).or_else(|| size(io::stderr()));
    size.map(|(rows, columns)| TerminalSize { rows, columns })
}

/// Returns the number of rows of the terminal at stderr.
pub fn rows() -> u16 {
    size(io::stderr()).map_or(ROWS, |(rows, _)| rows)
}

/// Returns the number of columns of the terminal at stdout; `None` if that is no terminal, or one without a size.
pub fn columns() -> Option<u16> {
    size(io::stdout()).map(|(_, columns)| columns)
}

/// Returns the number of columns of the terminal at stderr, as [`columns`] does.
pub(crate) fn message_columns() -> Option<u16> {
    size(io::stderr()).map(|(_, columns)| columns)
}

/// Tells whether the terminal at stderr shows keys that send signals, such as Ctrl-C as `^C`.
pub(crate) fn shows_keys() -> bool {
    let shown = LocalModes::ECHO | LocalModes::ECHOCTL;
    tcgetattr(io::stderr()).is_ok_and(|mode| mode.local_modes.contains(shown))
}

fn size(terminal: impl AsFd) -> Option<(u16, u16)> {
    let size = tcgetwinsize(terminal).ok()?;
    (size.ws_row > 0 && size.ws_col > 0).then_some((size.ws_row, size.ws_col))
}
