//! Inputs and outputs of a node, and violations of the protocol that it detects.

use super::{Answer, Call, CallId, ClientId, NodePhase};
use crate::exit_status::ExitStatus;
use crate::id::{NodeId, Rank};
use crate::rendezvous::message::{CollectiveId, Key, MissingRanks, Packet};
use crate::rendezvous::payload::Payload;
use std::time::Duration;

/// Input of a node.
#[derive(Clone, Debug)]
pub enum NodeInput {
    /// Packet from a neighbour.
    Packet(NodeId, Packet),
    /// Rank table from the launcher; only at the root.
    Table(Payload),
    /// Start of a rank, with its process id.
    RankStarted(Rank, u32),
    /// End of a rank.
    RankEnded(Rank, ExitStatus),
    /// Call of a rank.
    Call(Rank, CallId, Call),
    /// Request of this agent to the root's agent. The answer is an [`Answer::Value`].
    AskRoot(CallId, Payload),
    /// Reply of the root's agent to [`NodeOutput::RootRequest`]; only at the root.
    RootReply(u64, Payload),
    /// End of a rank's connection. Its calls need no answer.
    ClientGone(ClientId),
}

/// Action for the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeOutput {
    /// Send a packet to a neighbour.
    Send(NodeId, Packet),
    /// Answer a call.
    Answer(CallId, Answer),
    /// Process a request and reply with [`NodeInput::RootReply`] and this number; only at the root.
    RootRequest(u64, Payload),
    /// Pass the rank table to the ranks.
    Table(Payload),
    /// Report to the launcher.
    Report(NodeReport),
}

/// Report of a node to the launcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeReport {
    /// Every node has the rank table. Sent by the root.
    TableEverywhere,
    /// The job is aborted.
    Aborted {
        /// Rank that asked for it; `None` if rlaunch itself did.
        by: Option<Rank>,
        /// Reason.
        text: String,
    },
    /// Ranks have waited long for others. Sent by the root.
    Waiting {
        /// Operation that they wait in.
        operation: CollectiveId,
        /// Time that the first of them has waited.
        waited: Duration,
        /// Ranks that have not arrived.
        missing: MissingRanks,
    },
    /// Ranks have waited long for a key without a value. Sent by the root.
    WaitingForKey {
        /// Key that they wait for.
        key: Key,
        /// Time that the first of them has waited.
        waited: Duration,
    },
    /// A rank adds a text to the job's event log.
    Event {
        /// Rank that sent it.
        rank: Rank,
        /// Text of the event.
        text: String,
    },
}

/// Violation of the protocol by a neighbour.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NodeViolation {
    /// The sender is not a neighbour.
    #[error("node {0} is not a neighbour")]
    NotANeighbour(NodeId),
    /// The message was sent in the wrong direction.
    #[error("{message:?} from {from}, in the wrong direction")]
    WrongDirection {
        /// Sender.
        from: NodeId,
        /// Name of the message.
        message: &'static str,
    },
    /// The message may be sent only once.
    #[error("{message:?} from {from} for the second time")]
    Duplicate {
        /// Sender.
        from: NodeId,
        /// Name of the message.
        message: &'static str,
    },
    /// The message refers to a request or collective that does not exist.
    #[error("{message:?} from {from} about something unknown")]
    Unknown {
        /// Sender.
        from: NodeId,
        /// Name of the message.
        message: &'static str,
    },
    /// The message is not allowed in this state.
    #[error("{message:?} from {from} in state {phase:?}")]
    OutOfPhase {
        /// Sender.
        from: NodeId,
        /// Name of the message.
        message: &'static str,
        /// State of the node.
        phase: NodePhase,
    },
    /// There are more of these messages than any job needs.
    #[error("too many of {message:?} from {from}")]
    TooMany {
        /// Sender.
        from: NodeId,
        /// Name of the message.
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
