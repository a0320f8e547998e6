//! Questions to whoever sits at the terminal, or to what answers in their place.

use super::error::SetupError;
use rlaunch_ssh::Password;
use rlaunch_ssh::prompt::Prompter;
use std::io::{self, BufRead, IsTerminal, Write};

/// Whether somebody is there to say yes or no.
pub(super) fn somebody_is_there() -> bool {
    io::stdin().is_terminal()
}

/// Asks whether to go on; anything but yes is no.
pub(super) async fn go_on() -> Result<bool, SetupError> {
    prompt("go on? [y/N] ")?;
    let answer = line().await?;
    Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}

/// Asks for a password, of which nothing is shown.
pub(super) async fn password(prompter: &Prompter, question: &str) -> Result<Password, SetupError> {
    let nothing = || SetupError::Terminal(io::ErrorKind::UnexpectedEof.into());
    prompter.ask(question).await.map(Password::new).ok_or_else(nothing)
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
