//! An agent's part in the tree of agents: services for its ranks, together with the neighbouring
//! agents.
//!
//! ```text
//! AwaitTable ──table from the parent──▶ AwaitSubtree ──all children have it──▶ Running ──▶ Aborted
//! ```
//!
//! Ranks may call as soon as they run. Before that, the agents themselves use collectives in the
//! name of their ranks. All inputs go through [`Node::handle`]. The services are in the modules
//! `collective` (barriers and gathers), `stragglers` (search for missing ranks), `store` (key-value
//! store and other requests to the root) and `clock` (clock offsets).

mod clock;
mod collective;
mod interface;
mod store;
mod stragglers;

pub use interface::{
    Answer, Call, CallId, ClientId, NodeInput, NodeOutput, NodeReport, NodeViolation, Refusal,
};

use super::Time;
use super::message::{CallCounts, CollectiveKind, Message, Packet, RankState};
use super::payload::Payload;
use super::rank_set::RankSet;
use super::shape::TreeShape;
use crate::id::{ExitStatus, NodeId, Rank};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use store::RequestOrigin;

/// Maximum number of names of collectives that one rank may use.
const MAX_NAMES: usize = 4096;
/// Maximum number of pending calls on one node.
const MAX_WAITING: usize = 65_536;
/// Delay before ended ranks are reported to the parent, so that ranks which end together are
/// reported together.
const REPORT_DELAY: Duration = Duration::from_millis(20);

/// State of a node in the tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NodePhase {
    /// The rank table has not arrived at this node.
    #[default]
    AwaitTable,
    /// This node has the rank table, but not yet every node of its subtree.
    AwaitSubtree,
    /// Every node of the subtree has the rank table.
    Running,
    /// The job was aborted. Every call fails.
    Aborted,
}

/// Event that changes the [`NodePhase`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodePhaseEvent {
    /// The rank table arrived at this node.
    Table,
    /// Every child has confirmed that its subtree has the rank table.
    Subtree,
    /// The job was aborted.
    Abort,
}

crate::transitions! {
    NodePhase on NodePhaseEvent {
        AwaitTable   + Table   => AwaitSubtree,
        AwaitSubtree + Subtree => Running,
        AwaitTable   + Abort   => Aborted,
        AwaitSubtree + Abort   => Aborted,
        Running      + Abort   => Aborted,
    }
}

#[derive(Debug)]
struct HostedRank {
    pid: Option<u32>,
    ended: Option<ExitStatus>,
    has_called: bool,
    call_counts: BTreeMap<(CollectiveKind, Arc<str>), u64>,
}

impl HostedRank {
    fn state(&self) -> RankState {
        match (self.ended, self.pid) {
            (Some(status), _) => RankState::Ended(status),
            (None, None) => RankState::NotStarted,
            (None, Some(pid)) if self.has_called => RankState::NotArrived { pid },
            (None, Some(pid)) => RankState::NeverCalled { pid },
        }
    }
}

#[derive(Debug)]
struct Child {
    id: NodeId,
    /// Ranks of the child's subtree; `None` until the child has confirmed the rank table.
    ranks: Option<RankSet>,
}

/// State machine of an agent in the tree of agents.
#[derive(Debug)]
pub struct Node {
    id: NodeId,
    shape: TreeShape,
    parent: Option<NodeId>,
    children: Vec<Child>,
    locals: BTreeMap<Rank, HostedRank>,
    phase: NodePhase,
    has_table: bool,
    aborted: Option<(Option<Rank>, String)>,
    collectives: collective::Collectives,
    stragglers: stragglers::StragglerQueries,
    store: store::Store,
    clock: clock::Clock,
    /// Ranks of this node and its subtree that have ended.
    ended_ranks: BTreeMap<Rank, collective::EndedRank>,
    unreported: Vec<(Rank, ExitStatus, CallCounts)>,
    report_at: Option<Time>,
    outputs: VecDeque<NodeOutput>,
}

impl Node {
    /// Makes the state machine of node `id`, on which these ranks run.
    pub fn new(id: NodeId, shape: TreeShape, ranks: impl IntoIterator<Item = Rank>) -> Node {
        let local = |rank| {
            let call_counts = BTreeMap::new();
            (rank, HostedRank { pid: None, ended: None, has_called: false, call_counts })
        };
        let children = shape.children(id).map(|id| Child { id, ranks: None }).collect();
        Node {
            id,
            shape,
            parent: shape.parent(id),
            children,
            locals: ranks.into_iter().map(local).collect(),
            phase: NodePhase::default(),
            has_table: false,
            aborted: None,
            collectives: collective::Collectives::default(),
            stragglers: stragglers::StragglerQueries::default(),
            store: store::Store::default(),
            clock: clock::Clock::new(shape.parent(id).is_none()),
            ended_ranks: BTreeMap::new(),
            unreported: Vec::new(),
            report_at: None,
            outputs: VecDeque::new(),
        }
    }

    /// Returns a rank of this node that has not ended, if there is one.
    pub fn running_rank(&self) -> Option<Rank> {
        let is_running = |(_, local): &(&Rank, &HostedRank)| local.ended.is_none();
        self.locals.iter().find(is_running).map(|(rank, _)| *rank)
    }

    /// Returns the state of the node.
    pub fn phase(&self) -> NodePhase {
        self.phase
    }

    /// Handles an input. After an error the state is unchanged.
    pub fn handle(&mut self, now: Time, input: NodeInput) -> Result<(), NodeViolation> {
        match input {
            NodeInput::Packet(from, packet) => self.on_packet(now, from, packet)?,
            NodeInput::Table(table) => self.on_table(table),
            NodeInput::RankStarted(rank, pid) => {
                if let Some(local) = self.locals.get_mut(&rank) {
                    local.pid = Some(pid);
                }
            }
            NodeInput::RankEnded(rank, status) => self.on_rank_ended(now, rank, status),
            NodeInput::Call(rank, id, call) => self.on_call(now, rank, id, call),
            NodeInput::AskRoot(id, question) => self.on_agent_request(id, question),
            NodeInput::RootReply(request, answer) => self.on_agent_reply(request, answer),
            NodeInput::ClientGone(client) => self.forget_client(client),
        }
        Ok(())
    }

    /// Handles timers that have expired. Does nothing before the time that [`Node::poll_timeout`]
    /// returns.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.report_at.is_some_and(|at| at <= now) {
            self.report_ended();
        }
        self.expire_collectives(now);
        self.expire_awaits(now);
        self.expire_counts(now);
        self.ping_if_due(now);
    }

    /// Returns the time at which to call [`Node::handle_timeout`]; `None` if no timer is running.
    pub fn poll_timeout(&self) -> Option<Time> {
        let due = [
            self.report_at,
            self.collectives.due(),
            self.store.due(),
            self.stragglers.due(),
            self.clock.due(),
        ];
        due.into_iter().flatten().min()
    }

    /// Returns the next action for the agent, or `None` if there is none.
    pub fn poll_output(&mut self) -> Option<NodeOutput> {
        self.outputs.pop_front()
    }

    fn on_packet(&mut self, now: Time, from: NodeId, packet: Packet) -> Result<(), NodeViolation> {
        let Packet { message, payload } = packet;
        self.check_direction(from, &message)?;
        let name = message.name();
        if self.phase == NodePhase::AwaitTable
            && self.parent == Some(from)
            && !message.may_precede_table()
        {
            return Err(NodeViolation::OutOfPhase { from, message: name, phase: self.phase });
        }
        match message {
            Message::Table if !self.has_table => self.on_table(payload),
            Message::Table => return Err(NodeViolation::Duplicate { from, message: name }),
            Message::TableReceived { ranks } => self.on_table_received(from, ranks)?,
            Message::Arrived(operation) => self.on_arrived(from, &operation, payload)?,
            Message::Released(operation) => self.on_released(from, &operation, &payload)?,
            Message::ReportFailure(operation, why) => self.fail_collective(&operation, why),
            Message::Failed(operation, why) => self.on_failed(&operation, &why),
            Message::Ended(ranks) => self.on_ended(now, ranks),
            Message::QueryMissing { operation, waited_ms } => {
                self.query_missing(now, operation, Duration::from_millis(waited_ms));
            }
            Message::CountMissing(operation) => self.count_missing(now, &operation),
            Message::MissingCounted(operation, missing) => {
                self.on_missing_counted(from, &operation, missing);
            }
            Message::Missing(operation, missing) => self.on_missing(&operation, &missing),
            Message::Put { request, key } => {
                self.put(RequestOrigin::Child(from, request), key, payload);
            }
            Message::Get { request, key } => self.get(RequestOrigin::Child(from, request), key),
            Message::Await(key) => self.await_key(now, store::KeyWaiter::Child(from), key),
            Message::Stored { request, stored } => self.on_stored(from, request, stored)?,
            Message::Got { request, found } => self.on_got(from, request, found, &payload)?,
            Message::Appeared(key) => self.on_appeared(from, &key, &payload)?,
            Message::RootRequest { request } => {
                self.request_root(RequestOrigin::Child(from, request), payload);
            }
            Message::RootReply { request } => self.on_root_reply(from, request, payload)?,
            Message::Abort { by, text } => self.abort(by, &text, Some(from)),
            Message::Ping { sent } => self.on_ping(now, from, sent),
            Message::Pong { sent, at, offset, error } => {
                self.on_pong(now, from, sent, at, offset, error)?;
            }
        }
        Ok(())
    }

    fn check_direction(&self, from: NodeId, message: &Message) -> Result<(), NodeViolation> {
        let from_above = self.parent == Some(from);
        if !from_above && self.children.iter().all(|child| child.id != from) {
            return Err(NodeViolation::NotANeighbour(from));
        }
        let goes_down = match message {
            // Goes in both directions.
            Message::Abort { .. } => from_above,
            Message::Table
            | Message::Released(_)
            | Message::Failed(..)
            | Message::CountMissing(_)
            | Message::Missing(..)
            | Message::Stored { .. }
            | Message::Got { .. }
            | Message::Appeared(_)
            | Message::RootReply { .. }
            | Message::Pong { .. } => true,
            _ => false,
        };
        if goes_down == from_above {
            Ok(())
        } else {
            Err(NodeViolation::WrongDirection { from, message: message.name() })
        }
    }

    /// Passes the rank table on to the children and to this node's ranks, even after an abort. Only the first table
    /// counts.
    fn on_table(&mut self, table: Payload) {
        if std::mem::replace(&mut self.has_table, true) {
            return;
        }
        self.advance(NodePhaseEvent::Table);
        let packet = Packet { message: Message::Table, payload: table.clone() };
        self.send_down(&packet);
        self.outputs.push_back(NodeOutput::Table(table));
        self.report_subtree();
    }

    fn on_table_received(&mut self, from: NodeId, ranks: RankSet) -> Result<(), NodeViolation> {
        let message = "table received";
        if self.phase == NodePhase::AwaitTable {
            return Err(NodeViolation::OutOfPhase { from, message, phase: self.phase });
        }
        let child = self.children.iter_mut().find(|child| child.id == from);
        let child = child.ok_or(NodeViolation::NotANeighbour(from))?;
        if child.ranks.is_some() {
            return Err(NodeViolation::Duplicate { from, message });
        }
        child.ranks = Some(ranks);
        self.report_subtree();
        Ok(())
    }

    /// Reports to the parent, or from the root to the launcher, once every node of the subtree has
    /// the rank table.
    fn report_subtree(&mut self) {
        if self.children.iter().any(|child| child.ranks.is_none()) {
            return;
        }
        if !self.advance(NodePhaseEvent::Subtree) {
            return;
        }
        match self.parent {
            Some(parent) => {
                let mut ranks: RankSet = self.locals.keys().copied().collect();
                for child in &self.children {
                    ranks.extend(child.ranks.as_ref().unwrap_or(&RankSet::new()));
                }
                self.send(parent, Message::TableReceived { ranks });
            }
            None => self.outputs.push_back(NodeOutput::Report(NodeReport::TableEverywhere)),
        }
    }

    fn advance(&mut self, event: NodePhaseEvent) -> bool {
        let next = self.phase.after(event);
        self.phase = next.unwrap_or(self.phase);
        next.is_some()
    }

    fn on_call(&mut self, now: Time, rank: Rank, id: CallId, call: Call) {
        let refusal = match self.locals.get_mut(&rank) {
            Some(local) if local.ended.is_none() => {
                local.has_called = true;
                call.refusal_if_too_long()
            }
            _ => Some(Refusal::NotARank),
        };
        if let Some(refusal) = refusal {
            return self.answer(id, Answer::Refused(refusal));
        }
        if let Some((by, text)) = self.aborted.clone() {
            return self.answer(id, Answer::Aborted { by, text });
        }
        match call {
            Call::Collective { kind, name, blob, timeout } => {
                self.arrive(
                    now,
                    rank,
                    (kind, name),
                    &blob,
                    collective::CollectiveWaiter::new(id, now, timeout),
                );
            }
            Call::Put { key, value } => self.put(RequestOrigin::Call(id), key, value.into()),
            Call::Get(key) => self.get(RequestOrigin::Call(id), key),
            Call::Await { key, timeout } => {
                let until = timeout.map(|timeout| now + timeout);
                self.await_key(now, store::KeyWaiter::Call(id, until), key);
            }
            Call::Abort(text) => {
                self.abort(Some(rank), &text, None);
                self.answer(id, Answer::Done);
            }
            Call::Clock => self.answer_clock(now, id),
            Call::Event(text) => {
                self.outputs.push_back(NodeOutput::Report(NodeReport::Event { rank, text }));
                self.answer(id, Answer::Done);
            }
        }
    }

    fn on_rank_ended(&mut self, now: Time, rank: Rank, status: ExitStatus) {
        let Some(local) = self.locals.get_mut(&rank).filter(|local| local.ended.is_none()) else {
            return;
        };
        local.ended = Some(status);
        let call_counts = std::mem::take(&mut local.call_counts);
        let call_counts: CallCounts = call_counts
            .into_iter()
            .map(|((kind, name), sequence)| (kind, name, sequence))
            .collect();
        self.on_ended(now, vec![(rank, status, call_counts)]);
    }

    /// Handles the end of ranks in this subtree: fails the collectives at which they will never
    /// arrive.
    fn on_ended(&mut self, now: Time, ranks: Vec<(Rank, ExitStatus, CallCounts)>) {
        for (rank, status, call_counts) in &ranks {
            self.ended_ranks.insert(*rank, collective::EndedRank::new(*status, call_counts));
        }
        self.fail_collectives_of_ended_ranks();
        if self.parent.is_some() {
            self.unreported.extend(ranks);
            self.report_at.get_or_insert(now + REPORT_DELAY);
        }
    }

    fn report_ended(&mut self) {
        self.report_at = None;
        let ranks = std::mem::take(&mut self.unreported);
        if let Some(parent) = self.parent.filter(|_| !ranks.is_empty()) {
            self.send(parent, Message::Ended(ranks));
        }
    }

    /// Fails every pending call, and notifies all neighbours except the one that sent the abort.
    fn abort(&mut self, by: Option<Rank>, text: &str, from: Option<NodeId>) {
        if !self.advance(NodePhaseEvent::Abort) {
            return;
        }
        self.aborted = Some((by, text.to_owned()));
        let neighbours = self.parent.into_iter().chain(self.children.iter().map(|child| child.id));
        let others: Vec<NodeId> = neighbours.filter(|&id| Some(id) != from).collect();
        for id in others {
            self.send(id, Message::Abort { by, text: text.to_owned() });
        }
        if from.is_none() {
            self.outputs
                .push_back(NodeOutput::Report(NodeReport::Aborted { by, text: text.to_owned() }));
        }
        let waiting = self.collectives.abandon().into_iter();
        let waiting = waiting.chain(self.store.abandon()).chain(self.clock.abandon());
        for id in waiting {
            let answer = Answer::Aborted { by, text: text.to_owned() };
            self.outputs.push_back(NodeOutput::Answer(id, answer));
        }
        self.stragglers.abandon();
    }

    /// Leaves the tree: reports ended ranks to the parent and fails every pending call.
    pub fn abandon(&mut self, text: &str) {
        self.report_ended();
        self.parent = None;
        self.children.clear();
        // Marked as already reported: the launcher ended the job and needs no report of it.
        self.abort(None, text, Some(self.id));
    }

    fn forget_client(&mut self, client: ClientId) {
        self.collectives.forget(client);
        self.store.forget(client);
        self.clock.forget(client);
    }

    fn waiting(&self) -> usize {
        self.collectives.waiting() + self.store.waiting()
    }

    fn send(&mut self, to: NodeId, message: Message) {
        self.outputs.push_back(NodeOutput::Send(to, message.into()));
    }

    fn send_with(&mut self, to: NodeId, message: Message, payload: Payload) {
        self.outputs.push_back(NodeOutput::Send(to, Packet { message, payload }));
    }

    fn send_down(&mut self, packet: &Packet) {
        for child in &self.children {
            self.outputs.push_back(NodeOutput::Send(child.id, packet.clone()));
        }
    }

    fn answer(&mut self, id: CallId, answer: Answer) {
        self.outputs.push_back(NodeOutput::Answer(id, answer));
    }
}

#[cfg(test)]
mod tests;
