//! How a rank talks to its agent: barriers, gathers, keys, aborts, the root's clock.
//!
//! In reading order: what crosses the socket ([`messages`], [`events`]), the rank's side of it without a socket
//! ([`machine`]), the calls over a blocking socket ([`Client`]) or on tokio ([`AsyncClient`], with
//! the feature `tokio`), and as commands for shell scripts ([`command`]).

#[cfg(feature = "tokio")]
mod asynchronous;
mod blocking;
pub mod command;
pub mod events;
pub mod machine;
pub mod messages;
mod request;
mod session;

#[cfg(feature = "tokio")]
pub use asynchronous::AsyncClient;
pub use blocking::Client;
pub use request::ClockOffset;

use crate::env;
use crate::id::{JobId, Rank};
use crate::rendezvous::codec::CodecError;
use crate::rendezvous::gathered::GatherError;
use crate::rendezvous::message::{CollectiveFailure, MissingRanks};
use crate::rendezvous::node::Refusal;
use messages::{HelloRefusal, Token};
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Why a call did not do what it should.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No rank of rlaunch's.
    #[error("{0} is not set: this runs only inside a rank that rlaunch started")]
    NotARank(&'static str),
    /// A variable that rlaunch or the user set is not what it should be.
    #[error("{name} is {value:?}, which is no {wanted}")]
    BadVariable {
        /// Its name.
        name: &'static str,
        /// Its value.
        value: String,
        /// What it should be.
        wanted: &'static str,
    },
    /// The socket cannot be reached.
    #[error("cannot reach the agent at {}", path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The socket broke.
    #[error("cannot talk to the agent")]
    Socket(#[source] io::Error),
    /// The agent is gone, and with it the job.
    #[error("the agent is gone: the job is over")]
    AgentGone,
    /// The agent does not know this rank.
    #[error(transparent)]
    NotWelcome(#[from] HelloRefusal),
    /// The agent broke the protocol.
    #[error(transparent)]
    Violation(#[from] machine::ClientViolation),
    /// The agent sent bytes that are no frame.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// A gather that is not one blob of every rank.
    #[error("the gather is damaged")]
    Damaged(#[from] GatherError),
    /// The wait was longer than allowed.
    #[error("{}", timed_out(.what, .after, .missing))]
    TimedOut {
        /// What was waited for.
        what: String,
        /// How long.
        after: Duration,
        /// Who was missing, as far as that is known.
        missing: MissingRanks,
    },
    /// It can never end well.
    #[error("{what}: {why}")]
    CollectiveFailed {
        /// What was waited for.
        what: String,
        /// Why.
        why: CollectiveFailure,
    },
    /// The job is being aborted.
    #[error("aborted by {}: {text}", by.map_or("rlaunch".to_owned(), |rank| format!("rank {rank}")))]
    Aborted {
        /// Who asked for it, unless rlaunch itself did.
        by: Option<Rank>,
        /// Why.
        text: String,
    },
    /// The call cannot be met.
    #[error("the agent refuses: {}", refused(*.0))]
    Refused(Refusal),
}

fn timed_out(what: &str, after: &Duration, missing: &MissingRanks) -> String {
    let seconds = after.as_secs_f64();
    if missing.ranks.is_empty() {
        format!("{what}: not within {seconds} s")
    } else {
        format!("{what}: not within {seconds} s: missing {missing}")
    }
}

fn refused(refusal: Refusal) -> &'static str {
    match refusal {
        Refusal::TooLong => "a name, a value or a text is too long",
        Refusal::TooMany => "too many names or too many calls at once",
        Refusal::Full => "the job's store is full",
        Refusal::NotARank => "the rank has ended",
    }
}

/// What a rank's environment says of its agent.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// The agent's socket.
    pub socket: PathBuf,
    /// The job.
    pub job: JobId,
    /// The rank.
    pub rank: Rank,
    /// Shows that the process belongs to the job.
    pub token: Token,
    /// How long waits may take; for ever when `None`.
    pub timeout: Option<Duration>,
}

impl Credentials {
    /// Reads this process's environment.
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

/// A number of seconds above 0, fractions allowed.
pub(crate) fn parse_seconds(text: &str) -> Option<Duration> {
    let seconds = text.trim().parse().ok()?;
    Duration::try_from_secs_f64(seconds).ok().filter(|duration| !duration.is_zero())
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
        assert_eq!(error(env::RLAUNCH_RANK, Some("x")), "RLAUNCH_RANK is \"x\", which is no rank");
        assert!(!error(env::RLAUNCH_TOKEN, Some("secret")).contains("secret"));
        for bad in ["0", "-1", "soon", "nan"] {
            assert!(error(env::RLAUNCH_COMM_TIMEOUT, Some(bad)).contains("RLAUNCH_COMM_TIMEOUT"));
        }
    }
}
