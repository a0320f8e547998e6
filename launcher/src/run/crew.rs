//! All nodes of the job together: reached at once, prepared together, started together.

mod settle;
mod streams;

pub(crate) use streams::Streams;

use crate::connect::agent::deliver::{DeliverError, Delivery};
use crate::connect::agent::greet;
use crate::connect::agent::library::Libraries;
use crate::connect::agent::store::Store;
use crate::connect::callback::Callbacks;
use crate::connect::channel::AgentChannel;
use crate::connect::outbox::Outbox;
use crate::connect::route::{RouteError, Routes};
use crate::hosts::Host;
use crate::hosts::addresses;
use crate::job::JobSpec;
use crate::job::apps::{self, Filled};
use crate::plan::held_ports::Held;
use crate::plan::map::{MappedNode, RankMap};
use crate::plan::placement::Bind;
use crate::plan::rank_env;
use crate::plan::setup::Setup;
use crate::run::container_check;
use crate::run::events::{self, Record};
use crate::run::job_run::JobRun;
use crate::run::output;
use crate::run::preflight_report;
use crate::run::rendezvous::Joined;
use crate::run::session::{self, Event, Seat, What};
use crate::run::stdin::Feed;
use bytes::Bytes;
use rlaunch_bootstrap::id::{JobId, NodeId, Rank};
use rlaunch_bootstrap::inventory::Inventory;
use rlaunch_bootstrap::job::library::{LibrarySource, NodeLibrary};
use rlaunch_bootstrap::job::{InterfaceAddress, Job, NodeFacts, Notice, Problem, RankSetup};
use rlaunch_bootstrap::protocol::control::{self, FromAgent, MAX_FILE_CHUNK, ToAgent};
use rlaunch_bootstrap::rendezvous::oob::OobConfig;
use rlaunch_console::deadline;
use rlaunch_console::exit::Exit;
use rlaunch_console::messages::{self, Failed};
use rlaunch_console::open_files;
use rlaunch_console::progress::Progress;
use rlaunch_console::text;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};
use tracing::Instrument;

/// How long nodes may take to look for what the job needs, without what is copied to them.
const PREPARE_TIMEOUT: Duration = Duration::from_secs(30);
/// The slowest link that files are preloaded over, in bytes per second.
const PRELOAD_RATE: u64 = 256 << 10;
/// How long channels may take to close once everything is said.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// The nodes of a job, each with its session.
pub(crate) struct Crew {
    pub(crate) nodes: Vec<Node>,
    pub(crate) events: Events,
    libraries: Libraries,
    sessions: Vec<JoinHandle<()>>,
}

/// What happens on the crew's nodes. Of hosts that were sent home nothing is heard.
pub(crate) struct Events {
    receiver: mpsc::UnboundedReceiver<Event>,
    /// How many nodes the crew has; the others have higher numbers.
    nodes: usize,
}

impl Events {
    /// The next event; `None` when every session has ended. Safe to cancel.
    pub(crate) async fn recv(&mut self) -> Option<Event> {
        loop {
            let event = self.receiver.recv().await?;
            if event.node.index() < self.nodes {
                return Some(event);
            }
        }
    }
}

/// One node of the crew.
pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) host: Host,
    pub(crate) ranks: Vec<Rank>,
    pub(crate) commands: Outbox,
    pub(crate) facts: NodeFacts,
    /// When its agent said hello, by this machine's clock.
    pub(crate) hello_at: Instant,
}

/// Seats for all of these nodes, and the ends of streams, before anyone is reached: every session has
/// where to write.
pub(crate) fn assemble(job: &JobSpec, map: &RankMap) -> (Gathering, Streams, Departures) {
    let (events_in, receiver) = mpsc::unbounded_channel();
    let (here, departures) = mpsc::channel(1);
    let (commands, receivers): (Vec<_>, Vec<_>) = map.nodes.iter().map(|_| Outbox::new()).unzip();
    let (output, unread) = output::pipe();
    let stdin = Feed::default();
    let seats = map.nodes.iter().zip(receivers).map(|(node, commands)| Seat {
        node: node.id,
        commands,
        events: events_in.clone(),
        output: output.clone(),
        stdin: stdin.clone(),
        silence: job.node_timeout,
        kill_after: job.kill_after,
        here: here.clone(),
    });
    let seats = seats.collect();
    let departures = Departures { commands: commands.clone(), here: departures };
    let events = Events { receiver, nodes: map.nodes.len() };
    (Gathering { seats, commands, events }, Streams { output: unread, stdin }, departures)
}

/// Knows when every channel is closed.
pub(crate) struct Departures {
    commands: Vec<Outbox>,
    here: mpsc::Receiver<()>,
}

impl Departures {
    /// Sends home, and waits for, the agents that were reached by a job that does not come about.
    pub(crate) async fn all(mut self) {
        for commands in self.commands {
            commands.tell(&ToAgent::End { now: true });
        }
        // Nothing is ever sent; it ends when the last session has.
        let _ = deadline::within(CLOSE_TIMEOUT, self.here.recv()).await;
    }
}

/// Seats for everyone, nobody there yet.
pub(crate) struct Gathering {
    seats: Vec<Seat>,
    commands: Vec<Outbox>,
    events: Events,
}

/// How one node's way in ended.
type Reached = (NodeId, Result<Arrived, NodeError>);

struct Arrived {
    facts: NodeFacts,
    hello_at: Instant,
    sent: Option<usize>,
    session: JoinHandle<()>,
}

/// Why a host cannot take part.
#[derive(Debug, thiserror::Error)]
enum NodeError {
    #[error(transparent)]
    Route(#[from] RouteError),
    #[error(transparent)]
    Deliver(#[from] DeliverError),
    #[error("cannot start the agent on this machine")]
    Local(#[source] std::io::Error),
}

impl NodeError {
    fn exit(&self) -> Exit {
        match self {
            NodeError::Route(_) | NodeError::Deliver(DeliverError::Route(_)) => Exit::HOST,
            NodeError::Deliver(DeliverError::NoCallback { .. }) => Exit::RENDEZVOUS,
            NodeError::Deliver(_) | NodeError::Local(_) => Exit::AGENT,
        }
    }

    fn hint(&self, host: &str) -> Option<String> {
        // Whatever failed for that has nothing else to be cured.
        open_files::hint(&messages::error_chain(self)).or_else(|| match self {
            NodeError::Route(error) => error.hint(host),
            NodeError::Deliver(error) => error.hint(host),
            NodeError::Local(_) => None,
        })
    }
}

impl Gathering {
    /// Reaches every host at once and starts its agent. One that fails hides no other: all are
    /// reported together.
    pub(crate) async fn reach(self, job: &JobRun, map: &RankMap) -> Result<Crew, Failed> {
        let libraries = Libraries::look(job.reach.agent.clone(), job.local);
        let store = Store::new(job.reach.agent.clone());
        let callbacks = Callbacks::new(job.oob.clone(), job.port_range);
        let delivery = Delivery::new(store, job.reach.agent_dir.clone(), callbacks)
            .map_err(|e| Failed::from_error(Exit::AGENT, &e).hint(e.hint()))?;
        let routes = match job.local {
            true => None,
            false => Some(Routes::of(&job.reach)?.for_job(job.id)),
        };
        let names = map.nodes.iter().map(|node| node.host.to_string());
        let progress = Progress::new(names, "connecting");
        let (bare, events) = (job.no_env, job.events.clone());
        let way = Arc::new(Way { routes, delivery, progress, job: job.id, bare, events });

        let mut tasks = JoinSet::new();
        for (seat, mapped) in self.seats.into_iter().zip(&map.nodes) {
            tasks.spawn(way.clone().bring(mapped.host.clone(), seat).in_current_span());
        }
        let mut reached: Vec<Reached> = way.progress.report_while(tasks.join_all()).await;
        reached.sort_by_key(|(node, _)| *node);
        way.routes.iter().for_each(Routes::introduce);
        gather(reached, self.commands, (self.events, libraries), map).await
    }
}

/// What every host's way in shares.
struct Way {
    /// `None` for this machine.
    routes: Option<Routes>,
    delivery: Delivery,
    progress: Progress,
    job: JobId,
    /// This shell's environment is not for this machine's agent.
    bare: bool,
    events: events::Events,
}

impl Way {
    async fn bring(self: Arc<Self>, host: Host, seat: Seat) -> Reached {
        let node = seat.node;
        let arrived = self.start(&host, seat).await;
        self.progress.done(&host.to_string());
        (node, arrived)
    }

    async fn start(&self, host: &Host, seat: Seat) -> Result<Arrived, NodeError> {
        let (greeted, route) = match &self.routes {
            None => {
                let path = &self.delivery.native().path;
                let channel = AgentChannel::local(path, self.bare).map_err(NodeError::Local)?;
                (greet::greet_here(channel, path.display().to_string()).await?, None)
            }
            Some(routes) => {
                let route = routes.to(host, &self.progress).await?;
                self.progress.set_stage(&host.to_string(), route.stage());
                self.events.emit(&Record::HostReached { host: &host.to_string() });
                let greeted = self.delivery.start(&route, seat.node).await;
                (greeted.map_err(|error| route.explain(error))?, Some(route))
            }
        };
        let (facts, sent) = (greeted.facts.clone(), greeted.sent);
        self.events.emit(&Record::AgentStarted {
            host: &host.to_string(),
            hostname: &facts.hostname,
            pid: facts.pid,
            sent_bytes: sent.unwrap_or(0),
        });
        tracing::debug!(%host, hostname = ?facts.hostname, pid = facts.pid, "agent started");
        let session = session::serve(greeted, route, seat, self.job);
        let session = tokio::spawn(session.in_current_span());
        Ok(Arrived { facts, hello_at: Instant::now(), sent, session })
    }
}

/// Makes a crew of those who arrived, when that is everyone.
async fn gather(
    reached: Vec<Reached>,
    commands: Vec<Outbox>,
    (events, libraries): (Events, Libraries),
    map: &RankMap,
) -> Result<Crew, Failed> {
    let mut crew = Crew { nodes: Vec::new(), events, libraries, sessions: Vec::new() };
    let mut failures = Vec::new();
    let mut sent = Vec::new();
    for (((_, arrived), commands), mapped) in reached.into_iter().zip(commands).zip(&map.nodes) {
        let MappedNode { id, host, ranks } = mapped.clone();
        match arrived {
            Err(error) => failures.push((host, error)),
            Ok(Arrived { facts, hello_at, sent: bytes, session }) => {
                sent.extend(bytes.map(|bytes| (host.clone(), bytes)));
                crew.sessions.push(session);
                crew.nodes.push(Node { id, host, ranks, commands, facts, hello_at });
            }
        }
    }
    if let Some((_, bytes)) = sent.first() {
        let hosts: Vec<&Host> = sent.iter().map(|(host, _)| host).collect();
        let (hosts, size) = (text::list(&hosts), text::mib(*bytes as u64));
        messages::info(&format!("agent sent to {hosts} ({size} each)"));
    }
    if failures.is_empty() {
        return Ok(crew);
    }
    let failed = unreached(&failures, map.nodes.len());
    crew.dismiss().await;
    Err(failed)
}

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
    // Hints that differ by the host alone are given once, for the first of them.
    let mut given = Vec::new();
    for (host, error) in failures {
        let general = error.hint("");
        if !given.contains(&general) {
            given.push(general);
            failed = failed.hint(error.hint(&host.name));
        }
    }
    failed
}

impl Crew {
    /// Tells every node what it will run and waits until each has found everything it needs.
    pub(crate) async fn prepare(
        &mut self,
        job: &JobSpec,
        map: &RankMap,
    ) -> Result<Prepared, Failed> {
        let files = preload_frames(job)?;
        let named: Vec<(&str, &NodeFacts)> =
            self.nodes.iter().map(|node| (node.host.name.as_str(), &node.facts)).collect();
        for (name, facts) in &named {
            let absent = job.reach.book.absent(name, &facts.addresses);
            absent.iter().for_each(|line| messages::warn(line));
        }
        let candidates = addresses::candidates(&named, &job.oob)?;
        addresses::lacking(&named, &job.oob).iter().for_each(|sentence| messages::warn(sentence));
        for node in &self.nodes {
            let addresses = candidates[node.id.index()].iter().map(|c| c.address).collect();
            let library = self.libraries.of(&node.facts.arch).await;
            let told = node_job(job, map, node, (addresses, library));
            node.commands.open_window(told.output_window);
            let message = ToAgent::Job(Box::new(told));
            node.commands.try_tell(&message).map_err(|error| {
                Failed::new(Exit::USAGE, format!("the job does not fit a frame: {error}"))
                    .hint(Some("the environment or the command line is too large"))
            })?;
            for frame in &files {
                node.commands.send_frame(frame.clone());
            }
        }
        let bytes: u64 = job.preload.iter().map(|preload| preload.file.size).sum();
        let timeout = PREPARE_TIMEOUT + Duration::from_secs(bytes / PRELOAD_RATE);
        let names = self.nodes.iter().map(|node| node.host.to_string());
        let progress = Progress::new(names, "preparing");
        let answers = deadline::within(timeout, self.answers(&progress));
        let answers = progress.report_while(answers).await.ok_or_else(|| {
            let missing = progress.pending();
            Failed::new(Exit::AGENT, format!("no answer within {} s: {missing}", timeout.as_secs()))
        })??;
        let prepared = self.judge(&answers, candidates)?;
        let hosts = self.nodes.iter().map(|node| &node.host);
        let landed: Vec<(&Host, &Inventory)> = hosts.zip(&prepared.inventories).collect();
        let container = job.reach.container.as_ref();
        container_check::check(container, &landed)?;
        container_check::tell(container, &landed, self.nodes.iter().map(|node| node.facts.uid));
        Ok(prepared)
    }

    /// One answer from every node.
    async fn answers(&mut self, progress: &Progress) -> Result<Vec<(NodeId, FromAgent)>, Failed> {
        let mut answers = Vec::new();
        while answers.len() < self.nodes.len() {
            let Some(Event { node, what, .. }) = self.events.recv().await else { break };
            match what {
                What::Said(answer @ (FromAgent::Prepared { .. } | FromAgent::Refused { .. })) => {
                    progress.done(&self.host(node));
                    answers.push((node, answer));
                }
                What::Said(_) | What::Reaped(_) => {}
                What::Lost(how) => return Err(self.lost(node, &how)),
            }
        }
        answers.sort_by_key(|(node, _)| *node);
        Ok(answers)
    }

    fn judge(
        &self,
        answers: &[(NodeId, FromAgent)],
        candidates: Vec<Vec<InterfaceAddress>>,
    ) -> Result<Prepared, Failed> {
        let mut problems: Vec<(&Host, &Problem)> = Vec::new();
        let mut notices: Vec<(&Host, &Notice)> = Vec::new();
        let (listeners, inventories) = (Vec::new(), Vec::new());
        let ports = Vec::new();
        let libraries = Vec::new();
        let mut prepared = Prepared { ports, listeners, candidates, inventories, libraries };
        for (node, answer) in answers {
            let host = &self.nodes[node.index()].host;
            match answer {
                FromAgent::Refused { problems: found } => {
                    problems.extend(found.iter().map(|problem| (host, problem)));
                }
                FromAgent::Prepared { notices: found, ports, listeners, inventory, library } => {
                    notices.extend(found.iter().map(|notice| (host, notice)));
                    prepared.ports.push(ports.clone());
                    prepared.listeners.push(listeners.clone());
                    prepared.inventories.push((**inventory).clone());
                    prepared.libraries.push(library.clone());
                }
                _ => {}
            }
        }
        if problems.is_empty() {
            preflight_report::print_notices(&notices);
            return Ok(prepared);
        }
        Err(preflight_report::explain(&problems))
    }

    /// Sends the library for ranks to those that lack it.
    pub(crate) fn send_libraries(&self, prepared: &Prepared) {
        let is_lacking =
            |place: &Option<NodeLibrary>| place.as_ref().is_some_and(|place| !place.is_present);
        let nodes = self.nodes.iter().zip(&prepared.libraries);
        let lacking = nodes
            .filter(|(_, place)| is_lacking(place))
            .map(|(node, _)| (node.host.clone(), node.facts.arch.clone(), node.commands.clone()));
        self.libraries.send(lacking.collect());
    }

    /// A node could not keep what it was sent.
    pub(crate) fn warn_of_no_library(&self, node: NodeId, cause: &str) {
        let host = self.host(node);
        messages::warn(&format!("{host}: ranks have no library to link or import: {cause}"));
    }

    /// Lets every node start its ranks, which meet rank 0 at `master`.
    pub(crate) fn start(
        &self,
        job: &JobSpec,
        map: &RankMap,
        joined: &Joined,
    ) -> Result<(), Failed> {
        let (address, port) = joined.master;
        tracing::info!("MASTER_ADDR {address} MASTER_PORT {port}");
        let explicit = apps::explicit_everywhere(&job.apps);
        let mut env = rank_env::of_master(address, port, &explicit);
        env.extend(job.restarts.into_iter().flat_map(|restarts| restarts.env(&explicit)));
        let mut filled = Filled::by_rank(job, map, &joined.table)?;
        let awaited = apps::awaited_ports(job, map, &joined.table);
        let mut messages = Vec::with_capacity(self.nodes.len());
        for (node, setups) in self.nodes.iter().zip(&joined.setups) {
            let told = |(rank, setup): (&Rank, &Setup)| {
                let Filled { words, env, files } = filled.remove(rank).unwrap_or_default();
                RankSetup { words, env, files, ..setup.told() }
            };
            let ranks = node.ranks.iter().zip(setups).map(told).collect();
            let own = awaited.iter().filter(|(looks, _)| *looks == node.id);
            let ports = own.map(|(_, port)| port.clone()).collect();
            let horovod = joined.horovod.get(node.id.index()).copied();
            let message = ToAgent::Start { env: env.clone(), ranks, horovod, ports };
            messages.push(control::encode(&message).map_err(|error| {
                Failed::new(Exit::USAGE, format!("templates do not fit a frame: {error}"))
            })?);
        }
        for (node, message) in self.nodes.iter().zip(messages) {
            node.commands.send_frame(message.into());
        }
        Ok(())
    }

    /// Tells every node the same.
    pub(crate) fn tell_all(&self, message: &ToAgent) {
        for node in &self.nodes {
            node.commands.tell(message);
        }
    }

    /// Tells one node.
    pub(crate) fn tell(&self, node: NodeId, message: &ToAgent) {
        if let Some(node) = self.nodes.get(node.index()) {
            node.commands.tell(message);
        }
    }

    /// Names a node's host; a node that an agent made up is named by its number.
    pub(crate) fn host(&self, node: NodeId) -> String {
        let known = self.nodes.get(node.index());
        known.map_or_else(|| format!("unknown node {}", node.0), |node| node.host.to_string())
    }

    pub(crate) fn lost(&self, node: NodeId, how: &str) -> Failed {
        let host = self.host(node);
        let failed = Failed::new(Exit::NODE_LOST, format!("node {host} is lost: {how}"));
        Failed { may_restart: true, ..failed }
    }

    /// Sends every agent home and waits until the channels are closed, so that none outlives
    /// rlaunch.
    pub(crate) async fn dismiss(self) {
        self.tell_all(&ToAgent::End { now: true });
        let Crew { nodes, mut sessions, events, .. } = self;
        drop((nodes, events));
        let closed = async {
            for session in &mut sessions {
                // It has nothing to say but that it is over.
                let _ = session.await;
            }
        };
        if deadline::within(CLOSE_TIMEOUT, closed).await.is_none() {
            // They hold the way to the output, whose end is waited for next.
            sessions.iter().for_each(JoinHandle::abort);
        }
    }
}

/// What the nodes have answered.
pub(crate) struct Prepared {
    /// By node: the ports that it holds, as [`Held`] has them.
    pub(crate) ports: Vec<Vec<u16>>,
    /// By node: where it listens for its children in the tree.
    pub(crate) listeners: Vec<Vec<SocketAddr>>,
    /// By node: its addresses that are worth a try, best first.
    pub(crate) candidates: Vec<Vec<InterfaceAddress>>,
    /// By node: what it has.
    pub(crate) inventories: Vec<Inventory>,
    /// By node: where its ranks will find their library.
    pub(crate) libraries: Vec<Option<NodeLibrary>>,
}

/// What one node is told.
fn node_job(
    job: &JobSpec,
    map: &RankMap,
    node: &Node,
    (addresses, library): (Vec<IpAddr>, Option<LibrarySource>),
) -> Job {
    let shape = job.shape(map.nodes.len());
    let (applications, ranks) = apps::of_node(job, map, node.id);
    Job {
        id: job.id,
        node: node.id,
        host: node.host.name.clone(),
        login: job.login,
        applications,
        ranks,
        preload: job.preload.iter().map(|preload| preload.file.clone()).collect(),
        kill_after_ms: u32::try_from(job.kill_after.as_millis()).unwrap_or(u32::MAX),
        silence_ms: u32::try_from(job.node_timeout.as_millis()).unwrap_or(u32::MAX),
        output_window: output::window(map.nodes.len()),
        stamp_output: job.output.is_stamped(),
        merge_stderr: job.output.merge_stderr,
        world_size: map.world_size,
        singleton: job.singleton,
        wants_cores: matches!(job.options.bind, Bind::Core(_)),
        nccl_net_plugin: job.options.nccl_net_plugin.clone(),
        library,
        held_ports: Held::of(&job.options, map, &map.nodes[node.id.index()]).count(),
        master_port: job.master_port.filter(|_| node.id == NodeId(0)),
        oob: OobConfig {
            secret: job.secret.clone(),
            nodes: shape.nodes(),
            radix: shape.radix(),
            addresses,
            ports: job.port_range,
        },
        token: job.token,
    }
}

/// The preloaded files as frames, made once and shared by all nodes.
fn preload_frames(job: &JobSpec) -> Result<Vec<Bytes>, Failed> {
    let mut frames = Vec::new();
    for (index, preload) in (0u32..).zip(&job.preload) {
        let failed = |error: &dyn std::error::Error| {
            let message = format!("cannot preload {}: {error}", preload.source.display());
            Failed::new(Exit::FILES, message)
        };
        let content = std::fs::read(&preload.source).map_err(|error| failed(&error))?;
        let parts = content.chunks(MAX_FILE_CHUNK).chain(std::iter::once(&[][..]));
        for data in parts.map(<[u8]>::to_vec) {
            let frame = control::encode(&ToAgent::File { index, data });
            frames.push(frame.map_err(|error| failed(&error))?.into());
        }
    }
    Ok(frames)
}
