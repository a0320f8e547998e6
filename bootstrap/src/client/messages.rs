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
//! They are framed by [`crate::rendezvous::codec`]. Data from the rank is part of the message; data
//! for the rank may be large and is the payload.

pub use crate::security::handshake::Token;

use super::events::JobEvent;
use crate::id::{JobId, Rank};
use crate::rendezvous::gathered::RECORD_HEADER;
use crate::rendezvous::message::MAX_BLOB;
use crate::rendezvous::node::{Answer, Call};
use serde::{Deserialize, Serialize};

/// Version of the messages, which changes with every change of them. A rank's library may be older
/// than the agent.
pub const CLIENT_VERSION: u16 = 3;

/// Longest message of a rank in bytes, excluding framing: room for a value or blob and for the names
/// in the message.
pub const MAX_CALL: usize = 2 * MAX_BLOB;

/// Message from a rank to its agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromRank {
    /// First message.
    Hello {
        /// Version of the library ([`CLIENT_VERSION`]).
        version: u16,
        /// Job that the rank belongs to.
        job: JobId,
        /// Number of the rank.
        rank: Rank,
        /// Token of the job on this node.
        token: Token,
    },
    /// Call of the rank.
    Call {
        /// Request number chosen by the rank, which the reply repeats.
        request: u64,
        /// Operation and its arguments.
        call: Call,
    },
}

/// Message from an agent to a rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToRank {
    /// The rank is accepted.
    Welcome {
        /// Number of ranks in the job.
        world_size: u32,
    },
    /// The rank is rejected. The agent closes the connection.
    Refused(HelloRefusal),
    /// Reply to a call.
    Reply {
        /// Request number of the call.
        request: u64,
        /// Result of the call. The data of a gather or a value is the payload.
        reply: Reply,
    },
    /// Event of the job. New connections receive all events so far.
    JobEvent(JobEvent),
}

/// Reason to reject a hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum HelloRefusal {
    /// The agent uses this other version.
    #[error("the agent uses protocol version {0}, this library uses {CLIENT_VERSION}")]
    Version(u16),
    /// The job or the token is a different one, or the rank is not on this node.
    #[error("this process is not a rank of the agent's job")]
    WrongJob,
}

/// Answer to a call without its data.
pub type Reply = Answer<()>;

/// Returns the longest payload of a reply, in bytes.
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
