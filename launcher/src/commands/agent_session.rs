//! The agents of many hosts, outside of any job.
//!
//! The launcher connects to each host, and installs this build of the agent if the host does not have it. The agent's
//! command line is a verb. In a session both sides then exchange frames, the first of which the agent sends; to a query
//! the agent's output is the answer.

use crate::cli::args::{ConnectArgs, HostListArgs};
use crate::cli::command_line::CommandLine;
use crate::cli::config::LoadedConfig;
use crate::cli::host_selection::{self, HostOptions, RankCount};
use crate::cli::lower;
use rlaunch_bootstrap::job::PortRange;
use rlaunch_bootstrap::protocol::control::{FrameReader, HelloScanner, MAX_NOISE, encode};
use rlaunch_console::deadline::{Deadline, Late};
use rlaunch_console::progress::Progress;
use rlaunch_console::{limits, messages};
use rlaunch_engine::connect::agent::callback::Callbacks;
use rlaunch_engine::connect::agent::deploy::Deployment;
use rlaunch_engine::connect::agent::store::AgentStore;
use rlaunch_engine::connect::agent::{DeployError, host_file};
use rlaunch_engine::connect::channel::{AgentChannel, Incoming};
use rlaunch_engine::connect::connector::{
    AgentLocation, ConnectError, Connector, HostConnection, Reach, RemoteCommand,
};
use rlaunch_plan::hosts::Host;
use rlaunch_plan::hosts::addresses::AddressConstraints;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// Time limit for an agent to end after the end of its input.
const END_TIMEOUT: Duration = Duration::from_secs(3);
/// Time limit for the first message of an agent that changes a host. A host that is gone ends its connection long before
/// that; one that is only busy, as an emulated or swapping one, starts a program in tens of seconds.
pub(super) const START_TIMEOUT: Duration = Duration::from_secs(60);
/// What a host did not send in time.
const FIRST_MESSAGE: &str = "answer of the agent";
/// Time limit for the answer of a host, counted from the start of its agent.
const HOST_TIMEOUT: Duration = Duration::from_secs(20);
/// Time limit for the answer of this machine, whose diagnosis looks at more than a query of hosts does.
const LOCAL_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum size of an answer, in bytes.
const MAX_ANSWER: usize = 16 << 20;

/// Selects the hosts of a verb, like those of a job: this machine if none are named or allocated.
pub(super) fn select_hosts(
    options: &HostOptions<'_>,
    connect: &ConnectArgs,
    line: &CommandLine,
) -> Result<(Vec<Host>, Reach), Failed> {
    let usage =
        |error: &dyn std::error::Error, hint| Failed::from_error(Exit::USAGE, error).hint(hint);
    let reach = lower::connect_options(connect.clone(), &line.config);
    let mut reach = reach.map_err(|error| usage(&error, error.hint()))?;
    let selected = host_selection::select(options, RankCount::Other, &mut reach);
    let mut hosts = selected.map_err(|error| usage(&error, error.hint()))?;
    reach.here = reach.settle(&hosts) || reach.here;
    if !reach.here {
        let chosen = host_selection::choose_launcher(&hosts, &mut reach);
        chosen.map_err(|error| usage(&error, error.hint()))?;
    }
    if hosts.is_empty() {
        let checked = line.config.check_no_hosts();
        checked.map_err(|error| usage(&error, error.hint()))?;
        hosts.push(Host::this_machine());
    }
    Ok((hosts, reach))
}

/// Hosts whose agents are started, for sessions or for a query: the state that the connections to all of them share.
pub(super) struct AgentHosts {
    connector: Connector,
    deployment: Deployment,
    progress: Progress,
    /// Command line of the agents.
    words: String,
    /// Time limit for the first message of an agent or its whole answer, counted from its start. The login and the
    /// installation have limits of their own.
    limit: Duration,
}

/// Agent that has sent its first message.
pub(super) struct AgentSession<T> {
    pub(super) name: String,
    pub(super) first: T,
    /// Output of the login shell before the message.
    pub(super) noise: String,
    /// Time at which the message arrived, and how long ago the agent had been started.
    pub(super) arrived: (SystemTime, Duration),
    pub(super) stream: AgentStream,
}

/// Frames to an agent and from it.
pub(super) struct AgentStream {
    connection: HostConnection,
    channel: AgentChannel,
    frames: FrameReader,
}

/// Reason why an agent did not send its first message.
#[derive(Debug, thiserror::Error)]
pub(super) enum SessionError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Deploy(#[from] DeployError),
    #[error(transparent)]
    Late(#[from] Late),
}

impl SessionError {
    /// Makes the message about the host whose agent did not start.
    pub(super) fn failed(&self, host: &Host) -> Failed {
        let text = format!("{host}: {}", messages::error_chain(self));
        Failed::new(Exit::HOST, text).hint(self.hint(&host.name))
    }

    /// Returns advice for the user; `host` is the host's name in it.
    pub(super) fn hint(&self, host: &str) -> Option<String> {
        match self {
            SessionError::Connect(error) => error.hint(host),
            SessionError::Deploy(error) => error.hint(host),
            SessionError::Late(_) => Some(format!("`ssh {host} uptime` shows whether it is busy")),
        }
    }
}

impl AgentHosts {
    /// Connects to all hosts at once and starts their agents with the arguments `words`. The results are in the order
    /// of the hosts.
    pub(super) async fn open<T: DeserializeOwned + Send + 'static>(
        hosts: &[Host],
        options: &Reach,
        words: &str,
        limit: Duration,
    ) -> Result<Vec<Result<AgentSession<T>, SessionError>>, Failed> {
        let agents = AgentHosts::new(hosts, options, words, limit)?;
        let open = |agents: Arc<AgentHosts>, host| async move { agents.open_one(host).await };
        Ok(agents.visit(hosts, open).await)
    }

    fn new(
        hosts: &[Host],
        options: &Reach,
        words: &str,
        limit: Duration,
    ) -> Result<Arc<AgentHosts>, Failed> {
        limits::raise_for(hosts.len()).iter().for_each(|warning| messages::warn(warning));
        Ok(Arc::new(AgentHosts {
            connector: Connector::new(options)?,
            deployment: deployment(options.agent.clone(), options.agent_dir.clone())?,
            progress: Progress::new(hosts.iter().map(Host::to_string), "connecting"),
            words: words.to_owned(),
            limit,
        }))
    }

    /// Visits all hosts at once. The results are in the order of the hosts.
    async fn visit<T, F>(
        self: Arc<Self>,
        hosts: &[Host],
        visit_one: impl Fn(Arc<AgentHosts>, Host) -> F,
    ) -> Vec<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let visits = hosts.iter().cloned();
        let visits = visits.map(|host| (host.to_string(), visit_one(self.clone(), host)));
        let results = self.progress.run_all(visits).await;
        self.connector.print_new_hosts();
        results
    }

    async fn open_one<T: DeserializeOwned>(
        &self,
        host: Host,
    ) -> Result<AgentSession<T>, SessionError> {
        // The limit of the login does not run while the user types a passphrase, and that of the installation is one for
        // megabytes over a slow uplink.
        let connection = self.connector.connect(&host, &self.progress).await?;
        let name = host.to_string();
        self.progress.set_stage(&name, connection.stage());
        let agent = self.deployment.ensure_installed(&connection).await?;
        let starting = self.start(name, connection, &agent);
        Ok(Deadline::after(self.limit).wait(FIRST_MESSAGE, starting).await??)
    }

    async fn start<T: DeserializeOwned>(
        &self,
        name: String,
        connection: HostConnection,
        agent: &AgentLocation,
    ) -> Result<AgentSession<T>, DeployError> {
        let started = Instant::now();
        let mut channel = connection.exec(&RemoteCommand::Exec(agent, &self.words)).await?;
        let (mut scanner, mut frames, mut stderr) =
            (HelloScanner::default(), FrameReader::default(), Vec::new());
        let mut is_found = false;
        loop {
            if let Some(first) = is_found.then(|| frames.next_frame()).transpose()?.flatten() {
                let stream = AgentStream { connection, channel, frames };
                let arrived = (SystemTime::now(), started.elapsed());
                return Ok(AgentSession { name, first, noise: scanner.noise(), arrived, stream });
            }
            match channel.next().await {
                Some(Incoming::Data(bytes)) if is_found => frames.push(&bytes),
                Some(Incoming::Data(bytes)) => {
                    if let Some(rest) = scanner.push(&bytes)? {
                        is_found = true;
                        frames.push(&rest);
                    }
                }
                Some(Incoming::Diagnostics(bytes)) => append(&mut stderr, &bytes),
                None => {
                    let words = format!("{}{}", scanner.noise(), String::from_utf8_lossy(&stderr));
                    if !connection.gives_up_limits(&words) {
                        return Err(DeployError::NoStart(words).explained(&connection));
                    }
                    channel = connection.exec(&RemoteCommand::Exec(agent, &self.words)).await?;
                    (scanner, stderr) = (HelloScanner::default(), Vec::new());
                }
            }
        }
    }

    /// Runs the agent of a host, and returns its output.
    async fn answer_of(&self, host: &Host) -> Answer {
        let failed = |cause: &str, hint: Option<String>| {
            Failed::new(Exit::HOST, format!("{host}: {cause}")).hint(hint)
        };
        let connection = self.connector.connect(host, &self.progress).await.map_err(|error| {
            failed(&messages::error_chain(&error), error.hint(&host.to_string()))
        })?;
        let undeployed = |error: DeployError| {
            failed(&messages::error_chain(&error), error.hint(&host.to_string()))
        };
        self.progress.set_stage(&host.to_string(), connection.stage());
        let agent = self.deployment.ensure_installed(&connection).await.map_err(undeployed)?;
        let running = self.run_agent(host, connection, &agent);
        let answer = Deadline::after(self.limit).run(running).await;
        let answer = answer.unwrap_or_else(|| Err((late_answer(self.limit), None)));
        answer.map_err(|(cause, hint)| failed(&cause, hint))
    }

    /// Runs the agent. An error has a hint, if there is one.
    async fn run_agent(
        &self,
        host: &Host,
        connection: HostConnection,
        agent: &AgentLocation,
    ) -> Result<Vec<u8>, (String, Option<String>)> {
        let text =
            |error: &DeployError| (messages::error_chain(error), error.hint(&host.to_string()));
        let command = RemoteCommand::Exec(agent, &self.words);
        let channel = connection.exec(&command).await;
        let mut channel = channel.map_err(|error| text(&error.into()))?;
        let mut answer = Vec::new();
        while let Some(incoming) = channel.next().await {
            if let Incoming::Data(bytes) = incoming {
                answer.extend_from_slice(&bytes);
            }
            if answer.len() > MAX_ANSWER {
                let cause = format!("the answer is longer than {} MiB", MAX_ANSWER >> 20);
                return Err((cause, None));
            }
        }
        connection.close().await;
        Ok(answer)
    }
}

/// Appends what a host has printed, up to [`MAX_NOISE`] bytes in all.
fn append(printed: &mut Vec<u8>, bytes: &[u8]) {
    let left = MAX_NOISE.saturating_sub(printed.len());
    printed.extend_from_slice(bytes.get(..left).unwrap_or(bytes));
}

impl AgentStream {
    /// Sends a message. Returns `None` if the channel is closed, or if the host has not taken the message within
    /// [`HOST_TIMEOUT`]; then no answer comes either.
    pub(super) async fn send<T: Serialize>(&mut self, message: &T) -> Option<()> {
        let frame = encode(message).ok()?;
        let sent = tokio::time::timeout(HOST_TIMEOUT, self.channel.writer.send(frame.into()));
        sent.await.ok()?.ok()
    }

    /// Returns the next message, or `None` at the end of the channel. Cancel-safe.
    pub(super) async fn receive<T: DeserializeOwned>(&mut self) -> Option<T> {
        loop {
            if let Some(message) = self.frames.next_frame().ok()? {
                return Some(message);
            }
            if let Incoming::Data(bytes) = self.channel.next().await? {
                self.frames.push(&bytes);
            }
        }
    }

    /// Ends the agent's input and waits until the agent has ended, for at most [`END_TIMEOUT`].
    pub(super) async fn close(mut self) {
        let end = async {
            // An error means that the channel is closed already.
            let _ = self.channel.writer.end().await;
            while self.channel.next().await.is_some() {}
        };
        let _ = tokio::time::timeout(END_TIMEOUT, end).await;
        drop(self.channel);
        self.connection.close().await;
    }
}

/// Output of an agent, or the reason why there is none.
pub(super) type Answer = Result<Vec<u8>, Failed>;

/// Returns the hosts of a query, the way to them, and whether they are this machine alone.
fn queried_hosts(
    hosts: &HostListArgs,
    args: &ConnectArgs,
    config: &LoadedConfig,
) -> Result<(Vec<Host>, Reach, bool), Failed> {
    let usage = |error: &dyn std::error::Error| Failed::from_error(Exit::USAGE, error);
    let mut hosts = config.hosts.parse_hosts(&hosts.hosts).map_err(|error| usage(&error))?;
    let options = lower::connect_options(args.clone(), config);
    let mut options = options.map_err(|error| usage(&error).hint(error.hint()))?;
    let is_local = options.settle(&hosts);
    if !is_local && !options.here {
        let chosen = host_selection::choose_launcher(&hosts, &mut options);
        chosen.map_err(|error| usage(&error).hint(error.hint()))?;
    }
    if hosts.is_empty() {
        let checked = config.check_no_hosts();
        checked.map_err(|error| usage(&error).hint(error.hint()))?;
        hosts.push(Host::this_machine());
    }
    Ok((hosts, options, is_local))
}

/// Queries all hosts at once. `words` is the command line for the agents. Answers are in the order of the
/// hosts.
pub(super) async fn query_hosts(
    hosts: &HostListArgs,
    args: ConnectArgs,
    config: &LoadedConfig,
    words: &str,
) -> Result<Vec<(Host, Answer)>, Failed> {
    let (mut hosts, options, is_local) = queried_hosts(hosts, &args, config)?;
    if is_local {
        let words: Vec<OsString> = words.split(' ').map(OsString::from).collect();
        let host = hosts.swap_remove(0);
        return Ok(vec![(host, query_this_machine(&args, &words).await)]);
    }
    let agents = AgentHosts::new(&hosts, &options, words, HOST_TIMEOUT)?;
    let ask = |agents: Arc<AgentHosts>, host| async move { agents.answer_of(&host).await };
    let answers = agents.visit(&hosts, ask).await;
    Ok(hosts.into_iter().zip(answers).collect())
}

/// Queries all hosts as [`query_hosts`] does. An agent answers `words-together` once the agents of all hosts have started:
/// hosts may share the files from which they are executed, and the answer removes them.
pub(super) async fn query_hosts_together<T: DeserializeOwned + Send + 'static>(
    hosts: &HostListArgs,
    args: ConnectArgs,
    config: &LoadedConfig,
    words: &str,
) -> Result<Vec<(Host, Result<T, Failed>)>, Failed> {
    let (mut hosts, options, is_local) = queried_hosts(hosts, &args, config)?;
    if is_local {
        let words: Vec<OsString> = words.split(' ').map(OsString::from).collect();
        let host = hosts.swap_remove(0);
        let answer = query_this_machine(&args, &words).await;
        let answer = answer.and_then(|answer| decode(&answer, &host.to_string()));
        return Ok(vec![(host, answer)]);
    }
    let words = format!("{words}-together");
    let opened = AgentHosts::open::<()>(&hosts, &options, &words, HOST_TIMEOUT).await?;
    let receive = |(host, session): (Host, Result<AgentSession<()>, SessionError>)| {
        tokio::spawn(async move {
            let answer = receive_answer::<T>(&host.to_string(), session).await;
            (host, answer)
        })
    };
    let receiving: Vec<_> = hosts.into_iter().zip(opened).map(receive).collect();
    let mut answers = Vec::new();
    for task in receiving {
        // A task that panics has printed its message.
        answers.extend(task.await.ok());
    }
    Ok(answers)
}

/// Tells an agent that all have started, and receives its answer.
async fn receive_answer<T: DeserializeOwned>(
    host: &str,
    session: Result<AgentSession<()>, SessionError>,
) -> Result<T, Failed> {
    let failed = |cause: &str| Failed::new(Exit::HOST, format!("{host}: {cause}"));
    let mut stream = match session {
        Ok(session) => session.stream,
        Err(error) => {
            return Err(failed(&messages::error_chain(&error)).hint(error.hint(host)));
        }
    };
    let answer = async {
        // If that fails, nothing comes.
        let _ = stream.send(&()).await;
        stream.receive().await
    };
    let received = tokio::time::timeout(HOST_TIMEOUT, answer).await;
    stream.close().await;
    match received {
        Ok(answer) => answer.ok_or_else(|| failed("its agent has ended without an answer")),
        Err(_) => Err(failed(&late_answer(HOST_TIMEOUT))),
    }
}

fn deployment(agent: Option<PathBuf>, directory: Option<String>) -> Result<Deployment, Failed> {
    let callbacks = Callbacks::new(AddressConstraints::default(), PortRange::DEFAULT);
    Deployment::new(AgentStore::new(agent), directory, callbacks)
        .map_err(|error| Failed::from_error(Exit::AGENT, &error).hint(error.hint()))
}

/// Runs this machine's agent with the arguments `words`, and returns its output.
pub(super) async fn query_this_machine(args: &ConnectArgs, words: &[OsString]) -> Answer {
    let deployment = deployment(args.agent.clone(), args.agent_dir.clone())?;
    let failed = |operation: &str, error: &dyn std::error::Error| {
        Failed::new(Exit::AGENT, format!("cannot {operation}: {}", messages::error_chain(error)))
    };
    let no_place = |error: std::io::Error| {
        failed("keep a copy of the agent", &error).hint(Some(host_file::PLACES))
    };
    let own = deployment.own();
    let own = own.map_err(|e| Failed::from_error(Exit::AGENT, &e).hint(e.hint()))?;
    let agent = own.local_path().map_err(no_place)?;
    let mut command = tokio::process::Command::new(&agent);
    command.args(words).stderr(std::process::Stdio::inherit()).kill_on_drop(true);
    let late = |_| Failed::new(Exit::AGENT, late_answer(LOCAL_TIMEOUT));
    let ended = tokio::time::timeout(LOCAL_TIMEOUT, command.output()).await.map_err(late)?;
    let run = |error: std::io::Error| failed(&format!("run {}", agent.display()), &error);
    Ok(ended.map_err(run)?.stdout)
}

fn late_answer(limit: Duration) -> String {
    format!("no answer of the agent within {} s", limit.as_secs())
}

/// Combines the failures of all hosts into one; returns success if there are none.
pub(super) fn conclude(failures: Vec<Failed>) -> Result<Exit, Failed> {
    let mut failures = failures.into_iter();
    let Some(mut first) = failures.next() else { return Ok(Exit::SUCCESS) };
    for failed in failures {
        first.details.push(failed.message);
        first = failed.hints.into_iter().fold(first, |first, hint| first.hint(Some(hint)));
    }
    Err(first)
}

/// Decodes an answer: the agent's `HELLO_MAGIC` and one frame. A login shell may have printed text before
/// them.
pub(super) fn decode<T: DeserializeOwned>(answer: &[u8], host: &str) -> Result<T, Failed> {
    let mut scanner = HelloScanner::default();
    let found = scanner.push(answer).ok().flatten();
    let decoded = found.and_then(|frame| {
        let mut frames = FrameReader::default();
        frames.push(&frame);
        frames.next_frame().ok().flatten()
    });
    decoded.ok_or_else(|| {
        let noise = scanner.noise();
        let words = noise.lines().last().unwrap_or("nothing");
        Failed::new(Exit::AGENT, format!("{host}: no answer of the agent, only {words:?}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_host_prints_without_end_is_cut() {
        let mut printed = Vec::new();
        for _ in 0..5 {
            append(&mut printed, &vec![b'x'; MAX_NOISE / 2]);
        }
        assert!(printed.len() <= MAX_NOISE && printed.len() > MAX_NOISE / 2 - 1);
    }

    #[test]
    fn what_is_no_answer_is_quoted() {
        let error = decode::<u32>(b"Welcome!\nlogin is closed\n", "a").unwrap_err();
        assert_eq!(error.message, "a: no answer of the agent, only \"login is closed\"");
    }
}
