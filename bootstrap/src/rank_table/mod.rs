//! The rank table: who is where, and by what any two ranks reach each other.
//!
//! The launcher builds it once, from what all nodes have said, and every node gets it. It has a row
//! for each node and each rank and, instead of one for each pair, a rule: [`RankTable::pair`] is a
//! function of the table alone, so both ends of a pair conclude the same.

mod pair;

pub use pair::{Pair, PairTransport};

use crate::id::{JobId, LocalRank, NodeId, Rank};
use crate::inventory::pci::Distance;
use crate::job::InterfaceAddress;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// Changes whenever a field changes its meaning or goes.
pub const TABLE_VERSION: u32 = 4;

/// A table without a hole and without a duplicate: there is no other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "UncheckedTable", into = "UncheckedTable")]
pub struct RankTable {
    rows: UncheckedTable,
}

/// The table's rows, not yet checked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UncheckedTable {
    /// [`TABLE_VERSION`].
    pub version: u32,
    /// The job's id, 32 hexadecimal digits.
    pub job: String,
    /// How many ranks there are.
    pub world_size: u32,
    /// By node.
    pub nodes: Vec<NodeRow>,
    /// By rank.
    pub ranks: Vec<RankRow>,
    /// By what pairs reach each other, but for [`UncheckedTable::exceptions`].
    pub rule: PairRule,
    /// How packets of RDMA are marked.
    pub marks: PacketMarks,
    /// Pairs of NICs for which the rule does not hold, that of the lower node first, in order.
    pub exceptions: Vec<PairException>,
}

/// A node of the job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRow {
    /// Its number.
    pub node: NodeId,
    /// As the user typed it.
    pub host: String,
    /// What its kernel calls it.
    pub hostname: String,
    /// `x86_64` or `aarch64`.
    pub arch: String,
    /// By which the other nodes reach it, out of band.
    pub address: IpAddr,
    /// Every address of its interfaces that are up.
    pub addresses: Vec<InterfaceAddress>,
    /// Its RDMA ports, in the order of rails; a port with several addresses is here once for each,
    /// the preferred one first.
    pub nics: Vec<Nic>,
}

/// A port of an RDMA device, and an address of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nic {
    /// `mlx5_0`.
    pub device: String,
    /// From 1.
    pub port: u8,
    /// Which of its node's ports it is, in the order of PCI addresses. Clusters are cabled so that
    /// equal numbers meet at one switch.
    pub rail: u32,
    /// What it speaks.
    pub transport: Transport,
    /// Whether a processor does its work.
    pub software: bool,
    /// Whether its queue pairs are made by the RDMA connection manager: always with iWARP.
    pub by_manager: bool,
    /// Which entry of the GID table is used.
    pub gid_index: Option<u16>,
    /// That entry, as the kernel prints it.
    pub gid: Option<String>,
    /// The network interface of the port.
    pub netdev: Option<String>,
    /// Its address.
    pub address: Option<IpAddr>,
    /// What it can reach, itself included: `192.168.100.0/24` of its interface's addresses and
    /// routes, or `ib fe80000000000000`, InfiniBand's subnet prefix.
    pub networks: Vec<String>,
    /// The active MTU of the path, in bytes.
    pub mtu: Option<u32>,
    /// In megabits per second; `None` where the driver does not know.
    pub rate_mbps: Option<u32>,
}

/// What a port speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// InfiniBand, addressed by LID.
    Infiniband,
    /// RoCE v2, addressed by GID.
    Roce,
    /// iWARP, and what behaves like it: addressed by IP through the RDMA connection manager.
    Iwarp,
}

/// A rank of the job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankRow {
    /// Its number.
    pub rank: Rank,
    /// Where it runs.
    pub node: NodeId,
    /// Its place there.
    pub local_rank: LocalRank,
    /// The address of its node.
    pub address: IpAddr,
    /// The GPU that is its own, by PCI address.
    pub gpu: Option<String>,
    /// The NUMA node that it is bound to.
    pub numa_node: Option<u32>,
    /// The CPUs that it may use, as the kernel lists them: `0-3,8`.
    pub cpus: Option<String>,
    /// Its NICs, nearest first.
    pub nics: Vec<RankNic>,
}

/// A NIC as a rank sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankNic {
    /// Its index among its node's.
    pub nic: u32,
    /// From the rank's GPU, or else from its NUMA node.
    pub distance: Distance,
}

/// How pairs of ranks reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PairRule {
    /// Ranks of one node by shared memory, ranks of different nodes by TCP between their nodes'
    /// addresses.
    SharedMemoryThenTcp,
    /// The same, but by RDMA between nodes wherever two of their NICs speak the same and have a
    /// network in common.
    SharedMemoryThenRdmaThenTcp,
}

/// What networks tell packets of RDMA apart by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PacketMarks {
    /// Of IP with RoCE, the TOS byte; of the global header with InfiniBand.
    pub traffic_class: u8,
    /// InfiniBand's, 0 to 15.
    pub service_level: u8,
}

/// By what pairs of ranks reach each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connectivity {
    /// As a rule.
    pub rule: PairRule,
    /// Where they do it by RDMA.
    pub marks: PacketMarks,
    /// In order.
    pub exceptions: Vec<PairException>,
}

/// As if there were no RDMA.
impl Default for Connectivity {
    fn default() -> Connectivity {
        let (marks, exceptions) = (PacketMarks::default(), Vec::new());
        Connectivity { rule: PairRule::SharedMemoryThenTcp, marks, exceptions }
    }
}

/// Two NICs that are at odds with the rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PairException {
    /// On the lower node.
    pub a: NicId,
    /// On the higher.
    pub b: NicId,
    /// Whether they reach each other.
    pub reach: bool,
    /// The largest packet between them, in bytes, where what lies between carries less than they do.
    pub mtu: Option<u32>,
}

/// A NIC of the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NicId {
    /// Whose.
    pub node: NodeId,
    /// Its index among its node's.
    pub nic: u32,
}

/// Rows that make no table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// Made by another build.
    #[error("a rank table of version {0}, {TABLE_VERSION} is understood")]
    Version(u32),
    /// A row is missing, double or out of order.
    #[error("row {index} of the {what}s is that of {what} {found}")]
    OutOfOrder {
        /// `node` or `rank`.
        what: &'static str,
        /// The row.
        index: usize,
        /// Whose it is.
        found: u32,
    },
    /// The job has no name that its variables and files could have.
    #[error("the job's id is not 32 hexadecimal digits")]
    Job,
    /// Nobody to have a table.
    #[error("a rank table without ranks")]
    Empty,
    /// More or fewer ranks than there should be.
    #[error("{found} ranks where there should be {expected}")]
    WorldSize {
        /// Rows.
        found: usize,
        /// [`UncheckedTable::world_size`].
        expected: u32,
    },
    /// A rank on a node that is not there, or with a NIC that its node has not.
    #[error("rank {0} has a node or a NIC that is not there")]
    UnknownNodeOrNic(Rank),
    /// A rank whose address is not that of its node.
    #[error("rank {0} has another address than its node")]
    Address(Rank),
    /// A rank with one NIC twice.
    #[error("rank {0} has a NIC twice")]
    RankNics(Rank),
    /// A port of a device with the same address in two rows.
    #[error("node {0} has a NIC twice")]
    NodeNics(NodeId),
    /// Two ranks with one place, or a place left out.
    #[error("the local ranks of node {0} have a hole or a duplicate")]
    LocalRanks(NodeId),
    /// An exception for NICs that are not there, out of order, double, of NICs that cannot meet, or
    /// that says what the rule says.
    #[error("an exception for nodes {0} and {1} that makes no sense")]
    Exception(NodeId, NodeId),
}

impl TryFrom<UncheckedTable> for RankTable {
    type Error = TableError;

    fn try_from(rows: UncheckedTable) -> Result<RankTable, TableError> {
        rows.check()?;
        Ok(RankTable { rows })
    }
}

impl From<RankTable> for UncheckedTable {
    fn from(table: RankTable) -> UncheckedTable {
        table.rows
    }
}

impl UncheckedTable {
    fn check(&self) -> Result<(), TableError> {
        if self.version != TABLE_VERSION {
            return Err(TableError::Version(self.version));
        }
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if self.job.len() != 32 || !self.job.bytes().all(is_digit) {
            return Err(TableError::Job);
        }
        if self.world_size == 0 {
            return Err(TableError::Empty);
        }
        if self.ranks.len() != self.world_size as usize {
            let (found, expected) = (self.ranks.len(), self.world_size);
            return Err(TableError::WorldSize { found, expected });
        }
        check_order("node", self.nodes.iter().map(|row| row.node.0))?;
        check_order("rank", self.ranks.iter().map(|row| row.rank.0))?;
        self.nodes.iter().try_for_each(NodeRow::check)?;
        self.check_ranks()?;
        self.check_exceptions()
    }

    /// Every rank has a node, and the ranks of a node are numbered without a hole.
    fn check_ranks(&self) -> Result<(), TableError> {
        let mut locals: Vec<Vec<u32>> = vec![Vec::new(); self.nodes.len()];
        for row in &self.ranks {
            let node =
                self.nodes.get(row.node.index()).ok_or(TableError::UnknownNodeOrNic(row.rank))?;
            row.check(node)?;
            locals[row.node.index()].push(row.local_rank.0);
        }
        for (node, mut locals) in (0..).map(NodeId).zip(locals) {
            locals.sort_unstable();
            if locals.iter().zip(0..).any(|(&local, expected): (_, u32)| local != expected) {
                return Err(TableError::LocalRanks(node));
            }
        }
        Ok(())
    }

    fn check_exceptions(&self) -> Result<(), TableError> {
        let mut before = None;
        for exception in &self.exceptions {
            let PairException { a, b, reach, mtu } = *exception;
            let excepts = match (self.nic(a), self.nic(b)) {
                (Some(one), Some(other)) => {
                    let of_mtu = reach && mtu.is_some();
                    one.transport == other.transport && (of_mtu || one.can_reach(other) != reach)
                }
                _ => false,
            };
            if !excepts || a.node >= b.node || before >= Some((a, b)) {
                return Err(TableError::Exception(a.node, b.node));
            }
            before = Some((a, b));
        }
        Ok(())
    }

    fn nic(&self, end: NicId) -> Option<&Nic> {
        self.nodes.get(end.node.index())?.nics.get(end.nic as usize)
    }
}

impl NodeRow {
    fn check(&self) -> Result<(), TableError> {
        let ports = self.nics.iter().map(|nic| (nic.device.as_str(), nic.port, nic.address));
        if has_duplicate(ports.collect()) { Err(TableError::NodeNics(self.node)) } else { Ok(()) }
    }
}

impl RankRow {
    fn check(&self, node: &NodeRow) -> Result<(), TableError> {
        if self.address != node.address {
            return Err(TableError::Address(self.rank));
        }
        let nics: Vec<u32> = self.nics.iter().map(|own| own.nic).collect();
        if nics.iter().any(|&nic| nic as usize >= node.nics.len()) {
            return Err(TableError::UnknownNodeOrNic(self.rank));
        }
        if has_duplicate(nics) {
            return Err(TableError::RankNics(self.rank));
        }
        Ok(())
    }
}

fn has_duplicate<T: Ord>(mut list: Vec<T>) -> bool {
    list.sort_unstable();
    list.windows(2).any(|pair| pair[0] == pair[1])
}

fn check_order(what: &'static str, numbers: impl Iterator<Item = u32>) -> Result<(), TableError> {
    for (index, found) in numbers.enumerate() {
        if found as usize != index {
            return Err(TableError::OutOfOrder { what, index, found });
        }
    }
    Ok(())
}

impl RankTable {
    /// A table of `world_size` ranks, `nodes`, `ranks` and `exceptions` each in order. Fails where
    /// a row is missing, double or at odds with another.
    pub fn new(
        job: JobId,
        world_size: u32,
        nodes: Vec<NodeRow>,
        ranks: Vec<RankRow>,
        Connectivity { rule, marks, exceptions }: Connectivity,
    ) -> Result<RankTable, TableError> {
        let (version, job) = (TABLE_VERSION, job.to_string());
        UncheckedTable { version, job, world_size, nodes, ranks, rule, marks, exceptions }
            .try_into()
    }

    /// How many ranks there are.
    pub fn world_size(&self) -> u32 {
        self.rows.world_size
    }

    /// By node.
    pub fn nodes(&self) -> &[NodeRow] {
        &self.rows.nodes
    }

    /// By rank.
    pub fn ranks(&self) -> &[RankRow] {
        &self.rows.ranks
    }

    /// How packets of RDMA are marked.
    pub fn marks(&self) -> PacketMarks {
        self.rows.marks
    }
}

#[cfg(test)]
mod tests;
