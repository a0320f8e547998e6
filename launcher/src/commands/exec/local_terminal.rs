//! The client's own terminal.

use rlaunch_bootstrap::protocol::session::TerminalSize;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use std::io;

/// Size that a command's terminal has if the client has none.
const DEFAULT_SIZE: TerminalSize = TerminalSize { rows: 24, columns: 80 };

/// Terminal at stdin, in raw mode while a command beside a rank uses it. Dropping it restores its modes, also
/// when this process panics.
pub(super) struct LocalTerminal {
    /// Modes before the session; `None` if stdin is not a terminal that the session uses.
    before: Option<Termios>,
}

impl LocalTerminal {
    /// Takes no terminal: a session without one leaves the modes as they are.
    pub(super) fn none() -> LocalTerminal {
        LocalTerminal { before: None }
    }

    /// Takes the terminal at stdin, if there is one. Its modes do not change before [`LocalTerminal::make_raw`].
    pub(super) fn open() -> LocalTerminal {
        LocalTerminal { before: tcgetattr(io::stdin()).ok() }
    }

    /// Passes every key on, such as Ctrl-C, and leaves the echo to the command's terminal.
    pub(super) fn make_raw(&self) {
        if let Some(before) = &self.before {
            let mut raw = before.clone();
            raw.make_raw();
            // Fails if the terminal is gone.
            let _ = tcsetattr(io::stdin(), OptionalActions::Drain, &raw);
        }
    }

    /// Restores the modes.
    pub(super) fn restore(&self) {
        if let Some(before) = &self.before {
            // Output need not be waited for, which the user may have stopped by Ctrl-S.
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, before);
        }
    }

    /// Returns the size of the terminal at stdout, stdin or stderr.
    pub(super) fn size() -> Option<TerminalSize> {
        let size = tcgetwinsize(io::stdout())
            .or_else(|_| tcgetwinsize(io::stdin()))
            .or_else(|_| tcgetwinsize(io::stderr()));
        let size = size.ok().filter(|size| size.ws_row > 0 && size.ws_col > 0)?;
        Some(TerminalSize { rows: size.ws_row, columns: size.ws_col })
    }

    pub(super) fn size_or_default(&self) -> TerminalSize {
        LocalTerminal::size().unwrap_or(DEFAULT_SIZE)
    }
}

impl Drop for LocalTerminal {
    fn drop(&mut self) {
        self.restore();
    }
}
