//! Messages between neighbouring nodes of the tree.

use super::payload::Payload;
use super::rank_set::RankSet;
use crate::exit_status::ExitStatus;
use crate::id::Rank;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// Longest name of a barrier, gather, namespace or key, in bytes.
pub const MAX_NAME: usize = 255;
/// Longest blob of a gather and longest value of a key, in bytes.
pub const MAX_BLOB: usize = 64 << 10;
/// Longest text of an abort or an event, in bytes.
pub const MAX_TEXT: usize = 4 << 10;
/// Number of missing ranks that are described individually.
pub const MAX_DESCRIBED: usize = 8;

/// Kind of a collective operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum CollectiveKind {
    /// Wait until every rank has arrived.
    Barrier,
    /// Give every rank the blobs of all ranks.
    Gather,
}

/// Identity of a barrier or gather. Every rank counts its calls of each kind and name, and calls
/// with the same count belong together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CollectiveId {
    /// Kind of the operation.
    pub kind: CollectiveKind,
    /// Name of the operation, at most [`MAX_NAME`] bytes.
    pub name: Arc<str>,
    /// Number of earlier calls of this kind and name, from 0.
    pub sequence: u64,
}

impl fmt::Display for CollectiveId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.kind, &*self.name) {
            (CollectiveKind::Barrier, "") => write!(f, "barrier"),
            (CollectiveKind::Gather, "") => write!(f, "all-gather"),
            (CollectiveKind::Barrier, name) => write!(f, "barrier {name:?}"),
            (CollectiveKind::Gather, name) => write!(f, "all-gather {name:?}"),
        }
    }
}

/// Key in the job's key-value store.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Key {
    /// Namespace, at most [`MAX_NAME`] bytes. Equal names in different namespaces are different
    /// keys.
    pub namespace: Arc<str>,
    /// Name, at most [`MAX_NAME`] bytes.
    pub name: Arc<str>,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.namespace {
            "" => write!(f, "{:?}", self.name),
            namespace => write!(f, "{:?} of {namespace:?}", self.name),
        }
    }
}

/// Ranks that have not arrived at a collective operation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissingRanks {
    /// All of these ranks.
    pub ranks: RankSet,
    /// States of the first [`MAX_DESCRIBED`] of them.
    pub states: Vec<(Rank, RankState)>,
}

impl MissingRanks {
    /// Adds the ranks of `other`.
    pub fn extend(&mut self, other: MissingRanks) {
        self.ranks.extend(&other.ranks);
        let room = MAX_DESCRIBED.saturating_sub(self.states.len());
        self.states.extend(other.states.into_iter().take(room));
    }

    /// Adds ranks that share one state, however many there are.
    pub fn add_all(&mut self, ranks: &RankSet, state: RankState) {
        self.ranks.extend(ranks);
        let room = MAX_DESCRIBED.saturating_sub(self.states.len());
        self.states.extend(ranks.iter().take(room).map(|rank| (rank, state)));
    }

    /// Adds one rank.
    pub fn add(&mut self, rank: Rank, state: RankState) {
        self.ranks.insert(rank);
        if self.states.len() < MAX_DESCRIBED {
            self.states.push((rank, state));
        }
    }
}

/// State of a missing rank, as its agent knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RankState {
    /// Running, but has never called its agent.
    NeverCalled {
        /// Process id.
        pid: u32,
    },
    /// Running, has called its agent, but has not arrived at this operation.
    NotArrived {
        /// Process id.
        pid: u32,
    },
    /// Ended.
    Ended(ExitStatus),
    /// Not started yet.
    NotStarted,
    /// Unknown, because its agent did not answer.
    AgentSilent,
}

impl fmt::Display for RankState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RankState::NeverCalled { pid } => write!(f, "pid {pid}, running, has never called"),
            RankState::NotArrived { pid } => write!(f, "pid {pid}, running, has not arrived"),
            RankState::Ended(status) => write!(f, "{status}"),
            RankState::NotStarted => write!(f, "not started"),
            RankState::AgentSilent => write!(f, "its agent did not answer"),
        }
    }
}

/// Formats missing ranks as `rank 3 (pid 17, running, has not arrived), ranks 5-8`.
impl fmt::Display for MissingRanks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut others = self.ranks.clone();
        self.states.iter().for_each(|(rank, _)| others.remove(*rank));
        for (index, (rank, state)) in self.states.iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            write!(f, "{separator}rank {rank} ({state})")?;
        }
        match others.len() {
            0 => Ok(()),
            count => {
                let separator = if self.states.is_empty() { "" } else { " and " };
                let plural = if count == 1 { "" } else { "s" };
                write!(f, "{separator}rank{plural} {others}")
            }
        }
    }
}

/// Reason why a barrier or gather can never complete.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CollectiveFailure {
    /// A rank ended without arriving.
    RankEnded {
        /// Rank that ended.
        rank: Rank,
        /// Exit status.
        status: ExitStatus,
    },
}

impl fmt::Display for CollectiveFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CollectiveFailure::RankEnded { rank, status } => {
                write!(f, "rank {rank} {status} without arriving")
            }
        }
    }
}

/// Calls of each kind and name that a rank had made when it ended.
pub type CallCounts = Vec<(CollectiveKind, Arc<str>, u64)>;

/// Message between neighbours. *Up* is towards the root.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// Down: the rank table, as payload.
    Table,
    /// Up: every node of the sender's subtree has the rank table.
    TableReceived {
        /// Ranks of the subtree.
        ranks: RankSet,
    },
    /// Up: every rank of the sender's subtree has arrived. The payload of a gather is their
    /// records.
    Arrived(CollectiveId),
    /// Down: every rank has arrived. The payload of a gather is the records of ranks outside the
    /// receiver's subtree, so that none crosses an edge twice.
    Released(CollectiveId),
    /// Up: the operation can never complete.
    ReportFailure(CollectiveId, CollectiveFailure),
    /// Down: the operation can never complete.
    Failed(CollectiveId, CollectiveFailure),
    /// Up: ranks of the sender's subtree have ended.
    Ended(Vec<(Rank, ExitStatus, CallCounts)>),
    /// Up: a rank has waited long; request to search for the missing ranks.
    QueryMissing {
        /// Operation that the rank waits in.
        operation: CollectiveId,
        /// Time it has waited, in milliseconds.
        waited_ms: u64,
    },
    /// Down: request to report the missing ranks of the receiver's subtree.
    CountMissing(CollectiveId),
    /// Up: missing ranks of the sender's subtree.
    MissingCounted(CollectiveId, MissingRanks),
    /// Down: missing ranks of the whole job, for timeout errors.
    Missing(CollectiveId, MissingRanks),
    /// Up: store the payload under a key.
    Put {
        /// Request number chosen by the sender.
        request: u64,
        /// Key to store it under.
        key: Key,
    },
    /// Down: reply to [`Message::Put`].
    Kept {
        /// Request number.
        request: u64,
        /// Whether the value was stored; there may be no room.
        kept: bool,
    },
    /// Up: read the value of a key.
    Get {
        /// Request number chosen by the sender.
        request: u64,
        /// Key to read.
        key: Key,
    },
    /// Down: reply to [`Message::Get`], with the value as payload.
    Got {
        /// Request number.
        request: u64,
        /// Whether the key has a value.
        found: bool,
    },
    /// Up: send the value of a key once it has one. A node sends this once for all ranks below it.
    Await(Key),
    /// Down: the key has a value, the payload.
    Appeared(Key),
    /// Up: request to the root's agent, as payload.
    RootRequest {
        /// Request number chosen by the sender.
        request: u64,
    },
    /// Down: reply to [`Message::RootRequest`], as payload.
    RootReply {
        /// Request number.
        request: u64,
    },
    /// Up and down: the job is aborted, and pending calls of all ranks fail.
    Abort {
        /// Rank that asked for it; `None` if rlaunch itself did.
        by: Option<Rank>,
        /// Reason, at most [`MAX_TEXT`] bytes.
        text: String,
    },
    /// Up: request for the receiver's clock.
    Ping {
        /// Sender's clock, in nanoseconds.
        sent: u64,
    },
    /// Down: reply to [`Message::Ping`].
    Pong {
        /// Copy of [`Message::Ping`]'s `sent`.
        sent: u64,
        /// Clock of the answering node, in nanoseconds.
        at: u64,
        /// Offset from the answering node's clock to the root's, in nanoseconds.
        offset: i64,
        /// Largest error of the offset, in nanoseconds; `u64::MAX` if it is not known yet.
        error: u64,
    },
}

impl Message {
    /// Tells whether a parent may send this before the rank table. Agents use collectives before
    /// ranks do.
    pub(super) fn may_precede_table(&self) -> bool {
        matches!(
            self,
            Message::Table
                | Message::Released(_)
                | Message::Failed(..)
                | Message::CountMissing(_)
                | Message::Missing(..)
                | Message::Pong { .. }
                | Message::Abort { .. }
        )
    }

    /// Returns the name of the message for errors and traces.
    pub fn name(&self) -> &'static str {
        match self {
            Message::Table => "table",
            Message::TableReceived { .. } => "table received",
            Message::Arrived(_) => "arrived",
            Message::Released(_) => "released",
            Message::ReportFailure(..) => "report failure",
            Message::Failed(..) => "failed",
            Message::Ended(_) => "ended",
            Message::QueryMissing { .. } => "query missing",
            Message::CountMissing(_) => "count missing",
            Message::MissingCounted(..) => "missing counted",
            Message::Missing(..) => "missing",
            Message::Put { .. } => "put",
            Message::Kept { .. } => "kept",
            Message::Get { .. } => "get",
            Message::Got { .. } => "got",
            Message::Await(_) => "await",
            Message::Appeared(_) => "appeared",
            Message::RootRequest { .. } => "root request",
            Message::RootReply { .. } => "root reply",
            Message::Abort { .. } => "abort",
            Message::Ping { .. } => "ping",
            Message::Pong { .. } => "pong",
        }
    }
}

/// Message with its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Message.
    pub message: Message,
    /// Payload; empty for most messages.
    pub payload: Payload,
}

impl From<Message> for Packet {
    fn from(message: Message) -> Packet {
        Packet { message, payload: Payload::empty() }
    }
}
