//! Finding the agent's executable on this machine, installing it on a host under its hash, and starting it.
//!
//! | files | subject |
//! |---|---|
//! | `deploy`, `hello` | starting the agent on a host, and its first message |
//! | `install` | installing it, if the host does not have it |
//! | `callback` | the TCP listener for agents that get no stdin from their shell, and for hosts that download the agent |
//! | `store`, `host_file` | search for the programs that are sent to hosts; a program from disk or from the bundle |
//! | `bundle`, `pack` | files that `rlaunch` carries in its executable, and how they get there |
//! | `library` | the library for ranks |

pub mod bundle;
pub mod callback;
pub mod deploy;
pub mod hello;
pub mod host_file;
mod install;
pub mod library;
pub mod pack;
pub mod store;

use crate::connect::channel::Abandoned;
use crate::connect::connector::{ConnectError, HostConnection, quoted_output};
use rlaunch_bootstrap::job::PortRange;
use rlaunch_bootstrap::protocol::control::{FrameError, NO_PROC, PROTOCOL_VERSION};
use rlaunch_console::deadline::Late;
use rlaunch_plan::findings::{CheckId, id};
use rlaunch_text::firewall;
use std::net::IpAddr;
use store::{AgentStoreError, MOUNT_PROC};

/// Maximum number of bytes of output to keep while waiting for an agent or the installer.
const MAX_ANSWER: usize = 64 << 10;

/// Reason why no agent could be started on a host.
#[derive(Debug, thiserror::Error)]
pub enum DeployError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Store(#[from] AgentStoreError),
    #[error("the host runs {system}, and the agent needs Linux")]
    System { system: String },
    #[error("cannot install the agent: {cause}")]
    Install { cause: String },
    /// The directory has taken a small file, and then not the agent, as on a full disk or beyond a quota.
    #[error("cannot install the agent: {cause}")]
    Full { cause: String },
    #[error("its shell has no stdin, and it cannot fetch the agent: {cause}")]
    NoFetch { cause: String, from: Option<IpAddr>, ports: PortRange },
    #[error("cannot reach the launcher at {tried}, and its shell has no stdin")]
    NoCallback { tried: String, from: Option<IpAddr>, ports: PortRange },
    #[error("{late}{}{}", of_shell(*shell), quoted_output(words))]
    Silent { words: String, late: Late, shell: Abandoned },
    #[error("its login shell sends stdout to stderr")]
    Misdirected,
    #[error("cannot install the agent: {late}; the connection stalls, or the host does{}", of_shell(*shell))]
    Stalled { late: Late, shell: Abandoned },
    #[error("the agent's installer ended early{}", quoted_output(.0))]
    Cut(String),
    #[error("the agent is installed but does not start{}", quoted_output(.0))]
    NoStart(String),
    #[error("its shell does not run commands{}", quoted_output(.0))]
    Shell(String),
    #[error("the agent has protocol version {theirs}, this rlaunch has {PROTOCOL_VERSION}")]
    Version { theirs: u16 },
    #[error("cannot parse the agent's hello")]
    Wire(#[from] FrameError),
}

impl From<Late> for DeployError {
    fn from(late: Late) -> DeployError {
        DeployError::Stalled { late, shell: Abandoned::Ended }
    }
}

impl DeployError {
    /// Returns the id of the finding that the error states.
    pub fn finding(&self) -> CheckId {
        match self {
            DeployError::Connect(error) => error.finding(),
            DeployError::Store(AgentStoreError::Missing { .. } | AgentStoreError::Wrong { .. })
            | DeployError::System { .. } => id::AGENT_ARCH,
            DeployError::NoCallback { .. } | DeployError::NoFetch { .. } => id::NET_CALLBACK,
            _ => id::AGENT_RUN,
        }
    }

    /// Replaces the error by a more precise one where that is known. An error that quotes the host's output becomes the
    /// loss of the connection, or the error of the container engine or of the `--rsh` command that explains the output;
    /// every other error stays as it is.
    #[must_use]
    pub fn explained(self, connection: &HostConnection) -> DeployError {
        let known = match &self {
            DeployError::Silent { words, late, .. } => {
                let explained = connection.explain(words, false);
                explained.or_else(|| connection.engine_silence(*late, words))
            }
            DeployError::NoStart(words) | DeployError::Cut(words) => {
                connection.explain(words, false)
            }
            DeployError::Shell(words) => connection.explain(words, true),
            _ => None,
        };
        known.map_or(self, DeployError::Connect)
    }

    /// Adds to the error of a silence what is known of the shell, which was told to end since.
    fn with_shell(mut self, abandoned: Abandoned) -> DeployError {
        if let DeployError::Silent { shell, .. } | DeployError::Stalled { shell, .. } = &mut self {
            *shell = abandoned;
        }
        self
    }

    /// Returns advice for the user; `host` is the host's name in it.
    pub fn hint(&self, host: &str) -> Option<String> {
        match self {
            DeployError::Connect(error) => error.hint(host),
            DeployError::Store(error) => error.hint(),
            DeployError::Install { cause: said }
            | DeployError::Full { cause: said }
            | DeployError::NoStart(said)
                if said.contains(NO_PROC) =>
            {
                Some(format!("on {host}: {MOUNT_PROC}"))
            }
            // Words of place.sh.
            DeployError::Install { cause } if cause.starts_with("others may change") => Some(
                "an account that can rename the directory can replace the agent: chmod go-w takes that \
                 right away; or --agent-dir DIR names another directory on the hosts"
                    .into(),
            ),
            DeployError::Install { .. } | DeployError::Full { .. } => Some(
                "--agent-dir DIR names another directory on the hosts, one that can be written \
                 and executed from"
                    .into(),
            ),
            DeployError::NoFetch { from, ports, .. } => Some(format!(
                "put rlaunch-worker of this build into its image, on PATH, or name it there by \
                 --agent; or {}",
                firewall_hint(host, *from, *ports)
            )),
            DeployError::NoCallback { from, ports, .. } => Some(format!(
                "{}; or give its shell stdin (docker exec -i)",
                firewall_hint(host, *from, *ports)
            )),
            // The dynamic loader names the version that it lacks, such as GLIBC_2.38.
            DeployError::NoStart(words) if words.contains("GLIBC") => {
                Some("build the agent with `cargo agent`: it needs no libc on the host".into())
            }
            // Words of nologin(8).
            DeployError::Shell(words) | DeployError::NoStart(words)
                if words.contains("account is currently not available") =>
            {
                Some(format!(
                    "the account has no login shell; on {host}:\n  sudo chsh -s /bin/bash ACCOUNT\n\
                     or take another account: -H ACCOUNT@{host}"
                ))
            }
            DeployError::Silent { shell, .. } => Some(format!(
                "`ssh {host} echo hello` should print just that, and end; a start-up file there, as ~/.bashrc, that \
                 starts another shell, waits for something or sends stdout elsewhere (`exec >FILE`) keeps it from that{}",
                shells_hint(host, *shell)
            )),
            DeployError::Misdirected => Some(format!(
                "`ssh {host} echo hello 2>/dev/null` should print hello: a start-up file there, as \
                 ~/.bashrc, has a line like `exec 1>&2`, which is for terminals alone:\n  \
                 [ -t 1 ] && exec 1>&2"
            )),
            DeployError::Stalled { shell, .. } => Some(format!(
                "`head -c 4M /dev/zero | ssh {host} wc -c` shows whether data passes{}",
                shells_hint(host, *shell)
            )),
            DeployError::NoStart(_) | DeployError::Shell(_) | DeployError::Cut(_) => {
                Some(format!("`ssh {host} echo hello` should print just that"))
            }
            DeployError::Version { .. } => Some("--agent names an agent of another build".into()),
            DeployError::System { .. } | DeployError::Wire(_) => None,
        }
    }
}

/// Returns the part of a sentence on a shell that was told to end.
fn of_shell(abandoned: Abandoned) -> &'static str {
    match abandoned {
        Abandoned::Ended => "",
        Abandoned::MayRun => "; its shell was told to end, has not answered, and may run on there",
    }
}

/// Returns a line of advice on a shell that may run on.
fn shells_hint(host: &str, shell: Abandoned) -> String {
    match shell {
        Abandoned::Ended => String::new(),
        // The first process of a session of sshd is the leader of its group.
        Abandoned::MayRun => format!(
            "\non {host}, `ps -u \"$USER\" -o pid,etime,args | grep '[-]c .*rlaunch'` lists such shells among others; \
             `kill -KILL -PID` ends one that is as old as this attempt, with what it waits for"
        ),
    }
}

/// Returns advice with firewall rules that admit the agent's connection, and with the options for other
/// ports and interfaces. The rules admit any address if `host` is empty, so that the advice is the same for
/// all hosts.
fn firewall_hint(host: &str, from: Option<IpAddr>, ports: PortRange) -> String {
    let PortRange { first, last } = ports;
    let from = from.filter(|_| !host.is_empty());
    let from = from.map(|address| address.to_string());
    let line = firewall::admission(from.as_deref(), "tcp", (first, last));
    let any = from.as_deref().unwrap_or("any");
    format!(
        "let it in here: `{line}`, or `ufw allow from {any} to any port {first}:{last} proto tcp`; \
         --port-range and --oob-if choose other ports and interfaces"
    )
}

/// Checks `--agent-dir`. Since the directory becomes part of commands for all kinds of shells, it may have
/// only characters that no shell interprets.
pub fn check_directory(directory: &str) -> Result<(), String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+@=,".contains(c);
    let path = directory.strip_prefix('~').unwrap_or(directory);
    if path.starts_with('/') && path.chars().all(plain) {
        return Ok(());
    }
    Err(format!(
        "--agent-dir {directory}: an absolute path, or one that starts with ~/, of letters, digits \
         and /._-+@=,"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_firewall_is_opened_for_this_host_alone() {
        let from = "10.1.0.2".parse().ok();
        let ports = PortRange { first: 21000, last: 21511 };
        let error =
            DeployError::NoCallback { tried: "10.1.0.1:21003 (no answer)".into(), from, ports };
        assert!(
            error
                .to_string()
                .starts_with("cannot reach the launcher at 10.1.0.1:21003 (no answer)")
        );
        let hint = error.hint("b").unwrap();
        let rule =
            "nft insert rule inet filter input ip saddr 10.1.0.2 tcp dport 21000-21511 accept";
        assert!(hint.contains(rule) && hint.contains("; iptables -I INPUT -s 10.1.0.2 "), "{hint}");
        assert!(
            hint.contains("ufw allow from 10.1.0.2 to any port 21000:21511 proto tcp"),
            "{hint}"
        );
        assert!(hint.contains("--port-range") && hint.contains("--oob-if"), "{hint}");
        // Without a host, the hint is the same for all hosts, and is printed only once.
        let other = DeployError::NoCallback { tried: String::new(), from: None, ports };
        assert_eq!(error.hint(""), other.hint(""));
    }

    #[test]
    fn a_host_without_proc_is_told_to_mount_it() {
        let said = format!("cannot execute /root/x: rlaunch-worker: {NO_PROC}");
        for error in [DeployError::Install { cause: said.clone() }, DeployError::NoStart(said)] {
            assert!(error.to_string().contains("/proc is not mounted"), "{error}");
            let hint = error.hint("b").unwrap();
            assert!(hint.starts_with("on b: sudo mount -t proc proc /proc"), "{hint}");
        }
        let other = DeployError::Install { cause: "cannot execute /root/x".into() };
        assert!(other.hint("b").unwrap().starts_with("--agent-dir DIR"));
    }

    #[test]
    fn a_shell_that_may_run_on_is_named_with_what_ends_it() {
        let late = Late { awaited: "hello", limit: std::time::Duration::from_secs(8) };
        let silent = DeployError::Silent { words: "Hi".into(), late, shell: Abandoned::Ended };
        assert_eq!(silent.to_string(), "no hello within 8 s; what came back: Hi");
        assert!(!silent.hint("b").unwrap().contains("kill"));
        let left = silent.with_shell(Abandoned::MayRun);
        assert_eq!(
            left.to_string(),
            "no hello within 8 s; its shell was told to end, has not answered, and may run on there; \
             what came back: Hi"
        );
        assert!(
            left.hint("b").unwrap().contains("\non b, `ps -u \"$USER\" -o pid,etime,args | grep ")
        );
        let stalled = DeployError::from(late).with_shell(Abandoned::MayRun);
        assert_eq!(
            stalled.to_string(),
            "cannot install the agent: no hello within 8 s; the connection stalls, or the host does; its shell was told to \
             end, has not answered, and may run on there"
        );
        assert!(stalled.hint("b").unwrap().contains("\non b, `ps -u "));
        assert!(!DeployError::from(late).hint("b").unwrap().contains("kill"));
        let other = DeployError::Misdirected.with_shell(Abandoned::MayRun);
        assert!(matches!(other, DeployError::Misdirected));
    }

    #[test]
    fn agent_directories_cannot_carry_commands() {
        assert!(check_directory("/tmp/agents").is_ok());
        assert!(check_directory("~/agents").is_ok());
        for bad in ["", "agents", "/tmp/a b", "/tmp/$(id)", "/tmp/a;b", "~root/x", "/tmp/a'b"] {
            assert!(check_directory(bad).is_err(), "{bad}");
        }
    }
}
