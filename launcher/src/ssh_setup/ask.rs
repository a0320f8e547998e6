//! Questions to whoever sits at the terminal that is standard input.

use super::error::SetupError;
use crate::ssh::password::Password;
use nix::sys::termios::{LocalFlags, SetArg, Termios, tcgetattr, tcsetattr};
use std::io::{self, BufRead, IsTerminal, Write};

/// Whether somebody is there to answer.
pub(super) fn somebody_is_there() -> bool {
    io::stdin().is_terminal()
}

/// Asks whether to go on; anything but yes is no.
pub(super) async fn go_on() -> Result<bool, SetupError> {
    prompt("go on? [y/N] ")?;
    let answer = line().await?;
    Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}

/// Asks for a password, which is not shown while it is typed.
pub(super) async fn password(question: &str) -> Result<Password, SetupError> {
    let hidden = Hidden::on().map_err(SetupError::Terminal)?;
    prompt(question)?;
    let answer = line().await;
    drop(hidden);
    // The line break that was typed was not shown either.
    prompt("\n")?;
    Ok(Password(answer?.trim_end_matches(['\n', '\r']).to_owned()))
}

fn prompt(words: &str) -> Result<(), SetupError> {
    let mut err = io::stderr().lock();
    err.write_all(words.as_bytes()).and_then(|()| err.flush()).map_err(SetupError::Terminal)
}

/// A line that is typed; the end of the input is an error.
async fn line() -> Result<String, SetupError> {
    let read = || {
        let mut text = String::new();
        match io::stdin().lock().read_line(&mut text)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(text),
        }
    };
    let read = tokio::task::spawn_blocking(read).await;
    read.map_err(|_| SetupError::Terminal(io::ErrorKind::Interrupted.into()))?
        .map_err(SetupError::Terminal)
}

/// A terminal that shows nothing of what is typed, until this goes.
struct Hidden(Termios);

impl Hidden {
    fn on() -> io::Result<Hidden> {
        let before = tcgetattr(io::stdin())?;
        let mut quiet = before.clone();
        quiet.local_flags.remove(LocalFlags::ECHO);
        tcsetattr(io::stdin(), SetArg::TCSAFLUSH, &quiet)?;
        Ok(Hidden(before))
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        // A terminal that is gone shows nothing.
        let _ = tcsetattr(io::stdin(), SetArg::TCSANOW, &self.0);
    }
}
