//! Questions on the terminal, without echo for secrets.
//!
//! Without echo, the terminal is in raw mode, in which keys such as Ctrl-C arrive as bytes and raise no
//! signal. After reading such a key, this module restores the terminal's mode, then raises the signal
//! itself.

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, raise};
use nix::sys::termios::{LocalFlags, SetArg, Termios, tcgetattr, tcsetattr};
use nix::unistd::{getpgrp, tcgetpgrp};
use rlaunch_console::prompt::Prompt;
use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, PipeReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::{Arc, Mutex, PoisonError};
use zeroize::Zeroizing;

/// Maximum length of an answer, in bytes; further bytes are ignored.
pub(super) const MAX_ANSWER: usize = 1024;

/// Mode of the terminal before the open question; `None` if no question is open.
static PREVIOUS_MODE: Mutex<Option<Termios>> = Mutex::new(None);

/// Restores the mode of the terminal if a question was interrupted. Call it before the process exits.
pub fn restore() {
    let before = PREVIOUS_MODE.lock().unwrap_or_else(PoisonError::into_inner).take();
    let tty = || OpenOptions::new().read(true).write(true).open("/dev/tty").ok();
    if let Some((before, tty)) = before.and_then(|before| Some((before, tty()?))) {
        let _ = tcsetattr(tty, SetArg::TCSADRAIN, &before);
    }
}

/// Visibility of typed characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Echo {
    On,
    Off,
}

/// Controlling terminal of this process.
pub(crate) struct Terminal {
    tty: Arc<File>,
}

impl Terminal {
    /// Opens the terminal. `None` if this process is in the background, or if stdin and stderr are both
    /// redirected.
    pub(crate) fn open() -> Option<Terminal> {
        if !io::stdin().is_terminal() && !io::stderr().is_terminal() {
            return None;
        }
        let mut how = OpenOptions::new();
        how.read(true).write(true).custom_flags((OFlag::O_NONBLOCK | OFlag::O_NOCTTY).bits());
        let tty = how.open("/dev/tty").ok()?;
        if tcgetpgrp(&tty).ok()? != getpgrp() {
            return None;
        }
        Some(Terminal { tty: Arc::new(tty) })
    }

    /// Prints `prompt` and reads a line; `None` if the user gives no answer or the terminal is closed.
    pub(crate) async fn ask(&self, prompt: &str, echo: Echo) -> Option<Zeroizing<String>> {
        // Dropping this future closes the pipe, which ends the blocking read.
        let (cancelled, _open) = io::pipe().ok()?;
        let (tty, prompt) = (self.tty.clone(), prompt.to_owned());
        let asking =
            tokio::task::spawn_blocking(move || ask_blocking(&tty, &prompt, echo, &cancelled));
        asking.await.ok().flatten()
    }
}

fn ask_blocking(
    tty: &File,
    prompt: &str,
    echo: Echo,
    cancelled: &PipeReader,
) -> Option<Zeroizing<String>> {
    let print = |mut tty: &File, text: &str| drop(tty.write_all(text.as_bytes()));
    loop {
        let mode = ModeGuard::begin(tty, echo)?;
        print(tty, prompt);
        let typed = read_line(tty, cancelled);
        drop(mode);
        if echo == Echo::Off {
            print(tty, "\n");
        }
        match typed {
            LineInput::Line(text) => return Some(text),
            LineInput::Nothing => return None,
            LineInput::Signal(signal) => {
                let _ = raise(signal);
                // After Ctrl-Z and `fg` the question is asked again.
                if signal != Signal::SIGTSTP {
                    return None;
                }
            }
        }
    }
}

fn read_line(mut tty: &File, cancelled: &PipeReader) -> LineInput {
    let mut line = Zeroizing::new(Vec::with_capacity(MAX_ANSWER));
    loop {
        let mut ready = [
            PollFd::new(tty.as_fd(), PollFlags::POLLIN),
            PollFd::new(cancelled.as_fd(), PollFlags::POLLIN),
        ];
        match poll(&mut ready, PollTimeout::NONE) {
            Ok(_) => {}
            Err(Errno::EINTR) => continue,
            Err(_) => return LineInput::Nothing,
        }
        if ready[1].any() != Some(false) {
            return LineInput::Nothing;
        }
        let mut bytes = Zeroizing::new([0; 64]);
        let count = match tty.read(&mut bytes[..]) {
            Ok(count @ 1..) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Ok(_) | Err(_) => return LineInput::Nothing,
        };
        for &byte in &bytes[..count] {
            if let Some(typed) = apply_key(&mut line, byte) {
                return typed;
            }
        }
    }
}

/// Result of typing: a line, no answer, or a key that raises a signal, such as Ctrl-C.
#[derive(Debug, PartialEq)]
enum LineInput {
    Line(Zeroizing<String>),
    Nothing,
    Signal(Signal),
}

/// Applies one key to the line. Returns the result if the key ends the line, else `None`.
fn apply_key(line: &mut Zeroizing<Vec<u8>>, key: u8) -> Option<LineInput> {
    match key {
        0x03 => return Some(LineInput::Signal(Signal::SIGINT)),
        0x1a => return Some(LineInput::Signal(Signal::SIGTSTP)),
        0x1c => return Some(LineInput::Signal(Signal::SIGQUIT)),
        // Ctrl-D ends the line; on an empty line it means no answer.
        0x04 if line.is_empty() => return Some(LineInput::Nothing),
        b'\n' | b'\r' | 0x04 => return Some(finished(line)),
        // Ctrl-U deletes the line, backspace one character, which may have several bytes.
        0x15 => line.clear(),
        0x7f | 0x08 => while line.pop().is_some_and(|byte| byte & 0xc0 == 0x80) {},
        _ if line.len() < MAX_ANSWER => line.push(key),
        _ => {}
    }
    None
}

fn finished(line: &Zeroizing<Vec<u8>>) -> LineInput {
    LineInput::Line(Zeroizing::new(String::from_utf8_lossy(line).into_owned()))
}

/// Guard that sets the terminal's mode for a question and restores the previous mode when dropped. With
/// [`Echo::Off`], the terminal does not show keys, collect them into lines or turn them into signals; with
/// [`Echo::On`], the mode does not change.
struct ModeGuard<'a> {
    tty: &'a File,
    _prompt: Prompt,
}

impl ModeGuard<'_> {
    fn begin(tty: &File, echo: Echo) -> Option<ModeGuard<'_>> {
        let before = tcgetattr(tty).ok()?;
        let mut silent = before.clone();
        if echo == Echo::Off {
            silent.local_flags.remove(LocalFlags::ECHO | LocalFlags::ICANON | LocalFlags::ISIG);
        }
        *PREVIOUS_MODE.lock().unwrap_or_else(PoisonError::into_inner) = Some(before);
        let guard = ModeGuard { tty, _prompt: Prompt::begin() };
        tcsetattr(tty, SetArg::TCSADRAIN, &silent).ok()?;
        Some(guard)
    }
}

impl Drop for ModeGuard<'_> {
    fn drop(&mut self) {
        if let Some(before) = PREVIOUS_MODE.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = tcsetattr(self.tty, SetArg::TCSADRAIN, &before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(keys: &[u8]) -> Option<LineInput> {
        let mut line = Zeroizing::new(Vec::new());
        keys.iter().find_map(|&key| apply_key(&mut line, key))
    }

    fn line(text: &str) -> Option<LineInput> {
        Some(LineInput::Line(Zeroizing::new(text.to_owned())))
    }

    #[test]
    fn lines_can_be_corrected() {
        assert_eq!(typed(b"secret\nmore"), line("secret"));
        assert_eq!(typed(b"sexx\x7f\x08cret\r"), line("secret"));
        assert_eq!(typed("ä\u{7f}ö\n".as_bytes()), line("ö"));
        assert_eq!(typed(b"\x7f\x7fa\x15b\n"), line("b"));
        assert_eq!(typed(b"ab\x04"), line("ab"));
        assert_eq!(typed(b"\x04"), Some(LineInput::Nothing));
        assert_eq!(typed(b"se\x03"), Some(LineInput::Signal(Signal::SIGINT)));
        assert_eq!(typed(b"not yet"), None);
    }
}
