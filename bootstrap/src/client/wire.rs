//! What a rank and its agent say to each other, over the agent's Unix socket.
//!
//! ```text
//! rank                            agent
//!   Hello{job, rank, token} ────▶
//!                           ◀────   Welcome{world size}, or Refused and the end
//!   Call{request, …}        ────▶
//!                           ◀────   Reply{request, …} when it is answered, in any order
//! ```
//!
//! Frames are [`crate::tree::codec`]'s. What a rank gives is in the head; what it gets may be
//! large and is the payload.

use crate::id::{JobId, Rank};
use crate::tree::gathered::{Gathered, RECORD_HEADER};
use crate::tree::message::{Broken, MAX_BLOB, Missing};
use crate::tree::node::{Answer, Call, Refusal};
use crate::tree::payload::Payload;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Changes whenever a frame changes. A rank's library may be older than the agent.
pub const CLIENT_VERSION: u16 = 1;

/// The longest head of a rank, in bytes: what it keeps or gives at once, and some names.
pub const MAX_CALL: usize = 2 * MAX_BLOB;

/// Shows that a process belongs to the job. It travels in the ranks' environment.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token(pub [u8; 16]);

impl Token {
    /// From the hexadecimal digits that [`fmt::Display`] makes.
    pub fn parse(text: &str) -> Option<Token> {
        let digits = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = digits.then(|| u128::from_str_radix(text, 16).ok()).flatten()?;
        Some(Token(number.to_be_bytes()))
    }

    /// As it is put into the environment.
    pub fn reveal(&self) -> String {
        format!("{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

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
}

/// What is wrong with a hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum HelloRefusal {
    /// The agent speaks another version.
    #[error("the agent speaks version {0}, this library {CLIENT_VERSION}")]
    Version(u16),
    /// Another job, another token, or a rank that is not on this node.
    #[error("this process is not a rank of the agent's job")]
    NotOfThisJob,
}

/// [`Answer`] without its bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// Done.
    Done,
    /// The payload has what every rank gave.
    Gathered,
    /// The payload is the value.
    Value,
    /// There is no such key.
    NoValue,
    /// What to add to this machine's monotonic clock to have the root's.
    Clock {
        /// In nanoseconds.
        offset: i64,
        /// How far that may be off, in nanoseconds.
        error: u64,
    },
    /// The wait was longer than allowed.
    TimedOut(Missing),
    /// It can never end well.
    Broke(Broken),
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

impl From<Answer> for (Reply, Payload) {
    fn from(answer: Answer) -> (Reply, Payload) {
        let bare = |reply| (reply, Payload::empty());
        match answer {
            Answer::Done => bare(Reply::Done),
            Answer::Gathered(Gathered(payload)) => (Reply::Gathered, payload),
            Answer::Value(payload) => (Reply::Value, payload),
            Answer::NoValue => bare(Reply::NoValue),
            Answer::Clock { offset, error } => bare(Reply::Clock { offset, error }),
            Answer::TimedOut(missing) => bare(Reply::TimedOut(missing)),
            Answer::Broke(why) => bare(Reply::Broke(why)),
            Answer::Aborted { by, text } => bare(Reply::Aborted { by, text }),
            Answer::Refused(refusal) => bare(Reply::Refused(refusal)),
        }
    }
}

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
