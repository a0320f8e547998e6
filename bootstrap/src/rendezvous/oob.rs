//! Configuration of an agent in the out-of-band network, which is TCP between agents, and its
//! report about the edge to its parent.

use crate::id::{JobId, NodeId};
use crate::security::handshake::Secret;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// Inclusive range of TCP ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortRange {
    /// First port.
    pub first: u16,
    /// Last port.
    pub last: u16,
}

impl PortRange {
    /// Returns the number of ports, at least 1.
    pub fn count(self) -> u32 {
        u32::from(self.last.saturating_sub(self.first)) + 1
    }

    /// Returns the offset in the range at which a job starts to look for free ports. It depends on
    /// the job, so that simultaneous jobs rarely compete.
    pub fn start_offset(self, job: JobId) -> u32 {
        (job.0 % u128::from(self.count())) as u32
    }
}

/// Time in which a node must reach its parent before the edge is relayed.
pub const EDGE_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(3);

/// Configuration of an agent in the tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OobConfig {
    /// Secret that all agents of the job share.
    pub secret: Secret,
    /// Number of nodes in the tree.
    pub nodes: u32,
    /// Most children of a node.
    pub radix: u32,
    /// Addresses of this node to listen at, best first.
    pub addresses: Vec<IpAddr>,
    /// Range from which all listening ports are taken.
    pub ports: PortRange,
}

/// Parent of a node and the addresses to connect with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParentPeer {
    /// Number of the parent.
    pub node: NodeId,
    /// Pairs of a local address and an address of the parent's listener, best first.
    pub pairs: Vec<(IpAddr, SocketAddr)>,
}

/// Failed attempt to connect to the parent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EdgeAttempt {
    /// Local address.
    pub local: IpAddr,
    /// Address of the parent's listener.
    pub remote: SocketAddr,
    /// Failure.
    pub outcome: EdgeFailure,
}

/// Failure of an attempt to make an edge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EdgeFailure {
    /// The connection was refused: no listener, or a firewall.
    Refused,
    /// There was no answer in time.
    NoAnswer,
    /// The host has no route to the address.
    NoRoute,
    /// The parent was reached, but could not connect back to this listener.
    NoReturnPath(SocketAddr),
    /// A peer answered that is not the parent, with the error that it caused.
    WrongPeer(String),
    /// Other error of the operating system.
    System(String),
}

impl fmt::Display for EdgeFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EdgeFailure::Refused => write!(f, "refused"),
            EdgeFailure::NoAnswer => write!(f, "no answer"),
            EdgeFailure::NoRoute => write!(f, "no route"),
            EdgeFailure::NoReturnPath(listener) => write!(f, "cannot connect back to {listener}"),
            EdgeFailure::WrongPeer(what) => write!(f, "unexpected answer: {what}"),
            EdgeFailure::System(cause) => write!(f, "{cause}"),
        }
    }
}

/// Report of a node about the edge to its parent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EdgeReport {
    /// Local and remote address of the edge; `None` if it must be relayed.
    pub edge: Option<(SocketAddr, SocketAddr)>,
    /// Attempts that failed.
    pub failed: Vec<EdgeAttempt>,
}
