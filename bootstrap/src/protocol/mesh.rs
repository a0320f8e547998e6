//! Proofs of the mesh: queue pairs between nodes are made and tested before the program starts.
//!
//! The launcher decides which paths are proved and sends each node its own ends as a [`Round`]. On
//! a node a separate process, the *prover*, does the work, because it loads libibverbs, which the
//! agent does not. Agent and prover exchange [`ToProver`] and [`FromProver`] over the prover's
//! stdin and stdout, in frames of [`crate::frame`]:
//!
//! ```text
//! launcher       agent                         prover
//!   Prove ────────▶  Prove ──────────────────────▶  makes queue pairs that can receive
//!                    ◀─────────────────── Prepared  endpoints, for the peers
//!                  all-gather of the endpoints
//!                    Connect ────────────────────▶  makes them able to send
//!                    ◀────────────────── Connected
//!                  barrier: every node has connected
//!                    Go ─────────────────────────▶  sends a token, then a block, each way
//!                    ◀────────────────── RoundDone
//!   ◀───── RoundDone
//!   WatchPaths ───▶  Watch ──────────────────────▶  keeps these queue pairs and sends beats
//!                    ◀────────────────── PathEvent
//!   ◀───── PathEvent
//! ```

use crate::id::NodeId;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

/// Size of the block that is moved each way, in bytes.
pub const BLOCK: usize = 64 << 10;

/// Paths of one node that are proved at the same time, in step with the other nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Round {
    /// Number of the round in the job, from 0.
    pub number: u32,
    /// Ports of this node at which the paths end.
    pub ends: Vec<LocalPort>,
    /// Paths of this node.
    pub paths: Vec<MeshPath>,
    /// Settings of the queue pairs.
    pub settings: QpSettings,
    /// Time limits of the steps.
    pub limits: RoundTimeouts,
    /// Whether only the two nodes of one path take part and exchange endpoints through the
    /// launcher, because the job is running already.
    pub through_launcher: bool,
}

/// RDMA port of this node, with one of its addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalPort {
    /// Name of the device, such as `mlx5_0`.
    pub device: String,
    /// Number of the port, from 1.
    pub port: u8,
    /// Index into the GID table; `None` if packets are addressed by LID alone.
    pub gid_index: Option<u16>,
    /// Address at which the RDMA connection manager listens; `None` if endpoints are exchanged out
    /// of band.
    pub cm_address: Option<IpAddr>,
}

/// Path as seen from one of its ends. One queue pair proves both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeshPath {
    /// Identifier, equal at both ends.
    pub id: u32,
    /// Index of this end in [`Round::ends`].
    pub end: u32,
    /// Node at the other end.
    pub peer: NodeId,
    /// Whether this end connects and sends first.
    pub dials: bool,
    /// Largest packet, in bytes, if it must be smaller than the ports allow because a block was
    /// lost.
    pub mtu: Option<u32>,
}

/// Settings of queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpSettings {
    /// Traffic class: the TOS byte of IP with RoCE, or the field of the global header with
    /// InfiniBand.
    pub traffic_class: u8,
    /// Service level of InfiniBand, 0 to 15.
    pub service_level: u8,
    /// Exponent of the time to wait for an acknowledgement, 4.096 µs · 2^timeout, 1 to 31.
    pub timeout: u8,
    /// Number of retransmissions without an acknowledgement, 0 to 7.
    pub retries: u8,
}

/// Detects a dead path within a second: it waits 0.27 s for an acknowledgement, twice.
impl Default for QpSettings {
    fn default() -> QpSettings {
        QpSettings { traffic_class: 0, service_level: 0, timeout: 16, retries: 1 }
    }
}

/// Time limits of the steps of a round, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoundTimeouts {
    /// Until every queue pair can send.
    pub connect_ms: u32,
    /// Until the token has returned.
    pub token_ms: u32,
    /// Until the block has arrived.
    pub block_ms: u32,
}

impl RoundTimeouts {
    /// Divides a time budget that has to suffice for two rounds: 3/10 of it to connect, 2/10 for
    /// the token, 2/10 for the block. If only `left` remains and that is less, it is divided in the
    /// same proportions.
    pub fn within(budget: Duration, left: Duration) -> RoundTimeouts {
        let all = (budget * 7 / 10).min(left);
        let share =
            |sevenths: u32| u32::try_from((all * sevenths / 7).as_millis()).unwrap_or(u32::MAX / 8);
        RoundTimeouts { connect_ms: share(3), token_ms: share(2), block_ms: share(2) }
    }

    /// Returns the sum of all limits.
    pub fn total(&self) -> Duration {
        Duration::from_millis(
            u64::from(self.connect_ms) + u64::from(self.token_ms) + u64::from(self.block_ms),
        )
    }
}

/// Outcome of a path at one end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathOutcome {
    /// Identifier of the path ([`MeshPath::id`]).
    pub id: u32,
    /// Measurements of a path that carries data, or the fault of one that does not.
    pub result: Result<PathProof, PathFault>,
}

/// Measurements of a path that carries data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathProof {
    /// Largest packet, in bytes; `None` if the connection manager decides it.
    pub mtu: Option<u32>,
    /// Round trip of the token, in nanoseconds.
    pub round_trip_ns: u32,
}

/// Fault of a path that does not carry data.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PathFault {
    /// Step that failed.
    pub step: ProofStep,
    /// Cause, such as `ibv_modify_qp to RTR: no route …` or `transport retry counter exceeded
    /// (status 12)`.
    pub cause: String,
    /// Remedy, as far as this end knows one.
    pub hint: Option<String>,
    /// Whether this end only waited for its peer, whose own report is more precise.
    pub awaited_peer: bool,
}

/// Steps of the proof of a path, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProofStep {
    /// Make a queue pair that can receive.
    Prepare,
    /// Exchange endpoints with the peer.
    Exchange,
    /// Make the queue pair able to send.
    Connect,
    /// Send a few bytes to the peer and receive them back, each way.
    Token,
    /// Send a block in packets of the largest size, each way.
    Block,
}

impl fmt::Display for ProofStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ProofStep::Prepare => "prepare",
            ProofStep::Exchange => "exchange",
            ProofStep::Connect => "connect",
            ProofStep::Token => "token",
            ProofStep::Block => "block",
        })
    }
}

/// Resources that a round used on one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoundCost {
    /// Number of queue pairs that were made.
    pub queue_pairs: u32,
    /// Time to make and connect them, in microseconds.
    pub connect_us: u32,
    /// Memory of the prover for them, in bytes, without memory of the kernel.
    pub memory: u64,
}

/// Event on a watched path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PathEvent {
    /// The path does not carry data any more.
    Down {
        /// Identifier of the path ([`MeshPath::id`]).
        id: u32,
        /// Symptom, such as `no answer (status 12)`, `rxe0 port 1: link down` or `no beat for 5 s`.
        how: String,
    },
    /// The path's local port is up again, so the path can be proved again.
    PortUp {
        /// Identifier of the path ([`MeshPath::id`]).
        id: u32,
    },
}

/// Message from the agent to its prover.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToProver {
    /// Make queue pairs for these paths.
    Prove(Round),
    /// Endpoints of the other nodes, each an encoded [`NodeEndpoints`].
    Connect(Vec<Vec<u8>>),
    /// Every node has connected.
    Go,
    /// Close all queue pairs except those of these paths, and watch these.
    Watch {
        /// Identifiers of the paths in the last round ([`MeshPath::id`]).
        ids: Vec<u32>,
        /// Interval between beats on each path, in milliseconds.
        beat_ms: u32,
    },
}

/// Message from the prover to its agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromProver {
    /// Queue pairs can receive. The encoded endpoints are split into at most as many parts as the
    /// node has ranks.
    Prepared(Vec<Vec<u8>>),
    /// Queue pairs can send, except those that failed.
    Connected,
    /// The round is complete.
    RoundDone {
        /// Outcome of every path.
        outcomes: Vec<PathOutcome>,
        /// Resources that the round used.
        cost: RoundCost,
    },
    /// Event on a watched path.
    PathEvent(PathEvent),
}

/// Endpoints of one node, for its peers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeEndpoints {
    /// Number of the node.
    pub node: NodeId,
    /// Ports that could be opened.
    pub ends: Vec<EndAdvert>,
    /// Paths whose queue pairs could be made.
    pub paths: Vec<PathAdvert>,
}

impl NodeEndpoints {
    /// Encodes the endpoints with postcard.
    pub fn encode(&self) -> Result<Vec<u8>, postcard::Error> {
        postcard::to_extend(self, Vec::new())
    }

    /// Decodes endpoints. Fails if the bytes are none.
    pub fn decode(bytes: &[u8]) -> Result<NodeEndpoints, postcard::Error> {
        postcard::from_bytes(bytes)
    }
}

/// Description of a port, for peers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndAdvert {
    /// Index of the port in [`Round::ends`].
    pub end: u32,
    /// Local identifier; 0 on Ethernet.
    pub lid: u16,
    /// GID; with the connection manager, the address at which it listens.
    pub gid: Option<Ipv6Addr>,
    /// Largest packet, in bytes.
    pub mtu: u32,
    /// Virtual address of the port's memory, as peers name it in RDMA reads and writes.
    pub address: u64,
    /// Remote key of that memory.
    pub key: u32,
    /// Offset in that memory of the block that peers read, in bytes.
    pub block: u32,
    /// TCP port of the connection manager's listener.
    pub listener: Option<u16>,
}

/// Description of one end of a path, for the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathAdvert {
    /// Identifier of the path ([`MeshPath::id`]).
    pub id: u32,
    /// Index of the port in [`NodeEndpoints::ends`].
    pub end: u32,
    /// Queue pair number, 24 bits; 0 if the connection manager makes the queue pair.
    pub qpn: u32,
    /// Packet sequence number of the first packet, 24 bits. If the connection manager makes the queue
    /// pair: the secret that the dialling end shows in its private data.
    pub psn: u32,
    /// Offset of the path's control words in the port's memory, in bytes.
    pub control: u32,
}

/// Hash and size of the prover, which a node may have in its cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProverFile {
    /// SHA-256 of the file.
    pub sha256: [u8; 32],
    /// Size in bytes.
    pub size: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_stay_within_the_whole() {
        let five = Duration::from_secs(5);
        let limits = RoundTimeouts::within(five, five);
        assert_eq!((limits.connect_ms, limits.token_ms, limits.block_ms), (1500, 1000, 1000));
        for left in [0, 1, 700, 3_500, 5_000].map(Duration::from_millis) {
            assert!(RoundTimeouts::within(five, left).total() <= left, "{left:?}");
        }
        let long = Duration::from_secs(u64::from(u32::MAX));
        assert!(RoundTimeouts::within(long, long).total() <= long);
    }
}
