//! How hosts are now, and what would have to be done.

use super::error::SetupError;
use super::remote::{self, Wanted};
use super::{Way, at_once};
use rlaunch_console::text;
use rlaunch_ssh::KeyLogin;
use rlaunch_ssh::Ssh;
use rlaunch_ssh::known_hosts::NewHostKey;
use std::fmt::Write;
use std::sync::Arc;

/// How a host is now.
pub(super) enum State {
    /// It shows a key that nobody has seen, so nothing was said to it yet.
    Unknown(NewHostKey),
    /// No key opens it, a password may.
    Password,
    /// A key opens it; what it lacks all the same, in words.
    Open(Vec<String>),
}

impl State {
    /// Whether there is nothing to do.
    pub(super) fn is_done(&self) -> bool {
        matches!(self, State::Open(changes) if changes.is_empty())
    }

    /// Whether the key of this machine is needed, as far as can be told.
    pub(super) fn needs_key(&self) -> bool {
        matches!(self, State::Unknown(_) | State::Password)
    }

    /// What is to be done, in words.
    fn to_do(&self, way: &Way, container: Option<&str>) -> Vec<String> {
        let mut lines = Vec::new();
        match self {
            State::Open(changes) => return changes.clone(),
            State::Unknown(key) => {
                lines.push(format!("accept its host key {}", key.fingerprint()));
                lines.push(format!("log in by the password of {}, unless a key works", way.user));
            }
            State::Password => lines.push(format!("log in by the password of {}", way.user)),
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

/// Looks at every host at once; nothing is changed anywhere. `wanted` is what a host should have
/// that a key opens already.
pub(super) async fn look(
    ssh: &Arc<Ssh>,
    ways: &[Arc<Way>],
    wanted: &[Wanted],
) -> Vec<Result<State, SetupError>> {
    let looks = ways.iter().zip(wanted).map(|(way, wanted)| {
        let (ssh, way, wanted) = (ssh.clone(), way.clone(), wanted.clone());
        (way.name.clone(), async move { look_at(&ssh, &way, &wanted).await })
    });
    at_once("connecting", looks.collect()).await
}

async fn look_at(ssh: &Ssh, way: &Way, wanted: &Wanted) -> Result<State, SetupError> {
    if let Some(key) = ssh.unknown_key(&way.config).await? {
        return Ok(State::Unknown(key));
    }
    match ssh.log_in_by_key(&way.config).await? {
        KeyLogin::Open(connection) => {
            let changes = remote::set_up(&connection, wanted, true).await;
            connection.close().await;
            Ok(State::Open(changes?))
        }
        KeyLogin::Refused { takes_passwords: true, .. } => Ok(State::Password),
        KeyLogin::Refused { takes_passwords: false, .. } => Err(way.closed()),
    }
}

/// What is to be done, for people: first here, then on the hosts, those with the same to do
/// together. Empty when there is nothing to do.
pub(super) fn plan<'a>(
    here: &[String],
    hosts: impl Iterator<Item = (&'a Way, &'a State)>,
    container: Option<&str>,
) -> String {
    let mut groups: Vec<(Vec<&str>, Vec<String>)> = Vec::new();
    for (way, state) in hosts.filter(|(_, state)| !state.is_done()) {
        let lines = state.to_do(way, container);
        match groups.iter_mut().find(|(_, known)| *known == lines) {
            Some((names, _)) => names.push(&way.name),
            None => groups.push((vec![&way.name], lines)),
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
