//! What a rank can ask of its node, and what it is answered.

use super::super::message::{
    CollectiveFailure, CollectiveKind, Key, MAX_BLOB, MAX_NAME, MAX_TEXT, MissingRanks,
};
use super::super::payload::Payload;
use crate::id::Rank;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

/// A connection of a rank to its agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u64);

/// A call and whom to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId {
    /// The connection.
    pub client: ClientId,
    /// The client's own number for the call.
    pub request: u64,
}

/// What a rank can ask for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Call {
    /// Arrive at a barrier or give to a gather.
    Collective {
        /// Which.
        kind: CollectiveKind,
        /// Its name.
        name: Arc<str>,
        /// What this rank gives; empty for a barrier.
        #[serde(with = "serde_bytes")]
        blob: Vec<u8>,
        /// How long to wait; for ever when `None`.
        timeout: Option<Duration>,
    },
    /// Keep a value.
    Put {
        /// Under this key.
        key: Key,
        /// At most [`MAX_BLOB`] bytes.
        #[serde(with = "serde_bytes")]
        value: Vec<u8>,
    },
    /// Read a value, if there is one.
    Get(Key),
    /// Read a value once there is one.
    Await {
        /// Of this key.
        key: Key,
        /// How long to wait; for ever when `None`.
        timeout: Option<Duration>,
    },
    /// End every rank's calls, and the job.
    Abort(String),
    /// Learn the root's clock.
    Clock,
    /// Tell the launcher.
    Event(String),
}

/// The answer to a [`Call`]. On its way to the rank, its bytes travel beside it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer<Bytes = Payload> {
    /// Done: a barrier passed, a value kept, an event told.
    Done,
    /// Of a gather: what every rank gave, as [`crate::rendezvous::gathered::Gathered`] reads it.
    Gathered(Bytes),
    /// The value.
    Value(Bytes),
    /// There is no such key.
    NoValue,
    /// What to add to this machine's clock to have the root's.
    Clock {
        /// In nanoseconds.
        offset: i64,
        /// How far that may be off, in nanoseconds.
        error: u64,
    },
    /// The wait was longer than allowed; who was missing when it was last asked.
    TimedOut(MissingRanks),
    /// It can never end well.
    Failed(CollectiveFailure),
    /// The job is being aborted.
    Aborted {
        /// Who asked for it, unless rlaunch itself did.
        by: Option<Rank>,
        /// Why.
        text: String,
    },
    /// The call cannot be met.
    Refused(Refusal),
}

impl Answer {
    /// The answer without its bytes, and these.
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

/// Why a call is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// A name, a value or a text is too long.
    TooLong,
    /// Too many names or too many calls.
    TooMany,
    /// The store is full.
    Full,
    /// The rank is not one of this node, or has ended.
    NotARank,
}

impl Call {
    /// What is too long in it.
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
