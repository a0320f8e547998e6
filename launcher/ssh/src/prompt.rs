//! Questions to the user about passphrases, passwords and unknown host keys. They are asked on the terminal or by the
//! program of `SSH_ASKPASS`, whichever ssh(1) would use.
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
use rlaunch_console::progress::Question;
use rlaunch_console::{limits, messages};
use rlaunch_text::printable;
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, PipeReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::process::Command;
use zeroize::Zeroizing;

/// Askpass program if `SSH_ASKPASS` is not set.
const DEFAULT_PROGRAM: &str = "/usr/bin/ssh-askpass";
/// Time limit for an answer by an askpass program. It is long, because the user has to notice the program's
/// window.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);

/// Means of asking the user: the terminal or an askpass program.
pub struct Prompter(Source);

enum Source {
    Terminal(Terminal),
    Program(AskpassProgram),
}

/// Askpass program, which shows a question in a window and prints the answer.
#[derive(Debug, PartialEq, Eq)]
struct AskpassProgram {
    path: PathBuf,
}

/// Rule for using the askpass program, as set by environment variables.
#[derive(Debug, PartialEq, Eq)]
enum AskpassPolicy {
    Never,
    /// Use the program only if there is no terminal.
    WithoutTerminal(AskpassProgram),
    /// Use the program even if there is a terminal.
    Always(AskpassProgram),
}

impl Prompter {
    /// Opens the terminal or chooses the askpass program; `None` if neither can be used.
    pub fn open() -> Option<Prompter> {
        let policy =
            AskpassPolicy::read(|name| std::env::var_os(name).filter(|value| !value.is_empty()));
        let terminal = || Terminal::open().map(Source::Terminal);
        let source = match policy {
            AskpassPolicy::Never => terminal(),
            AskpassPolicy::WithoutTerminal(program) => {
                terminal().or(Some(Source::Program(program)))
            }
            AskpassPolicy::Always(program) => Some(Source::Program(program)),
        };
        source.map(Prompter)
    }

    /// Asks for a secret, which is not visible while it is typed; `None` if the user gives no answer.
    pub async fn ask(&self, prompt: &str) -> Option<Zeroizing<String>> {
        self.answer(prompt, Echo::Off).await
    }

    /// Asks a question whose answer is visible while it is typed; `None` if the user gives no answer.
    pub async fn ask_visibly(&self, prompt: &str) -> Option<Zeroizing<String>> {
        self.answer(prompt, Echo::On).await
    }

    async fn answer(&self, prompt: &str, echo: Echo) -> Option<Zeroizing<String>> {
        let prompt = &printable::text(prompt);
        match &self.0 {
            Source::Terminal(terminal) => terminal.ask(prompt, echo).await,
            Source::Program(program) => match program.ask(prompt, ANSWER_TIMEOUT).await {
                Ok(answer) => answer,
                Err(error) => {
                    messages::warn(&format!("SSH_ASKPASS, {}: {error}", program.path.display()));
                    None
                }
            },
        }
    }
}

impl AskpassPolicy {
    /// Reads the environment variables as ssh(1) does: the program may be used if there is a display,
    /// unless `SSH_ASKPASS_REQUIRE` sets another rule.
    fn read(variable: impl Fn(&str) -> Option<OsString>) -> AskpassPolicy {
        let has_display =
            ["DISPLAY", "WAYLAND_DISPLAY"].iter().any(|name| variable(name).is_some());
        let required = variable("SSH_ASKPASS_REQUIRE").unwrap_or_default().to_ascii_lowercase();
        let (allowed, first) = match required.to_str() {
            Some("never") => (false, false),
            Some("force") => (true, true),
            Some("prefer") => (has_display, has_display),
            _ => (has_display, false),
        };
        let default =
            || Path::new(DEFAULT_PROGRAM).exists().then(|| PathBuf::from(DEFAULT_PROGRAM));
        match variable("SSH_ASKPASS").map(PathBuf::from).or_else(default) {
            Some(path) if first => AskpassPolicy::Always(AskpassProgram { path }),
            Some(path) if allowed => AskpassPolicy::WithoutTerminal(AskpassProgram { path }),
            _ => AskpassPolicy::Never,
        }
    }
}

impl AskpassProgram {
    /// Runs the program and returns the first line that it prints. `None` if the program fails, as it does
    /// when the user closes its window.
    async fn ask(&self, prompt: &str, limit: Duration) -> io::Result<Option<Zeroizing<String>>> {
        let mut command = Command::new(&self.path);
        limits::restore_open_files(command.as_std_mut());
        let mut child = command
            .arg(prompt.trim_end())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let stdout = child.stdout.take().ok_or_else(|| io::Error::other("no pipe to it"))?;
        let mut output = Zeroizing::new(Vec::with_capacity(MAX_ANSWER));
        let answering = async {
            stdout.take(MAX_ANSWER as u64).read_to_end(&mut output).await?;
            child.wait().await
        };
        let late = |_| {
            let text = format!("no answer within {} s", limit.as_secs_f32());
            io::Error::new(io::ErrorKind::TimedOut, text)
        };
        let status = tokio::time::timeout(limit, answering).await.map_err(late)??;
        if !status.success() {
            return Ok(None);
        }
        let line = output.split(|byte| matches!(byte, b'\n' | b'\r')).next().unwrap_or_default();
        Ok(Some(Zeroizing::new(String::from_utf8_lossy(line).into_owned())))
    }
}

/// Maximum length of an answer, in bytes; further bytes are ignored.
const MAX_ANSWER: usize = 1024;

/// Mode of the terminal before the open question; `None` if no question is open.
static PREVIOUS_MODE: Mutex<Option<Termios>> = Mutex::new(None);

/// Restores the mode of the terminal if a question was interrupted. Call it before the process exits.
pub fn restore_terminal() {
    let before = PREVIOUS_MODE.lock().unwrap_or_else(PoisonError::into_inner).take();
    let tty = || OpenOptions::new().read(true).write(true).open("/dev/tty").ok();
    if let Some((before, tty)) = before.and_then(|before| Some((before, tty()?))) {
        let _ = tcsetattr(tty, SetArg::TCSADRAIN, &before);
    }
}

/// Visibility of typed characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Echo {
    On,
    Off,
}

/// Controlling terminal of this process.
struct Terminal {
    tty: Arc<File>,
}

impl Terminal {
    /// Opens the terminal. `None` if this process is in the background, or if stdin and stderr are both
    /// redirected.
    fn open() -> Option<Terminal> {
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
    async fn ask(&self, prompt: &str, echo: Echo) -> Option<Zeroizing<String>> {
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
        b'\n' | b'\r' | 0x04 => {
            let text = String::from_utf8_lossy(line).into_owned();
            return Some(LineInput::Line(Zeroizing::new(text)));
        }
        // Ctrl-U deletes the line, backspace one character, which may have several bytes.
        0x15 => line.clear(),
        0x7f | 0x08 => while line.pop().is_some_and(|byte| byte & 0xc0 == 0x80) {},
        _ if line.len() < MAX_ANSWER => line.push(key),
        _ => {}
    }
    None
}

/// Guard that sets the terminal's mode for a question and restores the previous mode when dropped. With
/// [`Echo::Off`], the terminal does not show keys, collect them into lines or turn them into signals; with
/// [`Echo::On`], the mode does not change.
struct ModeGuard<'a> {
    tty: &'a File,
    _question: Question,
}

impl ModeGuard<'_> {
    fn begin(tty: &File, echo: Echo) -> Option<ModeGuard<'_>> {
        let before = tcgetattr(tty).ok()?;
        let mut silent = before.clone();
        if echo == Echo::Off {
            silent.local_flags.remove(LocalFlags::ECHO | LocalFlags::ICANON | LocalFlags::ISIG);
        }
        *PREVIOUS_MODE.lock().unwrap_or_else(PoisonError::into_inner) = Some(before);
        let guard = ModeGuard { tty, _question: Question::begin() };
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
    use std::fs;

    fn policy(variables: &[(&str, &str)]) -> AskpassPolicy {
        let variables = [variables, &[("SSH_ASKPASS", "/x/ask")]].concat();
        AskpassPolicy::read(|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| OsString::from(value))
        })
    }

    #[test]
    fn a_program_is_asked_where_ssh_would_ask_it() {
        let program = || AskpassProgram { path: "/x/ask".into() };
        let display = ("DISPLAY", ":0");
        let require = |how| ("SSH_ASKPASS_REQUIRE", how);
        assert_eq!(policy(&[]), AskpassPolicy::Never);
        assert_eq!(policy(&[display]), AskpassPolicy::WithoutTerminal(program()));
        assert_eq!(policy(&[("WAYLAND_DISPLAY", "w")]), AskpassPolicy::WithoutTerminal(program()));
        assert_eq!(policy(&[display, require("never")]), AskpassPolicy::Never);
        assert_eq!(policy(&[display, require("prefer")]), AskpassPolicy::Always(program()));
        assert_eq!(policy(&[require("prefer")]), AskpassPolicy::Never);
        assert_eq!(policy(&[require("FORCE")]), AskpassPolicy::Always(program()));
    }

    /// Writes a shell script with these lines.
    fn program(directory: &Path, lines: &str) -> AskpassProgram {
        let (text, path) = (directory.join("text"), directory.join("ask"));
        fs::write(&text, format!("#!/bin/sh\n{lines}\n")).unwrap();
        // Another process writes the file. If this process wrote it, executing it could fail (ETXTBSY),
        // because a child that another test has just forked may still have it open.
        let copy = std::process::Command::new("install").args([&text, &path]).status();
        assert!(copy.unwrap().success());
        AskpassProgram { path }
    }

    #[tokio::test]
    async fn what_a_program_prints_is_the_answer() {
        let directory = tempfile::tempdir().unwrap();
        // Long, because the test machine may be suspended for seconds; the programs answer at once.
        let limit = Duration::from_secs(60);
        let ask = async |lines: &str, limit| {
            let answer = program(directory.path(), lines).ask("passphrase for x: ", limit).await;
            answer.map(|answer| answer.map(|text| text.to_string()))
        };
        let answer = ask("echo \"<$1>\"; echo more", limit).await;
        assert_eq!(answer.unwrap().unwrap(), "<passphrase for x:>");
        assert_eq!(ask("printf 'a b'", limit).await.unwrap().unwrap(), "a b");
        assert_eq!(ask("echo secret; exit 1", limit).await.unwrap(), None);
        let late = ask("exec sleep 1000", Duration::from_millis(200)).await.unwrap_err();
        assert_eq!(late.to_string(), "no answer within 0.2 s");
        let missing = AskpassProgram { path: directory.path().join("none") };
        assert!(missing.ask("x", limit).await.is_err());
    }

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
