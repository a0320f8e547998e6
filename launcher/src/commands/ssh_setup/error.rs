//! Why a host, or this machine, could not be set up.

use super::container::pasteable;
use super::remote::RUN_TIMEOUT;
use crate::cli::args::NamedContainer;
use rlaunch_console::exit::Exit;
use rlaunch_console::messages::{self, Failed};
use rlaunch_ssh::error::SshError;
use rlaunch_ssh::known_hosts::KnownHostsError;
use std::io;
use std::path::PathBuf;

/// One failure. The host is named by whoever reports it.
#[derive(Debug, thiserror::Error)]
pub(super) enum SetupError {
    #[error(transparent)]
    Ssh(#[from] SshError),
    #[error(transparent)]
    KnownHosts(#[from] KnownHostsError),
    #[error("no key of yours opens it to {user}, and its sshd takes no passwords")]
    Closed { user: String, line: String },
    #[error("its sshd does not take this password of {user}")]
    Wrong { user: String },
    #[error("the password of {user} must be typed once, and there is no terminal")]
    Nobody { user: String },
    #[error("nobody answers")]
    Terminal(#[source] io::Error),
    #[error("cannot set it up: {cause}")]
    Refused { cause: String },
    #[error("its shell runs no commands{}", said(.0))]
    Shell(String),
    #[error("its shell does not end within {} s", RUN_TIMEOUT.as_secs())]
    Late,
    #[error("the key is there and does not open it")]
    NotOpened(#[source] SshError),
    #[error("the key of container {name} does not open it")]
    NoWayIn { name: String, source: SshError },
    #[error("the key reaches the host, not container {name}")]
    Landing { name: String, line: String },
    #[error("{container} runs no commands{}", said(said_there), container = named(container))]
    Container { container: NamedContainer, user: String, said_there: String },
    #[error("cannot write {}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} is no private key", path.display())]
    Key { path: PathBuf, source: russh::keys::Error },
    #[error("cannot make a key")]
    Make,
}

fn said(words: &str) -> String {
    let words = words.trim();
    if words.is_empty() { String::new() } else { format!(": {words}") }
}

fn named(container: &NamedContainer) -> String {
    format!("container {} of {}", container.name, container.engine)
}

impl SetupError {
    /// What the user can do.
    pub(super) fn hint(&self, host: &str) -> Option<String> {
        match self {
            SetupError::Ssh(error) => error.hint(host),
            SetupError::KnownHosts(error) => error.hint(),
            SetupError::Closed { line, .. } => Some(format!(
                "whoever can log in there runs: mkdir -pm 700 ~/.ssh; {}; chmod 600 \
                 ~/.ssh/authorized_keys; or sets PasswordAuthentication yes in \
                 /etc/ssh/sshd_config for now",
                pasteable(line)
            )),
            SetupError::Wrong { user } if user == "root" => Some(
                "by default sshd lets root in by a key alone (PermitRootLogin): say user@host, or \
                 set PermitRootLogin yes in /etc/ssh/sshd_config for now"
                    .to_owned(),
            ),
            SetupError::Wrong { .. } => Some("user@host names another user".to_owned()),
            SetupError::Nobody { .. } => Some(
                "run it on a terminal, or name a program in SSH_ASKPASS that answers, with \
                 SSH_ASKPASS_REQUIRE=force"
                    .to_owned(),
            ),
            SetupError::Shell(_) | SetupError::Late => {
                Some(format!("`ssh {host} echo hello` should print just that"))
            }
            SetupError::NotOpened(_) | SetupError::NoWayIn { .. } => Some(format!(
                "the sshd of {host} may look elsewhere: sudo sshd -T | grep -i -e authorizedkeys \
                 -e pubkey; its log says why it refused: sudo journalctl -u ssh -u sshd -n 20"
            )),
            SetupError::Landing { line, .. } => Some(format!(
                "another line of ~/.ssh/authorized_keys there lets this key in; it must be this \
                 one alone: {line}"
            )),
            SetupError::Container { container, user, said_there } => {
                container_hint(container, user, said_there, host)
            }
            SetupError::Key { .. } => Some("--key names another file".to_owned()),
            SetupError::Write { .. } | SetupError::Read { .. } => {
                Some("--key names a file elsewhere".to_owned())
            }
            SetupError::Refused { .. } | SetupError::Terminal(_) | SetupError::Make => None,
        }
    }

    /// As rlaunch ends with it.
    pub(super) fn here(&self) -> Failed {
        Failed::from_error(Exit::USAGE, self).hint(self.hint("HOST"))
    }

    /// The same of a host.
    pub(super) fn of(&self, host: &str) -> Failed {
        let message = format!("{host}: {}", messages::error_chain(self));
        Failed::new(Exit::HOST, message).hint(self.hint(host))
    }
}

/// By what the engine says.
fn container_hint(
    NamedContainer { engine, name }: &NamedContainer,
    user: &str,
    said: &str,
    host: &str,
) -> Option<String> {
    let lower = said.to_ascii_lowercase();
    let has = |words: &str| lower.contains(words);
    Some(if has("permission denied") && has(".sock") {
        format!("on {host}: sudo usermod -aG {engine} {user}; it counts from the next login on")
    } else if has("no such container") || has("no container with name") {
        format!("on {host}: {engine} ps -a; {engine} run -d --name {name} … sleep infinity")
    } else if has("not running") || has("can only create exec sessions on running") {
        format!("on {host}: {engine} start {name}")
    } else if has("not found") && has(&engine.to_string()) {
        format!("{engine} is not on {host}'s PATH for commands; podman:{name} names another engine")
    } else {
        return None;
    })
}

/// The failures of several hosts as one.
pub(super) fn together(mut failures: Vec<Failed>, hosts: usize) -> Option<Failed> {
    match failures.len() {
        0 => None,
        1 => failures.pop(),
        count => {
            let message = format!("{count} of {hosts} hosts are not set up");
            let mut all = Failed::new(Exit::HOST, message);
            for failed in failures {
                all.details.push(failed.message);
                all = failed.hints.into_iter().fold(all, |all, hint| all.hint(Some(hint)));
            }
            Some(all)
        }
    }
}
