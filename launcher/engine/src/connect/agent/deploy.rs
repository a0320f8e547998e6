//! Starting the agent on a host, after installing it if necessary.
//!
//! The launcher first tries a single command, which executes the agent in the host's cache. The agent's
//! directory there is named by the agent's hash. The command requires that the user's account owns the agent.
//! If no agent answers, the launcher installs the agent ([`super::install`]) and starts it again.

use super::DeployError;
use super::callback::Callbacks;
use super::hello::{CallbackContext, StartedAgent, await_hello};
use super::host_file::HostFile;
use super::install::{InstalledAgent, Installer};
use super::store::{AgentStore, AgentStoreError};
use crate::connect::connector::{AgentLocation, HELLO_TIMEOUT, HostConnection, RemoteCommand};
use rlaunch_bootstrap::id::NodeId;
use rlaunch_console::deadline;
use std::env::consts::ARCH;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, TryAcquireError};

/// Time for which other hosts wait for the first installation, which takes about a second, and half a minute over a slow
/// uplink, which they would only share. A connection that stalls must not hold them longer.
const FIRST_INSTALL_TIMEOUT: Duration = Duration::from_secs(30);

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
    /// Number of hosts of the job, which a line at a terminal names while they get the agent; `None` if nothing says it.
    shown_hosts: Option<usize>,
}

impl Deployment {
    /// Finds the agent for this machine. `directory` is the value of `--agent-dir`, which must have passed
    /// [`super::check_directory`].
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
            shown_hosts: None,
        })
    }

    /// Shows at a terminal that `hosts` hosts are prepared, while any of them gets the agent.
    #[must_use]
    pub(crate) fn shown_for(self, hosts: usize) -> Deployment {
        Deployment { shown_hosts: Some(hosts), ..self }
    }

    /// Returns the agent that is to run on this machine itself, so that its architecture is known before it starts.
    pub fn own(&self) -> Result<Arc<HostFile>, AgentStoreError> {
        self.store.for_arch(ARCH)
    }

    /// Starts the agent of `node` on a host. Installs it first if the host does not have it.
    pub async fn start(
        &self,
        connection: &HostConnection,
        node: NodeId,
    ) -> Result<StartedAgent, DeployError> {
        let started = match self.join_step(connection).await {
            Ok(None) => self.start_or_install(connection, node).await,
            Ok(Some(started)) => Ok(started),
            Err(error) => Err(error),
        };
        started.map_err(|error| error.explained(connection))
    }

    /// Starts the agent by the step that starts those of all nodes of a Slurm job. `None` if the host is reached another way.
    async fn join_step(
        &self,
        connection: &HostConnection,
    ) -> Result<Option<StartedAgent>, DeployError> {
        let installer = self.installer();
        let target = self.callbacks.target(None);
        let target = target.as_ref().map(|(addresses, key)| (&**addresses, &**key));
        let words = || target.map(|(addresses, key)| installer.boot_words(addresses, key));
        let Some(channel) = connection.join_step(words)? else { return Ok(None) };
        let (task, agent, channel) = installer.booted(channel).await?;
        let callback = CallbackContext { callbacks: &self.callbacks, node: task, from: None };
        await_hello(channel, agent, Some(callback), HELLO_TIMEOUT, false).await.map(Some)
    }

    async fn start_or_install(
        &self,
        connection: &HostConnection,
        node: NodeId,
    ) -> Result<StartedAgent, DeployError> {
        let program = self.expected_location();
        match self.execute(connection, node, &InstalledAgent { program, sent: None }).await {
            // An engine that has refused a container has found the agent.
            Err(DeployError::NoStart(words)) if connection.explain(&words, false).is_none() => {}
            started => return started,
        }
        let placed = self.first.run_after_first(self.install(connection)).await?;
        self.execute(connection, node, &placed).await
    }

    /// Installs the agent on a host, unless the host has it, and returns its location.
    pub async fn ensure_installed(
        &self,
        connection: &HostConnection,
    ) -> Result<AgentLocation, DeployError> {
        let placed = self.install(connection).await;
        Ok(placed.map_err(|error| error.explained(connection))?.program)
    }

    /// Returns the location where an earlier job would have installed the agent. In a directory of
    /// `--agent-dir`, which several accounts may share, each account has a cache of its own.
    fn expected_location(&self) -> AgentLocation {
        let (directory, build) = (self.directory.clone(), self.native.hash.clone());
        if self.is_named {
            AgentLocation::InShared { directory, build }
        } else {
            AgentLocation::InCache { cache: directory, build }
        }
    }

    /// Executes `agent`. A container starts with the limits of its engine if that refuses to raise them, and once the host
    /// has pulled an image that it lacks.
    async fn execute(
        &self,
        connection: &HostConnection,
        node: NodeId,
        agent: &InstalledAgent,
    ) -> Result<StartedAgent, DeployError> {
        let mut has_pulled = false;
        loop {
            match self.execute_once(connection, node, agent).await {
                Err(DeployError::NoStart(words)) if connection.gives_up_limits(&words) => {}
                Err(DeployError::NoStart(words)) if !has_pulled && connection.may_pull(&words) => {
                    connection.pull().await?;
                    has_pulled = true;
                }
                started => return started,
            }
        }
    }

    /// Executes `agent` with a single command and waits for its hello.
    async fn execute_once(
        &self,
        connection: &HostConnection,
        node: NodeId,
        agent: &InstalledAgent,
    ) -> Result<StartedAgent, DeployError> {
        let addresses = connection.addresses();
        let words = self.callbacks.callback_args(node, addresses.map(|(local, _)| local));
        let from = addresses.map(|(_, host)| host);
        let callback =
            words.is_some().then_some(CallbackContext { callbacks: &self.callbacks, node, from });
        let words = [Some("agent".to_owned()), connection.limiting_words(), words];
        let words = words.into_iter().flatten().collect::<Vec<_>>().join(" ");
        let channel = connection.exec(&RemoteCommand::Exec(&agent.program, &words)).await?;
        let (timeout, is_contained) = (connection.hello_timeout(), connection.starts_containers());
        let mut started =
            await_hello(channel, agent.clone(), callback, timeout, is_contained).await?;
        started.container = connection.started_container(&started.said);
        Ok(started)
    }

    async fn install(&self, connection: &HostConnection) -> Result<InstalledAgent, DeployError> {
        self.installer().install(connection).await
    }

    fn installer(&self) -> Installer<'_> {
        Installer {
            store: &self.store,
            directory: &self.directory,
            allow_other: !self.is_named,
            callbacks: &self.callbacks,
            shown_hosts: self.shown_hosts,
        }
    }
}

/// The first installation of a job. Other hosts without the agent wait for it, because hosts with the same home
/// directory then have the agent too.
struct FirstInstall {
    /// Its only permit is held during the first installation. Closed once that has ended, so that all who wait go on
    /// together and later hosts do not wait.
    turn: Semaphore,
}

impl Default for FirstInstall {
    fn default() -> FirstInstall {
        FirstInstall { turn: Semaphore::new(1) }
    }
}

impl FirstInstall {
    /// Runs `install`, which is the first installation itself if no other host has begun. Others wait until the first has
    /// ended, for at most [`FIRST_INSTALL_TIMEOUT`].
    async fn run_after_first<T>(&self, install: impl Future<Output = T>) -> T {
        match self.turn.try_acquire() {
            Ok(_permit) => {
                let installed = install.await;
                self.turn.close();
                return installed;
            }
            Err(TryAcquireError::NoPermits) => {
                // However the wait ends, this host installs now.
                let _ = deadline::within(FIRST_INSTALL_TIMEOUT, self.turn.acquire()).await;
            }
            Err(TryAcquireError::Closed) => {}
        }
        install.await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn hosts_wait_for_the_first_installation_but_not_for_one_that_stalls() {
        let install_after = async |first: &FirstInstall, takes: u64| {
            let began = tokio::time::Instant::now();
            let installing = async { tokio::time::sleep(Duration::from_secs(takes)).await };
            first.run_after_first(installing).await;
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
}
