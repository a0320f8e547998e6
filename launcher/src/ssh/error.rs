//! Why a host was not reached, in the words a person needs, and what to do about it.

use super::config::ConfigError;
use super::known_hosts::KnownHostsError;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// One host's failure on the way to a login. The host itself is named by whoever reports it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SshError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("its configuration asks for a proxy, which rlaunch cannot use yet")]
    Proxy,
    #[error("cannot look up `{name}`")]
    LookUp { name: String, source: io::Error },
    #[error("`{name}` has no address of the wanted family")]
    NoAddress { name: String },
    #[error("cannot connect to {address}")]
    Connect { address: SocketAddr, source: io::Error },
    #[error("cannot set up the TCP connection")]
    Socket(#[source] io::Error),
    #[error("{what} within {} s", timeout.as_secs())]
    Timeout { what: &'static str, timeout: Duration },
    #[error("the SSH handshake with {address} failed")]
    Handshake { address: SocketAddr, source: Box<russh::Error> },
    #[error("no known algorithm among `{list}`")]
    Algorithms { keyword: &'static str, list: String },
    #[error(transparent)]
    KnownHosts(#[from] KnownHostsError),
    #[error(
        "its host key has changed: {} is in {}:{}, the host shows {}",
        .0.recorded, .0.file.display(), .0.line, .0.shown
    )]
    HostKeyChanged(Box<HostKeyChange>),
    #[error("its host key is marked as revoked in {}:{line}", file.display())]
    HostKeyRevoked { file: PathBuf, line: usize },
    #[error("its host key {shown} is not known, and StrictHostKeyChecking is on")]
    HostKeyUnknown { shown: String },
    #[error("{user} may not log in: {}", tried_list(tried))]
    Refused { user: String, tried: Vec<String>, methods: String },
    #[error("the login as {user} broke off")]
    Login { user: String, source: Box<russh::Error> },
    #[error("{address} takes no command")]
    Channel { address: SocketAddr, source: Box<russh::Error> },
}

/// A host that shows another key than the recorded one.
#[derive(Debug)]
pub(crate) struct HostKeyChange {
    /// What known-hosts files call the host.
    pub(crate) name: String,
    pub(crate) file: PathBuf,
    pub(crate) line: usize,
    /// Fingerprint of the recorded key.
    pub(crate) recorded: String,
    /// Fingerprint of the key that the host shows.
    pub(crate) shown: String,
}

fn tried_list(tried: &[String]) -> String {
    if tried.is_empty() {
        "there is no key to try".to_owned()
    } else {
        format!("tried {}", tried.join(", "))
    }
}

impl SshError {
    /// What the user can do.
    pub(crate) fn hint(&self, host: &str) -> Option<String> {
        match self {
            SshError::Config(error) => error.hint(),
            SshError::KnownHosts(error) => error.hint(),
            SshError::LookUp { .. } | SshError::NoAddress { .. } => Some(
                "check the spelling, /etc/hosts, or give it a HostName in ~/.ssh/config".into(),
            ),
            SshError::Connect { address, source } => Some(connect_hint(address, source)),
            SshError::Timeout { .. } => Some(format!(
                "a firewall may drop the packets, or the host be down; `ssh -v {host}` shows where \
                 it stops; ConnectTimeout in ~/.ssh/config changes the limit"
            )),
            SshError::Handshake { .. } | SshError::Socket(_) => {
                Some(format!("`ssh -v {host}` shows what the server says"))
            }
            SshError::Algorithms { keyword, .. } => {
                Some(format!("correct {keyword} in ~/.ssh/config"))
            }
            SshError::HostKeyChanged(change) => Some(format!(
                "if the host was reinstalled: ssh-keygen -R {} -f {}; if not, someone may be in \
                 between",
                change.name,
                change.file.display()
            )),
            SshError::HostKeyRevoked { .. } | SshError::Proxy => None,
            SshError::HostKeyUnknown { .. } => Some(format!(
                "connect once by hand (`ssh {host}`) and compare the key, or set \
                 StrictHostKeyChecking accept-new"
            )),
            SshError::Refused { user, .. } => Some(format!(
                "`ssh-copy-id {user}@{host}` installs your key there; IdentityFile in \
                 ~/.ssh/config names another one"
            )),
            SshError::Login { .. } | SshError::Channel { .. } => {
                Some("the host's sshd log says why (MaxAuthTries, MaxSessions, the account)".into())
            }
        }
    }
}

fn connect_hint(address: &SocketAddr, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => format!(
            "no sshd listens on port {}; another port is given by --port or by Port in \
             ~/.ssh/config",
            address.port()
        ),
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => {
            "the host is down, or there is no route to it from here".to_owned()
        }
        _ => format!("check that port {} can be reached from here", address.port()),
    }
}
