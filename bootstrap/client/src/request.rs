//! Requests that a rank sends to its agent, and the decoding of the replies. Used by both clients.

use crate::ClientError;
use bytes::Bytes;
use rlaunch_bootstrap::protocol::rank::Reply;
use rlaunch_bootstrap::rendezvous::gathered::Gathered;
use rlaunch_bootstrap::rendezvous::message::{CollectiveKind, Key};
use rlaunch_bootstrap::rendezvous::node::Call;
use std::time::Duration;

/// Offset to add to this host's `CLOCK_MONOTONIC` to get the `CLOCK_MONOTONIC` of rank 0's host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockOffset {
    /// Offset in nanoseconds; negative if this host's clock is ahead.
    pub nanoseconds: i64,
    /// Maximum error of the offset, in nanoseconds.
    pub error: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) call: Call,
    /// Description of the operation for error messages.
    pub(crate) description: String,
    pub(crate) timeout: Option<Duration>,
}

pub(crate) type Answered = (Reply, Bytes);

impl Request {
    fn new(call: Call, description: impl Into<String>) -> Request {
        Request { call, description: description.into(), timeout: None }
    }

    fn collective(
        kind: CollectiveKind,
        name: &str,
        blob: &[u8],
        timeout: Option<Duration>,
    ) -> Request {
        let description = match kind {
            CollectiveKind::Barrier => format!("barrier {name:?}"),
            CollectiveKind::Gather => format!("all-gather {name:?}"),
        };
        let call = Call::Collective { kind, name: name.into(), blob: blob.to_vec(), timeout };
        Request { call, description, timeout }
    }

    pub(crate) fn barrier(name: &str, timeout: Option<Duration>) -> Request {
        Request::collective(CollectiveKind::Barrier, name, &[], timeout)
    }

    pub(crate) fn all_gather(name: &str, blob: &[u8], timeout: Option<Duration>) -> Request {
        Request::collective(CollectiveKind::Gather, name, blob, timeout)
    }

    pub(crate) fn put(namespace: &str, key: &str, value: &[u8]) -> Request {
        Request::new(Call::Put { key: self::key(namespace, key), value: value.to_vec() }, "put")
    }

    pub(crate) fn get(namespace: &str, key: &str) -> Request {
        Request::new(Call::Get(self::key(namespace, key)), "get")
    }

    pub(crate) fn wait(namespace: &str, key: &str, timeout: Option<Duration>) -> Request {
        let key = self::key(namespace, key);
        let description = format!("key {key}");
        Request { call: Call::Await { key, timeout }, description, timeout }
    }

    pub(crate) fn abort(text: &str) -> Request {
        Request::new(Call::Abort(text.to_owned()), "abort")
    }

    pub(crate) fn clock() -> Request {
        Request::new(Call::Clock, "clock")
    }

    pub(crate) fn event(text: &str) -> Request {
        Request::new(Call::Event(text.to_owned()), "event")
    }
}

/// Decodes the reply to a gather into the blobs of `world_size` ranks, indexed by rank.
pub(crate) fn gathered(answered: Answered, world_size: u32) -> Result<Vec<Bytes>, ClientError> {
    Ok(Gathered(answered.1.into()).by_rank(world_size)?)
}

/// Decodes the reply to a read. Returns `None` if the key has no value.
pub(crate) fn value((reply, bytes): Answered) -> Option<Bytes> {
    (reply == Reply::Value(())).then_some(bytes)
}

pub(crate) fn offset(answered: &Answered) -> Result<ClockOffset, ClientError> {
    match answered.0 {
        Reply::Clock { offset, error } => Ok(ClockOffset { nanoseconds: offset, error }),
        _ => Err(ClientError::AgentGone),
    }
}

fn key(namespace: &str, key: &str) -> Key {
    Key { namespace: namespace.into(), name: key.into() }
}
