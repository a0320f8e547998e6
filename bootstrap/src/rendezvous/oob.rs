//! The out-of-band network: what an agent is told of its place in the tree, and what it reports of
//! its way there.

use crate::id::{JobId, NodeId};
use crate::security::handshake::Secret;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// An inclusive range of TCP ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortRange {
    /// The first port that may be used.
    pub first: u16,
    /// The last port that may be used.
    pub last: u16,
}

impl PortRange {
    /// How many ports it has, one or more.
    pub fn count(self) -> u32 {
        u32::from(self.last.saturating_sub(self.first)) + 1
    }

    /// How many ports from the first on a job begins to look for free ones: it differs from job to
    /// job.
    pub fn start_offset(self, job: JobId) -> u32 {
        (job.0 % u128::from(self.count())) as u32
    }
}

/// How long a node tries to reach its parent before the edge is relayed.
pub const EDGE_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(3);

/// What every agent is told with its job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OobConfig {
    /// What all agents of the job share.
    pub secret: Secret,
    /// How many nodes the tree has.
    pub nodes: u32,
    /// The most children a node has.
    pub radix: u32,
    /// This node's addresses to listen on, best first.
    pub addresses: Vec<IpAddr>,
    /// Where every port comes from.
    pub ports: PortRange,
}

/// A node's parent and the ways to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParentPeer {
    /// The parent.
    pub node: NodeId,
    /// Own address and the parent's listener, best first.
    pub pairs: Vec<(IpAddr, SocketAddr)>,
}

/// What became of one way to the parent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EdgeAttempt {
    /// Own address.
    pub local: IpAddr,
    /// The parent's listener.
    pub remote: SocketAddr,
    /// What happened.
    pub outcome: EdgeFailure,
}

/// How a try ended without an edge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EdgeFailure {
    /// The host is there, and nobody listens or a firewall says no.
    Refused,
    /// Nothing came back in time.
    NoAnswer,
    /// The kernel knows no way.
    NoRoute,
    /// The parent was reached and could not connect back to this listener.
    NoReturnPath(SocketAddr),
    /// Somebody else answered.
    WrongPeer(String),
    /// Anything else the system said.
    System(String),
}

impl fmt::Display for EdgeFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EdgeFailure::Refused => write!(f, "refused"),
            EdgeFailure::NoAnswer => write!(f, "no answer"),
            EdgeFailure::NoRoute => write!(f, "no route"),
            EdgeFailure::NoReturnPath(listener) => write!(f, "cannot connect back to {listener}"),
            EdgeFailure::WrongPeer(what) => write!(f, "another program answered: {what}"),
            EdgeFailure::System(cause) => write!(f, "{cause}"),
        }
    }
}

/// How a node got on with its parent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EdgeReport {
    /// The addresses of the edge, own and the parent's; `None` when it has to be relayed.
    pub edge: Option<(SocketAddr, SocketAddr)>,
    /// Ways that did not lead there.
    pub failed: Vec<EdgeAttempt>,
}
