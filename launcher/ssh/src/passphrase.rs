//! Asking for a passphrase on the terminal, which shows nothing of it and is put back afterwards.
//!
//! Keys are read one by one, and so are those that would be signals: the terminal is put back first,
//! then the signal is raised.

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

/// The longest passphrase, in bytes; more is ignored.
pub(super) const LONGEST: usize = 1024;

/// How the terminal was before a question that has no answer yet.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// Puts the terminal back, if a question was interrupted: for the end of the program.
pub fn restore_terminal() {
    let before = BEFORE.lock().unwrap_or_else(PoisonError::into_inner).take();
    let tty = || OpenOptions::new().read(true).write(true).open("/dev/tty").ok();
    if let Some((before, tty)) = before.and_then(|before| Some((before, tty()?))) {
        let _ = tcsetattr(tty, SetArg::TCSADRAIN, &before);
    }
}

/// Whether the terminal shows what is typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Echo {
    On,
    Off,
}

/// The terminal that someone sits at.
pub(crate) struct Terminal {
    tty: Arc<File>,
}

impl Terminal {
    /// It is there only when we may use it: from the foreground, and not with all streams elsewhere.
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

    /// What is typed after `prompt`; `None` when nothing is wanted, or nobody is there any more.
    pub(crate) async fn ask(&self, prompt: &str, echo: Echo) -> Option<Zeroizing<String>> {
        // The pipe closes when nobody waits for the answer any more.
        let (unwanted, _wanted) = io::pipe().ok()?;
        let (tty, prompt) = (self.tty.clone(), prompt.to_owned());
        let asking = tokio::task::spawn_blocking(move || question(&tty, &prompt, echo, &unwanted));
        asking.await.ok().flatten()
    }
}

fn question(
    tty: &File,
    prompt: &str,
    echo: Echo,
    unwanted: &PipeReader,
) -> Option<Zeroizing<String>> {
    let say = |mut tty: &File, text: &str| drop(tty.write_all(text.as_bytes()));
    loop {
        let silence = Silence::begin(tty, echo)?;
        say(tty, prompt);
        let typed = line(tty, unwanted);
        drop(silence);
        if echo == Echo::Off {
            say(tty, "\n");
        }
        match typed {
            Typed::Line(text) => return Some(text),
            Typed::Nothing => return None,
            Typed::Signal(signal) => {
                let _ = raise(signal);
                // Whoever stopped us is asked again when we go on.
                if signal != Signal::SIGTSTP {
                    return None;
                }
            }
        }
    }
}

fn line(mut tty: &File, unwanted: &PipeReader) -> Typed {
    let mut line = Zeroizing::new(Vec::with_capacity(LONGEST));
    loop {
        let mut ready = [
            PollFd::new(tty.as_fd(), PollFlags::POLLIN),
            PollFd::new(unwanted.as_fd(), PollFlags::POLLIN),
        ];
        match poll(&mut ready, PollTimeout::NONE) {
            Ok(_) => {}
            Err(Errno::EINTR) => continue,
            Err(_) => return Typed::Nothing,
        }
        if ready[1].any() != Some(false) {
            return Typed::Nothing;
        }
        let mut bytes = Zeroizing::new([0; 64]);
        let count = match tty.read(&mut bytes[..]) {
            Ok(count @ 1..) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Ok(_) | Err(_) => return Typed::Nothing,
        };
        for &byte in &bytes[..count] {
            if let Some(typed) = edit(&mut line, byte) {
                return typed;
            }
        }
    }
}

/// How a line ended.
#[derive(Debug, PartialEq)]
enum Typed {
    Line(Zeroizing<String>),
    Nothing,
    Signal(Signal),
}

/// Takes one key.
fn edit(line: &mut Zeroizing<Vec<u8>>, key: u8) -> Option<Typed> {
    match key {
        0x03 => return Some(Typed::Signal(Signal::SIGINT)),
        0x1a => return Some(Typed::Signal(Signal::SIGTSTP)),
        0x1c => return Some(Typed::Signal(Signal::SIGQUIT)),
        // Control-D ends what there is.
        0x04 if line.is_empty() => return Some(Typed::Nothing),
        b'\n' | b'\r' | 0x04 => return Some(finished(line)),
        // Control-U takes everything back, backspace one character, which may be several bytes.
        0x15 => line.clear(),
        0x7f | 0x08 => while line.pop().is_some_and(|byte| byte & 0xc0 == 0x80) {},
        _ if line.len() < LONGEST => line.push(key),
        _ => {}
    }
    None
}

fn finished(line: &Zeroizing<Vec<u8>>) -> Typed {
    Typed::Line(Zeroizing::new(String::from_utf8_lossy(line).into_owned()))
}

/// While it lives, the terminal shows nothing of what is typed, unless that is to be seen; then lines
/// and signals are the terminal's to make.
struct Silence<'a> {
    tty: &'a File,
    _prompt: Prompt,
}

impl Silence<'_> {
    fn begin(tty: &File, echo: Echo) -> Option<Silence<'_>> {
        let before = tcgetattr(tty).ok()?;
        let mut silent = before.clone();
        if echo == Echo::Off {
            silent.local_flags.remove(LocalFlags::ECHO | LocalFlags::ICANON | LocalFlags::ISIG);
        }
        *BEFORE.lock().unwrap_or_else(PoisonError::into_inner) = Some(before);
        let silence = Silence { tty, _prompt: Prompt::begin() };
        tcsetattr(tty, SetArg::TCSADRAIN, &silent).ok()?;
        Some(silence)
    }
}

impl Drop for Silence<'_> {
    fn drop(&mut self) {
        if let Some(before) = BEFORE.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = tcsetattr(self.tty, SetArg::TCSADRAIN, &before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(keys: &[u8]) -> Option<Typed> {
        let mut line = Zeroizing::new(Vec::new());
        keys.iter().find_map(|&key| edit(&mut line, key))
    }

    fn line(text: &str) -> Option<Typed> {
        Some(Typed::Line(Zeroizing::new(text.to_owned())))
    }

    #[test]
    fn lines_can_be_corrected() {
        assert_eq!(typed(b"secret\nmore"), line("secret"));
        assert_eq!(typed(b"sexx\x7f\x08cret\r"), line("secret"));
        assert_eq!(typed("ä\u{7f}ö\n".as_bytes()), line("ö"));
        assert_eq!(typed(b"\x7f\x7fa\x15b\n"), line("b"));
        assert_eq!(typed(b"ab\x04"), line("ab"));
        assert_eq!(typed(b"\x04"), Some(Typed::Nothing));
        assert_eq!(typed(b"se\x03"), Some(Typed::Signal(Signal::SIGINT)));
        assert_eq!(typed(b"not yet"), None);
    }
}
