//! Conversation with the agents of many hosts, outside of any job.
//!
//! The launcher connects to each host, and installs this build of the agent if the host does not have it. The agent's
//! command line is a verb; then both sides exchange frames, the first of which the agent sends.

use crate::cli::args::{ConnectArgs, DEFAULT_PORTS};
use crate::cli::command_line::CommandLine;
use crate::cli::host_selection::{self, HostOptions};
use crate::cli::lower;
use rlaunch_bootstrap::protocol::control::{FrameReader, HelloScanner, MAX_NOISE, encode};
use rlaunch_console::progress::Progress;
use rlaunch_console::{messages, open_files};
use rlaunch_engine::connect::agent::deploy::{DeployError, Deployment};
use rlaunch_engine::connect::agent::store::AgentStore;
use rlaunch_engine::connect::callback::Callbacks;
use rlaunch_engine::connect::channel::{AgentChannel, Incoming};
use rlaunch_engine::connect::connector::{ConnectError, Connector, HostConnection, RemoteCommand};
use rlaunch_engine::connect::options::Reach;
use rlaunch_plan::hosts::Host;
use rlaunch_plan::hosts::addresses::AddressConstraints;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// Time limit for an agent to end after the end of its input.
const END_TIMEOUT: Duration = Duration::from_secs(3);

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
    let selected = host_selection::select(options, &mut reach);
    let mut hosts = selected.map_err(|error| usage(&error, error.hint()))?;
    reach.here = reach.settle(&hosts) || reach.here;
    if hosts.is_empty() {
        let checked = line.config.check_no_hosts();
        checked.map_err(|error| usage(&error, error.hint()))?;
        hosts.push(Host::this_machine());
    }
    Ok((hosts, reach))
}

/// State that the connections to all hosts share.
pub(super) struct AgentSessions {
    connector: Connector,
    deployment: Deployment,
    progress: Progress,
    /// Command line of the agents.
    words: &'static str,
    /// Time limit for the first message of an agent, counted from the end of the login.
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
    #[error("no answer within {} s", .0.as_secs())]
    Late(Duration),
}

impl SessionError {
    /// Returns advice for the user; `host` is the host's name in it.
    pub(super) fn hint(&self, host: &str) -> Option<String> {
        match self {
            SessionError::Connect(error) => error.hint(host),
            SessionError::Deploy(error) => error.hint(host),
            SessionError::Late(_) => None,
        }
    }
}

impl AgentSessions {
    /// Connects to all hosts at once and starts their agents with the arguments `words`. The results are in the order
    /// of the hosts.
    pub(super) async fn open<T: DeserializeOwned + Send + 'static>(
        hosts: &[Host],
        options: &Reach,
        words: &'static str,
        limit: Duration,
    ) -> Result<Vec<Result<AgentSession<T>, SessionError>>, Failed> {
        open_files::raise_for(hosts.len()).iter().for_each(|warning| messages::warn(warning));
        let sessions = Arc::new(AgentSessions {
            connector: Connector::new(options)?,
            deployment: deployment(options)?,
            progress: Progress::new(hosts.iter().map(Host::to_string), "connecting"),
            words,
            limit,
        });
        let tasks = hosts.iter().cloned().map(|host| {
            let sessions = sessions.clone();
            (host.to_string(), async move { sessions.open_one(host).await })
        });
        let opened = sessions.progress.run_all(tasks).await;
        sessions.connector.print_new_hosts();
        Ok(opened)
    }

    async fn open_one<T: DeserializeOwned>(
        &self,
        host: Host,
    ) -> Result<AgentSession<T>, SessionError> {
        // The login is outside of the time limit. It has its own, which does not run while the user types a
        // passphrase.
        let connection = self.connector.connect(&host, &self.progress).await?;
        let name = host.to_string();
        self.progress.set_stage(&name, connection.stage());
        let opening = tokio::time::timeout(self.limit, self.start(name, connection)).await;
        Ok(opening.map_err(|_| SessionError::Late(self.limit))??)
    }

    async fn start<T: DeserializeOwned>(
        &self,
        name: String,
        connection: HostConnection,
    ) -> Result<AgentSession<T>, DeployError> {
        let placed = self.deployment.ensure_installed(&connection).await;
        let agent = placed.map_err(|error| connection.explain(error))?;
        let started = Instant::now();
        let mut channel = connection.exec(&RemoteCommand::Exec(&agent, self.words)).await?;
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
                    return Err(connection.explain(DeployError::NoStart(words)));
                }
            }
        }
    }
}

/// Appends what a host has printed, up to [`MAX_NOISE`] bytes in all.
fn append(printed: &mut Vec<u8>, bytes: &[u8]) {
    let left = MAX_NOISE.saturating_sub(printed.len());
    printed.extend_from_slice(bytes.get(..left).unwrap_or(bytes));
}

fn deployment(options: &Reach) -> Result<Deployment, Failed> {
    let callbacks = Callbacks::new(AddressConstraints::default(), DEFAULT_PORTS);
    let store = AgentStore::new(options.agent.clone());
    Deployment::new(store, options.agent_dir.clone(), callbacks)
        .map_err(|error| Failed::from_error(Exit::AGENT, &error).hint(error.hint()))
}

impl AgentStream {
    /// Sends a message. Returns `None` if the channel is closed.
    pub(super) async fn send<T: Serialize>(&mut self, message: &T) -> Option<()> {
        let frame = encode(message).ok()?;
        self.channel.writer.send(frame.into()).await.ok()
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
        // An error means that the channel is closed already.
        let _ = self.channel.writer.end().await;
        let end = async { while self.channel.next().await.is_some() {} };
        let _ = tokio::time::timeout(END_TIMEOUT, end).await;
        drop(self.channel);
        self.connection.close().await;
    }
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
}
