//! Errors in setting up a host or this machine.

use super::container::{NamedContainer, append_command};
use rlaunch_console::messages;
use rlaunch_ssh::error::SshError;
use rlaunch_ssh::keys::KeyError;
use rlaunch_ssh::known_hosts::KnownHostsError;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use rlaunch_text::shell::quoted;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Error on a host, or on this machine. The message lacks the host's name, which [`SetupError::on_host`]
/// adds.
#[derive(Debug, thiserror::Error)]
pub(super) enum SetupError {
    #[error(transparent)]
    Ssh(#[from] SshError),
    #[error(transparent)]
    KnownHosts(#[from] KnownHostsError),
    #[error("it accepts none of your keys for {user}, and its sshd accepts no passwords")]
    Closed { user: String, line: String },
    #[error("its sshd does not accept this password of {user}")]
    WrongPassword { user: String },
    #[error("the password of {user} must be typed once, and there is no terminal")]
    NoTerminal { user: String },
    #[error("there is no answer")]
    NoAnswer(#[source] io::Error),
    #[error("cannot set it up: {cause}")]
    Refused { cause: String },
    #[error("its shell runs no commands{}", suffix(.0))]
    NoCommands(String),
    #[error("its shell does not exit within {} s", .0.as_secs())]
    Late(Duration),
    #[error("it has the key and does not accept it")]
    KeyRefused(#[source] SshError),
    #[error("it does not accept the key of container {name}")]
    ContainerKeyRefused { name: String, source: SshError },
    #[error("the key logs in to the host, not to container {name}")]
    NotInContainer { name: String, line: String },
    #[error("{container} runs no commands{}", suffix(output), container = named(container))]
    Container { container: NamedContainer, user: String, output: String },
    #[error("cannot write {}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot use {} as a private key", path.display())]
    Key { path: PathBuf, source: KeyError },
    #[error("{} is a public key", .0.display())]
    PublicKey(PathBuf),
    #[error("{} has a passphrase, and no public key that can be read beside it", .0.display())]
    NoPublicKey(PathBuf),
    #[error("cannot make a key")]
    MakeKey,
}

fn suffix(words: &str) -> String {
    let words = words.trim();
    if words.is_empty() { String::new() } else { format!(": {words}") }
}

fn named(container: &NamedContainer) -> String {
    format!("container {} of {}", container.name, container.engine.command())
}

impl SetupError {
    pub(super) fn hint(&self, host: &str) -> Option<String> {
        match self {
            SetupError::Ssh(error) => error.hint(host),
            SetupError::KnownHosts(error) => error.hint(),
            SetupError::Closed { user, line } => Some(format!(
                "on {host}, as {user}: mkdir -pm 700 ~/.ssh; {}; chmod 600 ~/.ssh/authorized_keys; or \
                 set PasswordAuthentication yes in /etc/ssh/sshd_config for now",
                append_command(line)
            )),
            SetupError::WrongPassword { user } if user == "root" => Some(
                "by default sshd lets root log in by key only (PermitRootLogin): type user@host, or \
                 set PermitRootLogin yes in /etc/ssh/sshd_config for now"
                    .to_owned(),
            ),
            SetupError::WrongPassword { .. } => Some("user@host names another user".to_owned()),
            SetupError::NoTerminal { .. } => Some(
                "run it at a terminal, or name a program that answers in SSH_ASKPASS, with \
                 SSH_ASKPASS_REQUIRE=force"
                    .to_owned(),
            ),
            SetupError::NoCommands(_) | SetupError::Late(_) => {
                Some(format!("`ssh {host} echo hello` should print just that"))
            }
            SetupError::KeyRefused(_) | SetupError::ContainerKeyRefused { .. } => Some(format!(
                "the sshd of {host} may read other files: sudo sshd -T | grep -i -e authorizedkeys \
                 -e pubkey; its log says why it refused: sudo journalctl -u ssh -u sshd -n 20"
            )),
            SetupError::NotInContainer { line, .. } => Some(format!(
                "another line of ~/.ssh/authorized_keys there has this key; this must be the only one: {line}"
            )),
            SetupError::Container { container, user, output } => {
                container_hint(container, user, output, host)
            }
            SetupError::Key { .. } => Some("--key names another file".to_owned()),
            SetupError::PublicKey(_) => Some("--key names the private key".to_owned()),
            SetupError::NoPublicKey(path) => {
                let is_putty = path.extension().is_some_and(|extension| extension == "ppk");
                let path = quoted(path.as_os_str());
                Some(if is_putty {
                    format!("write it: puttygen {path} -O public-openssh -o {path}.pub")
                } else {
                    format!("write it: ssh-keygen -y -f {path} >{path}.pub")
                })
            }
            SetupError::Write { .. } | SetupError::Read { .. } => {
                Some("--key names a file elsewhere".to_owned())
            }
            SetupError::Refused { .. } | SetupError::NoAnswer(_) | SetupError::MakeKey => None,
        }
    }

    /// Converts an error on this machine to a failure of rlaunch.
    pub(super) fn here(&self) -> Failed {
        Failed::from_error(Exit::USAGE, self).hint(self.hint("HOST"))
    }

    /// Converts an error on a host to a failure of rlaunch.
    pub(super) fn on_host(&self, host: &str) -> Failed {
        let message = format!("{host}: {}", messages::error_chain(self));
        Failed::new(Exit::HOST, message).hint(self.hint(host))
    }
}

/// Returns a hint for `output`, the error message of a container engine; `None` if the message is not known.
fn container_hint(
    NamedContainer { engine, name }: &NamedContainer,
    user: &str,
    output: &str,
    host: &str,
) -> Option<String> {
    let engine = engine.command();
    let lower = output.to_ascii_lowercase();
    let has = |words: &str| lower.contains(words);
    Some(if has("permission denied") && has(".sock") {
        format!("on {host}: sudo usermod -aG {engine} {user}; it takes effect at the next login")
    } else if has("no such container") || has("no container with name") {
        format!("on {host}: {engine} ps -a; {engine} run -d --name {name} … sleep infinity")
    } else if has("not running") || has("can only create exec sessions on running") {
        format!("on {host}: {engine} start {name}")
    } else if has("not found") && has(engine) {
        format!("{engine} is not on {host}'s PATH for commands; podman:{name} names another engine")
    } else {
        return None;
    })
}

/// Combines the failures of several hosts into one error, which says how many of all `hosts` failed. A single
/// failure is returned unchanged; `None` if there are none.
pub(super) fn combine(mut failures: Vec<Failed>, hosts: usize) -> Option<Failed> {
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
