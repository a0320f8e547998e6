//! Inputs and outputs of a node's state machine, and violations of the protocol that it detects.

use super::{Answer, Call, CallId, ClientId, NodePhase};
use crate::exit_status::ExitStatus;
use crate::id::{NodeId, Rank};
use crate::rendezvous::message::{CollectiveId, Key, MissingRanks, Packet};
use crate::rendezvous::payload::Payload;
use std::time::Duration;

/// Input of a node's state machine.
#[derive(Clone, Debug)]
pub enum NodeInput {
    /// Packet that was received from this neighbour in the tree.
    Packet(NodeId, Packet),
    /// Rank table from the launcher. Only the root receives it as this input.
    Table(Payload),
    /// Start of a rank of this node, with its process id.
    RankStarted(Rank, u32),
    /// End of a rank of this node.
    RankEnded(Rank, ExitStatus),
    /// Call of a rank of this node.
    Call(Rank, CallId, Call),
    /// Request of this agent to the root's agent. The result is an [`Answer::Value`].
    AskRoot(CallId, Payload),
    /// Reply of the root's agent to the [`NodeOutput::RootRequest`] with this number. Only for the
    /// root.
    RootReply(u64, Payload),
    /// End of a rank's connection. Its pending calls need no answer.
    ClientGone(ClientId),
}

/// Action that the agent must carry out for the node's state machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeOutput {
    /// Send the packet to this neighbour in the tree.
    Send(NodeId, Packet),
    /// Send the answer to the client that made the call.
    Answer(CallId, Answer),
    /// Process the request and reply with a [`NodeInput::RootReply`] that has this number. Only at
    /// the root.
    RootRequest(u64, Payload),
    /// Make the rank table available to this node's ranks.
    Table(Payload),
    /// Send the report to the launcher.
    Report(NodeReport),
}

/// Report of a node to the launcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeReport {
    /// Every node has received the rank table. Sent by the root.
    TableEverywhere,
    /// A rank of this node, or this agent itself, aborts the job.
    Aborted {
        /// Rank that called for the abort; `None` if rlaunch itself did.
        by: Option<Rank>,
        /// Reason for the abort.
        text: String,
    },
    /// Ranks have waited long for other ranks. Sent by the root.
    Waiting {
        /// Collective that the ranks wait for.
        operation: CollectiveId,
        /// Time for which the first of the ranks has waited.
        waited: Duration,
        /// Ranks that have not arrived.
        missing: MissingRanks,
    },
    /// Ranks have waited long for a key that has no value. Sent by the root.
    WaitingForKey {
        /// Key that the ranks wait for.
        key: Key,
        /// Time for which the first of the ranks has waited.
        waited: Duration,
    },
    /// A rank adds a text to the event log that `--events` writes.
    Event {
        /// Rank that sent the text.
        rank: Rank,
        /// Text for the event log.
        text: String,
    },
}

/// Violation of the protocol by a neighbour in the tree.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NodeViolation {
    /// The sender is neither the parent nor a child of this node.
    #[error("node {0} is not a neighbour")]
    NotANeighbour(NodeId),
    /// The message has the wrong direction: a child sent a message that only a parent may send, or
    /// the parent sent a message that only a child may send.
    #[error("{message:?} from {from}, in the wrong direction")]
    WrongDirection {
        /// Node that sent the message.
        from: NodeId,
        /// Name of the message ([`crate::rendezvous::message::Message::name`]).
        message: &'static str,
    },
    /// The sender has sent this message before, and may send it only once.
    #[error("{message:?} from {from} for the second time")]
    Duplicate {
        /// Node that sent the message.
        from: NodeId,
        /// Name of the message ([`crate::rendezvous::message::Message::name`]).
        message: &'static str,
    },
    /// The message refers to a request, key or collective that does not exist on this node.
    #[error("{message:?} from {from} about something unknown")]
    Unknown {
        /// Node that sent the message.
        from: NodeId,
        /// Name of the message ([`crate::rendezvous::message::Message::name`]).
        message: &'static str,
    },
    /// The message is not allowed in the present state of this node.
    #[error("{message:?} from {from} in state {phase:?}")]
    OutOfPhase {
        /// Node that sent the message.
        from: NodeId,
        /// Name of the message ([`crate::rendezvous::message::Message::name`]).
        message: &'static str,
        /// State of this node.
        phase: NodePhase,
    },
    /// The sender has sent more messages of this kind than any job needs.
    #[error("too many of {message:?} from {from}")]
    TooMany {
        /// Node that sent the message.
        from: NodeId,
        /// Name of the message ([`crate::rendezvous::message::Message::name`]).
        message: &'static str,
    },
}

impl NodeViolation {
    /// Returns the node that violated the protocol.
    pub fn from(&self) -> NodeId {
        match self {
            NodeViolation::NotANeighbour(from)
            | NodeViolation::WrongDirection { from, .. }
            | NodeViolation::Duplicate { from, .. }
            | NodeViolation::Unknown { from, .. }
            | NodeViolation::OutOfPhase { from, .. }
            | NodeViolation::TooMany { from, .. } => *from,
        }
    }
}
