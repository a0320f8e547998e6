//! What a rank and its agent say to each other, over the agent's Unix socket.
//!
//! ```text
//! rank                            agent
//!   Hello{job, rank, token} ────▶
//!                           ◀────   Welcome{world size}, or Refused and the end
//!   Call{request, …}        ────▶
//!                           ◀────   Reply{request, …} when it is answered, in any order
//!                           ◀────   News, unasked
//! ```
//!
//! Frames are [`crate::rendezvous::codec`]'s. What a rank gives is in the head; what it gets may be
//! large and is the payload.

pub use crate::security::handshake::Token;

use super::events::JobEvent;
use crate::id::{JobId, Rank};
use crate::rendezvous::gathered::RECORD_HEADER;
use crate::rendezvous::message::MAX_BLOB;
use crate::rendezvous::node::{Answer, Call};
use serde::{Deserialize, Serialize};

/// Changes whenever a frame changes. A rank's library may be older than the agent.
pub const CLIENT_VERSION: u16 = 3;

/// The longest head of a rank, in bytes: what it keeps or gives at once, and some names.
pub const MAX_CALL: usize = 2 * MAX_BLOB;

/// From a rank to its agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromRank {
    /// The first frame.
    Hello {
        /// [`CLIENT_VERSION`] of the library.
        version: u16,
        /// The job it believes to be in.
        job: JobId,
        /// Which rank it is.
        rank: Rank,
        /// The job's token on this node.
        token: Token,
    },
    /// A call.
    Call {
        /// Chosen by the rank, repeated in the reply.
        request: u64,
        /// What it asks for.
        call: Call,
    },
}

/// From an agent to a rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToRank {
    /// The hello is right.
    Welcome {
        /// How many ranks the job has.
        world_size: u32,
    },
    /// It is not; nothing follows.
    Refused(HelloRefusal),
    /// The answer to a call.
    Reply {
        /// Of the [`FromRank::Call`].
        request: u64,
        /// What it is; a gather's or a value's bytes are the payload.
        reply: Reply,
    },
    /// What happened elsewhere in the job, for those who wait for other ranks. A connection that
    /// is made later is told all of it.
    JobEvent(JobEvent),
}

/// What is wrong with a hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum HelloRefusal {
    /// The agent speaks another version.
    #[error("the agent speaks version {0}, this library {CLIENT_VERSION}")]
    Version(u16),
    /// Another job, another token, or a rank that is not on this node.
    #[error("this process is not a rank of the agent's job")]
    WrongJob,
}

/// An answer without its bytes.
pub type Reply = Answer<()>;

/// The most that a reply's payload can be, in bytes.
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
