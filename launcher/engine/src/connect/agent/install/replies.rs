//! Lines of the installer among all that a host's shell prints.

use crate::connect::agent::{DeployError, MAX_ANSWER};
use crate::connect::channel::{AgentReader, Incoming};
use rlaunch_console::deadline::Deadline;

/// Reader of the installer's lines, which skips other output of the shell.
pub(super) struct InstallerReplies {
    pub(super) reader: AgentReader,
    text: String,
    /// Other output of the shell, kept for the error if the installer does not answer.
    noise: String,
    /// Whether the installer has said anything.
    has_begun: bool,
}

impl InstallerReplies {
    pub(super) fn new(reader: AgentReader) -> InstallerReplies {
        InstallerReplies { reader, text: String::new(), noise: String::new(), has_begun: false }
    }

    /// Returns the next line as [`InstallerReplies::next_reply`] does, which `awaited` names if it does not come before
    /// the deadline.
    pub(super) async fn next_reply_within(
        &mut self,
        deadline: &mut Deadline,
        awaited: &'static str,
    ) -> Result<String, DeployError> {
        deadline.wait(awaited, self.next_reply()).await?
    }

    /// Returns the next line of the installer, without its prefix. If the shell's output ends first,
    /// returns that output as [`DeployError::Shell`], or as [`DeployError::Cut`] if the installer had begun.
    /// Cancel-safe.
    pub(super) async fn next_reply(&mut self) -> Result<String, DeployError> {
        const MARK: &str = "rlaunch-install ";
        loop {
            while let Some((line, rest)) = self.text.split_once('\n') {
                let answer = line.trim_end().split_once(MARK).map(|(_, answer)| answer.to_owned());
                let line = line.to_owned();
                self.text = rest.to_owned();
                match answer {
                    Some(answer) => {
                        self.has_begun = true;
                        return Ok(answer);
                    }
                    None => self.keep_noise(&format!("{line}\n")),
                }
            }
            match self.reader.next().await {
                Some(Incoming::Data(bytes)) if self.text.len() < MAX_ANSWER => {
                    self.text.push_str(&String::from_utf8_lossy(&bytes));
                }
                // Never an answer: a command of --rsh that traces what it runs (`set -x`, as that of the MPI operator)
                // prints the script there, which contains the prefix of answers.
                // A line that begins with it was written by the script, to a stdout that leads to stderr.
                Some(Incoming::Diagnostics(bytes)) => {
                    let said = String::from_utf8_lossy(&bytes);
                    if said.lines().any(|line| line.starts_with(MARK)) {
                        return Err(DeployError::Misdirected);
                    }
                    self.keep_noise(&said);
                }
                _ => {
                    let words = std::mem::take(&mut self.noise) + &std::mem::take(&mut self.text);
                    return Err(if self.has_begun {
                        DeployError::Cut(words)
                    } else {
                        DeployError::Shell(words)
                    });
                }
            }
        }
    }

    /// Lets the error of a silence say what came in place of an answer.
    pub(super) fn with_noise(&mut self, error: DeployError) -> DeployError {
        match error {
            DeployError::Stalled { late, shell } => {
                DeployError::Silent { words: std::mem::take(&mut self.noise), late, shell }
            }
            other => other,
        }
    }

    /// Keeps other output of the shell, of which the end says the most.
    fn keep_noise(&mut self, words: &str) {
        tracing::debug!("before the installer: {}", words.trim_end());
        self.noise.push_str(words);
        if self.noise.len() > 2 * MAX_ANSWER {
            self.noise.drain(..self.noise.ceil_char_boundary(MAX_ANSWER));
        }
    }
}
