//! Command of `--rsh`, which runs a line on a host as mpirun's rsh agents do:
//! `COMMAND [OPTIONS] HOST LINE`, where a shell on HOST reads LINE.

use crate::connect::channel::{AgentChannel, CommandStatus};
use rlaunch_bootstrap::env::redacted;
use rlaunch_bootstrap::job::ExitStatus;
use rlaunch_plan::hosts::Host;
use rlaunch_text::printable;
use rlaunch_text::shell::{quoted, without_secrets};
use std::ffi::OsString;
use std::io;
use std::path::Path;
use tokio::process::Command;

/// Placeholder in the command for the name of the host.
const HOST: &str = "{host}";

/// Command of `--rsh`, by which every host of a job is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rsh {
    /// Source of the command, for messages: `--rsh` or an environment variable. Empty if the command is
    /// this machine's own shell.
    source: String,
    words: Vec<String>,
}

/// Error of an `--rsh` command.
#[derive(Debug, thiserror::Error)]
pub enum RshError {
    #[error("{origin} has a quote that does not end: `{text}`")]
    Quote { origin: String, text: String },
    #[error("{origin} names no command")]
    Empty { origin: String },
    #[error("cannot run `{program}` of {origin}")]
    Start { origin: String, program: String, source: io::Error },
    #[error("`{command}` {}no agent answered{}", describe_end(*ended), after_colon(words))]
    NoAgent { command: String, ended: Option<ExitStatus>, words: String },
}

pub(super) fn describe_end(ended: Option<ExitStatus>) -> String {
    ended.map_or_else(|| "runs, but ".to_owned(), |ended| format!("{ended}, but "))
}

pub(super) fn after_colon(words: &str) -> String {
    if words.is_empty() { String::new() } else { format!(": {words}") }
}

impl RshError {
    pub fn hint(&self) -> Option<String> {
        match self {
            RshError::Quote { .. } | RshError::Empty { .. } => Some(
                "--rsh takes a command and its options, as in --rsh 'ssh -p 2222' or \
                 --rsh 'kubectl exec -i {host} -- sh -c'"
                    .into(),
            ),
            RshError::Start { origin, source, .. } => match source.kind() {
                io::ErrorKind::NotFound => {
                    Some(format!("{origin} names a program of this machine, with its path"))
                }
                io::ErrorKind::PermissionDenied => Some("chmod +x makes it executable".into()),
                _ => None,
            },
            RshError::NoAgent { command, .. } => {
                Some(format!("`{command} 'echo hello'` should print just that"))
            }
        }
    }
}

impl Rsh {
    /// Splits the text of a command into words as a shell does. `source` is the option or variable that
    /// contains the text.
    pub fn parse(source: &str, text: &str) -> Result<Rsh, RshError> {
        let origin = || source.to_owned();
        let words = shlex::split(text);
        let words =
            words.ok_or_else(|| RshError::Quote { origin: origin(), text: redacted(text) })?;
        if words.first().is_none_or(String::is_empty) {
            return Err(RshError::Empty { origin: origin() });
        }
        Ok(Rsh { source: origin(), words })
    }

    /// Returns the command for a job on this machine alone: this machine's shell.
    pub fn here() -> Rsh {
        // With an empty source, the host's name is not appended to the words.
        Rsh { source: String::new(), words: vec!["sh".into(), "-c".into()] }
    }

    /// Tells whether the command is this program.
    pub fn runs(&self, program: &str) -> bool {
        self.words.first().is_some_and(|word| Path::new(word).file_name() == Some(program.as_ref()))
    }

    /// Returns the words of the command for a host. The caller appends the line for the host's shell.
    fn words_for(&self, host: &Host) -> Vec<String> {
        let name = host.to_string();
        let is_here = self.source.is_empty();
        let has_place = is_here || self.words.iter().any(|word| word.contains(HOST));
        let words = self.words.iter().map(|word| word.replace(HOST, &name));
        words.chain((!has_place).then(|| name.clone())).collect()
    }

    /// Runs a line in the shell of a host. `exit_status` receives the exit status of the `--rsh` command.
    pub fn exec(
        &self,
        host: &Host,
        line: &str,
        exit_status: CommandStatus,
    ) -> Result<AgentChannel, RshError> {
        let words = self.words_for(host);
        let program = words.first().cloned().unwrap_or_default();
        let mut command = Command::new(&program);
        command.args(&words[1..]).arg(line);
        AgentChannel::over_child(command, Some(exit_status)).map_err(|source| RshError::Start {
            origin: self.source.clone(),
            program,
            source,
        })
    }

    /// Makes the error for a command that printed `output` and did not start an agent.
    pub(crate) fn no_agent(
        &self,
        host: &Host,
        ended: Option<ExitStatus>,
        output: &str,
    ) -> RshError {
        let words: Vec<OsString> = self.words_for(host).into_iter().map(OsString::from).collect();
        let words =
            without_secrets(&words).iter().map(|word| quoted(word.as_ref())).collect::<Vec<_>>();
        RshError::NoAgent { command: words.join(" "), ended, words: last_lines(output) }
    }
}

/// Joins the last two lines of a command's output into one line that is safe to print. Leaves out lines
/// that begin with `+`, as printed by `set -x`.
pub fn last_lines(output: &str) -> String {
    let lines = output.lines().map(str::trim).filter(|line| !line.is_empty());
    let lines: Vec<&str> = lines.filter(|line| !line.starts_with('+')).collect();
    printable::first_line(&lines[lines.len().saturating_sub(2)..].join("; "))
}

/// Returns the last lines of a command's output as the end of a sentence; empty if there are none.
pub(crate) fn quoted_output(words: &str) -> String {
    let words = last_lines(words);
    if words.is_empty() { String::new() } else { format!("; what came back: {words}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(command: &str, host: &str) -> String {
        let host = Host { name: host.into(), user: Some("me".into()), ..Host::this_machine() };
        Rsh::parse("--rsh", command).unwrap().words_for(&host).join("|")
    }

    #[test]
    fn the_host_follows_or_has_its_place() {
        assert_eq!(words("ssh -o 'ProxyCommand a b'", "b"), "ssh|-o|ProxyCommand a b|me@b");
        assert_eq!(words("kubectl exec -i {host} -- sh -c", "b"), "kubectl|exec|-i|me@b|--|sh|-c");
        assert_eq!(words("srun --nodelist={host} -N1", "b"), "srun|--nodelist=me@b|-N1");
        assert!(Rsh::parse("--rsh", "/usr/bin/srun -u").unwrap().runs("srun"));
        assert!(!Rsh::parse("--rsh", "ssh srun").unwrap().runs("srun"));
        assert_eq!(Rsh::here().words_for(&Host::this_machine()), ["sh", "-c"]);
    }

    #[test]
    fn no_command_is_refused() {
        assert!(matches!(Rsh::parse("--rsh", "ssh 'x"), Err(RshError::Quote { .. })));
        for empty in ["", "  ", "''"] {
            assert!(matches!(Rsh::parse("--rsh", empty), Err(RshError::Empty { .. })), "{empty}");
        }
    }

    #[test]
    fn what_failed_is_said_with_its_last_words() {
        let rsh = Rsh::parse("--rsh", "/etc/mpi/kubexec.sh").unwrap();
        let host = Host { name: "w-0".into(), ..Host::this_machine() };
        let output = "+ POD_NAME=w-0\n+ kubectl exec w-0\nError from server: pods not found\n";
        let error = rsh.no_agent(&host, Some(ExitStatus::Code(1)), output);
        assert_eq!(
            error.to_string(),
            "`/etc/mpi/kubexec.sh w-0` exited with code 1, but no agent answered: Error from \
             server: pods not found"
        );
        let secret = Rsh::parse("--rsh", "x --password=hunter2 --token hunter2").unwrap();
        let error = secret.no_agent(&host, None, "");
        let text = format!("{error} {}", error.hint().unwrap());
        assert!(!text.contains("hunter2"), "{text}");
        let unanswered = rsh.no_agent(&host, None, "+ shift\n");
        let expected = "`/etc/mpi/kubexec.sh w-0` runs, but no agent answered";
        assert_eq!(unanswered.to_string(), expected);
    }
}
