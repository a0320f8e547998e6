//! The mesh: queue pairs between ranks of different nodes, proved before the program starts.
//!
//! The launcher decides which paths are proved and tells each node its own ends in a [`Round`]; the
//! nodes do it together and answer. On a node the work is done by a process of its own, the
//! *prover*: it loads libibverbs, which the agent cannot. They speak [`ToProver`] and [`FromProver`]
//! over the prover's stdin and stdout, framed as [`crate::protocol::control`] frames:
//!
//! ```text
//! launcher      agent                         prover
//!   Prove ───────▶  Prove ──────────────────────▶  makes queue pairs, which can receive
//!                   ◀─────────────────── Prepared  what each peer must know of them
//!               gather: every node gives and gets
//!                   Connect ────────────────────▶  they can send, too
//!                   ◀────────────────── Connected
//!               barrier: nothing is sent before every node has connected
//!                   Go ─────────────────────────▶  a token each way and back, then a block each way
//!                   ◀───────────────────── Proved
//!   ◀────── Proved
//!   Watch ───────▶  Watch ──────────────────────▶  closes all but these, and has an eye on them
//!                   ◀─────────────────── Watching  what becomes of them
//! ```

use crate::id::NodeId;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

/// Bytes of the block that is moved each way.
pub const BLOCK: usize = 64 << 10;

/// What of a node's paths is proved at once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Round {
    /// From 0: each round of a job has its own.
    pub number: u32,
    /// The node's ports that paths begin at.
    pub ends: Vec<LocalPort>,
    /// The node's paths.
    pub paths: Vec<MeshPath>,
    /// How queue pairs behave.
    pub settings: QpSettings,
    /// How long it may take.
    pub limits: RoundTimeouts,
    /// Only the two ends of one path take part, and meet through the launcher: the job runs already.
    pub through_launcher: bool,
}

/// A port of this node, and an address of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalPort {
    /// `mlx5_0`.
    pub device: String,
    /// From 1.
    pub port: u8,
    /// Which entry of the GID table; none where packets are addressed by LID alone.
    pub gid_index: Option<u16>,
    /// The address by which the connection manager finds it; `None` where peers are told of queue
    /// pairs out of band.
    pub cm_address: Option<IpAddr>,
}

/// A path as one of its ends sees it. Both directions are proved over one queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeshPath {
    /// The same at both ends.
    pub id: u32,
    /// Which of [`Round::ends`].
    pub end: u32,
    /// The node at the other end.
    pub peer: NodeId,
    /// This end connects and sends first; the other waits for it.
    pub dials: bool,
    /// The largest packet, in bytes: less than the ports would carry after a block got lost.
    pub mtu: Option<u32>,
}

/// How queue pairs behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpSettings {
    /// Of IP with RoCE, the TOS byte; of the global header with InfiniBand.
    pub traffic_class: u8,
    /// InfiniBand's virtual lane, 0 to 15.
    pub service_level: u8,
    /// An answer is waited for 4.096 µs · 2^timeout, 1 to 31.
    pub timeout: u8,
    /// How often a packet is sent again without an answer, 0 to 7.
    pub retries: u8,
}

/// An answer within 0.27 s, at the second try: a path that is dead is known to be within a second.
impl Default for QpSettings {
    fn default() -> QpSettings {
        QpSettings { traffic_class: 0, service_level: 0, timeout: 16, retries: 1 }
    }
}

/// How long the steps of a round may take, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoundTimeouts {
    /// Until every queue pair can send.
    pub connect_ms: u32,
    /// Until the token is back.
    pub token_ms: u32,
    /// Until the block has come.
    pub block_ms: u32,
}

impl RoundTimeouts {
    /// What is left of a budget for all rounds: of the whole, three tenths to connect and two tenths
    /// each for token and block, so that as much again is there for a second round; in the same
    /// proportions what is left, when that is less.
    pub fn within(budget: Duration, left: Duration) -> RoundTimeouts {
        let all = (budget * 7 / 10).min(left);
        let share =
            |sevenths: u32| u32::try_from((all * sevenths / 7).as_millis()).unwrap_or(u32::MAX / 8);
        RoundTimeouts { connect_ms: share(3), token_ms: share(2), block_ms: share(2) }
    }

    /// All steps together.
    pub fn total(&self) -> Duration {
        Duration::from_millis(
            u64::from(self.connect_ms) + u64::from(self.token_ms) + u64::from(self.block_ms),
        )
    }
}

/// How a path came out at one end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathOutcome {
    /// [`MeshPath::id`].
    pub id: u32,
    /// It carries, or not.
    pub result: Result<PathProof, PathFault>,
}

/// A path that carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathProof {
    /// The largest packet, in bytes; unknown where the connection manager decides it.
    pub mtu: Option<u32>,
    /// From the token's departure to its return, in nanoseconds.
    pub round_trip_ns: u32,
}

/// A path that does not carry.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PathFault {
    /// How far it came.
    pub step: ProofStep,
    /// `ibv_modify_qp to RTR: no route …`, `transport retry counter exceeded (status 12)`.
    pub cause: String,
    /// What the end that says so can tell to do about it.
    pub hint: Option<String>,
    /// It waited for its peer, which knows more.
    pub awaited_peer: bool,
}

/// What is done to prove a path, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProofStep {
    /// A queue pair that can receive.
    Prepare,
    /// Every node tells of its queue pairs.
    Exchange,
    /// The queue pair can send, too.
    Connect,
    /// A few bytes there and back, each way.
    Token,
    /// A block of the largest packets, each way.
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

/// What a round cost one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoundCost {
    /// Queue pairs that were made.
    pub queue_pairs: u32,
    /// Making and connecting them, in microseconds.
    pub connect_us: u32,
    /// Memory of the prover for them, in bytes, without the kernel's.
    pub memory: u64,
}

/// What becomes of a path that is watched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PathEvent {
    /// It carries no more, and how that was noticed.
    Down {
        /// [`MeshPath::id`].
        id: u32,
        /// `no answer (status 12)`, `rxe0 port 1: link down`, `no beat for 5 s`.
        how: String,
    },
    /// The port that it begins at is up again: it can be proved anew.
    PortUp {
        /// [`MeshPath::id`].
        id: u32,
    },
}

/// From the agent to its prover.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToProver {
    /// Make queue pairs for these paths.
    Prove(Round),
    /// What the other ends have said: one [`NodeEndpoints`] each, encoded.
    Connect(Vec<Vec<u8>>),
    /// Every node has connected.
    Go,
    /// Close all queue pairs but those of these paths, and watch them; that of each beats so often.
    Watch {
        /// [`MeshPath::id`], of the last round.
        ids: Vec<u32>,
        /// In milliseconds.
        beat_ms: u32,
    },
}

/// From the prover to its agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromProver {
    /// Queue pairs can receive; what peers must know, as many parts as there are ranks at most.
    Prepared(Vec<Vec<u8>>),
    /// Queue pairs can send, those that failed excepted.
    Connected,
    /// The end of a round.
    RoundDone {
        /// Of every path.
        outcomes: Vec<PathOutcome>,
        /// What it took.
        cost: RoundCost,
    },
    /// Something became of a watched path.
    PathEvent(PathEvent),
}

/// What one node tells the others of its queue pairs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeEndpoints {
    /// Who.
    pub node: NodeId,
    /// Of each of its ends that could be opened.
    pub ends: Vec<EndAdvert>,
    /// Of paths whose queue pairs could be made.
    pub paths: Vec<PathAdvert>,
}

impl NodeEndpoints {
    /// As they travel.
    pub fn encode(&self) -> Result<Vec<u8>, postcard::Error> {
        postcard::to_extend(self, Vec::new())
    }

    /// As they came; fails for what is none.
    pub fn decode(bytes: &[u8]) -> Result<NodeEndpoints, postcard::Error> {
        postcard::from_bytes(bytes)
    }
}

/// What peers must know of a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndAdvert {
    /// Which of [`Round::ends`].
    pub end: u32,
    /// Its local identifier; 0 on Ethernet.
    pub lid: u16,
    /// Its GID; with the connection manager the address that it listens at.
    pub gid: Option<Ipv6Addr>,
    /// The largest packet, in bytes.
    pub mtu: u32,
    /// Where its memory begins.
    pub address: u64,
    /// By which peers may write to it and read from it.
    pub key: u32,
    /// Where the block is that peers read, from the beginning.
    pub block: u32,
    /// Where the connection manager listens.
    pub listener: Option<u16>,
}

/// What the peer must know of a path's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathAdvert {
    /// [`MeshPath::id`].
    pub id: u32,
    /// Which of [`NodeEndpoints::ends`].
    pub end: u32,
    /// Queue pair number, 24 bits; 0 if the connection manager makes the queue pair.
    pub qpn: u32,
    /// Packet sequence number of the first packet, 24 bits. If the connection manager makes the queue
    /// pair: the secret that the dialling end shows in its private data.
    pub psn: u32,
    /// Where its control words are, from the beginning of the memory.
    pub control: u32,
}

/// A file that a node needs and may not have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProverFile {
    /// SHA-256 of its content.
    pub sha256: [u8; 32],
    /// In bytes.
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
