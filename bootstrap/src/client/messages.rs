//! Messages between a rank and its agent on the agent's Unix socket.
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

pub use crate::security::handshake::Token;

use super::events::JobEvent;
use crate::id::{JobId, Rank};
use crate::rendezvous::gathered::RECORD_HEADER;
use crate::rendezvous::message::MAX_BLOB;
use crate::rendezvous::node::{Answer, Call};
use serde::{Deserialize, Serialize};

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
        /// Job that the rank belongs to.
        job: JobId,
        /// Number of the rank.
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
    Welcome {
        /// Number of ranks in the job.
        world_size: u32,
    },
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_shown_to_ranks_alone() {
        let token = Token([0x0f; 16]);
        assert_eq!(Token::parse(&token.reveal()), Some(token));
        assert_eq!(format!("{token:?}"), "Token(..)");
        for bad in
            ["", "0f", "+0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0", "0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0g"]
        {
            assert_eq!(Token::parse(bad), None, "{bad}");
        }
    }
}
