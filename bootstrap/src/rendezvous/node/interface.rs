//! Inputs and outputs of a node's state machine: calls of ranks with their answers, packets, reports;
//! and violations of the protocol that it detects.

use super::NodePhase;
use crate::id::{ExitStatus, NodeId, Rank};
use crate::rendezvous::message::{
    CollectiveFailure, CollectiveId, CollectiveKind, Key, MAX_BLOB, MAX_NAME, MAX_TEXT,
    MissingRanks, Packet,
};
use crate::rendezvous::payload::Payload;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

/// Identifier of a rank's connection to its agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u64);

/// Identity of a call on a node: connection and request number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId {
    /// Connection on which the call came and its answer is sent.
    pub client: ClientId,
    /// Number that the rank chose for the request.
    pub request: u64,
}

/// Operation that a rank asks its agent for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Call {
    /// Arrive at a barrier or gather, and wait for the other ranks.
    Collective {
        kind: CollectiveKind,
        /// Name of the collective, at most [`MAX_NAME`] bytes.
        name: Arc<str>,
        /// Blob of this rank, at most [`MAX_BLOB`] bytes; empty for a barrier.
        #[serde(with = "serde_bytes")]
        blob: Vec<u8>,
        /// Time to wait for the other ranks; `None` for no limit.
        timeout: Option<Duration>,
    },
    /// Store a value under a key.
    Put {
        /// Key to store the value under.
        key: Key,
        /// Value to store, at most [`MAX_BLOB`] bytes.
        #[serde(with = "serde_bytes")]
        value: Vec<u8>,
    },
    /// Return the value of a key, if it has one.
    Get(Key),
    /// Wait until a key has a value, and return the value.
    Await {
        /// Key whose value is awaited.
        key: Key,
        /// Time to wait for the value; `None` for no limit.
        timeout: Option<Duration>,
    },
    /// Abort the job for this reason, at most [`MAX_TEXT`] bytes.
    Abort(String),
    /// Measure the offset between this host's clock and the clock of the root's host.
    Clock,
    /// Add this text to the event log that `--events` writes; at most [`MAX_TEXT`] bytes.
    Event(String),
}

/// Answer to a [`Call`]. On a rank's socket the data of the answer travels separately, as the
/// payload of the frame, and `Bytes` is `()`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer<Bytes = Payload> {
    /// The operation is complete and returns no data.
    Done,
    /// Records of all ranks, which [`crate::rendezvous::payload::Gathered`] decodes.
    Gathered(Bytes),
    /// Value of a key, or reply to a request to the root's agent.
    Value(Bytes),
    /// The key does not have a value.
    NoValue,
    /// Offset to add to this host's clock to get the clock of the root's host.
    Clock {
        /// Offset in nanoseconds; negative if this host's clock is ahead.
        offset: i64,
        /// Maximum error of the offset, in nanoseconds.
        error: u64,
    },
    /// The timeout expired. Contains the missing ranks that the last search found, if there was a
    /// search.
    TimedOut(MissingRanks),
    /// The operation can never complete, for this reason.
    Failed(CollectiveFailure),
    Aborted {
        /// Rank that called for the abort; `None` if rlaunch itself did.
        by: Option<Rank>,
        /// Reason for the abort.
        text: String,
    },
    /// The agent refused the call, for this reason.
    Refused(Refusal),
}

impl Answer {
    /// Splits the answer into a part without data and the data.
    pub fn split(self) -> (Answer<()>, Payload) {
        let bare = |answer| (answer, Payload::empty());
        match self {
            Answer::Gathered(bytes) => (Answer::Gathered(()), bytes),
            Answer::Value(bytes) => (Answer::Value(()), bytes),
            Answer::Done => bare(Answer::Done),
            Answer::NoValue => bare(Answer::NoValue),
            Answer::Clock { offset, error } => bare(Answer::Clock { offset, error }),
            Answer::TimedOut(missing) => bare(Answer::TimedOut(missing)),
            Answer::Failed(why) => bare(Answer::Failed(why)),
            Answer::Aborted { by, text } => bare(Answer::Aborted { by, text }),
            Answer::Refused(refusal) => bare(Answer::Refused(refusal)),
        }
    }
}

/// Reason why an agent refuses a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    /// A name, value or text is longer than allowed.
    #[error("a name, a value or a text is too long")]
    TooLong,
    /// The rank uses too many names of collectives, or too many calls are pending.
    #[error("too many names or too many calls at once")]
    TooMany,
    /// The key-value store has no room for the value.
    #[error("the job's store is full")]
    Full,
    /// The rank does not run on this node, or has ended.
    #[error("the rank has ended")]
    NotARank,
}

impl Call {
    /// Returns [`Refusal::TooLong`] if a name, value or text of the call is too long.
    pub(super) fn refusal_if_too_long(&self) -> Option<Refusal> {
        let key_fits = |key: &Key| key.namespace.len() <= MAX_NAME && key.name.len() <= MAX_NAME;
        let fits = match self {
            Call::Collective { name, blob, .. } => name.len() <= MAX_NAME && blob.len() <= MAX_BLOB,
            Call::Put { key, value } => key_fits(key) && value.len() <= MAX_BLOB,
            Call::Get(key) | Call::Await { key, .. } => key_fits(key),
            Call::Abort(text) | Call::Event(text) => text.len() <= MAX_TEXT,
            Call::Clock => true,
        };
        (!fits).then_some(Refusal::TooLong)
    }
}

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
