//! Terminal of a command: a pseudoterminal whose master the agent keeps.

use nix::fcntl::OFlag;
use rlaunch_bootstrap::protocol::session::TerminalSize;
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{InputModes, OptionalActions, Winsize, tcgetattr, tcsetattr, tcsetwinsize};
use std::io;
use std::os::fd::OwnedFd;

/// Both ends of a pseudoterminal. They are closed when another program is executed.
pub(super) struct Pseudoterminal {
    /// Agent's end; reading and writing do not block.
    pub(super) master: OwnedFd,
    /// Command's end.
    pub(super) slave: OwnedFd,
}

impl Pseudoterminal {
    pub(super) fn open(size: TerminalSize) -> io::Result<Pseudoterminal> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = openpt(flags)?;
        unlockpt(&master)?;
        // Works also where no path leads to the terminal, as in containers without /dev/pts.
        let slave = ioctl_tiocgptpeer(&master, flags)?;
        tcsetwinsize(&master, window(size))?;
        let mut modes = tcgetattr(&slave)?;
        // The kernel then erases whole characters, not bytes.
        modes.input_modes |= InputModes::IUTF8;
        tcsetattr(&slave, OptionalActions::Now, &modes)?;
        nix::fcntl::fcntl(&master, nix::fcntl::FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        Ok(Pseudoterminal { master, slave })
    }
}

/// Converts the size of a terminal for the kernel.
pub(super) fn window(size: TerminalSize) -> Winsize {
    Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{IsTerminal, Write};

    #[test]
    fn a_terminal_has_the_size_of_the_clients() {
        let size = TerminalSize { rows: 7, columns: 81 };
        let Pseudoterminal { master, slave } = Pseudoterminal::open(size).unwrap();
        assert!(slave.is_terminal());
        let now = rustix::termios::tcgetwinsize(&slave).unwrap();
        assert_eq!((now.ws_row, now.ws_col), (7, 81));
        let mut master = std::fs::File::from(master);
        // More than the terminal takes while no process reads it.
        let full = std::iter::repeat_with(|| master.write(&[b'x'; 4096]));
        let error = full.take(100).find_map(Result::err).map(|error| error.kind());
        assert!(matches!(error, None | Some(io::ErrorKind::WouldBlock)), "{error:?}");
    }
}
