//! Connections to all hosts in parallel, and start of their agents.
//!
//! A session needs its outbox and its senders before its host is connected, so [`prepare_sessions`] makes
//! them for all nodes first. [`Connecting::reach`] then connects to all hosts in parallel, copies and starts
//! their agents, and starts the session of each agent after the agent's first message.

use super::{NodeEvents, Nodes, PendingStdio, ReachedNode};
use crate::connect::agent::DeployError;
use crate::connect::agent::callback::Callbacks;
use crate::connect::agent::deploy::Deployment;
use crate::connect::agent::library::RankLibraries;
use crate::connect::agent::store::AgentStore;
use crate::connect::agent::{hello, host_file};
use crate::connect::channel::AgentChannel;
use crate::connect::connector::Connector;
use crate::connect::outbox::Outbox;
use crate::run::events::{Event, EventLog};
use crate::run::job_run::JobRun;
use crate::run::output;
use crate::run::session::{self, SessionSlot};
use crate::run::stdin::StdinFeed;
use rlaunch_bootstrap::id::JobId;
use rlaunch_bootstrap::job::NodeFacts;
use rlaunch_bootstrap::protocol::control::ToAgent;
use rlaunch_console::progress::Progress;
use rlaunch_console::{deadline, messages, open_files};
use rlaunch_plan::findings::{self, CheckId};
use rlaunch_plan::hosts::Host;
use rlaunch_plan::job::JobSpec;
use rlaunch_plan::map::{MappedNode, RankMap};
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use rlaunch_text::text;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tracing::Instrument;

/// Makes both ends of all channels between the sessions, which start later, and the rest of the launcher.
pub(crate) fn prepare_sessions(
    job: &JobSpec,
    map: &RankMap,
) -> (Connecting, PendingStdio, SessionsClosed) {
    let (events_in, receiver) = mpsc::unbounded_channel();
    let (open, all_closed) = mpsc::channel(1);
    let (outboxes, receivers): (Vec<_>, Vec<_>) = map.nodes.iter().map(|_| Outbox::new()).unzip();
    let (output, unread) = output::output_channel();
    let stdin = StdinFeed::default();
    let slots = map.nodes.iter().zip(receivers).map(|(node, commands)| SessionSlot {
        node: node.id,
        commands,
        events: events_in.clone(),
        output: output.clone(),
        stdin: stdin.clone(),
        node_timeout: job.node_timeout,
        kill_after: job.kill_after,
        open: open.clone(),
    });
    let slots = slots.collect();
    let closed = SessionsClosed { outboxes: outboxes.clone(), all_closed };
    let events = NodeEvents { receiver, nodes: map.nodes.len() };
    (Connecting { slots, outboxes, events }, PendingStdio { output: unread, stdin }, closed)
}

/// Handle to end the sessions of a job that fails before all its hosts were connected.
pub(crate) struct SessionsClosed {
    outboxes: Vec<Outbox>,
    /// Channel on which nothing is sent. Every open session holds a sender, so the channel closes when the
    /// last session ends.
    all_closed: mpsc::Receiver<()>,
}

impl SessionsClosed {
    /// Ends the agents that have started and waits until their sessions are closed.
    pub(crate) async fn shutdown(mut self) {
        for outbox in self.outboxes {
            outbox.queue_command(&ToAgent::End { now: true });
        }
        let _ = deadline::within(super::CLOSE_TIMEOUT, self.all_closed.recv()).await;
    }
}

/// Nodes that are not connected yet.
pub(crate) struct Connecting {
    slots: Vec<SessionSlot>,
    outboxes: Vec<Outbox>,
    events: NodeEvents,
}

/// Started agent and its session.
struct StartedNode {
    facts: NodeFacts,
    hello_at: Instant,
    /// Size of the agent's file in bytes, if the file had to be sent.
    sent: Option<usize>,
    session: JoinHandle<()>,
}

/// Reason why a host cannot take part in the job.
#[derive(Debug, thiserror::Error)]
enum NodeError {
    #[error(transparent)]
    Deploy(#[from] DeployError),
    #[error("cannot keep a copy of the agent on this machine")]
    NoPlace(#[source] std::io::Error),
    #[error("cannot start the agent on this machine")]
    Local(#[source] std::io::Error),
}

impl NodeError {
    fn exit(&self) -> Exit {
        match self {
            NodeError::Deploy(DeployError::Connect(_)) => Exit::HOST,
            NodeError::Deploy(DeployError::NoCallback { .. }) => Exit::RENDEZVOUS,
            NodeError::Deploy(_) | NodeError::NoPlace(_) | NodeError::Local(_) => Exit::AGENT,
        }
    }

    fn finding(&self) -> Option<CheckId> {
        match self {
            NodeError::Deploy(error) => Some(error.finding()),
            NodeError::NoPlace(_) | NodeError::Local(_) => None,
        }
    }

    fn hint(&self, host: &str) -> Option<String> {
        // A limit on open files may have caused any of these errors; then only the hint about that limit
        // helps.
        open_files::hint(&messages::error_chain(self)).or_else(|| match self {
            NodeError::Deploy(error) => error.hint(host),
            NodeError::NoPlace(_) => Some(host_file::PLACES.to_owned()),
            NodeError::Local(_) => None,
        })
    }
}

impl Connecting {
    /// Connects to all hosts in parallel and starts their agents. Waits for all hosts even if one fails, so
    /// that all failures are reported together.
    pub(crate) async fn reach(self, job: &JobRun, map: &RankMap) -> Result<Nodes, Failed> {
        let libraries = RankLibraries::start_search(job.reach.agent.clone(), job.spec.is_local);
        let store = AgentStore::new(job.reach.agent.clone());
        let callbacks = Callbacks::new(job.spec.oob.clone(), job.spec.port_range);
        let deployment = Deployment::new(store, job.reach.agent_dir.clone(), callbacks)
            .map_err(|e| Failed::from_error(Exit::AGENT, &e).hint(e.hint()))?;
        let connector = match job.spec.is_local {
            true => None,
            false => Some(Connector::new(&job.reach)?.for_job(job.spec.id)),
        };
        let names = map.nodes.iter().map(|node| node.host.to_string());
        let progress = Progress::new(names, "connecting");
        let (no_env, events) = (job.spec.no_env, job.events.clone());
        let starter =
            AgentStarter { connector, deployment, progress, job: job.spec.id, no_env, events };
        let starter = Arc::new(starter);

        let tasks = self.slots.into_iter().zip(&map.nodes).map(|(slot, mapped)| {
            let (starter, host) = (starter.clone(), mapped.host.clone());
            (host.to_string(), async move { starter.start(&host, slot).await })
        });
        let started = starter.progress.run_all(tasks).await;
        starter.connector.iter().for_each(Connector::print_new_hosts);
        collect(started, self.outboxes, (self.events, libraries), map).await
    }
}

/// Context for starting agents, shared by the tasks of all hosts.
struct AgentStarter {
    /// Client that connects to hosts; `None` if the only host is this machine.
    connector: Option<Connector>,
    deployment: Deployment,
    progress: Progress,
    job: JobId,
    /// Whether a local agent starts without the environment of this process.
    no_env: bool,
    events: EventLog,
}

impl AgentStarter {
    async fn start(&self, host: &Host, slot: SessionSlot) -> Result<StartedNode, NodeError> {
        let (started_agent, connection) = match &self.connector {
            None => {
                let path = self.deployment.native().local_path().map_err(NodeError::NoPlace)?;
                let channel = AgentChannel::local(&path, self.no_env).map_err(NodeError::Local)?;
                (hello::local_hello(channel, path.display().to_string()).await?, None)
            }
            Some(connector) => {
                let connection = connector.connect(host, &self.progress).await;
                let connection = connection.map_err(DeployError::from)?;
                self.progress.set_stage(&host.to_string(), connection.stage());
                self.events.emit(&Event::HostReached { host: host.to_string() });
                (self.deployment.start(&connection, slot.node).await?, Some(connection))
            }
        };
        let (facts, sent) = (started_agent.facts.clone(), started_agent.sent);
        self.events.emit(&Event::AgentStarted {
            host: host.to_string(),
            hostname: facts.hostname.clone(),
            pid: facts.pid,
            sent_bytes: sent.unwrap_or(0),
        });
        tracing::debug!(%host, hostname = ?facts.hostname, pid = facts.pid, "agent started");
        let session = session::serve(started_agent, connection, slot, self.job);
        let session = tokio::spawn(session.in_current_span());
        Ok(StartedNode { facts, hello_at: Instant::now(), sent, session })
    }
}

/// Returns the nodes, or an error with all failures if any host failed.
async fn collect(
    started: Vec<Result<StartedNode, NodeError>>,
    outboxes: Vec<Outbox>,
    (events, libraries): (NodeEvents, RankLibraries),
    map: &RankMap,
) -> Result<Nodes, Failed> {
    let mut nodes = Nodes { reached: Vec::new(), events, libraries, sessions: Vec::new() };
    let mut failures = Vec::new();
    let mut sent = Vec::new();
    for ((result, commands), mapped) in started.into_iter().zip(outboxes).zip(&map.nodes) {
        let MappedNode { id, host, ranks } = mapped.clone();
        match result {
            Err(error) => failures.push((host, error)),
            Ok(StartedNode { facts, hello_at, sent: bytes, session }) => {
                sent.extend(bytes.map(|bytes| (host.clone(), bytes)));
                nodes.sessions.push(session);
                nodes.reached.push(ReachedNode { id, host, ranks, commands, facts, hello_at });
            }
        }
    }
    if let Some((_, bytes)) = sent.first() {
        let hosts: Vec<&Host> = sent.iter().map(|(host, _)| host).collect();
        let (hosts, size) = (text::list(&hosts), text::mib(*bytes as u64));
        messages::info(&format!("agent sent to {hosts} ({size} each)"));
    }
    if failures.is_empty() {
        return Ok(nodes);
    }
    let failed = unreached(&failures, map.nodes.len());
    nodes.shutdown().await;
    Err(failed)
}

/// Combines the failures of all hosts into one error.
fn unreached(failures: &[(Host, NodeError)], nodes: usize) -> Failed {
    let line =
        |(host, error): &(Host, NodeError)| format!("{host}: {}", messages::error_chain(error));
    let exit = failures.iter().map(|(_, error)| error.exit()).min_by_key(|exit| exit.0);
    let exit = exit.unwrap_or(Exit::HOST);
    let mut failed = match failures {
        [only] => Failed::new(exit, line(only)),
        several => {
            let count = several.len();
            let mut failed =
                Failed::new(exit, format!("{count} of {nodes} hosts cannot take part"));
            failed.details = several.iter().map(line).collect();
            failed
        }
    };
    // Hints that differ only in the host are given once, for the first such host.
    let mut given = Vec::new();
    for (host, error) in failures {
        let general = error.hint("");
        if !given.contains(&general) {
            given.push(general);
            failed = failed.hint(error.hint(&host.name));
        }
    }
    let id = failures.first().and_then(|(_, error)| error.finding());
    findings::mark(failed, id)
}
