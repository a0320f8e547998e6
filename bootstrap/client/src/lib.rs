//! Client of an agent's services for ranks: barriers, gathers, a key-value store, aborts, clock
//! offsets, events. The messages on the agent's Unix socket are those of
//! [`rlaunch_bootstrap::protocol::rank`].
//!
//! | module | contents |
//! |---|---|
//! | [`machine`] | state machine of a rank's connection |
//! | `session` | encoding of calls and decoding of replies, shared by both clients |
//! | `blocking` | [`Client`], whose calls block |
//! | `asynchronous` | `AsyncClient`, whose calls are futures (feature `tokio`) |
//! | [`command`] | commands for shell scripts, such as `rlaunch barrier` |

#![warn(missing_docs)]

#[cfg(feature = "tokio")]
mod asynchronous;
mod blocking;
pub mod command;
pub mod machine;
mod session;

#[cfg(feature = "tokio")]
pub use asynchronous::AsyncClient;
pub use blocking::Client;
pub use session::ClockOffset;

use rlaunch_bootstrap::id::{JobId, Rank};
use rlaunch_bootstrap::protocol::rank::HelloRefusal;
use rlaunch_bootstrap::rendezvous::codec::CodecError;
use rlaunch_bootstrap::rendezvous::message::{CollectiveFailure, MissingRanks};
use rlaunch_bootstrap::rendezvous::node::Refusal;
use rlaunch_bootstrap::rendezvous::payload::GatherError;
use rlaunch_bootstrap::security::Token;
use rlaunch_bootstrap::{decimal, env};
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Failure of a rank's call to its agent.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// A variable of this name is missing, so the process is not a rank of an rlaunch job.
    #[error("{0} is not set: this runs only inside a rank that rlaunch started")]
    NotARank(&'static str),
    /// An environment variable has an invalid value.
    #[error("{name} is {value:?}, which is not a {wanted}")]
    BadVariable {
        /// Name of the variable.
        name: &'static str,
        /// Value that was found; a placeholder for secrets.
        value: String,
        /// Description of a valid value, such as `rank`.
        wanted: &'static str,
    },
    /// The process cannot connect to the agent's socket.
    #[error("cannot reach the agent at {}", path.display())]
    Connect {
        /// Path of the socket.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// Reading from or writing to the socket failed.
    #[error("cannot talk to the agent")]
    Socket(#[source] io::Error),
    /// The agent closed the connection. Agents do so when the job has ended.
    #[error("the agent is gone: the job is over")]
    AgentGone,
    /// The agent rejected the rank.
    #[error(transparent)]
    Rejected(#[from] HelloRefusal),
    /// The agent violated the protocol.
    #[error(transparent)]
    Violation(#[from] machine::ClientViolation),
    /// The agent sent a frame that cannot be decoded.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// The reply to a gather does not have exactly one blob for each rank.
    #[error("the agent's reply to the gather is malformed")]
    Damaged(#[from] GatherError),
    /// The operation did not complete within its timeout.
    #[error("{}", timed_out(.what, .after, .missing))]
    TimedOut {
        /// Description of the operation, such as `barrier "x"`.
        what: String,
        /// Timeout that expired.
        after: Duration,
        /// Missing ranks that the last search found; empty if there was no search.
        missing: MissingRanks,
    },
    /// The operation can never complete.
    #[error("{what}: {why}")]
    CollectiveFailed {
        /// Description of the operation, such as `barrier "x"`.
        what: String,
        /// Reason why the operation cannot complete.
        why: CollectiveFailure,
    },
    /// The job was aborted, so the operation failed.
    #[error("aborted by {}: {text}", by.map_or("rlaunch".to_owned(), |rank| format!("rank {rank}")))]
    Aborted {
        /// Rank that called for the abort; `None` if rlaunch itself did.
        by: Option<Rank>,
        /// Reason for the abort.
        text: String,
    },
    /// The agent refused to execute the call.
    #[error("the agent refused the call: {0}")]
    Refused(Refusal),
}

fn timed_out(what: &str, after: &Duration, missing: &MissingRanks) -> String {
    let seconds = decimal::in_seconds(*after);
    if missing.ranks.is_empty() {
        format!("{what}: not within {seconds} s")
    } else {
        format!("{what}: not within {seconds} s: missing {missing}")
    }
}

/// Address of the agent and identity of the rank, as given by the rank's environment.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// Path of the agent's socket.
    pub socket: PathBuf,
    /// Identifier of the job.
    pub job: JobId,
    /// Number of the rank.
    pub rank: Rank,
    /// Secret with which the process proves that it belongs to the job.
    pub token: Token,
    /// Timeout of barriers, gathers and waits for keys; `None` means no timeout.
    pub timeout: Option<Duration>,
}

impl Credentials {
    /// Reads the credentials from the environment of this process.
    pub fn from_env() -> Result<Credentials, ClientError> {
        Credentials::read(|name| std::env::var_os(name).map(|v| v.to_string_lossy().into_owned()))
    }

    fn read(var: impl Fn(&str) -> Option<String>) -> Result<Credentials, ClientError> {
        let get = |name| var(name).ok_or(ClientError::NotARank(name));
        let bad = |name, value: String, wanted| ClientError::BadVariable { name, value, wanted };
        let socket = get(env::RLAUNCH_SOCKET)?.into();
        let text = get(env::RLAUNCH_JOB_ID)?;
        let job = u128::from_str_radix(&text, 16);
        let job = job.map_err(|_| bad(env::RLAUNCH_JOB_ID, text, "job id"))?;
        let text = get(env::RLAUNCH_RANK)?;
        let rank = text.parse().map_err(|_| bad(env::RLAUNCH_RANK, text, "rank"))?;
        let token = Token::parse(&get(env::RLAUNCH_TOKEN)?);
        let hidden = || bad(env::RLAUNCH_TOKEN, "(hidden)".into(), "token");
        let timeout = var(env::RLAUNCH_COMM_TIMEOUT).filter(|text| !text.is_empty());
        let timeout = timeout.map(|text| {
            parse_seconds(&text)
                .ok_or_else(|| bad(env::RLAUNCH_COMM_TIMEOUT, text, "number of seconds above 0"))
        });
        Ok(Credentials {
            socket,
            job: JobId(job),
            rank: Rank(rank),
            token: token.ok_or_else(hidden)?,
            timeout: timeout.transpose()?,
        })
    }
}

/// Parses a number of seconds above 0, with or without a fraction.
pub(crate) fn parse_seconds(text: &str) -> Option<Duration> {
    decimal::seconds(text).filter(|duration| !duration.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(change: (&str, Option<&str>)) -> Result<Credentials, ClientError> {
        let all = [
            (env::RLAUNCH_SOCKET, "/tmp/agent.sock"),
            (env::RLAUNCH_JOB_ID, "0f"),
            (env::RLAUNCH_RANK, "3"),
            (env::RLAUNCH_TOKEN, "00000000000000000000000000000007"),
            (env::RLAUNCH_COMM_TIMEOUT, "1.5"),
        ];
        Credentials::read(|name| {
            if name == change.0 {
                return change.1.map(str::to_owned);
            }
            all.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn the_environment_says_who_and_where() {
        let found = read(("", None)).unwrap();
        assert_eq!((found.job, found.rank), (JobId(15), Rank(3)));
        assert_eq!(found.timeout, Some(Duration::from_millis(1500)));
        assert_eq!(read((env::RLAUNCH_COMM_TIMEOUT, None)).unwrap().timeout, None);
    }

    #[test]
    fn what_is_wrong_with_it_is_named() {
        let error = |name, value| read((name, value)).unwrap_err().to_string();
        let outside =
            "RLAUNCH_SOCKET is not set: this runs only inside a rank that rlaunch started";
        assert_eq!(error(env::RLAUNCH_SOCKET, None), outside);
        assert_eq!(
            error(env::RLAUNCH_RANK, Some("x")),
            "RLAUNCH_RANK is \"x\", which is not a rank"
        );
        assert!(!error(env::RLAUNCH_TOKEN, Some("secret")).contains("secret"));
        for bad in ["0", "-1", "soon", "nan"] {
            assert!(error(env::RLAUNCH_COMM_TIMEOUT, Some(bad)).contains("RLAUNCH_COMM_TIMEOUT"));
        }
    }
}
