//! What neighbours in the tree tell each other.

use super::payload::Payload;
use super::rank_set::RankSet;
use crate::exit_status::ExitStatus;
use crate::id::Rank;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// The longest name of a barrier, a gather, a namespace or a key, in bytes.
pub const MAX_NAME: usize = 255;
/// The most that one rank gives to a gather, or that a key holds, in bytes.
pub const MAX_BLOB: usize = 64 << 10;
/// The longest text of an abort or an event, in bytes.
pub const MAX_TEXT: usize = 4 << 10;
/// Ranks that a census describes one by one; of the others it gives the numbers.
pub const MAX_DESCRIBED: usize = 8;

/// What ranks do together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum CollectiveKind {
    /// Nobody goes on before everybody has arrived.
    Barrier,
    /// Everybody gets what everybody gave.
    Gather,
}

/// One barrier or gather: the `sequence`-th of its name. Every rank counts its own call_counts, so ranks
/// that call the same name equally often meet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CollectiveId {
    /// What is done.
    pub kind: CollectiveKind,
    /// At most [`MAX_NAME`] bytes.
    pub name: Arc<str>,
    /// From 0.
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

/// A key of the job's store.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Key {
    /// Keys of different namespaces never meet. At most [`MAX_NAME`] bytes.
    pub namespace: Arc<str>,
    /// At most [`MAX_NAME`] bytes.
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

/// Who has not arrived somewhere, and what is known of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissingRanks {
    /// All of them.
    pub ranks: RankSet,
    /// What was seen of the first [`MAX_DESCRIBED`] of them.
    pub states: Vec<(Rank, RankState)>,
}

impl MissingRanks {
    /// Adds those that `other` misses.
    pub fn extend(&mut self, other: MissingRanks) {
        self.ranks.extend(&other.ranks);
        let room = MAX_DESCRIBED.saturating_sub(self.states.len());
        self.states.extend(other.states.into_iter().take(room));
    }

    /// Adds ranks of which the same was seen. There may be any number of them.
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

/// What an agent has seen of a rank that others wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RankState {
    /// It runs and has never spoken to its agent.
    NeverCalled {
        /// Its process id.
        pid: u32,
    },
    /// It runs and has spoken, but not arrived where others are.
    NotArrived {
        /// Its process id.
        pid: u32,
    },
    /// It has ended.
    Ended(ExitStatus),
    /// Its agent has not started it.
    NotStarted,
    /// Its agent did not answer.
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

/// `rank 3 (pid 17, running, has not arrived), ranks 5-8`
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

/// Why a barrier or gather cannot end well.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CollectiveFailure {
    /// A rank ended without arriving.
    RankEnded {
        /// The rank.
        rank: Rank,
        /// How.
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

/// How many call_counts of each name a rank had taken when it ended.
pub type CallCounts = Vec<(CollectiveKind, Arc<str>, u64)>;

/// From a neighbour. *Up* is towards the root.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// Down, with the rank table as payload.
    Table,
    /// Up: every node of the sender's subtree has the table.
    TableReceived {
        /// The ranks of that subtree.
        ranks: RankSet,
    },
    /// Up: every rank of the subtree has arrived; a gather's payload is what they gave.
    Arrived(CollectiveId),
    /// Down: everybody has arrived; a gather's payload is what the ranks outside the receiver's
    /// subtree gave, so that no byte crosses an edge twice.
    Released(CollectiveId),
    /// Up: it can never end well.
    ReportFailure(CollectiveId, CollectiveFailure),
    /// Down: it never will.
    Failed(CollectiveId, CollectiveFailure),
    /// Up: these ranks have ended.
    Ended(Vec<(Rank, ExitStatus, CallCounts)>),
    /// Up: somebody has waited long; who is missing?
    QueryMissing {
        /// Where it waits.
        operation: CollectiveId,
        /// How long, in milliseconds.
        waited_ms: u64,
    },
    /// Down: who of your subtree is missing?
    CountMissing(CollectiveId),
    /// Up: these of my subtree.
    MissingCounted(CollectiveId, MissingRanks),
    /// Down: this was found.
    Missing(CollectiveId, MissingRanks),
    /// Up: keep the payload under this key.
    Put {
        /// Chosen by the sender, repeated in the answer.
        request: u64,
        /// Where to keep it.
        key: Key,
    },
    /// Down: it is kept, or there is no room.
    Kept {
        /// Of the [`Message::Put`].
        request: u64,
        /// Whether it is.
        kept: bool,
    },
    /// Up: what is under this key now?
    Get {
        /// Chosen by the sender, repeated in the answer.
        request: u64,
        /// The key.
        key: Key,
    },
    /// Down: the payload, or nothing.
    Got {
        /// Of the [`Message::Get`].
        request: u64,
        /// Whether there was anything.
        found: bool,
    },
    /// Up: tell me once something is under this key. A node asks once for all who wait below it.
    Await(Key),
    /// Down: the payload is.
    Appeared(Key),
    /// Up: the payload is a question for the root's agent.
    RootRequest {
        /// Chosen by the sender, repeated in the answer.
        request: u64,
    },
    /// Down: the payload is the answer.
    RootReply {
        /// Number of the [`Message::RootRequest`].
        request: u64,
    },
    /// Both ways: every rank's calls end here.
    Abort {
        /// Who asked, unless rlaunch itself did.
        by: Option<Rank>,
        /// At most [`MAX_TEXT`] bytes.
        text: String,
    },
    /// Up: what time is it?
    Ping {
        /// The sender's clock, in nanoseconds.
        sent: u64,
    },
    /// Down: the answer to a ping.
    Pong {
        /// Of the [`Message::Ping`].
        sent: u64,
        /// The answering node's clock when it answered, in nanoseconds.
        at: u64,
        /// What the answering node adds to its clock to have the root's, in nanoseconds.
        offset: i64,
        /// How far that may be off, in nanoseconds.
        error: u64,
    },
}

impl Message {
    /// Whether a parent may send this before the rank table: agents meet without it.
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

    /// The message's name, for violations and traces.
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

/// A message and the bytes that go with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// What is said.
    pub message: Message,
    /// Empty for most.
    pub payload: Payload,
}

impl From<Message> for Packet {
    fn from(message: Message) -> Packet {
        Packet { message, payload: Payload::empty() }
    }
}
