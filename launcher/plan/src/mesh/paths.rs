//! Choice of the paths to prove: a pure function of the rank table.

use rlaunch_bootstrap::id::{NodeId, Rank};
use rlaunch_bootstrap::rank_table::{NicId, Pair, PairTransport, RankTable};
use std::collections::BTreeSet;

/// Number of ranks up to which `--mesh auto` proves every pair of ranks.
const MAX_FULL_RANKS: u32 = 64;

/// `--mesh`: paths to prove before ranks start.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    strum::EnumString,
    strum::IntoStaticStr,
    strum::VariantArray,
)]
#[strum(serialize_all = "kebab-case")]
pub enum Mode {
    /// Every pair of ranks in jobs of up to 64, every pair of ports in larger ones
    #[default]
    Auto,
    /// Every pair of ranks
    Full,
    /// No proof
    Off,
}

impl Mode {
    /// Tells whether every pair of ranks is proved, rather than every pair of ports once.
    pub fn is_full(self, world_size: u32) -> bool {
        match self {
            Mode::Auto => world_size <= MAX_FULL_RANKS,
            Mode::Full => true,
            Mode::Off => false,
        }
    }
}

/// Proof of the path between two ranks of different nodes over one NIC of each, in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Proof {
    pub a: Rank,
    pub b: Rank,
    /// NIC of rank `a`, whose node starts the connection.
    pub from: NicId,
    /// NIC of rank `b`.
    pub to: NicId,
    /// MTU in bytes, if it is lower than that of both NICs.
    pub mtu: Option<u32>,
    pub by_manager: bool,
}

impl Proof {
    pub fn nodes(&self) -> [NodeId; 2] {
        [self.from.node, self.to.node]
    }

    /// Returns the two NICs; the NIC of the node with the lower id is first.
    pub fn nics(&self) -> (NicId, NicId) {
        (self.from.min(self.to), self.from.max(self.to))
    }
}

/// Lists the paths that are proved in this mode.
pub fn wanted(table: &RankTable, mode: Mode) -> Vec<Proof> {
    if mode == Mode::Off {
        return Vec::new();
    }
    let all = super::show::pairs(table).filter_map(|pair| proof(table, &pair));
    if mode.is_full(table.world_size()) {
        return all.collect();
    }
    let mut seen = BTreeSet::new();
    all.filter(|proof| seen.insert((proof.nics(), proof.mtu))).collect()
}

/// Returns the proof for a pair of ranks, or `None` if the rank table does not connect the pair by RDMA.
pub fn proof(table: &RankTable, pair: &Pair) -> Option<Proof> {
    let Pair { a, b, nic_a, nic_b, connect, mtu } = *pair;
    let by_manager = match connect {
        PairTransport::Rdma => false,
        PairTransport::RdmaCm => true,
        PairTransport::SharedMemory | PairTransport::Tcp => return None,
    };
    let node = |rank: Rank| Some(table.ranks().get(rank.index())?.node);
    let from = NicId { node: node(a)?, nic: nic_a? };
    let to = NicId { node: node(b)?, nic: nic_b? };
    let port_mtu =
        |end: NicId| table.nodes().get(end.node.index())?.nics.get(end.nic as usize)?.mtu;
    let carried = port_mtu(from).into_iter().chain(port_mtu(to)).min();
    Some(Proof { a, b, from, to, mtu: mtu.filter(|_| mtu != carried), by_manager })
}
