//! Questions to the user, at the terminal or by an askpass program.

use super::error::SetupError;
use rlaunch_ssh::Password;
use rlaunch_ssh::prompt::Prompter;
use std::io::{self, BufRead, IsTerminal, Write};

/// Tells whether standard input is a terminal, so that the user can answer yes or no.
pub(super) fn can_confirm() -> bool {
    io::stdin().is_terminal()
}

/// Asks whether to make the changes. Any answer but yes means no.
pub(super) async fn confirm() -> Result<bool, SetupError> {
    print("go on? [y/N] ")?;
    let answer = read_line().await?;
    Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}

/// Asks for a password, which is not shown.
pub(super) async fn password(prompter: &Prompter, question: &str) -> Result<Password, SetupError> {
    let no_answer = || SetupError::NoAnswer(io::ErrorKind::UnexpectedEof.into());
    prompter.ask(question).await.map(Password::new).ok_or_else(no_answer)
}

fn print(question: &str) -> Result<(), SetupError> {
    let mut err = io::stderr().lock();
    err.write_all(question.as_bytes()).and_then(|()| err.flush()).map_err(SetupError::NoAnswer)
}

/// Reads a line from standard input. The end of the input is an error.
async fn read_line() -> Result<String, SetupError> {
    let read = || {
        let mut text = String::new();
        match io::stdin().lock().read_line(&mut text)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(text),
        }
    };
    let read = tokio::task::spawn_blocking(read).await;
    read.map_err(|_| SetupError::NoAnswer(io::ErrorKind::Interrupted.into()))?
        .map_err(SetupError::NoAnswer)
}
