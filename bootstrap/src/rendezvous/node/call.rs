//! Calls of ranks to their node, and the answers.

use super::super::message::{
    CollectiveFailure, CollectiveKind, Key, MAX_BLOB, MAX_NAME, MAX_TEXT, MissingRanks,
};
use super::super::payload::Payload;
use crate::id::Rank;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

/// Connection of a rank to its agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u64);

/// Call of a rank: connection and request number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId {
    /// Connection that the answer goes to.
    pub client: ClientId,
    /// Request number chosen by the client.
    pub request: u64,
}

/// Call of a rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Call {
    /// Arrive at a barrier or gather.
    Collective {
        /// Kind of the operation.
        kind: CollectiveKind,
        /// Name of the operation, at most [`MAX_NAME`] bytes.
        name: Arc<str>,
        /// Blob of this rank, at most [`MAX_BLOB`] bytes; empty for a barrier.
        #[serde(with = "serde_bytes")]
        blob: Vec<u8>,
        /// Timeout; `None` waits for ever.
        timeout: Option<Duration>,
    },
    /// Store a value.
    Put {
        /// Key to store it under.
        key: Key,
        /// Value, at most [`MAX_BLOB`] bytes.
        #[serde(with = "serde_bytes")]
        value: Vec<u8>,
    },
    /// Read the value of a key, if it has one.
    Get(Key),
    /// Read the value of a key once it has one.
    Await {
        /// Key to read.
        key: Key,
        /// Timeout; `None` waits for ever.
        timeout: Option<Duration>,
    },
    /// Abort the job for this reason, at most [`MAX_TEXT`] bytes.
    Abort(String),
    /// Measure the offset to the root's clock.
    Clock,
    /// Add a text to the job's event log, at most [`MAX_TEXT`] bytes.
    Event(String),
}

/// Answer to a [`Call`]. On the rank's socket, the data is the payload beside it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer<Bytes = Payload> {
    /// The operation is complete and has no data.
    Done,
    /// Records of all ranks, to be decoded by [`crate::rendezvous::gathered::Gathered`].
    Gathered(Bytes),
    /// Value of a key.
    Value(Bytes),
    /// The key has no value.
    NoValue,
    /// Offset from this host's clock to the root's.
    Clock {
        /// Offset, in nanoseconds.
        offset: i64,
        /// Largest error of the offset, in nanoseconds.
        error: u64,
    },
    /// The timeout expired. The ranks are those that were missing at the last search.
    TimedOut(MissingRanks),
    /// The operation can never complete.
    Failed(CollectiveFailure),
    /// The job is being aborted.
    Aborted {
        /// Rank that asked for it; `None` if rlaunch itself did.
        by: Option<Rank>,
        /// Reason.
        text: String,
    },
    /// The call is not possible.
    Refused(Refusal),
}

impl Answer {
    /// Separates the answer from its data.
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

/// Reason to refuse a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// A name, value or text is too long.
    TooLong,
    /// There are too many names or pending calls.
    TooMany,
    /// The key-value store is full.
    Full,
    /// The rank is not on this node, or has ended.
    NotARank,
}

impl Call {
    /// Returns a refusal if a name, value or text of the call is too long.
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
