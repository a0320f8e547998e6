//! The out-of-band network: connections of this node in the tree of agents, over TCP.
//!
//! In reading order: the [`ports`](super::ports) it listens on; how it connects to its parent ([`dial`]) and
//! accepts its children ([`accept`]); the [`edge`] that results, with the messages by which two agents negotiate
//! it; and the [`Tree`], which carries the packets of the rendezvous state machine ([`Node`]) over
//! edges, or through the launcher where there is no edge, and passes received packets to the state
//! machine.

mod accept;
pub(crate) mod dial;
pub(crate) mod edge;

use crate::console::errln;
use crate::network::frames::FrameSender;
use crate::network::horovod::{HorovodProxy, HorovodStore};
use crate::network::mpi::{MpiRequest, MpiService, collective_text};
use crate::network::services::Services;
use accept::{AUTH_TIMEOUT, EdgeContext, ReturnConnections};
use bytes::Bytes;
use dial::{DialOutcome, STAGGER};
use edge::{Edge, EdgeEvent, ProvedConnection};
use nix::time::{ClockId, clock_gettime};
use rlaunch_bootstrap::id::{NodeId, Rank};
use rlaunch_bootstrap::job::{ExitStatus, Job};
use rlaunch_bootstrap::protocol::control::{BEAT, FromAgent, MAX_FILE_CHUNK, MAX_FRAME};
use rlaunch_bootstrap::protocol::rank::JobEvent;
use rlaunch_bootstrap::rendezvous::Time;
use rlaunch_bootstrap::rendezvous::codec::{Decoder, encode_head};
use rlaunch_bootstrap::rendezvous::link::{Frame, Head, ReliableLink};
use rlaunch_bootstrap::rendezvous::message::{CollectiveKind, Key, MAX_BLOB};
use rlaunch_bootstrap::rendezvous::node::{
    Answer, Call, CallId, ClientId, Node, NodeInput, NodeOutput, NodeReport,
};
use rlaunch_bootstrap::rendezvous::oob::{EdgeReport, ParentPeer};
use rlaunch_bootstrap::rendezvous::payload::{Gathered, Payload, RECORD_HEADER};
use rlaunch_bootstrap::rendezvous::shape::TreeShape;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Interval, MissedTickBehavior, interval};

/// Time limit for writing the last frames before this node leaves the tree.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(200);

/// Carrier of the frames between this node and a neighbour.
enum Carrier {
    /// No carrier yet: the edge is still being made.
    Awaited,
    Tcp(Edge),
    /// The launcher. The decoder holds the received part of the next frame.
    Relay(Decoder<Head>),
    /// No carrier any more: the neighbour has left.
    Gone,
}

struct Neighbour {
    link: ReliableLink,
    carrier: Carrier,
    /// Whether its edge broke after the last call of [`Tree::watch_for_isolation`].
    has_broken: bool,
}

/// This node in the tree of agents, with its neighbours (parent and children) and the calls of its
/// ranks.
pub(crate) struct Tree {
    node: Node,
    me: NodeId,
    neighbours: BTreeMap<NodeId, Neighbour>,
    payload_limit: usize,
    world_size: u32,
    node_timeout: Duration,
    to_launcher: FrameSender,
    services: Services,
    /// Proxy through which this node's ranks reach Horovod's store.
    horovod: HorovodProxy,
    /// Horovod's store, used on the root node only.
    store: HorovodStore,
    /// Process manager of this node's MPI ranks.
    mpi: MpiService,
    from_edges: mpsc::UnboundedReceiver<(NodeId, EdgeEvent)>,
    to_self: mpsc::UnboundedSender<(NodeId, EdgeEvent)>,
    children: mpsc::UnboundedReceiver<ProvedConnection>,
    dialling: JoinSet<DialOutcome>,
    parent: Option<NodeId>,
    accepting: JoinSet<()>,
    beat: Interval,
    ranks: Vec<Rank>,
    events: VecDeque<TreeEvent>,
}

/// Event for the agent itself.
#[derive(Debug)]
pub(crate) enum TreeEvent {
    /// The rank table has arrived.
    Table(Payload),
    /// The collective that [`Tree::start_collective`] has begun is complete.
    CollectiveDone(Answer),
    /// The MPI library of a rank wants a text printed on the standard error of the rank.
    Print(Rank, String),
}

/// Client id of the agent's own calls. The numbers from 0 belong to connections of ranks.
const AGENT_CLIENT: ClientId = ClientId(u64::MAX);
/// Client id of calls for MPI ranks.
const MPI_CLIENT: ClientId = ClientId(u64::MAX - 2);
/// Number of low bits of a request number that contain the local rank, in calls made for MPI ranks.
const LOCAL_RANK_BITS: u32 = 16;
/// Request number in calls for MPI ranks whose answer the process manager does not need.
const UNANSWERED: u64 = u64::MAX >> LOCAL_RANK_BITS;
/// Namespace of the keys that MPI ranks store.
const MPI_KEYS: &str = "mpi";
/// Client id of Horovod requests.
const HOROVOD_CLIENT: ClientId = ClientId(u64::MAX - 1);

impl Tree {
    /// Starts to accept children, and to connect to the parent if its addresses are given.
    pub(crate) fn join(
        job: &Job,
        listeners: Vec<TcpListener>,
        parent: Option<ParentPeer>,
        services: Services,
        to_launcher: &FrameSender,
    ) -> Tree {
        let shape = TreeShape::new(job.oob.nodes, job.oob.radix);
        let node = Node::new(job.node, shape, job.ranks.iter().map(|spec| spec.rank));
        let (to_self, from_edges) = mpsc::unbounded_channel();
        let (proved, children) = mpsc::unbounded_channel();
        let context = EdgeContext {
            secret: job.oob.secret.clone(),
            job: job.id,
            me: job.node,
            listeners: listeners.iter().filter_map(|l| l.local_addr().ok()).collect(),
            returns: ReturnConnections::default(),
            node_timeout: job.node_timeout(),
            stagger: STAGGER,
            auth_timeout: AUTH_TIMEOUT,
        };
        let expected: Vec<NodeId> = shape.children(job.node).collect();
        let mut accepting = JoinSet::new();
        for listener in listeners {
            let (expected, proved) = (expected.clone(), proved.clone());
            accepting.spawn(accept::accept_all(listener, expected, context.clone(), proved));
        }
        let neighbours = shape.parent(job.node).into_iter().chain(expected);
        let fresh = || Neighbour {
            link: ReliableLink::default(),
            carrier: Carrier::Awaited,
            has_broken: false,
        };
        let mut tree = Tree {
            node,
            me: job.node,
            neighbours: neighbours.map(|id| (id, fresh())).collect(),
            payload_limit: payload_limit(job.world_size),
            world_size: job.world_size,
            node_timeout: job.node_timeout(),
            to_launcher: to_launcher.clone(),
            services,
            horovod: HorovodProxy::absent(),
            store: HorovodStore::default(),
            mpi: MpiService::open(job),
            from_edges,
            to_self,
            children,
            dialling: JoinSet::new(),
            parent: shape.parent(job.node),
            accepting,
            beat: beat_interval(),
            ranks: job.ranks.iter().map(|spec| spec.rank).collect(),
            events: VecDeque::new(),
        };
        if let Some(parent) = parent {
            tree.dialling.spawn(async move { context.connect_to_parent(&parent).await });
        }
        tree
    }

    /// Waits for one event and handles it. Cancel-safe.
    pub(crate) async fn run_once(&mut self) {
        let left = self.node.poll_timeout().map(|due| due.since(now()));
        let timer = async {
            match left {
                Some(left) => tokio::time::sleep(left).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            Some((peer, event)) = self.from_edges.recv() => match event {
                EdgeEvent::Frame(frame) => self.on_frame(peer, frame),
                EdgeEvent::Broke(how) => self.on_edge_broken(peer, &how),
            },
            Some(proved) = self.children.recv() => self.on_child(proved),
            Some(Ok(outcome)) = self.dialling.join_next() => self.on_dialled(outcome),
            input = self.services.next_input() => self.handle_input(input),
            (request, question) = self.horovod.next_request() => {
                self.handle_input(NodeInput::AskRoot(CallId { client: HOROVOD_CLIENT, request }, question));
            }
            () = self.mpi.run_once() => {}
            _ = self.beat.tick() => {
                for neighbour in self.neighbours.values_mut() {
                    neighbour.link.beat();
                }
            }
            () = timer => self.node.handle_timeout(now()),
        }
        self.flush_outputs();
    }

    /// Starts to forward requests from this proxy to Horovod's store.
    pub(crate) fn serve_horovod(&mut self, horovod: HorovodProxy) {
        self.horovod = horovod;
    }

    /// Returns the process manager of this node's MPI ranks.
    pub(crate) fn mpi(&mut self) -> &mut MpiService {
        &mut self.mpi
    }

    /// Returns the next event for the agent itself.
    pub(crate) fn poll_event(&mut self) -> Option<TreeEvent> {
        self.events.pop_front()
    }

    /// Distributes the rank table over the tree. Called on the root, to which the launcher sends
    /// the table.
    pub(crate) fn distribute_table(&mut self, table: Vec<u8>) {
        self.handle_input(NodeInput::Table(table.into()));
        self.flush_outputs();
    }

    /// Takes part in a collective of all agents, on behalf of this node's ranks. `given` contains
    /// the contribution of each rank, by local rank; a missing contribution counts as empty.
    /// [`TreeEvent::CollectiveDone`] follows when the collective is complete.
    pub(crate) fn start_collective(&mut self, kind: CollectiveKind, name: &str, given: &[Vec<u8>]) {
        let name: Arc<str> = name.into();
        let ranks = self.ranks.clone();
        for (request, rank) in (0..).zip(ranks) {
            let blob = given.get(request as usize).cloned().unwrap_or_default();
            let call = Call::Collective { kind, name: name.clone(), blob, timeout: None };
            self.handle_input(NodeInput::Call(
                rank,
                CallId { client: AGENT_CLIENT, request },
                call,
            ));
        }
        self.flush_outputs();
    }

    /// Tells this node's ranks of an event.
    pub(crate) fn notify_ranks(&mut self, event: &JobEvent) {
        self.services.send_job_event(event);
    }

    pub(crate) fn rank_started(&mut self, rank: Rank, pid: u32) {
        self.handle_input(NodeInput::RankStarted(rank, pid));
    }

    pub(crate) fn rank_ended(&mut self, rank: Rank, status: ExitStatus) {
        self.mpi.rank_ended(rank);
        self.handle_input(NodeInput::RankEnded(rank, status));
        self.flush_outputs();
    }

    /// Handles bytes from a neighbour that the launcher has passed on.
    pub(crate) fn on_relayed(&mut self, from: NodeId, data: &[u8]) {
        if self.neighbours.get(&from).is_none_or(|n| matches!(n.carrier, Carrier::Gone)) {
            return;
        }
        self.switch_to_relay(from);
        if let Some(decoder) = self.relay_decoder(from) {
            decoder.push(data);
        }
        // A frame may say that the neighbour leaves.
        while let Some(decoder) = self.relay_decoder(from) {
            match decoder.next_frame() {
                Ok(Some((head, payload))) => {
                    self.on_frame(from, Frame { head, payload: payload.into() });
                }
                Ok(None) => break,
                Err(error) => {
                    self.report_violation(from, &error.to_string());
                    break;
                }
            }
        }
        self.flush_outputs();
    }

    fn relay_decoder(&mut self, peer: NodeId) -> Option<&mut Decoder<Head>> {
        match &mut self.neighbours.get_mut(&peer)?.carrier {
            Carrier::Relay(decoder) => Some(decoder),
            _ => None,
        }
    }

    /// Tells whether this node has children, which reach other nodes through it.
    pub(crate) fn has_children(&self) -> bool {
        self.neighbours.keys().any(|id| *id > self.me)
    }

    /// Leaves the tree: answers pending calls with an error and notifies the neighbours.
    pub(crate) async fn leave(mut self) {
        self.node.abandon("the job is over");
        self.flush_outputs();
        let edges: Vec<Edge> = self
            .neighbours
            .into_values()
            .filter_map(|neighbour| match neighbour.carrier {
                Carrier::Tcp(edge) => Some(edge),
                _ => None,
            })
            .collect();
        for edge in &edges {
            edge.send(Head::Leaving.into());
        }
        let written = async {
            for edge in edges {
                edge.finish().await;
            }
        };
        // A neighbour that does not read in time need not be notified.
        let _ = tokio::time::timeout(DRAIN_TIMEOUT, written).await;
        self.services.close().await;
    }

    fn handle_input(&mut self, input: NodeInput) {
        let from = match &input {
            NodeInput::Packet(from, _) => Some(*from),
            _ => None,
        };
        if let (Err(violation), Some(from)) = (self.node.handle(now(), input), from) {
            self.report_violation(from, &violation.to_string());
        }
    }

    fn on_frame(&mut self, from: NodeId, frame: Frame) {
        let Some(neighbour) = self.neighbours.get_mut(&from) else { return };
        if frame.head == Head::Leaving {
            neighbour.carrier = Carrier::Gone;
            return;
        }
        match neighbour.link.receive(frame) {
            Ok(Some(packet)) => self.handle_input(NodeInput::Packet(from, packet)),
            Ok(None) => {}
            Err(violation) => self.report_violation(from, &violation.to_string()),
        }
    }

    /// Reports an invalid message of a neighbour. Neighbours are agents of the same build and job,
    /// so this is a bug of rlaunch.
    fn report_violation(&mut self, from: NodeId, cause: &str) {
        errln!("rlaunch-worker: node {from}: {cause}");
        let operation = format!("read a message from node {from}");
        self.to_launcher.send(&FromAgent::Failed { operation, cause: cause.to_owned() });
    }

    fn on_child(&mut self, proved: ProvedConnection) {
        let peer = proved.peer;
        let Some(neighbour) = self.neighbours.get_mut(&peer) else { return };
        if matches!(neighbour.carrier, Carrier::Awaited) {
            let edge =
                proved.into_edge(self.payload_limit, self.node_timeout, self.to_self.clone());
            neighbour.carrier = Carrier::Tcp(edge);
            neighbour.link.carrier_up();
        }
        self.stop_accepting_if_complete();
    }

    fn on_dialled(&mut self, outcome: DialOutcome) {
        let Some(parent) = self.parent else { return };
        let DialOutcome { edge, failed } = outcome;
        let addresses = edge.as_ref().map(|edge| (edge.local, edge.remote));
        self.to_launcher.send(&FromAgent::Edge(EdgeReport { edge: addresses, failed }));
        match (edge, self.neighbours.get_mut(&parent)) {
            (Some(proved), Some(neighbour)) => {
                let edge =
                    proved.into_edge(self.payload_limit, self.node_timeout, self.to_self.clone());
                neighbour.carrier = Carrier::Tcp(edge);
                neighbour.link.carrier_up();
            }
            _ => self.switch_to_relay(parent),
        }
        self.stop_accepting_if_complete();
    }

    /// Stops accepting connections once every neighbour has a carrier.
    fn stop_accepting_if_complete(&mut self) {
        let awaited = |n: &Neighbour| matches!(n.carrier, Carrier::Awaited);
        if !self.neighbours.values().any(awaited) {
            self.accepting.abort_all();
        }
    }

    fn on_edge_broken(&mut self, peer: NodeId, how: &str) {
        let Some(neighbour) = self.neighbours.get_mut(&peer) else { return };
        if matches!(neighbour.carrier, Carrier::Tcp(_)) {
            neighbour.link.carrier_down();
            neighbour.has_broken = true;
            self.to_launcher.send(&FromAgent::EdgeBroke { peer, how: how.to_owned() });
            self.switch_to_relay(peer);
        }
    }

    /// Forgets which edges broke until now.
    pub(crate) fn watch_for_isolation(&mut self) {
        self.neighbours.values_mut().for_each(|neighbour| neighbour.has_broken = false);
    }

    /// Tells whether this node has lost its last edge since [`Tree::watch_for_isolation`] was called: it is probably cut
    /// off.
    pub(crate) fn is_isolated(&self) -> bool {
        let has_edge =
            |neighbour: &Neighbour| matches!(neighbour.carrier, Carrier::Tcp(_) | Carrier::Awaited);
        self.neighbours.values().any(|neighbour| neighbour.has_broken)
            && !self.neighbours.values().any(has_edge)
    }

    /// Makes the launcher relay all further frames between this node and `peer`.
    fn switch_to_relay(&mut self, peer: NodeId) {
        let Some(neighbour) = self.neighbours.get_mut(&peer) else { return };
        if !matches!(neighbour.carrier, Carrier::Relay(_)) {
            neighbour.carrier = Carrier::Relay(Decoder::new(self.payload_limit));
            neighbour.link.carrier_up();
        }
        self.stop_accepting_if_complete();
    }

    /// Executes the outputs of the state machine and of the links.
    fn flush_outputs(&mut self) {
        loop {
            self.flush_node();
            // Requests of MPI ranks are calls, whose answers may lead to further requests.
            let Some(request) = self.mpi.poll_request() else { break };
            self.forward_mpi(request);
        }
        for (&peer, neighbour) in &mut self.neighbours {
            while let Some(frame) = neighbour.link.poll_frame() {
                match &neighbour.carrier {
                    Carrier::Tcp(edge) => edge.send(frame),
                    Carrier::Relay(_) => send_relayed(&self.to_launcher, peer, &frame),
                    // The link has nothing for a neighbour that is awaited, and one that has left needs nothing.
                    Carrier::Awaited | Carrier::Gone => {}
                }
            }
        }
    }

    /// Executes the outputs of the state machine.
    fn flush_node(&mut self) {
        while let Some(output) = self.node.poll_output() {
            match output {
                NodeOutput::Send(to, packet) => {
                    if let Some(neighbour) = self.neighbours.get_mut(&to) {
                        neighbour.link.send(packet);
                    }
                }
                // Each rank's call has an answer, and all are equal; one is passed on.
                NodeOutput::Answer(CallId { client: AGENT_CLIENT, request }, answer) => {
                    if request == 0 {
                        self.events.push_back(TreeEvent::CollectiveDone(answer));
                    }
                }
                NodeOutput::Answer(CallId { client: HOROVOD_CLIENT, request }, answer) => {
                    self.horovod.answer(request, answer);
                }
                NodeOutput::Answer(CallId { client: MPI_CLIENT, request }, answer) => {
                    self.answer_mpi(request, answer);
                }
                NodeOutput::Answer(id, answer) => self.services.answer(id, answer),
                NodeOutput::RootRequest(id, request) => {
                    let answer = self.store.answer(&request);
                    self.handle_input(NodeInput::RootReply(id, answer));
                }
                NodeOutput::Table(table) => self.events.push_back(TreeEvent::Table(table)),
                NodeOutput::Report(report) => self.to_launcher.send(&frame_for(report)),
            }
        }
    }

    /// Makes the calls for a request of this node's MPI ranks.
    fn forward_mpi(&mut self, request: MpiRequest) {
        match request {
            MpiRequest::Gather { request, local_rank, name, blob } => {
                let Some(&rank) = self.ranks.get(local_rank) else { return };
                let (kind, name) = (CollectiveKind::Gather, name.into());
                let call = Call::Collective { kind, name, blob, timeout: None };
                self.call_for_mpi(rank, request, local_rank as u64, call);
            }
            MpiRequest::Put { key, value } => {
                self.store_for_mpi(UNANSWERED, |key| Call::Put { key, value }, key);
            }
            MpiRequest::Get { request, key, wait } => {
                let call =
                    |key| if wait { Call::Await { key, timeout: None } } else { Call::Get(key) };
                self.store_for_mpi(request, call, key);
            }
            MpiRequest::Abort(message) => self.to_launcher.send(&message),
            MpiRequest::Print { rank, text } => {
                self.events.push_back(TreeEvent::Print(rank, text));
            }
        }
    }

    /// Makes a call to the key-value store for the node's MPI ranks together.
    fn store_for_mpi(&mut self, request: u64, call: impl FnOnce(Key) -> Call, key: String) {
        let key = Key { namespace: MPI_KEYS.into(), name: key.into() };
        if let Some(rank) = self.node.running_rank() {
            self.call_for_mpi(rank, request, 0, call(key));
        }
    }

    fn call_for_mpi(&mut self, rank: Rank, request: u64, local_rank: u64, call: Call) {
        let request = request << LOCAL_RANK_BITS | local_rank;
        self.handle_input(NodeInput::Call(rank, CallId { client: MPI_CLIENT, request }, call));
    }

    /// Passes the answer to a call for MPI ranks on to the process manager. All ranks of the node
    /// get the same data from a gather, so only the answer for local rank 0 is passed on.
    fn answer_mpi(&mut self, request: u64, answer: Answer) {
        let (request, local_rank) =
            (request >> LOCAL_RANK_BITS, request & ((1 << LOCAL_RANK_BITS) - 1));
        match answer {
            Answer::Gathered(_) if local_rank > 0 => {}
            Answer::Gathered(records) => match Gathered(records).by_rank(self.world_size) {
                Ok(blobs) => {
                    let data = blobs.iter().map(|blob| blob.to_vec()).collect();
                    self.mpi.gathered(request, data);
                }
                Err(_) => self.mpi.failed(request),
            },
            Answer::Value(value) => self.mpi.value(request, Some(value.to_vec())),
            Answer::NoValue => self.mpi.value(request, None),
            // A value was stored, which nothing waits for.
            Answer::Done => {}
            _ => self.mpi.failed(request),
        }
    }
}

fn send_relayed(to_launcher: &FrameSender, to: NodeId, frame: &Frame) {
    let head = match encode_head(&frame.head, frame.payload.len()) {
        Ok(head) => Bytes::from(head),
        Err(error) => return errln!("rlaunch-worker: {error}"),
    };
    for chunk in std::iter::once(&head).chain(frame.payload.chunks()) {
        for part in chunk.chunks(MAX_FILE_CHUNK) {
            to_launcher.send(&FromAgent::Relay { to, data: part.to_vec() });
        }
    }
}

fn frame_for(report: NodeReport) -> FromAgent {
    match report {
        NodeReport::TableEverywhere => FromAgent::TableEverywhere,
        NodeReport::Aborted { by, text } => FromAgent::Aborted { by, text, code: None },
        NodeReport::Waiting { operation, waited, missing } => {
            let what = collective_text(&operation);
            FromAgent::Waiting { what, waited_ms: millis(waited), missing }
        }
        NodeReport::WaitingForKey { key, waited } => {
            FromAgent::WaitingForKey { key: key.to_string(), waited_ms: millis(waited) }
        }
        NodeReport::Event { rank, text } => FromAgent::RankEvent { rank, text },
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Returns the maximum size in bytes of a payload, which is the data of a gather over all ranks or
/// a rank table.
fn payload_limit(world_size: u32) -> usize {
    let gather = (world_size as usize).saturating_mul(MAX_BLOB + RECORD_HEADER);
    gather.max(MAX_FRAME).min(u32::MAX as usize)
}

fn beat_interval() -> Interval {
    let mut beat = interval(BEAT);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    beat
}

/// Returns the time of the monotonic clock, which ranks of this host can read as well.
fn now() -> Time {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from).unwrap_or_default();
    Time(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests;
