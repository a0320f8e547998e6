//! The rendezvous as the launcher sees it: which edges have come about, and whether the rank table
//! is everywhere.
//!
//! ```text
//! AwaitEdges ──every child has reported──▶ AwaitTable ──the root says so──▶ Running
//! ```
//!
//! The launcher gives the root the table when the last edge was reported, so no word of the root
//! can be quicker than that.
//!
//! Edges that could not be made are relayed: the server knows which, and lets nothing else
//! through.

use super::Time;
use super::shape::TreeShape;
use crate::id::NodeId;
use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

/// How long nodes may take to join after they were told whom.
pub const JOIN_TIMEOUT: Duration = Duration::from_secs(8);

/// Where the rendezvous is, named for what it awaits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CoordinatorPhase {
    /// Nodes are joining their parents.
    #[default]
    AwaitEdges,
    /// The rank table is on its way down the tree.
    AwaitTable,
    /// Every node has it.
    Running,
    /// It took too long.
    Failed,
}

/// What moves the rendezvous on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoordinatorPhaseEvent {
    /// The last edge was reported.
    LastEdge,
    /// The root says that the table is everywhere.
    Table,
    /// The deadline has passed.
    Deadline,
}

crate::transitions! {
    CoordinatorPhase on CoordinatorPhaseEvent {
        AwaitEdges + LastEdge => AwaitTable,
        AwaitTable + Table    => Running,
        AwaitEdges + Deadline => Failed,
        AwaitTable + Deadline => Failed,
    }
}

/// What happens to the rendezvous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoordinatorInput {
    /// A node has an edge to its parent.
    Joined {
        /// The node.
        node: NodeId,
        /// It goes through the launcher.
        relayed: bool,
    },
    /// The root says that every node has the rank table.
    TableEverywhere {
        /// Who says so.
        node: NodeId,
    },
    /// An edge broke and goes on through the launcher.
    Broke {
        /// Who noticed.
        node: NodeId,
        /// The other end.
        peer: NodeId,
    },
    /// A node wants bytes carried to another.
    Relay {
        /// The sender.
        from: NodeId,
        /// The receiver.
        to: NodeId,
    },
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoordinatorOutput {
    /// Every rank may start.
    Ready,
    /// The edge between these, parent and child, goes through the launcher from now on. Said once.
    Relayed {
        /// The end nearer to the root.
        parent: NodeId,
        /// The other end.
        child: NodeId,
        /// It had been made and broke.
        broke: bool,
    },
    /// Carry the bytes.
    Carry {
        /// To this node.
        to: NodeId,
    },
    /// The deadline has passed.
    Failed,
}

/// A node said what it must not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CoordinatorViolation {
    /// The job has no such node, or it is the root, which joins nobody.
    #[error("node {0} has no parent to join")]
    NoSuchEdge(NodeId),
    /// A second time what comes once.
    #[error("node {0} reported for the second time")]
    Duplicate(NodeId),
    /// Only the root can know.
    #[error("node {0} speaks for the root")]
    NotTheRoot(NodeId),
    /// These two have no edge.
    #[error("nodes {0} and {1} share no edge")]
    NotNeighbours(NodeId, NodeId),
    /// Not in this state.
    #[error("node {node} reported in state {phase:?}")]
    OutOfPhase {
        /// Who.
        node: NodeId,
        /// The state.
        phase: CoordinatorPhase,
    },
}

/// The machine.
#[derive(Debug)]
pub struct Coordinator {
    shape: TreeShape,
    phase: CoordinatorPhase,
    absent: BTreeSet<NodeId>,
    /// By child: the edges that go through the launcher.
    relayed: BTreeSet<NodeId>,
    deadline: Time,
    outputs: VecDeque<CoordinatorOutput>,
}

impl Coordinator {
    /// Begins to wait for `shape`'s nodes to join.
    pub fn new(shape: TreeShape, now: Time) -> Coordinator {
        let absent: BTreeSet<NodeId> = (1..shape.nodes()).map(NodeId).collect();
        let mut server = Coordinator {
            shape,
            phase: CoordinatorPhase::default(),
            absent,
            relayed: BTreeSet::new(),
            deadline: now + JOIN_TIMEOUT,
            outputs: VecDeque::new(),
        };
        server.settle();
        server
    }

    /// Where the rendezvous is.
    pub fn phase(&self) -> CoordinatorPhase {
        self.phase
    }

    /// Nodes that have not reported their edge.
    pub fn absent(&self) -> impl Iterator<Item = NodeId> {
        self.absent.iter().copied()
    }

    /// Something happened. After a violation the server is as it was before.
    pub fn handle(&mut self, input: CoordinatorInput) -> Result<(), CoordinatorViolation> {
        match input {
            CoordinatorInput::Joined { node, relayed } => self.on_joined(node, relayed),
            CoordinatorInput::TableEverywhere { node } => self.on_table(node),
            CoordinatorInput::Broke { node, peer } => {
                let child = self.child_of_edge(node, peer)?;
                self.relay(child, true);
                Ok(())
            }
            CoordinatorInput::Relay { from, to } => {
                let child = self.child_of_edge(from, to)?;
                // What one end relays shows that the edge is; the other end may learn it by this.
                self.relay(child, !self.absent.contains(&child));
                self.outputs.push_back(CoordinatorOutput::Carry { to });
                Ok(())
            }
        }
    }

    /// The time has come that [`Coordinator::poll_timeout`] named.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.poll_timeout().is_some_and(|at| at <= now) {
            self.advance(CoordinatorPhaseEvent::Deadline);
            self.outputs.push_back(CoordinatorOutput::Failed);
        }
    }

    /// Everybody has joined, and the table is about to be sent: it has as long as joining had.
    pub fn begin_table(&mut self, now: Time) {
        self.deadline = now + JOIN_TIMEOUT;
    }

    /// When [`Coordinator::handle_timeout`] is due next.
    pub fn poll_timeout(&self) -> Option<Time> {
        matches!(self.phase, CoordinatorPhase::AwaitEdges | CoordinatorPhase::AwaitTable)
            .then_some(self.deadline)
    }

    /// The next thing to do.
    pub fn poll_output(&mut self) -> Option<CoordinatorOutput> {
        self.outputs.pop_front()
    }

    fn on_joined(&mut self, node: NodeId, relayed: bool) -> Result<(), CoordinatorViolation> {
        if node.0 == 0 || node.0 >= self.shape.nodes() {
            return Err(CoordinatorViolation::NoSuchEdge(node));
        }
        if !self.absent.contains(&node) {
            return Err(CoordinatorViolation::Duplicate(node));
        }
        if self.phase != CoordinatorPhase::AwaitEdges {
            return Err(CoordinatorViolation::OutOfPhase { node, phase: self.phase });
        }
        if relayed {
            self.relay(node, false);
        }
        self.absent.remove(&node);
        self.settle();
        Ok(())
    }

    fn on_table(&mut self, node: NodeId) -> Result<(), CoordinatorViolation> {
        if node.0 != 0 {
            return Err(CoordinatorViolation::NotTheRoot(node));
        }
        if !self.advance(CoordinatorPhaseEvent::Table) {
            return Err(CoordinatorViolation::OutOfPhase { node, phase: self.phase });
        }
        self.outputs.push_back(CoordinatorOutput::Ready);
        Ok(())
    }

    fn settle(&mut self) {
        if self.absent.is_empty() && self.phase == CoordinatorPhase::AwaitEdges {
            self.advance(CoordinatorPhaseEvent::LastEdge);
        }
    }

    /// Whether this could happen.
    fn advance(&mut self, event: CoordinatorPhaseEvent) -> bool {
        let next = self.phase.after(event);
        self.phase = next.unwrap_or(self.phase);
        next.is_some()
    }

    fn child_of_edge(&self, a: NodeId, b: NodeId) -> Result<NodeId, CoordinatorViolation> {
        if !self.shape.is_edge(a, b) {
            return Err(CoordinatorViolation::NotNeighbours(a, b));
        }
        Ok(a.max(b))
    }

    fn relay(&mut self, child: NodeId, broke: bool) {
        if let Some(parent) = self.shape.parent(child).filter(|_| self.relayed.insert(child)) {
            self.outputs.push_back(CoordinatorOutput::Relayed { parent, child, broke });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: NodeId = NodeId(0);

    fn joined(node: u32) -> CoordinatorInput {
        CoordinatorInput::Joined { node: NodeId(node), relayed: false }
    }

    fn outputs(server: &mut Coordinator) -> Vec<CoordinatorOutput> {
        std::iter::from_fn(|| server.poll_output()).collect()
    }

    /// Three nodes in a row, of which these have joined.
    fn server(nodes: impl IntoIterator<Item = u32>) -> Coordinator {
        let mut server = Coordinator::new(TreeShape::new(3, 1), Time(0));
        nodes.into_iter().for_each(|node| server.handle(joined(node)).unwrap());
        server
    }

    #[test]
    fn it_is_ready_when_all_have_joined_and_the_root_says_so() {
        let mut server = server([2, 1]);
        assert_eq!(server.phase(), CoordinatorPhase::AwaitTable);
        server.handle(CoordinatorInput::TableEverywhere { node: ROOT }).unwrap();
        assert_eq!((server.phase(), server.poll_timeout()), (CoordinatorPhase::Running, None));
        assert_eq!(outputs(&mut server), [CoordinatorOutput::Ready]);
    }

    #[test]
    fn who_has_not_joined_is_named_at_the_deadline() {
        let mut server = server([2]);
        let due = server.poll_timeout().unwrap();
        server.handle_timeout(Time(due.0 - 1));
        assert_eq!(server.phase(), CoordinatorPhase::AwaitEdges);
        server.handle_timeout(due);
        assert_eq!(server.absent().collect::<Vec<_>>(), [NodeId(1)]);
        assert_eq!((server.phase(), server.poll_timeout()), (CoordinatorPhase::Failed, None));
        assert_eq!(outputs(&mut server), [CoordinatorOutput::Failed]);
    }

    #[test]
    fn an_edge_is_relayed_once_said_and_always_carried() {
        let (parent, child) = (ROOT, NodeId(1));
        let mut server = Coordinator::new(TreeShape::new(2, 1), Time(0));
        server.handle(CoordinatorInput::Joined { node: child, relayed: true }).unwrap();
        assert_eq!(
            outputs(&mut server),
            [CoordinatorOutput::Relayed { parent, child, broke: false }]
        );
        server.handle(CoordinatorInput::Relay { from: parent, to: child }).unwrap();
        server.handle(CoordinatorInput::Broke { node: child, peer: parent }).unwrap();
        assert_eq!(outputs(&mut server), [CoordinatorOutput::Carry { to: child }]);
    }

    #[test]
    fn an_edge_that_breaks_is_told_by_either_end() {
        let (parent, child) = (NodeId(1), NodeId(2));
        let relayed = CoordinatorOutput::Relayed { parent, child, broke: true };
        for (node, peer) in [(parent, child), (child, parent)] {
            let mut server = server([1, 2]);
            server.handle(CoordinatorInput::Broke { node, peer }).unwrap();
            assert_eq!(outputs(&mut server), [relayed]);
        }
        // The other end may hear of it by what is relayed to it.
        let mut server = server([1, 2]);
        server.handle(CoordinatorInput::Relay { from: parent, to: child }).unwrap();
        assert_eq!(outputs(&mut server), [relayed, CoordinatorOutput::Carry { to: child }]);
    }

    #[test]
    fn every_violation_has_its_name_and_no_effect() {
        let table = |node| CoordinatorInput::TableEverywhere { node: NodeId(node) };
        let out_of = |phase| CoordinatorViolation::OutOfPhase { node: ROOT, phase };
        let strangers = CoordinatorViolation::NotNeighbours(ROOT, NodeId(2));
        let mut failed = server([2]);
        failed.handle_timeout(failed.poll_timeout().unwrap());
        let late =
            CoordinatorViolation::OutOfPhase { node: NodeId(1), phase: CoordinatorPhase::Failed };
        let cases = [
            (server([]), joined(0), CoordinatorViolation::NoSuchEdge(ROOT)),
            (server([]), joined(3), CoordinatorViolation::NoSuchEdge(NodeId(3))),
            (server([2]), joined(2), CoordinatorViolation::Duplicate(NodeId(2))),
            (server([1, 2]), table(1), CoordinatorViolation::NotTheRoot(NodeId(1))),
            (server([1]), table(0), out_of(CoordinatorPhase::AwaitEdges)),
            (failed, joined(1), late),
            (server([1, 2]), CoordinatorInput::Broke { node: ROOT, peer: NodeId(2) }, strangers),
            (server([1, 2]), CoordinatorInput::Relay { from: ROOT, to: NodeId(2) }, strangers),
        ];
        for (mut server, input, violation) in cases {
            outputs(&mut server);
            let (phase, absent) = (server.phase(), server.absent().count());
            assert_eq!(server.handle(input), Err(violation));
            assert_eq!((server.phase(), server.absent().count()), (phase, absent));
            assert_eq!(outputs(&mut server), []);
        }
        let mut done = server([1, 2]);
        done.handle(table(0)).unwrap();
        assert_eq!(done.handle(table(0)), Err(out_of(CoordinatorPhase::Running)));
    }

    #[test]
    fn the_states_of_a_rendezvous() {
        assert_eq!(
            CoordinatorPhase::graph(),
            "AwaitEdges -- LastEdge -> AwaitTable\n\
             AwaitTable -- Table -> Running\n\
             AwaitEdges -- Deadline -> Failed\n\
             AwaitTable -- Deadline -> Failed\n"
        );
    }
}
