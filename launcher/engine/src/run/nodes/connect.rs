//! Connections to all hosts in parallel, and start of their agents.
//!
//! A session needs its outbox and its senders before its host is connected, so [`open_sessions`] makes
//! them for all nodes first. [`Connecting::reach`] then connects to all hosts in parallel, copies and starts
//! their agents, and starts the session of each agent after the agent's first message.

use super::{Agents, Node, PendingStdio, Reached};
use crate::connect::agent::DeployError;
use crate::connect::agent::callback::Callbacks;
use crate::connect::agent::deploy::Deployment;
use crate::connect::agent::hello::{self, StartedAgent};
use crate::connect::agent::host_file;
use crate::connect::agent::library::RankLibraries;
use crate::connect::agent::store::AgentStore;
use crate::connect::channel::AgentChannel;
use crate::connect::connector::{Connector, HostConnection, StartedContainer};
use crate::connect::outbox::Outbox;
use crate::run::events::{Event, EventLog};
use crate::run::job_run::JobRun;
use crate::run::output;
use crate::run::pump::{self, Pump};
use crate::run::session::{self, SessionSlot};
use crate::run::signals::Signals;
use crate::run::stdin::StdinFeed;
use crate::run::told;
use rlaunch_bootstrap::id::JobId;
#[cfg(test)]
use rlaunch_bootstrap::job::NodeFacts;
use rlaunch_console::progress::Progress;
use rlaunch_console::{limits, messages};
use rlaunch_plan::findings::{self, CheckId};
use rlaunch_plan::hosts::Host;
use rlaunch_plan::job::JobSpec;
use rlaunch_plan::map::{MappedNode, RankMap};
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use rlaunch_text::text;
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::sync::mpsc;
use tracing::Instrument;

/// Makes both ends of all channels between the sessions, which start later, and the rest of the launcher. The attempt's
/// time runs from here on.
pub(crate) fn open_sessions<'s>(
    job: &JobSpec,
    map: RankMap,
    signals: &'s mut Signals,
) -> (Connecting, PendingStdio, Pump<'s>) {
    let (events_in, events) = mpsc::unbounded_channel();
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
        node_timeout: job.node_timeout(),
        kill_after: job.kill_after,
        open: open.clone(),
    });
    let slots = slots.collect();
    let hosts = map.nodes.iter().map(|node| node.host.to_string()).collect();
    let agents = Agents { outboxes, all_closed };
    let pump = Pump::new(agents, events, signals, hosts, job.timeout);
    (Connecting { map, slots }, PendingStdio { output: unread, stdin }, pump)
}

/// Nodes that are not connected yet.
pub(crate) struct Connecting {
    map: RankMap,
    slots: Vec<SessionSlot>,
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
        limits::open_files_hint(&messages::error_chain(self)).or_else(|| match self {
            NodeError::Deploy(error) => error.hint(host),
            NodeError::NoPlace(_) => Some(host_file::PLACES.to_owned()),
            NodeError::Local(error) => error.raw_os_error().and_then(limits::process_hint),
        })
    }
}

impl Connecting {
    /// Connects to all hosts in parallel and starts their agents, unless the attempt must end meanwhile.
    pub(crate) async fn reach(self, job: &JobRun, pump: &mut Pump<'_>) -> Result<Reached, Failed> {
        pump.run_unless_ended(self.connect(job)).await
    }

    /// Waits for all hosts even if one fails, so that all failures are reported together.
    async fn connect(self, job: &JobRun) -> Result<Reached, Failed> {
        let Connecting { map, slots } = self;
        let libraries = RankLibraries::start_search(job.reach.agent.clone(), job.spec.is_local);
        let store = AgentStore::new(job.reach.agent.clone());
        let callbacks = Callbacks::new(job.spec.oob.clone(), job.spec.port_range);
        let deployment = Deployment::new(store, job.reach.agent_dir.clone(), callbacks)
            .map_err(|e| Failed::from_error(Exit::AGENT, &e).hint(e.hint()))?
            .shown_for(map.nodes.len());
        let connector = if job.spec.is_local { None } else { Some(connector(job, &map).await?) };
        let names = map.nodes.iter().map(|node| node.host.to_string());
        let progress = Progress::new(names, "connecting");
        let (no_env, events) = (job.spec.no_env, job.events.clone());
        let starter =
            AgentStarter { connector, deployment, progress, job: job.spec.id, no_env, events };
        let starter = Arc::new(starter);

        let tasks = slots.into_iter().zip(map.nodes.clone()).map(|(slot, mapped)| {
            let starter = starter.clone();
            (mapped.host.to_string(), async move { starter.start(mapped, slot).await })
        });
        let started = starter.progress.run_all(tasks).await;
        starter.connector.iter().for_each(Connector::print_new_hosts);
        starter.connector.iter().for_each(Connector::warn_of_unheld);
        let nodes = collect(started, &map)?;
        container_lines(&nodes).iter().for_each(|line| told::once(line));
        Ok(Reached { map, nodes, libraries })
    }

    /// Takes channels of a test for those of agents that have started, by node.
    #[cfg(test)]
    pub(crate) fn reached_by(
        self,
        job: &JobRun,
        agents: impl IntoIterator<Item = (NodeFacts, AgentChannel)>,
    ) -> Reached {
        let Connecting { map, slots } = self;
        let begin = |((slot, (facts, channel)), mapped): ((_, (NodeFacts, _)), MappedNode)| {
            let frames = rlaunch_bootstrap::protocol::control::FrameReader::default();
            let agent = crate::connect::connector::AgentLocation::At("/no/agent".to_owned());
            let started = StartedAgent::new(channel, frames, facts, agent);
            begin_session(started, None, slot, mapped, job.spec.id)
        };
        let nodes = slots.into_iter().zip(agents).zip(map.nodes.clone()).map(begin).collect();
        let libraries = RankLibraries::start_search(None, true);
        Reached { map, nodes, libraries }
    }
}

/// Makes the job's connector in another thread, since the SSH configuration may be on a file server that hangs.
async fn connector(job: &JobRun, map: &RankMap) -> Result<Connector, Failed> {
    let reach = job.reach.clone();
    let made = tokio::task::spawn_blocking(move || Connector::new(&reach)).await;
    let made = made.map_err(|error| Failed::new(Exit::BUG, error.to_string())).flatten()?;
    let hosts = map.nodes.iter().map(|node| &node.host);
    Ok(made.for_job(job.spec.id, &job.spec.name, hosts))
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
    /// Starts the agent of a node. Returns the node, and the size of the agent's file in bytes if it had to be sent.
    async fn start(
        &self,
        mapped: MappedNode,
        slot: SessionSlot,
    ) -> Result<(Node, Option<usize>), NodeError> {
        let host = &mapped.host;
        let (started_agent, connection) = match &self.connector {
            None => {
                let own = self.deployment.own().map_err(DeployError::from)?;
                let path = own.local_path().map_err(NodeError::NoPlace)?;
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
        let (facts, sent) = (&started_agent.facts, started_agent.sent);
        self.events.emit(&Event::AgentStarted {
            host: host.to_string(),
            hostname: facts.hostname.clone(),
            pid: facts.pid,
            sent_bytes: sent.unwrap_or(0),
        });
        tracing::debug!(%host, hostname = ?facts.hostname, pid = facts.pid, "agent started");
        Ok((begin_session(started_agent, connection, slot, mapped, self.job), sent))
    }
}

/// Begins the session with an agent that has started, which lasts until its channel or all of [`Agents`] is gone.
fn begin_session(
    agent: StartedAgent,
    connection: Option<HostConnection>,
    slot: SessionSlot,
    mapped: MappedNode,
    job: JobId,
) -> Node {
    let MappedNode { id, host, ranks } = mapped;
    let (facts, hello_at) = (agent.facts.clone(), pump::now());
    let container = agent.container.clone();
    let node = Node { id, host, ranks, facts, hello_at, runs_in: None, container };
    let open = slot.open.clone();
    let session = async move {
        tokio::select! {
            () = session::serve(agent, connection, slot, job) => {}
            () = open.closed() => {}
        }
    };
    tokio::spawn(session.in_current_span());
    node
}

/// Returns the nodes, or an error with all failures if any host failed.
fn collect(
    started: Vec<Result<(Node, Option<usize>), NodeError>>,
    map: &RankMap,
) -> Result<Vec<Node>, Failed> {
    let (mut nodes, mut failures, mut sent) = (Vec::new(), Vec::new(), Vec::new());
    for (result, mapped) in started.into_iter().zip(&map.nodes) {
        match result {
            Err(error) => failures.push((mapped.host.clone(), error)),
            Ok((node, bytes)) => {
                sent.extend(bytes.map(|bytes| (&mapped.host, bytes)));
                nodes.push(node);
            }
        }
    }
    if let Some((_, bytes)) = sent.first() {
        let hosts: Vec<&Host> = sent.iter().map(|(host, _)| *host).collect();
        let (hosts, size) = (text::list(&hosts), text::mib(*bytes as u64));
        tracing::info!("agent sent to {hosts} ({size} each)");
    }
    if failures.is_empty() { Ok(nodes) } else { Err(unreached(&failures, map.nodes.len())) }
}

/// Writes what containers lack: a line for all hosts of an engine.
fn container_lines(nodes: &[Node]) -> Vec<String> {
    let started = nodes.iter().filter_map(|node| Some((&node.host, node.container.as_ref()?)));
    let started: Vec<(&Host, &StartedContainer)> = started.collect();
    let tools: BTreeSet<&str> =
        started.iter().map(|(_, container)| container.tool.as_str()).collect();
    let mut lines = Vec::new();
    for tool in tools {
        let hosts = |lacks: fn(&StartedContainer) -> bool| {
            let own = started.iter().filter(|(_, one)| one.tool == tool && lacks(one));
            let hosts: Vec<&Host> = own.map(|(host, _)| *host).collect();
            (!hosts.is_empty()).then(|| text::list(&hosts))
        };
        lines.extend(hosts(|one| one.keeps_limits).map(|hosts| {
            format!(
                "{hosts}: {tool} may not raise limits there: ranks may lock only as much memory as it lets them, and where \
                 that is little RDMA fails to register buffers (rlaunch help lim.memlock)"
            )
        }));
        lines.extend(hosts(|one| one.lacks_gpus).map(|hosts| {
            format!(
                "{hosts}: the GPUs are not in the container, for which {tool} needs the NVIDIA Container Toolkit there \
                 (--gpus none says that you want none)"
            )
        }));
    }
    lines
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
    findings::with_finding(failed, id)
}
