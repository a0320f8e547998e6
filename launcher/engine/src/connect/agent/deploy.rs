//! Starting the agent on a host, after installing it if necessary.
//!
//! The launcher first tries a single command, which executes the agent in the host's cache. The agent's
//! directory there is named by the agent's hash. The command requires that the user's account owns the agent.
//! If no agent answers, the launcher installs the agent ([`super::install`]) and starts it again.

use super::hello::{CallbackContext, StartedAgent, await_hello};
use super::host_file::HostFile;
use super::install::{InstalledAgent, Installer};
use super::store::{AgentStore, AgentStoreError};
use crate::connect::callback::Callbacks;
use crate::connect::connector::{self, AgentLocation, ConnectError, HostConnection, RemoteCommand};
use rlaunch_bootstrap::id::NodeId;
use rlaunch_bootstrap::job::PortRange;
use rlaunch_bootstrap::protocol::control::{FrameError, PROTOCOL_VERSION};
use rlaunch_console::deadline::{self, Late};
use rlaunch_plan::findings::{CheckId, id};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, TryAcquireError};

/// Time limit for an agent's hello, its first message, from the moment its command was accepted.
pub(crate) const HELLO_TIMEOUT: Duration = Duration::from_secs(8);
/// Time for which other hosts wait for the first installation, which takes about a second, and half a minute over a slow
/// uplink, which they would only share. A connection that stalls must not hold them longer.
const FIRST_INSTALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum number of bytes of output to keep while waiting for an agent or the installer.
pub(super) const MAX_ANSWER: usize = 64 << 10;

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
    #[error("its shell has no stdin, and it cannot fetch the agent: {cause}")]
    NoFetch { cause: String, from: Option<IpAddr>, ports: PortRange },
    #[error("cannot reach the launcher at {tried}, and its shell has no stdin")]
    NoCallback { tried: String, from: Option<IpAddr>, ports: PortRange },
    #[error("{late}{}", quoted_output(words))]
    Silent { words: String, late: Late },
    #[error("cannot install the agent: {0}; the connection stalls, or the host does")]
    Stalled(#[from] Late),
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

fn quoted_output(words: &str) -> String {
    let words = connector::last_lines(words);
    if words.is_empty() { String::new() } else { format!("; what came back: {words}") }
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

    /// Returns what the host printed in place of the agent's hello, for errors that have such output.
    pub(crate) fn host_output(&self) -> Option<&str> {
        match self {
            DeployError::Silent { words, .. }
            | DeployError::NoStart(words)
            | DeployError::Cut(words)
            | DeployError::Shell(words) => Some(words),
            _ => None,
        }
    }

    /// Returns advice for the user; `host` is the host's name in it.
    pub fn hint(&self, host: &str) -> Option<String> {
        match self {
            DeployError::Connect(error) => error.hint(host),
            DeployError::Store(error) => error.hint(),
            DeployError::Install { cause } if cause.starts_with("others may change") => Some(
                "an account that can rename the directory can replace the agent: chmod go-w takes that \
                 right away; or --agent-dir DIR names another directory on the hosts"
                    .into(),
            ),
            DeployError::Install { .. } => Some(
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
            DeployError::NoStart(words) if words.contains("GLIBC") => {
                Some("build the agent with `cargo agent`: it needs no libc on the host".into())
            }
            DeployError::Shell(words) | DeployError::NoStart(words)
                if words.contains("account is currently not available") =>
            {
                Some(format!(
                    "the account has no login shell; on {host}:\n  sudo chsh -s /bin/bash ACCOUNT\n\
                     or take another account: -H ACCOUNT@{host}"
                ))
            }
            DeployError::Silent { .. } => Some(format!(
                "`ssh {host} echo hello` should print just that, and end; a start-up file there, as \
                 ~/.bashrc, that starts another shell or waits for something keeps it from that"
            )),
            DeployError::Stalled(_) => Some(format!(
                "`head -c 4M /dev/zero | ssh {host} wc -c` shows whether data passes"
            )),
            DeployError::NoStart(_) | DeployError::Shell(_) | DeployError::Cut(_) => {
                Some(format!("`ssh {host} echo hello` should print just that"))
            }
            DeployError::Version { .. } => Some("--agent names an agent of another build".into()),
            DeployError::System { .. } | DeployError::Wire(_) => None,
        }
    }
}

/// Returns advice with firewall rules that admit the agent's connection, and with the options for other
/// ports and interfaces. The rules admit any address if `host` is empty, so that the advice is the same for
/// all hosts.
fn firewall_hint(host: &str, from: Option<IpAddr>, ports: PortRange) -> String {
    let PortRange { first, last } = ports;
    let from = from.filter(|_| !host.is_empty());
    let (source, any) = match from {
        Some(IpAddr::V4(address)) => (format!("ip saddr {address} "), address.to_string()),
        Some(IpAddr::V6(address)) => (format!("ip6 saddr {address} "), address.to_string()),
        None => (String::new(), "any".to_owned()),
    };
    format!(
        "let it in here: `nft insert rule inet filter input {source}tcp dport {first}-{last} \
         accept`, or `ufw allow from {any} to any port {first}:{last} proto tcp`; --port-range \
         and --oob-if choose other ports and interfaces"
    )
}

/// State for starting agents, shared by all hosts of a job.
pub struct Deployment {
    store: AgentStore,
    native: Arc<HostFile>,
    /// Cache directory on the hosts, in shell syntax: may begin with `~/`.
    directory: String,
    /// Whether `directory` is from `--agent-dir`; then no other directory is used.
    is_named: bool,
    /// Listener for agents without stdin.
    callbacks: Callbacks,
    first: FirstInstall,
}

impl Deployment {
    /// Finds the agent for this machine. `directory` is the value of `--agent-dir`, which must have passed
    /// [`check_directory`].
    pub fn new(
        store: AgentStore,
        directory: Option<String>,
        callbacks: Callbacks,
    ) -> Result<Deployment, AgentStoreError> {
        let native = store.native()?;
        let is_named = directory.is_some();
        let directory = directory.unwrap_or_else(|| "~/.cache/rlaunch".to_owned());
        Ok(Deployment {
            store,
            native,
            directory,
            is_named,
            callbacks,
            first: FirstInstall::default(),
        })
    }

    /// Returns the agent's executable for this machine.
    pub fn native(&self) -> &HostFile {
        &self.native
    }

    /// Starts the agent of `node` on a host. Installs it first if the host does not have it.
    pub async fn start(
        &self,
        connection: &HostConnection,
        node: NodeId,
    ) -> Result<StartedAgent, DeployError> {
        let program = self.expected_location();
        match self.execute(connection, node, InstalledAgent { program, sent: None }).await {
            Err(DeployError::NoStart(_)) => {}
            started => return started,
        }
        let placed = self.first.before_others(self.install(connection)).await?;
        self.execute(connection, node, placed).await
    }

    /// Installs the agent on a host, unless the host has it, and returns its location.
    pub async fn ensure_installed(
        &self,
        connection: &HostConnection,
    ) -> Result<AgentLocation, DeployError> {
        Ok(self.install(connection).await?.program)
    }

    /// Returns the location where an earlier job would have installed the agent. In a directory of
    /// `--agent-dir`, which several accounts may share, each account has a cache of its own.
    fn expected_location(&self) -> AgentLocation {
        let (directory, build) = (self.directory.clone(), self.native.hash.clone());
        match self.is_named {
            true => AgentLocation::InShared { directory, build },
            false => AgentLocation::InCache { cache: directory, build },
        }
    }

    /// Executes `agent` with a single command and waits for its hello.
    async fn execute(
        &self,
        connection: &HostConnection,
        node: NodeId,
        agent: InstalledAgent,
    ) -> Result<StartedAgent, DeployError> {
        let addresses = connection.addresses();
        let words = self.callbacks.callback_args(node, addresses.map(|(local, _)| local));
        let from = addresses.map(|(_, host)| host);
        let callback =
            words.is_some().then_some(CallbackContext { callbacks: &self.callbacks, node, from });
        let words = words.map_or_else(|| "agent".to_owned(), |words| format!("agent {words}"));
        let channel = connection.exec(&RemoteCommand::Exec(&agent.program, &words)).await?;
        await_hello(channel, (agent.program, agent.sent), callback, connection.hello_timeout())
            .await
    }

    async fn install(&self, connection: &HostConnection) -> Result<InstalledAgent, DeployError> {
        let installer = Installer {
            store: &self.store,
            directory: &self.directory,
            allow_other: !self.is_named,
            callbacks: &self.callbacks,
        };
        installer.install(connection).await
    }
}

/// The first installation of a job. Other hosts without the agent wait for it, because hosts with the same home
/// directory then have the agent too.
struct FirstInstall {
    /// Its only permit is held during the first installation; closed once that has ended.
    turn: Semaphore,
}

impl Default for FirstInstall {
    fn default() -> FirstInstall {
        FirstInstall { turn: Semaphore::new(1) }
    }
}

impl FirstInstall {
    /// Runs `install`: at once if no other host has begun, else after the first installation has ended or has
    /// taken [`FIRST_INSTALL_TIMEOUT`].
    async fn before_others<T>(&self, install: impl Future<Output = T>) -> T {
        let turn = self.turn.try_acquire();
        if matches!(turn, Err(TryAcquireError::NoPermits)) {
            let _ = deadline::within(FIRST_INSTALL_TIMEOUT, self.turn.acquire()).await;
        }
        let installed = install.await;
        if turn.is_ok() {
            self.turn.close();
        }
        installed
    }
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
        assert!(hint.contains(rule), "{hint}");
        assert!(
            hint.contains("ufw allow from 10.1.0.2 to any port 21000:21511 proto tcp"),
            "{hint}"
        );
        assert!(hint.contains("--port-range") && hint.contains("--oob-if"), "{hint}");
        // Without a host, the hint is the same for all hosts, and is printed only once.
        let other = DeployError::NoCallback { tried: String::new(), from: None, ports };
        assert_eq!(error.hint(""), other.hint(""));
    }

    #[tokio::test(start_paused = true)]
    async fn hosts_wait_for_the_first_installation_but_not_for_one_that_stalls() {
        let install_after = async |first: &FirstInstall, takes: u64| {
            let began = tokio::time::Instant::now();
            let installing = async { tokio::time::sleep(Duration::from_secs(takes)).await };
            first.before_others(installing).await;
            began.elapsed().as_secs()
        };
        for (first_takes, others_take) in [(2, 3), (60, 31), (10_000, 31)] {
            let first = FirstInstall::default();
            let run = |takes| install_after(&first, takes);
            let took = tokio::join!(run(first_takes), run(1), run(1));
            assert_eq!(took, (first_takes, others_take, others_take));
            assert_eq!(run(1).await, 1);
        }
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
