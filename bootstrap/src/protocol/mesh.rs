//! Proofs of the mesh: before the program starts, queue pairs between nodes are made and tested.
//!
//! The launcher decides which paths are proved, and sends each node a [`ProofRound`] with the paths
//! that end on that node. The work is done by the *prover*, a process of its own on each node, so
//! that the agent need not load libibverbs. Agent and prover exchange [`ToProver`] and
//! [`FromProver`] over the prover's stdin and stdout, in frames of [`crate::frame`]:
//!
//! ```text
//! launcher       agent                         prover
//!   Prove ────────▶  Prove ──────────────────────▶  makes queue pairs that can receive
//!                    ◀─────────────────── Prepared  endpoints, for the peers
//!                  all-gather of the endpoints
//!                    Connect ────────────────────▶  makes them able to send
//!                    ◀────────────────── Connected
//!                  barrier: every node has connected
//!                    Go ─────────────────────────▶  exchanges tokens, reads the peer's block,
//!                                                   measures if the round says so
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

/// Size of the block that each end of a path reads from its peer, in bytes.
pub const BLOCK: usize = 64 << 10;

/// Paths of one node that are proved at the same time, step by step with the other nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProofRound {
    /// Number of the round in the job, from 0.
    pub number: u32,
    /// Ports of this node that are ends of the paths.
    pub ports: Vec<LocalPort>,
    /// Paths that end on this node.
    pub paths: Vec<MeshPath>,
    /// Settings of the queue pairs that are made.
    pub settings: QpSettings,
    /// Time limits of the steps.
    pub limits: RoundTimeouts,
    /// Whether only the two nodes of one path take part. They exchange endpoints through the
    /// launcher, because the ranks are running already.
    pub through_launcher: bool,
}

/// RDMA port of this node, with the address that its queue pairs use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalPort {
    /// Name of the device, such as `mlx5_0`.
    pub device: String,
    /// Number of the port, from 1.
    pub port: u8,
    /// Index into the port's GID table; `None` if packets are addressed by LID alone.
    pub gid_index: Option<u16>,
    /// IP address at which the RDMA connection manager listens; `None` if endpoints are exchanged
    /// out of band instead.
    pub cm_address: Option<IpAddr>,
}

/// Path between two nodes, as seen from one of its ends. One queue pair at each end proves both
/// directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeshPath {
    /// Identifier of the path, equal at both ends.
    pub id: u32,
    /// Index of this end's port in [`ProofRound::ports`].
    pub port_index: u32,
    /// Node at the other end of the path.
    pub peer: NodeId,
    /// Whether this end makes the connection and sends first.
    pub dials: bool,
    /// Maximum packet size of the path in bytes, set when a block was lost in an earlier round;
    /// `None` for the size that the ports allow.
    pub mtu: Option<u32>,
}

/// Settings of queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpSettings {
    /// Traffic class of packets: the TOS byte of IP with RoCE, or a field of the global routing
    /// header with InfiniBand.
    pub traffic_class: u8,
    /// Service level of packets with InfiniBand, 0 to 15.
    pub service_level: u8,
    /// Exponent of the time to wait for an acknowledgement, 1 to 31: the time is 4.096 µs ·
    /// 2^timeout.
    pub timeout: u8,
    /// Number of times that a packet is sent again without an acknowledgement, 0 to 7.
    pub retries: u8,
}

/// Settings that detect a dead path within a second: wait 0.27 s for an acknowledgement, twice.
impl Default for QpSettings {
    fn default() -> QpSettings {
        QpSettings { traffic_class: 0, service_level: 0, timeout: 16, retries: 1 }
    }
}

/// Time limits of the steps of a round, in milliseconds. The steps are done one after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoundTimeouts {
    /// Time in which every queue pair must become able to send.
    pub connect_ms: u32,
    /// Time in which the peer must send back the token.
    pub token_ms: u32,
    /// Time in which the peer's block must be read.
    pub block_ms: u32,
    /// Time for which the dialling end of each path then writes, to measure its bandwidth; 0 in
    /// jobs, which do not measure.
    pub measure_ms: u32,
}

impl RoundTimeouts {
    /// Divides a time budget that must suffice for two rounds: 3/10 of `budget` to connect, 2/10
    /// for the token, 2/10 for the block. If less time than 7/10 of `budget` is left, divides the
    /// remaining time `left` in the same proportions.
    pub fn within(budget: Duration, left: Duration) -> RoundTimeouts {
        let all = (budget * 7 / 10).min(left);
        let share =
            |sevenths: u32| u32::try_from((all * sevenths / 7).as_millis()).unwrap_or(u32::MAX / 8);
        let (connect_ms, token_ms, block_ms) = (share(3), share(2), share(2));
        RoundTimeouts { connect_ms, token_ms, block_ms, measure_ms: 0 }
    }

    /// Returns the sum of all limits.
    pub fn total(&self) -> Duration {
        let RoundTimeouts { connect_ms, token_ms, block_ms, measure_ms } = *self;
        let all = [connect_ms, token_ms, block_ms, measure_ms];
        Duration::from_millis(all.into_iter().map(u64::from).sum())
    }
}

/// Outcome of the proof of a path, as seen at one end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathOutcome {
    /// Identifier of the path ([`MeshPath::id`]).
    pub id: u32,
    /// Measurements if the path carries data, otherwise the fault.
    pub result: Result<PathProof, PathFault>,
}

/// Measurements of a path that carries data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathProof {
    /// Maximum packet size in bytes; `None` if the connection manager decides it.
    pub mtu: Option<u32>,
    /// Time from sending the token until it came back, in nanoseconds.
    pub round_trip_ns: u32,
    /// Write bandwidth in Mb/s; `None` at the end that does not dial, and if it was not measured.
    pub write_mbps: Option<u32>,
}

/// Fault of a path that does not carry data.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PathFault {
    pub step: ProofStep,
    /// Cause, such as `ibv_modify_qp to RTR: no route …` or `transport retry counter exceeded
    /// (status 12)`.
    pub cause: String,
    /// Remedy to suggest to the user, if this end knows one.
    pub hint: Option<String>,
    /// Whether this end only waited for its peer in vain, so that the peer's own report is more
    /// precise.
    pub awaited_peer: bool,
}

/// Steps of the proof of a path, in the order in which they are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProofStep {
    /// Make a queue pair that is able to receive.
    Prepare,
    /// Exchange endpoints with the peer.
    Exchange,
    /// Make the queue pair able to send.
    Connect,
    /// Send a random number of a few bytes to the peer and receive it back, in each direction.
    Token,
    /// Read a block from the peer in packets of maximum size, in each direction.
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
    /// Time to make and connect the queue pairs, in microseconds.
    pub connect_us: u32,
    /// Memory that the prover uses for the queue pairs, in bytes. Memory of the kernel is not
    /// included.
    pub memory: u64,
}

/// Change of the state of a watched path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PathEvent {
    /// The path no longer carries data.
    Down {
        /// Identifier of the path ([`MeshPath::id`]).
        id: u32,
        /// Symptom, such as `no answer (status 12)`, `rxe0 port 1: link down` or `no beat for 5 s`.
        how: String,
    },
    /// The local port of the path is up again, so the path can be proved again.
    PortUp {
        /// Identifier of the path ([`MeshPath::id`]).
        id: u32,
    },
}

/// Message from the agent to its prover.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToProver {
    /// Make queue pairs for the paths of this round.
    Prove(ProofRound),
    /// Connect the queue pairs to these endpoints of other nodes, each an encoded
    /// [`NodeEndpoints`].
    Connect(Vec<Vec<u8>>),
    /// Exchange tokens and blocks with the peers. Sent when every node has connected its queue
    /// pairs.
    Go,
    /// Keep and watch the queue pairs of these paths, and close all others.
    Watch {
        /// Identifiers of the paths to watch ([`MeshPath::id`]).
        ids: Vec<u32>,
        /// Interval between beats on each path, in milliseconds.
        beat_ms: u32,
    },
}

/// Message from the prover to its agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromProver {
    /// The queue pairs can receive. Contains the encoded endpoints of this node in parts. Each part
    /// is sent as one rank's blob of a gather, so there are never more parts than ranks on the
    /// node.
    Prepared(Vec<Vec<u8>>),
    /// The queue pairs can send, except those that failed.
    Connected,
    /// The tests of the round are complete.
    RoundDone {
        outcomes: Vec<PathOutcome>,
        /// Resources that the round used on this node.
        cost: RoundCost,
    },
    /// Change of the state of a watched path.
    PathEvent(PathEvent),
}

/// Endpoints of one node, for its peers to connect to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeEndpoints {
    pub node: NodeId,
    /// Ports of the node that could be opened.
    pub ports: Vec<PortAdvert>,
    /// Paths whose queue pairs could be made on the node.
    pub paths: Vec<PathAdvert>,
}

impl NodeEndpoints {
    /// Encodes the endpoints with postcard.
    pub fn encode(&self) -> Result<Vec<u8>, postcard::Error> {
        postcard::to_extend(self, Vec::new())
    }

    /// Decodes endpoints. Fails if the bytes are not encoded endpoints.
    pub fn decode(bytes: &[u8]) -> Result<NodeEndpoints, postcard::Error> {
        postcard::from_bytes(bytes)
    }
}

/// Description of a port, for peers to connect to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortAdvert {
    /// Index of the port in the [`ProofRound::ports`] of its node.
    pub port_index: u32,
    /// LID of the port; 0 on Ethernet.
    pub lid: u16,
    /// GID of the port or, with the connection manager, the IP address at which it listens.
    pub gid: Option<Ipv6Addr>,
    /// Maximum packet size that the port allows, in bytes.
    pub mtu: u32,
    /// Virtual address of the memory that peers read from and write to by RDMA.
    pub address: u64,
    /// Remote key with which peers access the memory at `address`.
    pub key: u32,
    /// Offset of the block that peers read, in bytes from `address`.
    pub block: u32,
    /// TCP port at which the connection manager listens; `None` without the connection manager.
    pub listener: Option<u16>,
}

/// Description of one end of a path, for the peer at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathAdvert {
    /// Identifier of the path ([`MeshPath::id`]).
    pub id: u32,
    /// Index of the end's port in the [`ProofRound::ports`] of its node.
    pub port_index: u32,
    /// Number of the queue pair, 24 bits; 0 if the connection manager makes the queue pair.
    pub qpn: u32,
    /// Sequence number of the first packet, 24 bits. If the connection manager makes the queue
    /// pair, this is the secret that the connecting end must send in its private data.
    pub psn: u32,
    /// Offset in the port's memory of the words that the peer writes (tokens and beats), in bytes.
    pub control: u32,
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
