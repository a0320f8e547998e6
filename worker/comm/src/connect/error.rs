//! Errors of connecting the ranks of a job.

use crate::types::error::PeerName;
use rlaunch_bootstrap::id::Rank;
use rlaunch_client::ClientError;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Failure to connect the ranks of a job.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// This rank cannot listen on its node's address.
    #[error("cannot listen on {address}")]
    Listen {
        /// Address of this rank's node.
        address: IpAddr,
        /// Error that the system returned.
        source: io::Error,
    },
    /// A system call failed that does not concern a particular peer.
    #[error("cannot {operation}")]
    System {
        /// Operation that failed, for the error text.
        operation: &'static str,
        /// Error that the system returned.
        source: io::Error,
    },
    /// The all-gather of contacts failed.
    #[error("the contacts of the ranks could not be gathered")]
    Gather(#[from] ClientError),
    /// The contact of a rank is damaged, or is from another build of rlaunch.
    #[error("the contact of rank {rank} is invalid: {why}")]
    Contact {
        /// Rank that sent the contact.
        rank: Rank,
        /// Problem with the contact.
        why: &'static str,
    },
    /// Two ranks could not connect in either direction.
    #[error("{0}")]
    NotConnected(Box<UnconnectedPair>),
    /// RDMA could not be set up, although the rank table assigns it to this rank and a peer.
    #[error("{0}")]
    NoRdma(Box<NoRdma>),
    /// Another rank failed to connect.
    #[error("{peer} is not ready: {why}")]
    NotReady {
        /// Rank that failed.
        peer: PeerName,
        /// Error that the failed rank reported.
        why: String,
    },
}

/// Failure to set up RDMA.
#[derive(Debug, thiserror::Error)]
#[error("no RDMA by {port}{}: {source}{}", to_peer(.peer.as_ref()), memory_text(*.memory))]
pub struct NoRdma {
    /// RDMA port of this rank, for example `mlx5_0/1`.
    pub port: String,
    /// Peer that the failure concerns; `None` if it concerns all peers of the port.
    pub peer: Option<PeerName>,
    /// Bytes of locked memory that each peer needs at least, and the limit on locked memory in
    /// bytes; `None` if locking memory has not failed.
    pub memory: Option<(u64, u64)>,
    /// Advice to the user, if there is any.
    pub hint: Option<&'static str>,
    /// Error of the device or of rdma-core.
    pub source: Box<dyn std::error::Error + Send + Sync>,
}

fn to_peer(peer: Option<&PeerName>) -> String {
    peer.map(|peer| format!(" to {peer}")).unwrap_or_default()
}

fn memory_text(memory: Option<(u64, u64)>) -> String {
    let kib = |bytes: u64| bytes.div_ceil(1024);
    let text = |(needed, limit)| {
        format!(", {} KiB are needed for each peer, the limit is {} KiB", kib(needed), kib(limit))
    };
    memory.map(text).unwrap_or_default()
}

/// Address at which a rank listens.
#[derive(Clone, Debug)]
pub struct PeerAddress {
    /// Rank that listens.
    pub rank: Rank,
    /// Host as the user typed it.
    pub host: String,
    /// Socket address of the rank's listener.
    pub address: SocketAddr,
}

/// Pair of ranks that could not connect.
#[derive(Debug, thiserror::Error)]
#[error(
    "rank {} on {} and rank {} on {} could not connect over TCP within {} s: {} was not reached at {} \
     ({reason}), and did not reach {} at {}{}",
    .me.rank, .me.host, .peer.rank, .peer.host, .waited.as_secs_f64(),
    .peer.host, .peer.address, .me.host, .me.address, and_more(*.more)
)]
pub struct UnconnectedPair {
    /// This rank, which reports the error.
    pub me: PeerAddress,
    /// Other rank of the pair.
    pub peer: PeerAddress,
    /// Reason why this rank did not reach the peer.
    pub reason: DialError,
    /// Time for which the connection was tried.
    pub waited: Duration,
    /// Number of further ranks that this rank could not connect to.
    pub more: usize,
}

/// Reason why an attempt to dial a rank failed.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// This rank did not dial, because the peer should have dialled.
    #[error("not tried")]
    NotTried,
    /// No answer arrived in time.
    #[error("no answer")]
    NoAnswer,
    /// Error that the system returned.
    #[error("{0}")]
    System(#[from] io::Error),
    /// The process that listens at the peer's address does not have the peer's key, so it belongs
    /// to another job or program.
    #[error("the process that answers there is not of this job")]
    Unauthenticated,
}

fn and_more(more: usize) -> String {
    match more {
        0 => String::new(),
        1 => "; nor could this rank and 1 other".to_owned(),
        more => format!("; nor could this rank and {more} others"),
    }
}

impl ConnectError {
    /// Returns advice to the user about the error, if there is any.
    pub fn hint(&self) -> Option<String> {
        match self {
            ConnectError::NotConnected(pair) => Some(format!(
                "allow TCP connections from {1} on {0}, or from {3} on {2}; ranks listen on \
                 ports of /proc/sys/net/ipv4/ip_local_port_range",
                pair.peer.host,
                pair.me.address.ip(),
                pair.me.host,
                pair.peer.address.ip(),
            )),
            ConnectError::NoRdma(no) => Some(match no.hint {
                Some(hint) => format!("{hint}; --transport tcp does without RDMA"),
                None => "--transport tcp does without RDMA".to_owned(),
            }),
            ConnectError::Gather(ClientError::TimedOut { .. }) => {
                Some("--init-timeout SECONDS waits longer for all ranks".to_owned())
            }
            ConnectError::System { source, .. } => {
                let files = source.raw_os_error() == Some(nix::errno::Errno::EMFILE as i32);
                files.then(|| "allow the ranks more open files (ulimit -n)".to_owned())
            }
            _ => None,
        }
    }
}
