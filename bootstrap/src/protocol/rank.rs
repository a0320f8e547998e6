//! Protocol between a rank and its agent: messages on the agent's Unix socket, and a file with the time
//! that the rank has waited.
//!
//! ```text
//! rank                            agent
//!   Hello{job, rank, token} ────▶
//!                           ◀────   Welcome{world size}, or Refused and the end
//!   Call{request, …}        ────▶
//!                           ◀────   Reply{request, …}, in any order
//!                           ◀────   JobEvent, at any time
//! ```
//!
//! [`crate::rendezvous::codec`] frames the messages. A call contains its data. The data of a reply
//! may be large, and follows the reply as payload.
//!
//! Job events come from the launcher, because the launcher knows which failure was the first. When
//! a rank dies, its TCP connections are closed, but its queue pairs just stop answering. So a peer
//! that is connected to the rank by RDMA may see no other sign of the death than the event.

use crate::id::{ExitStatus, JobId, NodeId, Rank};
use crate::rendezvous::message::MAX_BLOB;
use crate::rendezvous::node::{Answer, Call};
use crate::rendezvous::payload::RECORD_HEADER;
use crate::rendezvous::rank_set::RankSet;
use crate::security::Token;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Version of these messages. Every change of a message needs a new number, because the library
/// that a rank loads may be older than the agent.
pub const CLIENT_VERSION: u16 = 3;

/// Maximum length of a rank's message without framing, in bytes. It has room for a value or blob of
/// [`MAX_BLOB`] bytes and for the names in the message.
pub const MAX_CALL: usize = 2 * MAX_BLOB;

/// Message from a rank to its agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromRank {
    /// First message on a connection.
    Hello {
        /// Version of the messages that the rank's library uses ([`CLIENT_VERSION`]).
        version: u16,
        job: JobId,
        rank: Rank,
        /// Secret that the rank received in its environment.
        token: Token,
    },
    /// Request to execute an operation.
    Call {
        /// Number that the rank chose for this request. The reply repeats it.
        request: u64,
        /// Operation and its arguments.
        call: Call,
    },
}

/// Message from an agent to a rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToRank {
    /// The agent accepts the rank.
    Welcome { world_size: u32 },
    /// The agent rejects the rank and closes the connection.
    Refused(HelloRefusal),
    /// Reply to a call.
    Reply {
        /// Request number of the call.
        request: u64,
        /// Result of the call. The data of a gather and the value of a key are not included, but
        /// follow as payload.
        reply: Reply,
    },
    /// Event of the job. A new connection receives all events that were reported before.
    JobEvent(JobEvent),
}

/// Reason why an agent rejects a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum HelloRefusal {
    /// The agent uses this version of the messages, which is not [`CLIENT_VERSION`].
    #[error("the agent uses protocol version {0}, this library uses {CLIENT_VERSION}")]
    Version(u16),
    /// The hello has the wrong job or token, or a rank that does not run on this node.
    #[error("this process is not a rank of the agent's job")]
    WrongJob,
}

/// Reply to a call, without the data that travels as payload.
pub type Reply = Answer<()>;

/// Returns the maximum length of a reply's payload, in bytes.
pub fn payload_limit(world_size: u32) -> usize {
    (world_size as usize).saturating_mul(MAX_BLOB + RECORD_HEADER).min(u32::MAX as usize)
}

/// Maximum number of events that are kept for a rank; later events are dropped.
/// [`JobEvent::RanksFinished`] does not count. More events are of no use: after 16 failures no rank
/// is still waiting for another.
pub const MAX_JOB_EVENTS: usize = 16;

/// Event of the job that agents report to their ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobEvent {
    RankFailed {
        rank: Rank,
        status: ExitStatus,
        /// Whether this failure ends the job.
        ends: bool,
    },
    /// The launcher lost its connection to a node's agent. The agent or guardian of that node ends
    /// the ranks of the node.
    NodeLost {
        /// Node of the lost agent.
        node: NodeId,
        /// Symptom of the loss, at most [`crate::rendezvous::message::MAX_TEXT`] bytes.
        how: String,
    },
    /// RDMA between two nodes failed.
    LinkDown {
        /// Nodes at the two ends of the failed link.
        nodes: [NodeId; 2],
        /// Description of the link and the symptom, at most
        /// [`crate::rendezvous::message::MAX_TEXT`] bytes.
        what: String,
    },
    /// The job is being ended.
    JobEnding {
        /// Reason, at most [`crate::rendezvous::message::MAX_TEXT`] bytes.
        why: String,
    },
    /// Ranks exited with code 0. May include ranks that an earlier event has reported.
    RanksFinished { ranks: RankSet },
}

/// Time that a rank has waited for other ranks in calls of its communicator. The rank writes it to
/// a file in the directory of the rank table rather than into a message, because a rank must never
/// wait for its agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitRecord(pub Duration);

impl WaitRecord {
    /// Size of the file in bytes: one number of microseconds, in little-endian order.
    pub const SIZE: usize = 8;

    /// Returns the name of the rank's file.
    pub fn file_name(rank: Rank) -> String {
        format!("waited-{rank}")
    }

    /// Returns the content of the file.
    pub fn encode(self) -> [u8; WaitRecord::SIZE] {
        u64::try_from(self.0.as_micros()).unwrap_or(u64::MAX).to_le_bytes()
    }

    /// Reads the content of the file; `None` if it is not complete.
    pub fn decode(content: &[u8]) -> Option<WaitRecord> {
        let micros = u64::from_le_bytes(content.try_into().ok()?);
        Some(WaitRecord(Duration::from_micros(micros)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_read_back() {
        let waited = WaitRecord(Duration::from_micros(1_234_567));
        assert_eq!(WaitRecord::decode(&waited.encode()), Some(waited));
        assert_eq!(WaitRecord::decode(&[1, 2, 3]), None);
        assert_eq!(WaitRecord::file_name(Rank(7)), "waited-7");
    }
}
