//! The simulated job: virtual time, the queue of events, faults, and the end of the job.

mod network;
mod nodes;

use crate::check::Checker;
use crate::scenario::{Fault, Scenario};
use fastrand::Rng;
use network::{Carrier, EdgeDirection};
use nodes::{SimNode, SimRank};
use rlaunch_bootstrap::id::{NodeId, Rank};
use rlaunch_bootstrap::rendezvous::Time;
use rlaunch_bootstrap::rendezvous::link::{Frame, ReliableLink};
use rlaunch_bootstrap::rendezvous::node::{CallId, Node, NodeInput};
use rlaunch_bootstrap::rendezvous::payload::Payload;
use rlaunch_bootstrap::rendezvous::shape::TreeShape;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::Duration;

/// Virtual time after which a run ends, even if calls are still waiting.
const TIME_LIMIT: Duration = Duration::from_secs(200);
/// Maximum time until an end of a broken connection notices.
const BREAK_DETECTION: Duration = Duration::from_secs(6);
/// Time until the launcher notices that a node has crashed.
const CRASH_DETECTION: Duration = Duration::from_secs(6);

#[derive(Debug)]
enum Event {
    /// The first node's end of its edge to the second gets a connection that carries frames.
    EdgeUp(NodeId, NodeId, Carrier),
    /// The first node notices that the connection of its edge to the second broke.
    EdgeBroke(NodeId, NodeId),
    Frame {
        from: NodeId,
        to: NodeId,
        carrier: Carrier,
        frame: Frame,
    },
    Timer(NodeId),
    /// A rank makes the next step of its script.
    Step(Rank),
    Fault(usize),
    /// The launcher ends the job.
    End,
}

/// Statistics of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunStats {
    /// Virtual time of the last answer.
    pub duration: Duration,
    /// Number of edges between the root of the tree and its farthest node.
    pub depth: u32,
    /// Messages sent by the busiest node.
    pub max_messages: u64,
    /// Messages sent by all nodes.
    pub messages: u64,
    /// Payload bytes sent by the busiest node. A payload that is sent to several nodes counts for
    /// each.
    pub max_bytes: u64,
    /// Payload bytes sent by all nodes.
    pub bytes: u64,
    /// Calls that were answered.
    pub answered: u64,
}

/// Simulation of one job.
pub struct World<'a> {
    scenario: &'a Scenario,
    shape: TreeShape,
    rng: Rng,
    now: Duration,
    queue: BinaryHeap<Reverse<(Duration, u64)>>,
    events: BTreeMap<u64, Event>,
    next_event: u64,
    nodes: Vec<SimNode>,
    ranks: Vec<SimRank>,
    edges: BTreeMap<(NodeId, NodeId), EdgeDirection>,
    checker: Checker<'a>,
    is_over: bool,
    /// Messages and payload bytes sent, by node.
    sent: Vec<(u64, u64)>,
    answered: u64,
    last_answer: Duration,
    /// Calls of ranks that exited without waiting for the answer.
    abandoned_calls: BTreeSet<CallId>,
    /// Whether a rank has aborted the job.
    is_aborted: bool,
}

impl<'a> World<'a> {
    /// Sets up all nodes and ranks at time zero.
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
                clock_offset: rng.u64(..1 << 50),
                delay_per_frame: Duration::ZERO,
                is_alive: true,
                has_lost_state: false,
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
            events: BTreeMap::new(),
            next_event: 0,
            nodes,
            ranks: (0..scenario.world_size()).map(|_| SimRank::default()).collect(),
            edges: BTreeMap::new(),
            checker: Checker::new(scenario, shape.radix()),
            is_over: false,
            sent: vec![(0, 0); scenario.nodes as usize],
            answered: 0,
            last_answer: Duration::ZERO,
            abandoned_calls: BTreeSet::new(),
            is_aborted: false,
        }
    }

    /// Schedules edges, first steps and faults, and gives the rank table to the root.
    fn begin(&mut self) -> Result<(), String> {
        for child in (1..self.scenario.nodes).map(NodeId) {
            let Some(parent) = self.shape.parent(child) else { continue };
            let relayed = !self.scenario.faults.is_empty() && self.rng.u32(..10) == 0;
            let carrier = if relayed { Carrier::Relay } else { Carrier::Tcp };
            let up = Duration::from_micros(self.rng.u64(..100_000));
            let mut latency = self.scenario.latency;
            latency *= if self.rng.u32(..8) == 0 { 10 } else { 1 };
            for ends in [(child, parent), (parent, child)] {
                let direction = EdgeDirection {
                    carrier: Carrier::None,
                    latency,
                    last_arrival: up + latency,
                    lost_after: None,
                };
                self.edges.insert(ends, direction);
            }
            self.schedule(up, Event::EdgeUp(child, parent, carrier));
            // The parent of a relayed edge notices it when the first relayed frame arrives.
            if !relayed {
                self.schedule(up + latency, Event::EdgeUp(parent, child, carrier));
            }
        }
        for rank in (0..self.scenario.world_size()).map(Rank) {
            let start = Duration::from_micros(self.rng.u64(..200_000));
            self.schedule(start, Event::Step(rank));
        }
        for (index, (at, _)) in self.scenario.faults.iter().enumerate() {
            self.schedule(*at, Event::Fault(index));
        }
        let table = Payload::from(vec![1; 1000]);
        self.handle(NodeId(0), NodeInput::Table(table))
    }

    fn schedule(&mut self, when: Duration, what: Event) {
        let when = when.max(self.now);
        self.queue.push(Reverse((when, self.next_event)));
        self.events.insert(self.next_event, what);
        self.next_event += 1;
    }

    /// Runs the simulation to its end. Fails if an invariant is violated.
    pub fn run(mut self) -> Result<RunStats, String> {
        self.begin()?;
        while let Some(Reverse((when, number))) = self.queue.pop() {
            if when > TIME_LIMIT {
                break;
            }
            self.now = when;
            let Some(what) = self.events.remove(&number) else { continue };
            self.handle_event(what).map_err(|broken| format!("at {:?}: {broken}", self.now))?;
        }
        self.checker.finish(self.is_over).map_err(|broken| format!("at the end: {broken}"))?;
        let most = |of: fn(&(u64, u64)) -> u64| self.sent.iter().map(of).max().unwrap_or(0);
        Ok(RunStats {
            duration: self.last_answer,
            depth: self.shape.depth(),
            max_messages: most(|sent| sent.0),
            messages: self.sent.iter().map(|sent| sent.0).sum(),
            max_bytes: most(|sent| sent.1),
            bytes: self.sent.iter().map(|sent| sent.1).sum(),
            answered: self.answered,
        })
    }

    fn handle_event(&mut self, what: Event) -> Result<(), String> {
        match what {
            Event::EdgeUp(node, peer, carrier) => self.edge_up(node, peer, carrier),
            Event::EdgeBroke(node, peer) => self.edge_broke(node, peer),
            Event::Frame { from, to, carrier, frame } => self.arrive(from, to, carrier, frame),
            Event::Timer(id) => self.timer(id),
            Event::Step(rank) => self.step(rank),
            Event::Fault(index) => self.fault(index),
            Event::End => self.end(),
        }
    }

    fn timer(&mut self, id: NodeId) -> Result<(), String> {
        let now = self.clock(id);
        let node = &mut self.nodes[id.index()];
        node.timer = None;
        if node.is_alive && !self.is_over {
            node.node.handle_timeout(now);
            return self.process_outputs(id);
        }
        Ok(())
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
            Fault::Slow(node, by) => self.nodes[node as usize].delay_per_frame = by,
            Fault::Crash(node) => {
                self.nodes[node as usize].is_alive = false;
                let ranks = self.scenario.ranks_per_node;
                let lost = |id: &CallId| id.client.0 / u64::from(ranks) == u64::from(node);
                self.checker.pending.retain(|id, _| !lost(id));
                let first = node * ranks;
                (first..first + ranks)
                    .for_each(|rank| self.ranks[rank as usize].has_stopped = true);
                self.schedule(self.now + CRASH_DETECTION, Event::End);
            }
            Fault::Restart(node) => return self.restart(NodeId(node)),
            Fault::Exit(rank, _) | Fault::Hang(rank) | Fault::Abort(rank) | Fault::Leave(rank) => {
                self.ranks[rank.index()].fault = Some(fault);
            }
        }
        Ok(())
    }

    /// Ends the job as the launcher does: all agents that are alive leave the tree.
    fn end(&mut self) -> Result<(), String> {
        if let Some(call) = self.checker.pending.values().next().filter(|_| self.is_aborted) {
            return Err(format!("{call:?} was not answered after the abort"));
        }
        for id in (0..self.scenario.nodes).map(NodeId) {
            if self.nodes[id.index()].is_alive {
                self.nodes[id.index()].node.abandon("the job is over");
                self.process_outputs(id)?;
            }
        }
        self.is_over = true;
        Ok(())
    }

    fn clock(&self, id: NodeId) -> Time {
        let nanos = u64::try_from(self.now.as_nanos()).unwrap_or(u64::MAX);
        Time(nanos + self.nodes[id.index()].clock_offset)
    }

    fn node_of(&self, rank: Rank) -> NodeId {
        NodeId(rank.0 / self.scenario.ranks_per_node)
    }
}
