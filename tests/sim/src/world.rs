//! Nodes, the edges between them, and the order in which things happen.

use crate::check::{Checker, Open};
use crate::scenario::{Fault, Scenario};
use crate::script::Step;
use fastrand::Rng;
use rlaunch_bootstrap::id::{NodeId, Rank};
use rlaunch_bootstrap::job::ExitStatus;
use rlaunch_bootstrap::rendezvous::Time;
use rlaunch_bootstrap::rendezvous::link::{Frame, Head, ReliableLink};
use rlaunch_bootstrap::rendezvous::message::CollectiveKind;
use rlaunch_bootstrap::rendezvous::node::{
    Answer, CallId, ClientId, Node, NodeInput, NodeOutput, NodeReport,
};
use rlaunch_bootstrap::rendezvous::payload::Payload;
use rlaunch_bootstrap::rendezvous::shape::TreeShape;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::Duration;

/// When a run is over whatever waits, in virtual time.
const LIMIT: Duration = Duration::from_secs(200);
/// How long an end of a broken connection may take to notice.
const NOTICED: Duration = Duration::from_secs(6);
/// How long the launcher takes to notice a node that is gone.
const MISSED: Duration = Duration::from_secs(6);

/// What carries frames from a node to a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Carrier {
    Nothing,
    Tcp,
    Relay,
}

#[derive(Debug)]
enum Happening {
    /// An end of an edge has it.
    EdgeUp(NodeId, NodeId, Carrier),
    /// An end notices that its connection broke.
    EdgeNoticed(NodeId, NodeId),
    Frame {
        from: NodeId,
        to: NodeId,
        carrier: Carrier,
        frame: Frame,
    },
    Timer(NodeId),
    /// A rank goes on with its next step.
    Step(Rank),
    Fault(usize),
    /// The launcher ends the job.
    End,
}

/// One direction of an edge.
#[derive(Debug)]
struct Way {
    carrier: Carrier,
    latency: Duration,
    /// What was sent earlier arrives earlier.
    last: Duration,
    /// What arrives later than this on the connection is lost.
    cut: Option<Duration>,
}

struct SimNode {
    node: Node,
    links: BTreeMap<NodeId, ReliableLink>,
    /// What its clock shows more than the simulation's.
    ahead: u64,
    slow: Duration,
    alive: bool,
    /// It was gone and came back: what it says is not believed, so nothing is asked of it.
    amnesiac: bool,
    timer: Option<Duration>,
}

#[derive(Default)]
struct SimRank {
    step: usize,
    turns: BTreeMap<(CollectiveKind, &'static str), u64>,
    /// It exits, hangs or aborts before its next step.
    fate: Option<Fault>,
    gone: bool,
}

/// What a run came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Virtual time of the last answer.
    pub took: Duration,
    /// Edges from the root to the farthest node.
    pub depth: u32,
    /// Messages that the busiest node sent.
    pub most_messages: u64,
    /// Messages of all nodes.
    pub messages: u64,
    /// Payload bytes that the busiest node sent, as if copied.
    pub most_bytes: u64,
    /// Payload bytes of all nodes.
    pub bytes: u64,
    /// Calls that were answered.
    pub answered: u64,
}

/// A run.
pub struct World<'a> {
    scenario: &'a Scenario,
    shape: TreeShape,
    rng: Rng,
    now: Duration,
    queue: BinaryHeap<Reverse<(Duration, u64)>>,
    happenings: BTreeMap<u64, Happening>,
    next: u64,
    nodes: Vec<SimNode>,
    ranks: Vec<SimRank>,
    ways: BTreeMap<(NodeId, NodeId), Way>,
    checker: Checker<'a>,
    over: bool,
    sent: Vec<(u64, u64)>,
    answered: u64,
    last_answer: Duration,
    /// Calls whose ranks have ended.
    left: BTreeSet<CallId>,
    /// A rank has wanted the job to end, long ago.
    aborted: bool,
}

impl<'a> World<'a> {
    /// Everybody is there and nothing has happened.
    pub fn new(scenario: &'a Scenario) -> World<'a> {
        let mut rng = Rng::with_seed(scenario.seed ^ 0x5eed);
        let shape = match scenario.radix {
            Some(radix) => TreeShape::new(scenario.nodes, radix),
            None => TreeShape::for_nodes(scenario.nodes),
        };
        let node = |number: u32| {
            let id = NodeId(number);
            let first = number * scenario.ranks_per_node;
            let ranks = (first..first + scenario.ranks_per_node).map(Rank);
            let neighbours = shape.parent(id).into_iter().chain(shape.children(id));
            SimNode {
                node: Node::new(id, shape, ranks),
                links: neighbours.map(|id| (id, ReliableLink::default())).collect(),
                ahead: rng.u64(..1 << 50),
                slow: Duration::ZERO,
                alive: true,
                amnesiac: false,
                timer: None,
            }
        };
        let nodes = (0..scenario.nodes).map(node).collect();
        World {
            scenario,
            shape,
            rng,
            now: Duration::ZERO,
            queue: BinaryHeap::new(),
            happenings: BTreeMap::new(),
            next: 0,
            nodes,
            ranks: (0..scenario.world_size()).map(|_| SimRank::default()).collect(),
            ways: BTreeMap::new(),
            checker: Checker::new(scenario, shape.radix()),
            over: false,
            sent: vec![(0, 0); scenario.nodes as usize],
            answered: 0,
            last_answer: Duration::ZERO,
            left: BTreeSet::new(),
            aborted: false,
        }
    }

    /// Edges come up, ranks set out, faults are laid out.
    fn begin(&mut self) -> Result<(), String> {
        for child in (1..self.scenario.nodes).map(NodeId) {
            let Some(parent) = self.shape.parent(child) else { continue };
            let relayed = !self.scenario.faults.is_empty() && self.rng.u32(..10) == 0;
            let carrier = if relayed { Carrier::Relay } else { Carrier::Tcp };
            let up = Duration::from_micros(self.rng.u64(..100_000));
            let mut latency = self.scenario.latency;
            latency *= if self.rng.u32(..8) == 0 { 10 } else { 1 };
            for way in [(child, parent), (parent, child)] {
                let way_there =
                    Way { carrier: Carrier::Nothing, latency, last: up + latency, cut: None };
                self.ways.insert(way, way_there);
            }
            self.at(up, Happening::EdgeUp(child, parent, carrier));
            // The launcher's word of a relay is the first relayed frame.
            if !relayed {
                self.at(up + latency, Happening::EdgeUp(parent, child, carrier));
            }
        }
        for rank in (0..self.scenario.world_size()).map(Rank) {
            let start = Duration::from_micros(self.rng.u64(..200_000));
            self.at(start, Happening::Step(rank));
        }
        for (index, (at, _)) in self.scenario.faults.iter().enumerate() {
            self.at(*at, Happening::Fault(index));
        }
        let table = Payload::from(vec![1; 1000]);
        self.handle(NodeId(0), NodeInput::Table(table))
    }

    fn at(&mut self, when: Duration, what: Happening) {
        let when = when.max(self.now);
        self.queue.push(Reverse((when, self.next)));
        self.happenings.insert(self.next, what);
        self.next += 1;
    }

    /// Lets everything happen; what was broken, if anything was.
    pub fn run(mut self) -> Result<Figures, String> {
        self.begin()?;
        while let Some(Reverse((when, number))) = self.queue.pop() {
            if when > LIMIT {
                break;
            }
            self.now = when;
            let Some(what) = self.happenings.remove(&number) else { continue };
            self.happen(what).map_err(|broken| format!("at {:?}: {broken}", self.now))?;
        }
        self.checker.finish(self.over).map_err(|broken| format!("at the end: {broken}"))?;
        let most = |of: fn(&(u64, u64)) -> u64| self.sent.iter().map(of).max().unwrap_or(0);
        Ok(Figures {
            took: self.last_answer,
            depth: self.shape.depth(),
            most_messages: most(|sent| sent.0),
            messages: self.sent.iter().map(|sent| sent.0).sum(),
            most_bytes: most(|sent| sent.1),
            bytes: self.sent.iter().map(|sent| sent.1).sum(),
            answered: self.answered,
        })
    }

    fn happen(&mut self, what: Happening) -> Result<(), String> {
        match what {
            Happening::EdgeUp(node, peer, carrier) => self.edge_up(node, peer, carrier),
            Happening::EdgeNoticed(node, peer) => self.edge_noticed(node, peer),
            Happening::Frame { from, to, carrier, frame } => self.arrive(from, to, carrier, frame),
            Happening::Timer(id) => self.timer(id),
            Happening::Step(rank) => self.step(rank),
            Happening::Fault(index) => self.fault(index),
            Happening::End => self.end(),
        }
    }

    fn edge_up(&mut self, id: NodeId, peer: NodeId, carrier: Carrier) -> Result<(), String> {
        if let Some(way) = self.ways.get_mut(&(id, peer)).filter(|w| w.carrier == Carrier::Nothing)
        {
            way.carrier = carrier;
            if let Some(link) = self.nodes[id.index()].links.get_mut(&peer) {
                link.carrier_up();
            }
        }
        self.settle(id)
    }

    fn edge_noticed(&mut self, id: NodeId, peer: NodeId) -> Result<(), String> {
        if !self.nodes[id.index()].alive {
            return Ok(());
        }
        if let Some(way) = self.ways.get_mut(&(id, peer)).filter(|w| w.carrier == Carrier::Tcp) {
            way.carrier = Carrier::Relay;
            if let Some(link) = self.nodes[id.index()].links.get_mut(&peer) {
                link.carrier_down();
                link.carrier_up();
            }
        }
        self.settle(id)
    }

    fn arrive(
        &mut self,
        from: NodeId,
        to: NodeId,
        carrier: Carrier,
        frame: Frame,
    ) -> Result<(), String> {
        if !self.nodes[to.index()].alive || self.over {
            return Ok(());
        }
        let cut = self.ways.get(&(from, to)).and_then(|way| way.cut);
        let Some(back) = self.ways.get_mut(&(to, from)) else { return Ok(()) };
        let node = &mut self.nodes[to.index()];
        let Some(link) = node.links.get_mut(&from) else { return Ok(()) };
        match (carrier, back.carrier) {
            // The receiver has given the connection up, or what was on it is lost.
            (Carrier::Tcp, Carrier::Relay) => return Ok(()),
            (Carrier::Tcp, _) if cut.is_some_and(|cut| self.now > cut) => return Ok(()),
            (Carrier::Relay, Carrier::Tcp | Carrier::Nothing) => {
                back.carrier = Carrier::Relay;
                link.carrier_up();
            }
            _ => {}
        }
        match link.receive(frame) {
            Ok(Some(packet)) => {
                let now = self.clock(to);
                let handled =
                    self.nodes[to.index()].node.handle(now, NodeInput::Packet(from, packet));
                self.believe(&[from, to], handled, || format!("node {to}"))?;
            }
            Ok(None) => {}
            Err(violation) => {
                self.believe(&[from, to], Err(violation), || format!("{to} from {from}"))?;
            }
        }
        self.settle(to)
    }

    /// A violation is one, unless one of these has come back without memory: then it is right.
    fn believe<E: std::fmt::Display>(
        &self,
        who: &[NodeId],
        handled: Result<(), E>,
        place: impl Fn() -> String,
    ) -> Result<(), String> {
        match handled {
            Err(error) if !who.iter().any(|&id| self.is_amnesiac(id)) => {
                Err(format!("{}: {error}", place()))
            }
            _ => Ok(()),
        }
    }

    fn is_amnesiac(&self, id: NodeId) -> bool {
        self.nodes[id.index()].amnesiac
    }

    fn timer(&mut self, id: NodeId) -> Result<(), String> {
        let now = self.clock(id);
        let node = &mut self.nodes[id.index()];
        node.timer = None;
        if node.alive && !self.over {
            node.node.handle_timeout(now);
            return self.settle(id);
        }
        Ok(())
    }

    fn step(&mut self, rank: Rank) -> Result<(), String> {
        let id = self.node_of(rank);
        if self.over || !self.nodes[id.index()].alive || self.ranks[rank.index()].gone {
            return Ok(());
        }
        match self.ranks[rank.index()].fate.take() {
            Some(Fault::Exit(_, code)) => return self.exit(rank, code),
            Some(Fault::Hang(_)) => {
                self.ranks[rank.index()].gone = true;
                return Ok(());
            }
            Some(fate @ Fault::Leave(_)) => {
                let state = &mut self.ranks[rank.index()];
                state.fate = Some(fate);
                let meets = self.scenario.script.get(state.step).and_then(Step::meeting);
                if meets.is_some() {
                    state.gone = true;
                    let leaving = self.make_next_step(rank);
                    // Nobody is there to hear the answer.
                    let number = self.ranks[rank.index()].step as u64 - 1;
                    self.left.insert(call_id(rank, number));
                    self.checker.open.remove(&call_id(rank, number));
                    return leaving.and_then(|()| self.exit(rank, 0));
                }
            }
            Some(Fault::Abort(_)) => {
                let call = rlaunch_bootstrap::rendezvous::node::Call::Abort("enough".into());
                self.ranks[rank.index()].gone = true;
                return self.handle(id, NodeInput::Call(rank, call_id(rank, u64::MAX), call));
            }
            _ => {}
        }
        self.make_next_step(rank)
    }

    fn make_next_step(&mut self, rank: Rank) -> Result<(), String> {
        let id = self.node_of(rank);
        let state = &mut self.ranks[rank.index()];
        let Some(step) = self.scenario.script.get(state.step) else {
            state.gone = true;
            return self.exit(rank, 0);
        };
        let number = state.step;
        state.step += 1;
        let turn = step.meeting().map_or(0, |name| {
            let turn = state.turns.entry(name).or_default();
            *turn += 1;
            *turn - 1
        });
        match step.call(rank, turn) {
            Some(call) => {
                let id_of_call = call_id(rank, number as u64);
                self.checker.called(id_of_call, Open { rank, step: number, turn });
                self.handle(id, NodeInput::Call(rank, id_of_call, call))
            }
            None => {
                let pause = match step {
                    Step::Compute(most) => {
                        Duration::from_micros(self.rng.u64(..=most.as_micros() as u64))
                    }
                    _ => Duration::ZERO,
                };
                self.at(self.now + pause, Happening::Step(rank));
                Ok(())
            }
        }
    }

    fn exit(&mut self, rank: Rank, code: i32) -> Result<(), String> {
        let id = self.node_of(rank);
        let status = ExitStatus::Code(code);
        self.ranks[rank.index()].gone = true;
        self.checker.ended.insert(rank, status);
        if code != 0 {
            let news = self.now + self.scenario.latency;
            self.at(news, Happening::End);
        }
        self.handle(id, NodeInput::RankEnded(rank, status))
    }

    fn fault(&mut self, index: usize) -> Result<(), String> {
        let fault = self.scenario.faults[index].1.clone();
        match fault {
            Fault::EdgeBreaks(child) => self.break_edge(NodeId(child)),
            Fault::Partition(from) => {
                for child in (1..self.scenario.nodes).map(NodeId) {
                    let across =
                        self.shape.parent(child).is_some_and(|p| (p.0 < from) != (child.0 < from));
                    if across {
                        self.break_edge(child);
                    }
                }
            }
            Fault::Slow(node, by) => self.nodes[node as usize].slow = by,
            Fault::Crash(node) => {
                self.nodes[node as usize].alive = false;
                let ranks = self.scenario.ranks_per_node;
                let lost = |id: &CallId| id.client.0 / u64::from(ranks) == u64::from(node);
                self.checker.open.retain(|id, _| !lost(id));
                let first = node * ranks;
                (first..first + ranks).for_each(|rank| self.ranks[rank as usize].gone = true);
                self.at(self.now + MISSED, Happening::End);
            }
            Fault::Restart(node) => return self.restart(NodeId(node)),
            Fault::Exit(rank, _) | Fault::Hang(rank) | Fault::Abort(rank) | Fault::Leave(rank) => {
                self.ranks[rank.index()].fate = Some(fault);
            }
        }
        Ok(())
    }

    /// A node that has been crashed dials its neighbours anew.
    fn restart(&mut self, id: NodeId) -> Result<(), String> {
        let node = &mut self.nodes[id.index()];
        if node.alive {
            return Ok(());
        }
        let first = id.0 * self.scenario.ranks_per_node;
        let ranks = (first..first + self.scenario.ranks_per_node).map(Rank);
        node.node = Node::new(id, self.shape, ranks);
        (node.alive, node.amnesiac) = (true, true);
        for (&peer, link) in &mut node.links {
            *link = ReliableLink::default();
            link.carrier_up();
            if let Some(way) = self.ways.get_mut(&(id, peer)) {
                (way.carrier, way.cut) = (Carrier::Tcp, None);
            }
        }
        self.settle(id)
    }

    fn break_edge(&mut self, child: NodeId) {
        let Some(parent) = self.shape.parent(child) else { return };
        for (from, to) in [(child, parent), (parent, child)] {
            // What is on its way may still arrive, a prefix of it.
            let still = self.scenario.latency.mul_f64(self.rng.f64() * 2.0);
            let noticed = self.now + NOTICED.mul_f64(self.rng.f64());
            if let Some(way) = self.ways.get_mut(&(from, to)).filter(|way| way.cut.is_none()) {
                way.cut = Some(self.now + still);
                self.at(noticed, Happening::EdgeNoticed(from, to));
            }
        }
    }

    /// The launcher ends the job: every agent that lives lets its ranks go.
    fn end(&mut self) -> Result<(), String> {
        if let Some(open) = self.checker.open.values().next().filter(|_| self.aborted) {
            return Err(format!("{open:?} has not heard of the abort"));
        }
        for id in (0..self.scenario.nodes).map(NodeId) {
            if self.nodes[id.index()].alive {
                self.nodes[id.index()].node.abandon("the job is over");
                self.settle(id)?;
            }
        }
        self.over = true;
        Ok(())
    }

    fn clock(&self, id: NodeId) -> Time {
        let nanos = u64::try_from(self.now.as_nanos()).unwrap_or(u64::MAX);
        Time(nanos + self.nodes[id.index()].ahead)
    }

    fn node_of(&self, rank: Rank) -> NodeId {
        NodeId(rank.0 / self.scenario.ranks_per_node)
    }

    fn handle(&mut self, id: NodeId, input: NodeInput) -> Result<(), String> {
        let now = self.clock(id);
        let handled = self.nodes[id.index()].node.handle(now, input);
        self.believe(&[id], handled, || format!("node {id}"))?;
        self.settle(id)
    }

    /// Does what a node wants done.
    fn settle(&mut self, id: NodeId) -> Result<(), String> {
        while let Some(output) = self.nodes[id.index()].node.poll_output() {
            match output {
                NodeOutput::Send(to, packet) if self.is_amnesiac(id) => {
                    if let Some(link) = self.nodes[id.index()].links.get_mut(&to) {
                        link.send(packet);
                    }
                }
                _ if self.is_amnesiac(id) => {}
                NodeOutput::Send(to, packet) => {
                    self.checker.sent(id, id.max(to), &packet)?;
                    let (messages, bytes) = &mut self.sent[id.index()];
                    *messages += 1;
                    *bytes += packet.payload.len() as u64;
                    if let Some(link) = self.nodes[id.index()].links.get_mut(&to) {
                        link.send(packet);
                    }
                }
                NodeOutput::Answer(call, answer) => self.answered(id, call, &answer)?,
                NodeOutput::Table(_) => self.checker.table(id)?,
                // Nothing is asked here but what ranks call.
                NodeOutput::RootRequest(..) => {}
                NodeOutput::Report(tidings) => {
                    if matches!(tidings, NodeReport::Aborted { .. }) {
                        self.aborted = true;
                        // Long enough for the news to go round the tree by itself.
                        self.at(self.now + NOTICED * 3, Happening::End);
                    }
                    self.checker.tidings.push(tidings);
                }
            }
        }
        self.transmit(id);
        self.arm(id);
        Ok(())
    }

    fn answered(&mut self, id: NodeId, call: CallId, answer: &Answer) -> Result<(), String> {
        // An abort, of which everybody hears; or nobody is there to hear.
        if call.request == u64::MAX || self.left.contains(&call) {
            return Ok(());
        }
        let open = self.checker.answered(call, answer)?;
        self.answered += 1;
        self.last_answer = self.now;
        if let Answer::Clock { offset, error } = *answer {
            let (root, own) = (self.nodes[0].ahead, self.nodes[id.index()].ahead);
            let truth = root.wrapping_sub(own).cast_signed();
            if offset.abs_diff(truth) > error {
                return Err(format!("clock of {id}: {offset} ± {error}, in truth {truth}"));
            }
        }
        match answer {
            // Whose calls fail gives up, as a program would.
            Answer::Aborted { .. } | Answer::Failed(_) => {
                self.ranks[open.rank.index()].gone = true;
            }
            _ => self.at(self.now, Happening::Step(open.rank)),
        }
        Ok(())
    }

    fn transmit(&mut self, id: NodeId) {
        let node = &mut self.nodes[id.index()];
        let mut frames = Vec::new();
        for (&peer, link) in &mut node.links {
            while let Some(frame) = link.poll_frame() {
                frames.push((peer, frame));
            }
        }
        for (to, frame) in frames {
            let jitter = Duration::from_nanos(self.rng.u64(..50_000));
            let slow = self.nodes[to.index()].slow;
            let Some(way) = self.ways.get_mut(&(id, to)) else { continue };
            let carrier = way.carrier;
            let latency = if carrier == Carrier::Relay { way.latency * 2 } else { way.latency };
            way.last = way.last.max(self.now + latency + jitter) + slow;
            let when = way.last;
            let twice = !self.scenario.faults.is_empty() && self.rng.u32(..50) == 0;
            if twice && matches!(frame.head, Head::Packet { .. }) {
                let frame = frame.clone();
                self.at(when, Happening::Frame { from: id, to, carrier, frame });
            }
            self.at(when, Happening::Frame { from: id, to, carrier, frame });
        }
    }

    fn arm(&mut self, id: NodeId) {
        let ahead = self.nodes[id.index()].ahead;
        let node = &mut self.nodes[id.index()];
        let Some(due) = node.node.poll_timeout() else { return };
        let due = Duration::from_nanos(due.0.saturating_sub(ahead));
        if node.timer.is_none_or(|timer| due < timer) {
            node.timer = Some(due);
            self.at(due, Happening::Timer(id));
        }
    }
}

fn call_id(rank: Rank, request: u64) -> CallId {
    CallId { client: ClientId(u64::from(rank.0)), request }
}
