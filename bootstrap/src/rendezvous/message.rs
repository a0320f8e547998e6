//! Messages between neighbouring agents in the tree.

use super::payload::Payload;
use super::rank_set::RankSet;
use crate::id::{ExitStatus, Rank};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// Maximum length of the name of a barrier, gather, namespace or key, in bytes.
pub const MAX_NAME: usize = 255;
/// Maximum length of a rank's blob in a gather, and of the value of a key, in bytes.
pub const MAX_BLOB: usize = 64 << 10;
/// Maximum length of the text of an abort or event, in bytes.
pub const MAX_TEXT: usize = 4 << 10;
/// Maximum number of missing ranks whose states are reported.
pub const MAX_DESCRIBED: usize = 8;

/// Kind of collective operation, in which all ranks of the job take part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum CollectiveKind {
    /// Wait until every rank has arrived.
    Barrier,
    /// Give every rank the blobs of all ranks.
    Gather,
}

/// Identity of a barrier or gather. Every rank counts its calls of each kind and name; the calls of
/// all ranks with the same count belong together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CollectiveId {
    pub kind: CollectiveKind,
    /// Name of the collective, at most [`MAX_NAME`] bytes.
    pub name: Arc<str>,
    /// Number of earlier calls with this kind and name by the same rank.
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

/// Key of the job's key-value store.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Key {
    /// Namespace of the key, at most [`MAX_NAME`] bytes. Keys with equal names in different
    /// namespaces are different.
    pub namespace: Arc<str>,
    /// Name of the key, at most [`MAX_NAME`] bytes.
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

/// Ranks that have not arrived at a collective.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissingRanks {
    /// All missing ranks.
    pub ranks: RankSet,
    /// States of some of the missing ranks, at most [`MAX_DESCRIBED`].
    pub states: Vec<(Rank, RankState)>,
}

impl MissingRanks {
    /// Adds the missing ranks in `other`.
    pub fn extend(&mut self, other: MissingRanks) {
        self.ranks.extend(&other.ranks);
        let room = MAX_DESCRIBED.saturating_sub(self.states.len());
        self.states.extend(other.states.into_iter().take(room));
    }

    /// Adds ranks that are all in the same state.
    pub fn add_all(&mut self, ranks: &RankSet, state: RankState) {
        self.ranks.extend(ranks);
        let room = MAX_DESCRIBED.saturating_sub(self.states.len());
        self.states.extend(ranks.iter().take(room).map(|rank| (rank, state)));
    }

    /// Adds a rank with its state.
    pub fn add(&mut self, rank: Rank, state: RankState) {
        self.ranks.insert(rank);
        if self.states.len() < MAX_DESCRIBED {
            self.states.push((rank, state));
        }
    }
}

/// State of a missing rank, as the agent of its node knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RankState {
    /// The rank is running, but has never called its agent.
    NeverCalled {
        /// Process id of the rank on its node.
        pid: u32,
    },
    /// The rank is running and has called its agent, but has not arrived at this collective.
    NotArrived {
        /// Process id of the rank on its node.
        pid: u32,
    },
    Ended(ExitStatus),
    /// The rank has not been started yet.
    NotStarted,
    /// The state is not known, because the rank's agent did not answer in time.
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
        for (rank, _) in &self.states {
            others.remove(*rank);
        }
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum CollectiveFailure {
    /// A rank ended without arriving at the collective.
    #[error("rank {rank} {status} without arriving")]
    RankEnded { rank: Rank, status: ExitStatus },
}

/// Number of calls that a rank had made when it ended, for each kind and name of collective.
pub type CallCounts = Vec<(CollectiveKind, Arc<str>, u64)>;

/// Message between neighbours in the tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// To a child: the rank table, as payload.
    Table,
    /// To the parent: every node of the sender's subtree has the rank table.
    TableReceived {
        /// Ranks of all nodes in the sender's subtree.
        ranks: RankSet,
    },
    /// To the parent: every rank of the sender's subtree has arrived at this collective. The
    /// payload of a gather contains the records of these ranks.
    Arrived(CollectiveId),
    /// To a child: every rank of the job has arrived at this collective. The payload of a gather
    /// contains the records of the ranks outside the child's subtree, so that no record crosses an
    /// edge of the tree twice.
    Released(CollectiveId),
    /// To the parent: this collective can never complete. The root notifies all nodes by
    /// [`Message::Failed`].
    ReportFailure(CollectiveId, CollectiveFailure),
    /// To a child: this collective can never complete, and pending calls of it fail.
    Failed(CollectiveId, CollectiveFailure),
    /// To the parent: ranks of the sender's subtree have ended, with these numbers of calls.
    Ended(Vec<(Rank, ExitStatus, CallCounts)>),
    /// To the parent: request to search for missing ranks, because a rank has waited long.
    QueryMissing {
        /// Collective that the rank waits for.
        operation: CollectiveId,
        /// Time for which the rank has waited, in milliseconds.
        waited_ms: u64,
    },
    /// To a child: request to report the ranks of the child's subtree that are missing from this
    /// collective.
    CountMissing(CollectiveId),
    /// To the parent: ranks of the sender's subtree that are missing from this collective.
    MissingCounted(CollectiveId, MissingRanks),
    /// To a child: ranks of the whole job that are missing from this collective, to be named in
    /// timeout errors.
    Missing(CollectiveId, MissingRanks),
    /// To the parent: request to store the payload under a key.
    Put {
        /// Number that the sender chose for this request. The reply repeats it.
        request: u64,
        /// Key to store the payload under.
        key: Key,
    },
    /// To a child: reply to [`Message::Put`].
    Stored {
        request: u64,
        /// Whether the value was stored; `false` if there is no room for it.
        stored: bool,
    },
    /// To the parent: request for the value of a key.
    Get {
        /// Number that the sender chose for this request. The reply repeats it.
        request: u64,
        /// Key whose value is requested.
        key: Key,
    },
    /// To a child: reply to [`Message::Get`], with the value as payload.
    Got {
        request: u64,
        /// Whether the key has a value; otherwise the payload is empty.
        found: bool,
    },
    /// To the parent: request to send the value of this key as soon as it has one. A node sends the
    /// request once for all ranks of its subtree.
    Await(Key),
    /// To a child: this key now has a value, which is the payload.
    Appeared(Key),
    /// To the parent: request to the root's agent. The content of the request is the payload.
    RootRequest {
        /// Number that the sender chose for this request. The reply repeats it.
        request: u64,
    },
    /// To a child: reply to [`Message::RootRequest`]. The content of the reply is the payload.
    RootReply { request: u64 },
    /// To the parent or a child: the job is aborted, and pending calls of all ranks fail.
    Abort {
        /// Rank that called for the abort; `None` if rlaunch itself did.
        by: Option<Rank>,
        /// Reason for the abort, at most [`MAX_TEXT`] bytes.
        text: String,
    },
    /// To the parent: request for the time on the parent's clock.
    Ping {
        /// Time on the sender's clock, in nanoseconds.
        sent: u64,
    },
    /// To a child: reply to [`Message::Ping`].
    Pong {
        /// Copy of `sent` in the [`Message::Ping`].
        sent: u64,
        /// Time on the replying node's clock, in nanoseconds.
        at: u64,
        /// Offset to add to the replying node's clock to get the root's clock, in nanoseconds.
        offset: i64,
        /// Maximum error of the offset in nanoseconds; `u64::MAX` if the offset is not known yet.
        error: u64,
    },
}

impl Message {
    /// Tells whether a parent may send the message before the rank table. Agents use collectives
    /// before any rank runs.
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

    /// Returns the name of the message, for errors and traces.
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
            Message::Stored { .. } => "stored",
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

/// Message between neighbours in the tree, with its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Message without its payload.
    pub message: Message,
    /// Payload of the message; empty for most messages.
    pub payload: Payload,
}

impl From<Message> for Packet {
    fn from(message: Message) -> Packet {
        Packet { message, payload: Payload::empty() }
    }
}
