//! Connections to hosts, over which commands run on a host or in a container on it.
//!
//! A connection uses rlaunch's own SSH client ([`rlaunch_ssh`]), in a Slurm job with a [`tether`], the user's `--rsh` command
//! ([`rsh`]), or steps of a Slurm job ([`step`]). With each, commands may run in a running [`container`], or in a new one started from an image. [`Reach`] has the
//! user's choices.

mod command;
mod container;
mod logins;
mod rsh;
mod step;
mod tether;

pub use command::{AgentLocation, RemoteCommand};
pub(crate) use container::ContainerError;
pub(crate) use container::image::{CONTAINER_GONE, SAYS, StartedContainer};
pub use container::image::{Gpus, PlainWord, Pull, RunOptions, Volume};
pub use container::{
    Container, ContainerEngine, ContainerOptionError, ContainerWords, ImageName, is_container_name,
};
pub use logins::Logins;
pub(crate) use rsh::quoted_output;
pub use rsh::{Rsh, RshError, last_lines};
pub(crate) use step::{JobState, STATE_AGE};
pub use step::{Launcher, SlurmJob, StepError, StepReader};
pub(crate) use tether::Tether;

use crate::connect::channel::{AgentChannel, CommandStatus, Incoming};
use container::ContainerEntry;
use container::image::{Names, container_name};
use rlaunch_bootstrap::id::JobId;
use rlaunch_bootstrap::job::ExitStatus;
use rlaunch_console::deadline::{Deadline, Late};
use rlaunch_console::messages;
use rlaunch_console::progress::Progress;
use rlaunch_plan::findings::{CheckId, id};
use rlaunch_plan::hosts::host_table::HostTable;
use rlaunch_plan::hosts::{self, Host};
use rlaunch_plan::job::name::JobName;
use rlaunch_ssh::config::StrictHostKeyChecking;
use rlaunch_ssh::error::SshError;
use rlaunch_ssh::{Connection, Destination, Ssh, SshOptions};
use rlaunch_text::message::Failed;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use step::Steps;
use tether::Tethers;

/// Time limit for an agent's hello, its first message, from the moment its command was accepted.
pub(crate) const HELLO_TIMEOUT: Duration = Duration::from_secs(8);
/// Time limit for an agent's hello if a container engine has to start a container or a process for the agent, which takes
/// ten seconds on a slow host.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Time limit for a host to pull an image, which may have tens of gigabytes.
const PULL_TIMEOUT: Duration = Duration::from_hours(2);
/// Maximum number of bytes of a pull's output to keep for its error.
const MAX_PULL_OUTPUT: usize = 16 << 10;

/// Client by which the launcher connects to the hosts of a job.
pub struct Connector {
    by: RemoteShell,
    logins: Logins,
    is_ahead: bool,
    tethers: Option<Tethers>,
    host_table: HostTable,
    container: Option<Container>,
    of_hosts: BTreeMap<String, Option<Container>>,
    /// Id of the job in the names of its containers, and the job's name, which is empty for a verb.
    job: String,
    title: String,
}

enum RemoteShell {
    Ssh(Box<Ssh>),
    Rsh(Rsh),
    Slurm(Arc<Steps>),
}

/// Connection to a host. With `--rsh`, the launcher knows whether the host can be reached only after the
/// first command.
pub struct HostConnection {
    /// Host as the user named it.
    host: String,
    login: Login,
    /// Place in which the login is left to the job that this one is ahead of, if it is.
    next: Option<Logins>,
    tether: Option<Tether>,
    container: Option<Container>,
    /// Whether new containers start with the limits of their engine, which may not raise them.
    keeps_limits: AtomicBool,
    /// Names of the containers that were started on the host; each begins with `label`.
    started: Mutex<Vec<String>>,
    label: String,
    job: String,
    title: String,
    /// Exit status of the last command.
    command_status: Mutex<CommandStatus>,
}

enum Login {
    Ssh(Arc<Connection>),
    Rsh(Rsh, Host),
    Slurm(Arc<Steps>, Host),
}

/// Reason why a host was not reached, or did not run a command.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error(transparent)]
    Ssh(#[from] SshError),
    #[error(transparent)]
    Rsh(#[from] RshError),
    #[error(transparent)]
    Step(#[from] StepError),
    #[error(transparent)]
    Container(#[from] ContainerError),
}

impl ConnectError {
    /// Returns the id of the finding that the error states.
    pub fn finding(&self) -> CheckId {
        match self {
            ConnectError::Ssh(error) => ssh_finding(error),
            ConnectError::Rsh(_) | ConnectError::Step(_) => id::SSH_REACH,
            ConnectError::Container(_) => id::SSH_LANDING,
        }
    }

    pub fn hint(&self, host: &str) -> Option<String> {
        match self {
            ConnectError::Ssh(error) => error.hint(host),
            ConnectError::Rsh(error) => error.hint(),
            ConnectError::Step(error) => error.hint(host),
            ConnectError::Container(error) => error.hint(host),
        }
    }
}

fn ssh_finding(error: &SshError) -> CheckId {
    match error {
        SshError::JumpHost { source, .. } => ssh_finding(source),
        SshError::Repeated { last, .. } => ssh_finding(last),
        SshError::HostKeyChanged(_)
        | SshError::HostKeyRevoked { .. }
        | SshError::HostKeyUnknown { .. }
        | SshError::HostKeyToAsk(_)
        | SshError::HostCertificate { .. }
        | SshError::KnownHosts(_) => id::SSH_HOSTKEY,
        SshError::Refused(_)
        | SshError::Disconnected(_)
        | SshError::Login { .. }
        | SshError::NoUser { .. }
        | SshError::NoPassword(_) => id::SSH_AUTH,
        _ => id::SSH_REACH,
    }
}

impl Connector {
    /// Creates a connector with the user's options. Returns an error if the SSH configuration cannot be
    /// used.
    pub fn new(reach: &Reach) -> Result<Connector, Failed> {
        let by = match &reach.rsh {
            _ if reach.here => RemoteShell::Rsh(Rsh::here()),
            Some(rsh) => RemoteShell::Rsh(rsh.clone()),
            None => match &reach.slurm {
                Some(job) => RemoteShell::Slurm(Arc::new(Steps::new(job.clone()))),
                None => RemoteShell::Ssh(Box::new(Ssh::new(&reach.ssh())?)),
            },
        };
        let tethers = reach.tether.clone().map(|job| Tethers::new(Steps::new(job)));
        let (host_table, container) = (reach.host_table.clone(), reach.container.clone());
        let (of_hosts, job) = (reach.of_hosts.clone(), uuid::Uuid::new_v4().simple().to_string());
        Ok(Connector {
            by,
            logins: reach.logins.clone(),
            is_ahead: reach.is_ahead,
            tethers,
            host_table,
            container,
            of_hosts,
            job,
            title: String::new(),
        })
    }

    /// Puts the job's id in the names of started containers, and both in their labels, and lets one step of Slurm start the
    /// agents of all `hosts`, or hold them.
    pub fn for_job<'h>(
        self,
        job: JobId,
        name: &JobName,
        hosts: impl Iterator<Item = &'h Host>,
    ) -> Connector {
        let hosts: Vec<&Host> = hosts.collect();
        let by = match self.by {
            RemoteShell::Slurm(steps) => RemoteShell::Slurm(Arc::new(steps.for_nodes(&hosts))),
            other => other,
        };
        let tethers = self.tethers.map(|tethers| tethers.for_nodes(&hosts));
        Connector { job: job.to_string(), title: name.as_str().to_owned(), by, tethers, ..self }
    }

    /// Prints the hosts with newly recorded host keys, each only once.
    pub fn print_new_hosts(&self) {
        match &self.by {
            RemoteShell::Ssh(ssh) => ssh.announce_new_hosts(),
            RemoteShell::Rsh(_) | RemoteShell::Slurm(_) => {}
        }
    }

    /// Warns of the nodes of a batch system's job that nothing of it holds.
    pub(crate) fn warn_of_unheld(&self) {
        if let Some(line) = self.tethers.as_ref().and_then(Tethers::take_unheld) {
            messages::warn(&line);
        }
    }

    /// Connects to a host, and reports each stage to `progress`. With `--rsh` this starts nothing: the
    /// `--rsh` command starts when a command is run on the host. With `--pull always` the host gets the image then.
    pub async fn connect(
        &self,
        host: &Host,
        progress: &Progress,
    ) -> Result<HostConnection, ConnectError> {
        let tell = |stage| progress.set_stage(&host.to_string(), stage);
        let (dialled, port) = self.host_table.target_of(host);
        let starting = self.tethers.as_ref().and_then(|all| Some((all, all.start(host)?)));
        let login = match &self.by {
            RemoteShell::Ssh(ssh) => {
                let (name, found) = (host.to_string(), self.logins.find(&host.to_string()));
                if !self.is_ahead {
                    self.logins.take_left(&name);
                }
                Login::Ssh(match found {
                    Some(connection) => connection,
                    None => {
                        let made = ssh.connect(destination(&dialled, port), &tell).await?;
                        self.logins.share(name, made)
                    }
                })
            }
            RemoteShell::Rsh(rsh) => Login::Rsh(rsh.clone(), dialled),
            RemoteShell::Slurm(steps) => Login::Slurm(steps.clone(), host.clone()),
        };
        let tether = match starting {
            Some((tethers, tether)) => tethers.tied(host, tether).await?,
            None => None,
        };
        let label = container_name(&format!("rlaunch-{}-{host}", self.job));
        let own = self.of_hosts.get(&host.to_string());
        let connection = HostConnection {
            host: host.to_string(),
            login,
            next: self.is_ahead.then(|| self.logins.clone()),
            tether,
            container: own.unwrap_or(&self.container).clone(),
            keeps_limits: AtomicBool::new(false),
            started: Mutex::default(),
            label,
            job: self.job.clone(),
            title: self.title.clone(),
            command_status: Mutex::default(),
        };
        if connection.pull_rule() == Some(Pull::Always) {
            connection.pull().await?;
        }
        Ok(connection)
    }
}

impl HostConnection {
    /// Runs a command in the host's container, or on the host if there is no container. With an image,
    /// scripts run on the host, and each program runs in a new container.
    pub async fn exec(&self, command: &RemoteCommand<'_>) -> Result<AgentChannel, ConnectError> {
        let line = match (self.entry(), command) {
            (ContainerEntry::Exec(enter), _) => match &self.container {
                Some(container) => command.line_inside(&container.client(enter)),
                None => command.line_inside(&enter),
            },
            (ContainerEntry::Run(image), RemoteCommand::Exec(agent, words)) => {
                let image = image.keep_limits(self.keeps_limits.load(Ordering::Relaxed));
                let (container, job, title) = (&*self.next_name(), &*self.job, &*self.title);
                image.line(Names { container, job, title }, agent, words)
            }
            (ContainerEntry::Login | ContainerEntry::Run(_), _) => command.line(),
        };
        // What passes between launcher and agent has the job's secret, and srun does not encrypt it.
        let is_agent =
            matches!(command, RemoteCommand::Exec(_, words) if words.starts_with("agent"));
        self.run(line, !is_agent).await
    }

    /// Starts the agent by the step of Slurm that starts those of all nodes, whose tasks execute these words, and returns its
    /// stream. `None` if another way starts it, or without words: agents then have no address to call.
    pub(crate) fn join_step(
        &self,
        words: impl FnOnce() -> Option<Vec<String>>,
    ) -> Result<Option<AgentChannel>, ConnectError> {
        let (Login::Slurm(steps, host), ContainerEntry::Login) = (&self.login, self.entry()) else {
            return Ok(None);
        };
        let Some((channel, status)) = steps.join_agents(host, words)? else { return Ok(None) };
        *self.command_status.lock().unwrap_or_else(PoisonError::into_inner) = status;
        Ok(Some(channel))
    }

    /// Asks the batch system by which the host is reached for the state of its job.
    pub(crate) async fn job_state(&self) -> JobState {
        match (&self.login, &self.tether) {
            (Login::Slurm(steps, _), _) => steps.state(true).await,
            (_, Some(tether)) => tether.steps.state(false).await,
            (Login::Ssh(_) | Login::Rsh(..), None) => JobState::Other,
        }
    }

    /// Tells whether the batch system has suspended what runs on the host. It does not know what SSH starts.
    pub(crate) async fn is_suspended(&self) -> bool {
        matches!(self.login, Login::Slurm(..)) && self.job_state().await == JobState::Suspended
    }

    /// Returns the words behind `agent` by which an agent on the host itself keeps to the CPUs of its batch system's job.
    pub(crate) fn limiting_words(&self) -> Option<String> {
        let is_outside = matches!(self.entry(), ContainerEntry::Login);
        self.tether.as_ref().filter(|_| is_outside).map(Tether::agent_words)
    }

    /// Waits until the batch system ends its job on the host, and when called again until that has ended. Returns a
    /// sentence about it. Never ends if nothing tells of it. Cancel-safe.
    pub(crate) async fn end_of_job(&mut self) -> String {
        match &mut self.tether {
            Some(tether) => tether.end().await,
            None => std::future::pending().await,
        }
    }

    /// Cleans up after a lost agent. With an image, removes the containers that were started; otherwise
    /// runs the command `reap`.
    pub(crate) async fn clean_up(
        &self,
        reap: &RemoteCommand<'_>,
    ) -> Result<AgentChannel, ConnectError> {
        let ContainerEntry::Run(image) = self.entry() else { return self.exec(reap).await };
        let names = self.started.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        self.run(RemoteCommand::Script(&image.removal_script(), &names).line(), true).await
    }

    fn entry(&self) -> ContainerEntry<'_> {
        self.container.as_ref().map_or(ContainerEntry::Login, Container::entry)
    }

    /// Returns a name for the next container. Names are not reused, since the engine may still be removing
    /// the previous container.
    fn next_name(&self) -> String {
        let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        let name = match started.len() {
            0 => self.label.clone(),
            others => format!("{}-{}", self.label, others + 1),
        };
        started.push(name.clone());
        name
    }

    async fn run(&self, line: String, has_stdin: bool) -> Result<AgentChannel, ConnectError> {
        let command_status = CommandStatus::default();
        *self.command_status.lock().unwrap_or_else(PoisonError::into_inner) =
            command_status.clone();
        match &self.login {
            Login::Ssh(connection) => {
                Ok(AgentChannel::over_ssh(connection.exec(&line).await?, command_status))
            }
            Login::Rsh(rsh, host) => Ok(rsh.exec(host, &line, command_status)?),
            Login::Slurm(steps, host) => Ok(steps.exec(host, &line, has_stdin, command_status)?),
        }
    }

    /// Returns the IP addresses of this machine and of the host; `None` unless SSH connects the two
    /// directly.
    pub fn addresses(&self) -> Option<(IpAddr, IpAddr)> {
        match &self.login {
            Login::Ssh(connection) => connection.addresses(),
            Login::Rsh(..) | Login::Slurm(..) => None,
        }
    }

    /// Returns the stage of the connection, as text for progress lines.
    pub fn stage(&self) -> &'static str {
        match self.login {
            Login::Ssh(_) => "ssh authenticated, agent not started",
            Login::Rsh(..) => "its command started, no agent yet",
            Login::Slurm(..) => "Slurm's step started, no agent yet",
        }
    }

    pub(crate) fn hello_timeout(&self) -> Duration {
        match self.entry() {
            ContainerEntry::Run(_) | ContainerEntry::Exec(_) => START_TIMEOUT,
            ContainerEntry::Login => HELLO_TIMEOUT,
        }
    }

    /// Explains by the connection's loss, the command's exit status or its `output` why the last command started no
    /// agent: a lost connection, or an error of the container engine; `None` if it was neither. If `is_of_shell`, the
    /// output is all that came back, so that the `--rsh` command is to blame. A step of Slurm always is.
    pub(crate) fn explain(&self, output: &str, is_of_shell: bool) -> Option<ConnectError> {
        let ended = self.command_status.lock().unwrap_or_else(PoisonError::into_inner).get();
        // The end of a lost connection looks like the end of the command, but comes without its exit status.
        if let Login::Ssh(connection) = &self.login
            && ended.is_none()
            && let Some(lost) = connection.loss()
        {
            return Some(lost.into());
        }
        let by_container = self.container.as_ref().and_then(|c| c.explain(ended, output));
        if let Some(known) = by_container {
            return Some(known.into());
        }
        match &self.login {
            Login::Rsh(rsh, host) if is_of_shell => Some(rsh.no_agent(host, ended, output).into()),
            Login::Slurm(steps, _) => Some(steps.no_agent(ended, output).into()),
            _ => None,
        }
    }

    /// Returns the error of a container engine by which no agent has come in time; `None` without an engine.
    pub(crate) fn engine_silence(&self, late: Late, output: &str) -> Option<ConnectError> {
        Some(self.container.as_ref()?.silence(late, output)?.into())
    }

    /// Tells whether a command that has ended with `output` is to be run again, because the container engine refused to
    /// raise a limit. Containers start without that from then on.
    pub fn gives_up_limits(&self, output: &str) -> bool {
        let ContainerEntry::Run(image) = self.entry() else { return false };
        let is_refused = image.is_usual() && container::is_limit_refused(output);
        is_refused && !self.keeps_limits.swap(true, Ordering::Relaxed)
    }

    /// Reads what the script that has started a container has said.
    pub(crate) fn started_container(&self, said: &[String]) -> Option<StartedContainer> {
        let ContainerEntry::Run(image) = self.entry() else { return None };
        StartedContainer::read(image.tool, said)
    }

    /// Returns what to do about an image that the host lacks; `None` if no container is started.
    fn pull_rule(&self) -> Option<Pull> {
        self.container.as_ref().and_then(Container::pull)
    }

    /// Tells whether a command has ended because the host lacks an image that it may get from its registry.
    pub(crate) fn may_pull(&self, output: &str) -> bool {
        let lacks = || {
            let known = self.explain(output, false);
            matches!(known, Some(ConnectError::Container(ContainerError::NoImage { .. })))
        };
        self.pull_rule() == Some(Pull::Missing) && lacks()
    }

    /// Lets the host get the image from its registry.
    pub(crate) async fn pull(&self) -> Result<(), ConnectError> {
        let (ContainerEntry::Run(image), Some(container)) = (self.entry(), &self.container) else {
            return Ok(());
        };
        let (tool, name) = container.tool_and_name();
        messages::info(&format!("{}: {tool} pulls {name}", self.host));
        let mut channel =
            self.run(RemoteCommand::Script(&image.pull_script(), &[]).line(), false).await?;
        let mut output = Vec::new();
        let pulling = async {
            while let Some(Incoming::Data(bytes) | Incoming::Diagnostics(bytes)) =
                channel.next().await
            {
                output.extend_from_slice(&bytes);
                let surplus = output.len().saturating_sub(MAX_PULL_OUTPUT);
                output.drain(..surplus);
            }
        };
        let pulled = Deadline::after(PULL_TIMEOUT).wait("the end of its pull", pulling).await;
        let name = name.to_owned();
        if let Err(late) = pulled {
            channel.abandon().await;
            return Err(ContainerError::SlowPull { tool, name, late }.into());
        }
        let output = String::from_utf8_lossy(&output);
        let ended = self.command_status.lock().unwrap_or_else(PoisonError::into_inner).get();
        if ended == Some(ExitStatus::Code(0)) {
            return Ok(());
        }
        Err(match container.explain(ended, &output) {
            Some(
                known @ (ContainerError::Socket { .. }
                | ContainerError::Daemon { .. }
                | ContainerError::NoTool { .. }),
            ) => known.into(),
            _ => ContainerError::Pull { tool, name, said: last_lines(&output) }.into(),
        })
    }

    /// Tells whether each agent runs in a new container of its own.
    pub(crate) fn starts_containers(&self) -> bool {
        matches!(self.entry(), ContainerEntry::Run(_))
    }

    /// Tells whether the connection is open, as far as the launcher knows.
    pub(crate) fn is_open(&self) -> bool {
        match &self.login {
            Login::Ssh(connection) => connection.is_open(),
            Login::Rsh(..) | Login::Slurm(..) => true,
        }
    }

    pub async fn close(self) {
        HostConnection { next: None, ..self }.leave().await;
    }

    /// Leaves the login to the job that this one is ahead of, if it is, or closes the connection if no other job has it.
    pub(crate) async fn leave(self) {
        match (self.login, self.next) {
            (Login::Ssh(connection), Some(next)) => next.leave(&self.host, connection),
            (Login::Ssh(connection), None) => {
                if let Some(connection) = Arc::into_inner(connection) {
                    connection.close().await;
                }
            }
            // Each `--rsh` command and each step ends on its own.
            (Login::Rsh(..) | Login::Slurm(..), _) => {}
        }
        if let Some(tether) = self.tether {
            tether.close().await;
        }
    }
}

/// Value of `--new-hosts`: what to do with hosts that have no recorded host key.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, strum::EnumString, strum::IntoStaticStr, strum::VariantArray,
)]
#[strum(serialize_all = "kebab-case")]
pub enum NewHostsRule {
    Accept,
    Ask,
    Refuse,
}

impl From<NewHostsRule> for StrictHostKeyChecking {
    fn from(rule: NewHostsRule) -> StrictHostKeyChecking {
        match rule {
            NewHostsRule::Accept => StrictHostKeyChecking::AcceptNew,
            NewHostsRule::Ask => StrictHostKeyChecking::Ask,
            NewHostsRule::Refuse => StrictHostKeyChecking::Yes,
        }
    }
}

/// Options for connecting to hosts and for installing the agent on them.
#[derive(Clone, Debug, Default)]
pub struct Reach {
    /// Tables `[hosts.NAME]` of the configuration file.
    pub host_table: HostTable,
    pub port: Option<u16>,
    pub ssh_config: Option<PathBuf>,
    /// Whether `ssh_config` was named by an rlaunch.toml and not by the user. Such a file is refused if
    /// other users may write to it.
    pub check_ssh_config_permissions: bool,
    /// Command of `--rsh`, used in place of SSH.
    pub rsh: Option<Rsh>,
    /// Value of `--launcher`.
    pub launcher: Launcher,
    /// Slurm job by whose steps every host is reached, in place of SSH.
    pub slurm: Option<SlurmJob>,
    /// Slurm job whose nodes are reached by SSH: within its CPUs, and no longer than it.
    pub tether: Option<SlurmJob>,
    pub container: Option<Container>,
    /// Containers of hosts on which a program with options of its own runs; `None` for a host without one.
    pub of_hosts: BTreeMap<String, Option<Container>>,
    /// Whether the job runs in a container on this machine, without other hosts.
    pub here: bool,
    pub agent: Option<PathBuf>,
    pub agent_dir: Option<String>,
    /// Value of `--new-hosts`, if given.
    pub new_hosts: Option<NewHostsRule>,
    /// Maximum number of simultaneous SSH handshakes, from `--ssh-fanout`, if given.
    pub fanout: Option<u16>,
    /// Whether to retry unknown host names and refused connections for a while, for hosts that are still
    /// booting.
    pub retry_until_up: bool,
    /// `--node-timeout`, if given: connections outlive a silence that is no longer.
    pub node_timeout: Option<Duration>,
    /// Connections that this job has in common with those ahead of it.
    pub logins: Logins,
    /// Whether this job is ahead of another one, to which it leaves its logins.
    pub is_ahead: bool,
}

impl Reach {
    /// Sets `here`. Returns whether the job runs on this machine alone and not in a container.
    pub fn settle(&mut self, hosts: &[Host]) -> bool {
        let is_local = hosts::are_local(hosts);
        self.here = is_local && self.container.is_some();
        is_local && !self.here
    }

    /// Tells whether containers are started from an image on any host.
    pub fn starts_containers(&self) -> bool {
        let all = self.of_hosts.values().chain([&self.container]).flatten();
        all.into_iter().any(Container::is_image)
    }

    /// Mounts a directory, in place of the one before, in containers that are started from an image.
    pub fn mount(&mut self, directory: Option<&Volume>) {
        let all = self.of_hosts.values_mut().chain([&mut self.container]).flatten();
        for options in all.filter_map(Container::run_options) {
            options.directory = directory.cloned();
        }
    }

    /// Returns the container in which agents of a host run.
    pub fn container_of(&self, host: &Host) -> Option<&Container> {
        self.of_hosts.get(&host.to_string()).unwrap_or(&self.container).as_ref()
    }

    /// Returns the way for a job ahead of this one, by the same logins: to the hosts themselves, where containers would be
    /// started from an image.
    #[must_use]
    pub fn ahead(&self) -> Reach {
        let is_started =
            |container: &Option<Container>| container.as_ref().is_some_and(Container::is_image);
        let mut outside = Reach { is_ahead: true, ..self.clone() };
        outside.container = outside.container.filter(|container| !container.is_image());
        outside.of_hosts.retain(|_, container| !is_started(container));
        outside
    }

    pub fn ssh(&self) -> SshOptions {
        SshOptions {
            config: self.ssh_config.clone(),
            check_config_permissions: self.check_ssh_config_permissions,
            port: self.port,
            new_hosts: self.new_hosts.map(StrictHostKeyChecking::from),
            fanout: self.fanout,
            retry_until_up: self.retry_until_up,
            longest_silence: self.node_timeout,
        }
    }
}

/// Returns the destination for the SSH client; `port` takes precedence over the port in `ssh_config`.
pub fn destination(host: &Host, port: Option<u16>) -> Destination<'_> {
    Destination { name: &host.name, user: host.user.as_deref(), port }
}
