//! The launcher's view of the rendezvous: which edges of the tree exist, and whether every node has
//! the rank table.
//!
//! ```text
//! AwaitEdges ──every child has reported its edge──▶ AwaitTable ──root: every node has it──▶ Running
//! ```
//!
//! The launcher sends the rank table to the root only after the last child has reported its edge.
//! So when the root confirms the table, all edges have been reported.
//!
//! Edges that could not be made are relayed through the launcher. The coordinator records them, and
//! rejects relayed bytes between nodes that share no edge.

use super::Time;
use super::shape::TreeShape;
use crate::id::NodeId;
use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

/// Time limit for each of two steps: every node joins its parent, and the rank table reaches every
/// node.
pub const JOIN_TIMEOUT: Duration = Duration::from_secs(8);

/// State of the rendezvous.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CoordinatorPhase {
    /// Nodes are connecting to their parents in the tree.
    #[default]
    AwaitEdges,
    /// The rank table is being sent down the tree.
    AwaitTable,
    /// Every node has the rank table.
    Running,
    /// A time limit expired before the step was complete.
    Failed,
}

/// Event that changes the [`CoordinatorPhase`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoordinatorPhaseEvent {
    /// The last child reported the edge to its parent.
    LastEdge,
    /// The root confirmed that every node has the rank table.
    Table,
    /// The time limit of the current step expired.
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

/// Input of the coordinator, from the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoordinatorInput {
    /// A node reported the edge to its parent.
    Joined {
        /// Node that sent the report.
        node: NodeId,
        /// Whether the edge must be relayed through the launcher.
        relayed: bool,
    },
    /// A node reported that every node has the rank table.
    TableEverywhere {
        /// Node that sent the report. Only the root may send it.
        node: NodeId,
    },
    /// The connection of an edge broke, so the edge is relayed from now on.
    Broke {
        /// Node that reported the break.
        node: NodeId,
        /// Node at the other end of the edge.
        peer: NodeId,
    },
    /// A node sent bytes to be relayed to a neighbour in the tree.
    Relay {
        /// Node that sent the bytes.
        from: NodeId,
        /// Node that must receive the bytes.
        to: NodeId,
    },
}

/// Action that the launcher must carry out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoordinatorOutput {
    /// Start the ranks: every node has the rank table.
    Ready,
    /// Record that an edge of the tree is relayed from now on. Emitted once for each edge.
    Relayed {
        /// Node at the end nearer to the root.
        parent: NodeId,
        /// Node at the other end.
        child: NodeId,
        /// Whether the edge had a connection before, which broke.
        broke: bool,
    },
    /// Forward the bytes of the [`CoordinatorInput::Relay`] that was just handled.
    ForwardRelayed {
        /// Node that must receive the bytes.
        to: NodeId,
    },
    /// Give up the rendezvous, because a time limit expired.
    Failed,
}

/// Violation of the protocol by a node. The input that caused it has no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CoordinatorViolation {
    /// The node that reported an edge does not exist, or is the root, which has no parent.
    #[error("node {0} has no parent to join")]
    NoSuchEdge(NodeId),
    /// The node has reported its edge before.
    #[error("node {0} reported for the second time")]
    Duplicate(NodeId),
    /// The node is not the root, but sent a report that only the root may send.
    #[error("node {0} sent a report that only the root may send")]
    NotTheRoot(NodeId),
    /// No edge of the tree connects the two nodes.
    #[error("nodes {0} and {1} share no edge")]
    NotNeighbours(NodeId, NodeId),
    /// The report is not allowed in the present state of the rendezvous.
    #[error("node {node} reported in state {phase:?}")]
    OutOfPhase {
        /// Node that sent the report.
        node: NodeId,
        /// State of the rendezvous.
        phase: CoordinatorPhase,
    },
}

/// State machine of the rendezvous, for the launcher.
#[derive(Debug)]
pub struct Coordinator {
    shape: TreeShape,
    phase: CoordinatorPhase,
    absent: BTreeSet<NodeId>,
    /// Children whose edge to their parent is relayed.
    relayed: BTreeSet<NodeId>,
    deadline: Time,
    outputs: VecDeque<CoordinatorOutput>,
}

impl Coordinator {
    /// Makes a coordinator that waits until the nodes of the tree `shape` have joined.
    pub fn new(shape: TreeShape, now: Time) -> Coordinator {
        let absent: BTreeSet<NodeId> = (1..shape.nodes()).map(NodeId).collect();
        let mut coordinator = Coordinator {
            shape,
            phase: CoordinatorPhase::default(),
            absent,
            relayed: BTreeSet::new(),
            deadline: now + JOIN_TIMEOUT,
            outputs: VecDeque::new(),
        };
        coordinator.advance_if_all_joined();
        coordinator
    }

    /// Returns the state of the rendezvous.
    pub fn phase(&self) -> CoordinatorPhase {
        self.phase
    }

    /// Returns the nodes that have not reported the edge to their parent.
    pub fn absent(&self) -> impl Iterator<Item = NodeId> {
        self.absent.iter().copied()
    }

    /// Handles an input. After an error the state is unchanged.
    pub fn handle(&mut self, input: CoordinatorInput) -> Result<(), CoordinatorViolation> {
        match input {
            CoordinatorInput::Joined { node, relayed } => self.on_joined(node, relayed),
            CoordinatorInput::TableEverywhere { node } => self.on_table_everywhere(node),
            CoordinatorInput::Broke { node, peer } => {
                let child = self.child_of_edge(node, peer)?;
                self.mark_relayed(child, true);
                Ok(())
            }
            CoordinatorInput::Relay { from, to } => {
                let child = self.child_of_edge(from, to)?;
                // A relayed edge is reported by one end only. The other end may detect the break
                // only through these bytes, and never report it.
                self.mark_relayed(child, !self.absent.contains(&child));
                self.outputs.push_back(CoordinatorOutput::ForwardRelayed { to });
                Ok(())
            }
        }
    }

    /// Handles the expiry of the time limit. Does nothing before the time that
    /// [`Coordinator::poll_timeout`] returns.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.poll_timeout().is_some_and(|at| at <= now) {
            self.advance(CoordinatorPhaseEvent::Deadline);
            self.outputs.push_back(CoordinatorOutput::Failed);
        }
    }

    /// Restarts the time limit when the launcher begins to send the rank table.
    pub fn begin_table(&mut self, now: Time) {
        self.deadline = now + JOIN_TIMEOUT;
    }

    /// Returns the time at which to call [`Coordinator::handle_timeout`]; `None` if no time limit
    /// is running.
    pub fn poll_timeout(&self) -> Option<Time> {
        matches!(self.phase, CoordinatorPhase::AwaitEdges | CoordinatorPhase::AwaitTable)
            .then_some(self.deadline)
    }

    /// Returns the next action, or `None` if there is none.
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
            self.mark_relayed(node, false);
        }
        self.absent.remove(&node);
        self.advance_if_all_joined();
        Ok(())
    }

    fn on_table_everywhere(&mut self, node: NodeId) -> Result<(), CoordinatorViolation> {
        if node.0 != 0 {
            return Err(CoordinatorViolation::NotTheRoot(node));
        }
        if !self.advance(CoordinatorPhaseEvent::Table) {
            return Err(CoordinatorViolation::OutOfPhase { node, phase: self.phase });
        }
        self.outputs.push_back(CoordinatorOutput::Ready);
        Ok(())
    }

    fn advance_if_all_joined(&mut self) {
        if self.absent.is_empty() && self.phase == CoordinatorPhase::AwaitEdges {
            self.advance(CoordinatorPhaseEvent::LastEdge);
        }
    }

    /// Changes the state if the event is allowed in it. Returns whether the event is allowed.
    fn advance(&mut self, event: CoordinatorPhaseEvent) -> bool {
        let next = self.phase.after(event);
        self.phase = next.unwrap_or(self.phase);
        next.is_some()
    }

    /// Returns the child of two neighbours in the tree, by which an edge is known.
    fn child_of_edge(&self, a: NodeId, b: NodeId) -> Result<NodeId, CoordinatorViolation> {
        if !self.shape.is_edge(a, b) {
            return Err(CoordinatorViolation::NotNeighbours(a, b));
        }
        Ok(a.max(b))
    }

    /// Records that the edge above a child is relayed, unless that is known.
    fn mark_relayed(&mut self, child: NodeId, broke: bool) {
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

    fn outputs(coordinator: &mut Coordinator) -> Vec<CoordinatorOutput> {
        std::iter::from_fn(|| coordinator.poll_output()).collect()
    }

    /// Makes a coordinator for a chain of three nodes, of which `nodes` have joined already.
    fn joined_by(nodes: impl IntoIterator<Item = u32>) -> Coordinator {
        let mut coordinator = Coordinator::new(TreeShape::new(3, 1), Time(0));
        nodes.into_iter().for_each(|node| coordinator.handle(joined(node)).unwrap());
        coordinator
    }

    #[test]
    fn it_is_ready_when_all_have_joined_and_the_root_says_so() {
        let mut coordinator = joined_by([2, 1]);
        assert_eq!(coordinator.phase(), CoordinatorPhase::AwaitTable);
        coordinator.handle(CoordinatorInput::TableEverywhere { node: ROOT }).unwrap();
        assert_eq!(
            (coordinator.phase(), coordinator.poll_timeout()),
            (CoordinatorPhase::Running, None)
        );
        assert_eq!(outputs(&mut coordinator), [CoordinatorOutput::Ready]);
    }

    #[test]
    fn who_has_not_joined_is_named_at_the_deadline() {
        let mut coordinator = joined_by([2]);
        let due = coordinator.poll_timeout().unwrap();
        coordinator.handle_timeout(Time(due.0 - 1));
        assert_eq!(coordinator.phase(), CoordinatorPhase::AwaitEdges);
        coordinator.handle_timeout(due);
        assert_eq!(coordinator.absent().collect::<Vec<_>>(), [NodeId(1)]);
        assert_eq!(
            (coordinator.phase(), coordinator.poll_timeout()),
            (CoordinatorPhase::Failed, None)
        );
        assert_eq!(outputs(&mut coordinator), [CoordinatorOutput::Failed]);
    }

    #[test]
    fn an_edge_is_reported_relayed_once_and_bytes_are_always_forwarded() {
        let (parent, child) = (ROOT, NodeId(1));
        let mut coordinator = Coordinator::new(TreeShape::new(2, 1), Time(0));
        coordinator.handle(CoordinatorInput::Joined { node: child, relayed: true }).unwrap();
        assert_eq!(
            outputs(&mut coordinator),
            [CoordinatorOutput::Relayed { parent, child, broke: false }]
        );
        coordinator.handle(CoordinatorInput::Relay { from: parent, to: child }).unwrap();
        coordinator.handle(CoordinatorInput::Broke { node: child, peer: parent }).unwrap();
        assert_eq!(outputs(&mut coordinator), [CoordinatorOutput::ForwardRelayed { to: child }]);
    }

    #[test]
    fn an_edge_that_breaks_is_told_by_either_end() {
        let (parent, child) = (NodeId(1), NodeId(2));
        let relayed = CoordinatorOutput::Relayed { parent, child, broke: true };
        for (node, peer) in [(parent, child), (child, parent)] {
            let mut coordinator = joined_by([1, 2]);
            coordinator.handle(CoordinatorInput::Broke { node, peer }).unwrap();
            assert_eq!(outputs(&mut coordinator), [relayed]);
        }
        // The other end may detect the break only through the relayed bytes.
        let mut coordinator = joined_by([1, 2]);
        coordinator.handle(CoordinatorInput::Relay { from: parent, to: child }).unwrap();
        assert_eq!(
            outputs(&mut coordinator),
            [relayed, CoordinatorOutput::ForwardRelayed { to: child }]
        );
    }

    #[test]
    fn every_violation_has_its_name_and_no_effect() {
        let table = |node| CoordinatorInput::TableEverywhere { node: NodeId(node) };
        let out_of = |phase| CoordinatorViolation::OutOfPhase { node: ROOT, phase };
        let strangers = CoordinatorViolation::NotNeighbours(ROOT, NodeId(2));
        let mut failed = joined_by([2]);
        failed.handle_timeout(failed.poll_timeout().unwrap());
        let late =
            CoordinatorViolation::OutOfPhase { node: NodeId(1), phase: CoordinatorPhase::Failed };
        let cases = [
            (joined_by([]), joined(0), CoordinatorViolation::NoSuchEdge(ROOT)),
            (joined_by([]), joined(3), CoordinatorViolation::NoSuchEdge(NodeId(3))),
            (joined_by([2]), joined(2), CoordinatorViolation::Duplicate(NodeId(2))),
            (joined_by([1, 2]), table(1), CoordinatorViolation::NotTheRoot(NodeId(1))),
            (joined_by([1]), table(0), out_of(CoordinatorPhase::AwaitEdges)),
            (failed, joined(1), late),
            (joined_by([1, 2]), CoordinatorInput::Broke { node: ROOT, peer: NodeId(2) }, strangers),
            (joined_by([1, 2]), CoordinatorInput::Relay { from: ROOT, to: NodeId(2) }, strangers),
        ];
        for (mut coordinator, input, violation) in cases {
            outputs(&mut coordinator);
            let (phase, absent) = (coordinator.phase(), coordinator.absent().count());
            assert_eq!(coordinator.handle(input), Err(violation));
            assert_eq!((coordinator.phase(), coordinator.absent().count()), (phase, absent));
            assert_eq!(outputs(&mut coordinator), []);
        }
        let mut done = joined_by([1, 2]);
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
