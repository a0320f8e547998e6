//! Calls that ranks make to their agent, and the answers.

use super::super::message::{
    CollectiveFailure, CollectiveKind, Key, MAX_BLOB, MAX_NAME, MAX_TEXT, MissingRanks,
};
use super::super::payload::Payload;
use crate::id::Rank;
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
        /// Kind of the collective.
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
    /// Records of all ranks, which [`crate::rendezvous::gathered::Gathered`] decodes.
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
    /// The job was aborted.
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// A name, value or text is longer than allowed.
    TooLong,
    /// The rank uses too many names of collectives, or too many calls are pending.
    TooMany,
    /// The key-value store has no room for the value.
    Full,
    /// The rank does not run on this node, or has ended.
    NotARank,
}

impl Call {
    /// Returns [`Refusal::TooLong`] if a name, value or text of the call is too long.
    pub(super) fn excess(&self) -> Option<Refusal> {
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
