//! Pseudoterminals: of commands beside ranks, and for the stdout of ranks.

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use rlaunch_bootstrap::job::TerminalSize;
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{InputModes, OptionalActions, Winsize, tcgetattr, tcsetattr, tcsetwinsize};
use std::io;
use std::os::fd::OwnedFd;

/// What a rank's stdout is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RankStdout {
    Pipe,
    /// Pseudoterminal of this size; a pipe where none can be opened.
    TerminalOrPipe(TerminalSize),
    Terminal(TerminalSize),
}

/// Both ends of a pseudoterminal. They are closed when another program is executed, and opening them gives no process a
/// controlling terminal.
pub(super) struct Pseudoterminal {
    /// Agent's end; reading and writing do not block.
    pub(super) master: OwnedFd,
    /// Program's end.
    pub(super) slave: OwnedFd,
}

impl Pseudoterminal {
    /// Opens a terminal at which a program is used by somebody.
    pub(super) fn open(size: TerminalSize) -> io::Result<Pseudoterminal> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = openpt(flags)?;
        unlockpt(&master)?;
        // Works also where no path leads to the terminal, as in containers without /dev/pts.
        let slave = ioctl_tiocgptpeer(&master, flags)?;
        set_size(&master, size)?;
        let mut modes = tcgetattr(&slave)?;
        // The kernel then erases whole characters, not bytes.
        modes.input_modes |= InputModes::IUTF8;
        tcsetattr(&slave, OptionalActions::Now, &modes)?;
        fcntl(&master, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        Ok(Pseudoterminal { master, slave })
    }

    /// Opens a terminal that passes the program's bytes on as they are: no newline gets a carriage return.
    pub(super) fn open_raw(size: TerminalSize) -> io::Result<Pseudoterminal> {
        let ends = Pseudoterminal::open(size)?;
        let mut modes = tcgetattr(&ends.slave)?;
        modes.make_raw();
        tcsetattr(&ends.slave, OptionalActions::Now, &modes)?;
        Ok(ends)
    }
}

/// Sets the size that the programs at a terminal see.
pub(super) fn set_size(terminal: &OwnedFd, size: TerminalSize) -> io::Result<()> {
    let TerminalSize { rows, columns } = size;
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    Ok(tcsetwinsize(terminal, size)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{IsTerminal, Read, Write};

    const SIZE: TerminalSize = TerminalSize { rows: 7, columns: 81 };

    #[test]
    fn a_terminal_has_the_size_of_the_clients() {
        let Pseudoterminal { master, slave } = Pseudoterminal::open(SIZE).unwrap();
        assert!(slave.is_terminal());
        let now = rustix::termios::tcgetwinsize(&slave).unwrap();
        assert_eq!((now.ws_row, now.ws_col), (7, 81));
        let mut master = File::from(master);
        // More than the terminal takes while no process reads it.
        let full = std::iter::repeat_with(|| master.write(&[b'x'; 4096]));
        let error = full.take(100).find_map(Result::err).map(|error| error.kind());
        assert!(matches!(error, None | Some(io::ErrorKind::WouldBlock)), "{error:?}");
    }

    #[test]
    fn a_raw_terminal_changes_no_byte_and_keeps_what_was_written() {
        let Pseudoterminal { master, slave } = Pseudoterminal::open_raw(SIZE).unwrap();
        let every_byte: Vec<u8> = (0..=u8::MAX).chain(*b"\r\n\n\t").collect();
        let (mut master, mut slave) = (File::from(master), File::from(slave));
        slave.write_all(&every_byte).unwrap();
        drop(slave);
        // The end of what can be read is an error.
        let mut read = Vec::new();
        let error = master.read_to_end(&mut read).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EIO));
        assert_eq!(read, every_byte);
    }
}
