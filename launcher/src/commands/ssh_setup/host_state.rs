//! State of hosts, the changes that they need, and the question whether to make them.

use super::error::SetupError;
use super::remote::{self, DesiredState};
use super::{TargetHost, on_hosts};
use rlaunch_ssh::known_hosts::NewHostKey;
use rlaunch_ssh::{KeyLogin, Ssh};
use rlaunch_text::text;
use std::fmt::Write as _;
use std::io::{self, BufRead, IsTerminal, Write as _};
use std::sync::Arc;

/// State of a host before any change.
pub(super) enum HostState {
    /// The host's key is unknown, so no login was tried.
    Unknown(NewHostKey),
    /// The host accepts none of the user's keys, but may accept a password.
    Password,
    /// The host accepts a key. The texts describe changes that it still needs.
    AcceptsKey(Vec<String>),
}

impl HostState {
    /// Tells whether the host needs no changes.
    pub(super) fn is_done(&self) -> bool {
        matches!(self, HostState::AcceptsKey(changes) if changes.is_empty())
    }

    /// Tells whether the host needs the user's key, as far as is known.
    pub(super) fn needs_key(&self) -> bool {
        matches!(self, HostState::Unknown(_) | HostState::Password)
    }

    /// Describes the changes that the host needs.
    fn changes(&self, host: &TargetHost, container: Option<&str>) -> Vec<String> {
        let mut lines = Vec::new();
        match self {
            HostState::AcceptsKey(changes) => return changes.clone(),
            HostState::Unknown(key) => {
                lines.push(format!("accept its host key {}", key.fingerprint()));
                lines.push(format!("log in by the password of {}, unless a key works", host.user));
            }
            HostState::Password => lines.push(format!("log in by the password of {}", host.user)),
        }
        lines.push(
            "add your key to ~/.ssh/authorized_keys (mode 600, ~/.ssh 700, ~ not writable for \
             others)"
                .to_owned(),
        );
        if let Some(name) = container {
            lines.push(format!(
                "add the container's key with its command, ~/.ssh/rlaunch-{name}.sh (mode 700)"
            ));
        }
        lines
    }
}

/// Determines the states of all hosts at once, and changes nothing on them. The setup of a host that accepts
/// a key is compared with `desired`.
pub(super) async fn find(
    ssh: &Arc<Ssh>,
    hosts: &[Arc<TargetHost>],
    desired: &[DesiredState],
) -> Vec<Result<HostState, SetupError>> {
    let checks = hosts.iter().zip(desired).map(|(host, desired)| {
        let (ssh, host, desired) = (ssh.clone(), host.clone(), desired.clone());
        (host.name.clone(), async move { find_one(&ssh, &host, &desired).await })
    });
    on_hosts("connecting", checks.collect()).await
}

async fn find_one(
    ssh: &Ssh,
    host: &TargetHost,
    desired: &DesiredState,
) -> Result<HostState, SetupError> {
    if let Some(key) = ssh.unknown_key(&host.config).await? {
        return Ok(HostState::Unknown(key));
    }
    match ssh.log_in_by_key(&host.config).await? {
        KeyLogin::Open(connection) => {
            let changes = remote::apply(&connection, desired, true).await;
            connection.close().await;
            Ok(HostState::AcceptsKey(changes?))
        }
        KeyLogin::Refused { takes_passwords: true, .. } => Ok(HostState::Password),
        KeyLogin::Refused { takes_passwords: false, .. } => Err(host.closed()),
    }
}

/// Formats all changes: first those on this machine, then those on hosts, grouped by equal changes. The text
/// is empty if there are none.
pub(super) fn format_plan<'a>(
    here: &[String],
    hosts: impl Iterator<Item = (&'a TargetHost, &'a HostState)>,
    container: Option<&str>,
) -> String {
    let mut groups: Vec<(Vec<&str>, Vec<String>)> = Vec::new();
    for (host, state) in hosts.filter(|(_, state)| !state.is_done()) {
        let lines = state.changes(host, container);
        match groups.iter_mut().find(|(_, known)| *known == lines) {
            Some((names, _)) => names.push(&host.name),
            None => groups.push((vec![&host.name], lines)),
        }
    }
    let mut text = String::new();
    let mut block = |heading: &str, lines: &[String]| {
        let _ = writeln!(text, "{heading}:");
        for line in lines {
            let _ = writeln!(text, "  {line}");
        }
    };
    if !here.is_empty() {
        block("here", here);
    }
    for (names, lines) in &groups {
        block(&format!("on {}", text::list(names)), lines);
    }
    text
}

/// Tells whether standard input is a terminal, so that the user can answer yes or no.
pub(super) fn can_confirm() -> bool {
    io::stdin().is_terminal()
}

/// Asks whether to make the changes. Any answer but yes means no.
pub(super) async fn confirm() -> Result<bool, SetupError> {
    ask("go on? [y/N] ")?;
    let answer = read_line().await?;
    Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}

fn ask(question: &str) -> Result<(), SetupError> {
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
