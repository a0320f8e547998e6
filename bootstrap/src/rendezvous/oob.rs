//! Configuration of an agent in the out-of-band network, which is TCP between agents. Also the
//! agent's report about the edge to its parent in the tree.

use crate::id::{JobId, NodeId};
use crate::security::Secret;
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};

/// Inclusive range of TCP ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortRange {
    pub first: u16,
    pub last: u16,
}

impl PortRange {
    /// Ports that rlaunch uses unless the user chooses others.
    pub const DEFAULT: PortRange = PortRange { first: 21000, last: 21511 };

    /// Returns the number of ports in the range, at least 1.
    pub fn count(self) -> u32 {
        u32::from(self.last.saturating_sub(self.first)) + 1
    }

    /// Returns the offset in the range at which a job starts to look for free ports. Different jobs
    /// start at different offsets, so that simultaneous jobs rarely compete.
    pub fn start_offset(self, job: JobId) -> u32 {
        (job.0 % u128::from(self.count())) as u32
    }
}

/// Time within which a node must connect to its parent. After that the edge is relayed through the
/// launcher.
pub const EDGE_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(3);

/// Configuration of an agent in the tree of agents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OobConfig {
    /// Secret that all agents of the job share.
    pub secret: Secret,
    /// Number of nodes in the tree.
    pub nodes: u32,
    /// Maximum number of children of a node.
    pub radix: u32,
    /// Addresses of this node at which the agent listens for its children, best first.
    pub addresses: Vec<IpAddr>,
    /// Range from which the node's listening ports are taken.
    pub ports: PortRange,
}

/// Parent of a node in the tree, and addresses for the connection to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParentPeer {
    pub node: NodeId,
    /// Pairs of a local address and an address at which the parent listens, best first.
    pub pairs: Vec<(IpAddr, SocketAddr)>,
}

/// Failed attempt to connect to the parent in the tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EdgeAttempt {
    /// Local address from which the node tried to connect.
    pub local: IpAddr,
    /// Address at which the parent listens.
    pub remote: SocketAddr,
    /// Reason why the attempt failed.
    pub outcome: EdgeFailure,
}

/// Reason why an attempt to connect to the parent failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum EdgeFailure {
    /// The connection was refused: no process listens there, or a firewall rejects it.
    #[error("refused")]
    Refused,
    /// The parent did not answer in time.
    #[error("no answer")]
    NoAnswer,
    /// The host has no route to the parent's address.
    #[error("no route")]
    NoRoute,
    /// The parent answered, but could not connect back to this address of the node's own listener.
    #[error("cannot connect back to {0}")]
    NoReturnPath(SocketAddr),
    /// The peer that answered is not the parent. Contains the error by which the peer was
    /// recognised.
    #[error("unexpected answer: {0}")]
    WrongPeer(String),
    /// The operating system reported another error.
    #[error("{0}")]
    System(String),
}

/// Report of a node about the edge to its parent in the tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EdgeReport {
    /// Local and remote address of the connection; `None` if the edge must be relayed through the
    /// launcher.
    pub edge: Option<(SocketAddr, SocketAddr)>,
    pub failed: Vec<EdgeAttempt>,
}
