//! The terminal at which the user sits.

use rlaunch_bootstrap::job::TerminalSize;
pub(crate) use rlaunch_console::terminal::user_size as size;

/// Size of a program's terminal if the user has none.
const DEFAULT_SIZE: TerminalSize = TerminalSize { rows: 24, columns: 80 };

/// Returns the size of the user's terminal, or a usual one.
pub(crate) fn size_or_default() -> TerminalSize {
    size().unwrap_or(DEFAULT_SIZE)
}
