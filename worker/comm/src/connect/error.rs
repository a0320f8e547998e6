//! Why ranks did not find each other.

use crate::types::error::PeerName;
use rlaunch_bootstrap::client::ClientError;
use rlaunch_bootstrap::id::Rank;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Why the ranks of a job are not joined.
#[derive(Debug, thiserror::Error)]
pub enum WireUpError {
    /// The node's address cannot be listened on.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address of this rank's node.
        address: IpAddr,
        /// The system's reason.
        source: io::Error,
    },
    /// The system refuses something that concerns no peer.
    #[error("cannot {operation}")]
    System {
        /// What was tried.
        operation: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// The gather did not come about.
    #[error("the ranks' contacts were not gathered")]
    Gather(#[from] ClientError),
    /// A rank's contact is not what this build expects.
    #[error("the contact of rank {rank} is no good: {why}")]
    Contact {
        /// Whose.
        rank: Rank,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Two ranks do not reach each other in any direction.
    #[error("{0}")]
    NotConnected(Box<UnconnectedPair>),
    /// RDMA cannot be set up where the rank table says that it is used.
    #[error("{0}")]
    NoRdma(Box<NoRdma>),
    /// Another rank is not ready.
    #[error("{peer} is not ready: {why}")]
    NotReady {
        /// Which.
        peer: PeerName,
        /// In its words.
        why: String,
    },
}

/// RDMA that cannot be set up.
#[derive(Debug, thiserror::Error)]
#[error("no RDMA by {port}{}: {source}{}", to(.peer.as_ref()), takes(*.memory))]
pub struct NoRdma {
    /// This rank's port: `mlx5_0/1`.
    pub port: String,
    /// To whom, where it concerns one rank.
    pub peer: Option<PeerName>,
    /// Where memory may not be locked: how much each peer takes at least, and the limit, in bytes.
    pub memory: Option<(u64, u64)>,
    /// What to do about it.
    pub hint: Option<&'static str>,
    /// What the device or rdma-core said.
    pub source: Box<dyn std::error::Error + Send + Sync>,
}

fn to(peer: Option<&PeerName>) -> String {
    peer.map(|peer| format!(" to {peer}")).unwrap_or_default()
}

fn takes(memory: Option<(u64, u64)>) -> String {
    let kib = |bytes: u64| bytes.div_ceil(1024);
    let takes = |(needed, limit)| {
        format!(", {} KiB are needed for each peer, the limit is {} KiB", kib(needed), kib(limit))
    };
    memory.map(takes).unwrap_or_default()
}

/// Where a rank listens.
#[derive(Clone, Debug)]
pub struct PeerAddress {
    /// The rank.
    pub rank: Rank,
    /// Its host, as the user typed it.
    pub host: String,
    /// Where it listens.
    pub address: SocketAddr,
}

/// A pair that did not meet.
#[derive(Debug, thiserror::Error)]
#[error(
    "rank {} on {} and rank {} on {} did not meet over TCP within {} s: {} was not reached at {} \
     ({reason}), and did not reach {} at {}{}",
    .me.rank, .me.host, .peer.rank, .peer.host, .waited.as_secs_f64(),
    .peer.host, .peer.address, .me.host, .me.address, and_more(*.more)
)]
pub struct UnconnectedPair {
    /// This rank.
    pub me: PeerAddress,
    /// The other.
    pub peer: PeerAddress,
    /// Why this rank did not reach it.
    pub reason: DialError,
    /// How long it was tried.
    pub waited: Duration,
    /// So many other ranks were not met either.
    pub more: usize,
}

/// Why nobody was reached.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// It was left to the other end.
    #[error("not tried")]
    NotTried,
    /// Nothing came back.
    #[error("no answer")]
    NoAnswer,
    /// The system's reason.
    #[error("{0}")]
    System(#[from] io::Error),
    /// Somebody else listens there.
    #[error("who answers there is not of this job")]
    Unauthenticated,
}

fn and_more(more: usize) -> String {
    match more {
        0 => String::new(),
        1 => "; nor did this rank and 1 other".to_owned(),
        more => format!("; nor did this rank and {more} others"),
    }
}

impl WireUpError {
    /// What to do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            WireUpError::NotConnected(unmet) => Some(format!(
                "on {}, let TCP connections from {} in, or on {} those from {}; ranks listen on \
                 ports of /proc/sys/net/ipv4/ip_local_port_range",
                unmet.peer.host,
                unmet.me.address.ip(),
                unmet.me.host,
                unmet.peer.address.ip(),
            )),
            WireUpError::NoRdma(no) => Some(match no.hint {
                Some(hint) => format!("{hint}; --transport tcp does without"),
                None => "--transport tcp does without RDMA".to_owned(),
            }),
            WireUpError::Gather(ClientError::TimedOut { .. }) => {
                Some("--init-timeout SECONDS waits longer for all ranks".to_owned())
            }
            WireUpError::System { source, .. } => {
                let files = source.raw_os_error() == Some(nix::errno::Errno::EMFILE as i32);
                files.then(|| "allow the ranks more open files (ulimit -n)".to_owned())
            }
            _ => None,
        }
    }
}
