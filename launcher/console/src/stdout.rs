//! Results of subcommands, on stdout. A reader that has left has read all it wanted, so the subcommand has not failed.
//! Every other failed write is remembered for [`failure`], since results that are not there look like none.

use nix::errno::Errno;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use rlaunch_text::printable;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::sync::{Mutex, PoisonError};

/// Prints text that may quote other programs, with invisible characters escaped.
pub fn print(text: &str) {
    let _ = try_print(text);
}

/// Prints text as [`print`] does, and tells whether it was written, for results that come one after the other.
pub fn try_print(text: &str) -> io::Result<()> {
    try_write(printable::text(text).as_bytes())
}

/// Writes bytes unchanged.
pub fn write(bytes: &[u8]) {
    let _ = try_write(bytes);
}

/// Prints text with escape sequences for colours, which are removed if stdout does not support colours.
pub fn print_styled(text: &str) {
    let mut stdout = anstream::stdout().lock();
    let _ = noted(stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()));
}

/// Writes all at once: what a last line without an end left in the buffer would be lost without an error.
fn try_write(bytes: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    noted(stdout.write_all(bytes).and_then(|()| stdout.flush()))
}

/// First write that has failed although the reader was there.
static FAILURE: Mutex<Option<Failed>> = Mutex::new(None);

/// Takes note of the result of a write to stdout.
pub fn noted(written: io::Result<()>) -> io::Result<()> {
    let written = written.map_err(|error| or_broken_pipe(&io::stdout(), error));
    if let Err(error) = &written
        && error.kind() != io::ErrorKind::BrokenPipe
    {
        let mut failure = FAILURE.lock().unwrap_or_else(PoisonError::into_inner);
        failure.get_or_insert_with(|| unwritten("to stdout", error));
    }
    written
}

/// Returns the error of the first write to stdout that has failed although the reader was there. Waits for no write.
pub fn failure() -> Option<Failed> {
    FAILURE.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// Makes the error of a write that has failed. `what` follows the word `write`.
pub fn unwritten(what: &str, error: &io::Error) -> Failed {
    let is_full = error.kind() == io::ErrorKind::StorageFull;
    let hint = is_full.then_some("`df` shows which file system is full");
    Failed::new(Exit::FILES, format!("cannot write {what}: {error}")).hint(hint)
}

/// Returns EPIPE in place of `error` if that too says that the reader of `stream` has left: a connection that was reset,
/// or a terminal that is gone. Where a file is, the same error number as that of the terminal is one of the disk.
pub fn or_broken_pipe(stream: &impl AsFd, error: io::Error) -> io::Error {
    let is_device = || {
        let file = stream.as_fd().try_clone_to_owned().map(File::from);
        let about = file.and_then(|file| file.metadata());
        about.is_ok_and(|about| about.file_type().is_char_device())
    };
    let is_io_error = error.raw_os_error() == Some(Errno::EIO as i32);
    let has_left = error.kind() == io::ErrorKind::ConnectionReset || (is_io_error && is_device());
    if has_left { io::ErrorKind::BrokenPipe.into() } else { error }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::pty::openpty;

    #[test]
    fn a_failed_write_is_remembered_unless_the_reader_has_left() {
        let failed = |errno: Errno| noted(Err(errno.into())).unwrap_err().kind();
        assert_eq!(failed(Errno::EPIPE), io::ErrorKind::BrokenPipe);
        assert_eq!(failed(Errno::ECONNRESET), io::ErrorKind::BrokenPipe);
        assert!(failure().is_none());
        assert_eq!(failed(Errno::ENOSPC), io::ErrorKind::StorageFull);
        failed(Errno::EDQUOT);
        let first = failure().unwrap();
        let message = "cannot write to stdout: No space left on device (os error 28)";
        assert_eq!((first.exit, first.message.as_str()), (Exit::FILES, message));
        assert!(first.hints[0].contains("`df`") && failure().is_none());
    }

    #[test]
    fn an_error_of_a_disk_is_not_a_terminal_that_is_gone() {
        let terminal = openpty(None, None).unwrap();
        drop(terminal.master);
        let written = File::from(terminal.slave.try_clone().unwrap()).write_all(b"x");
        let error_of_terminal = or_broken_pipe(&terminal.slave, written.unwrap_err());
        assert_eq!(error_of_terminal.kind(), io::ErrorKind::BrokenPipe);
        let disk = File::open(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(
            or_broken_pipe(&disk, Errno::EIO.into()).raw_os_error(),
            Some(Errno::EIO as i32)
        );
    }
}
