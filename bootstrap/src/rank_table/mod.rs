//! The rank table: where each rank runs, and how any two ranks reach each other.
//!
//! The launcher builds it once, from the reports of all nodes, and every node receives it. It has
//! one row for each node and each rank. For pairs of ranks there are no rows, because they would
//! grow quadratically; [`RankTable::pair`] computes the connection of a pair from the table alone,
//! so both ends come to the same result. As JSON it is described by `rank-table.schema.json` and
//! `rank-table.example.json`.

mod pair;

pub use pair::{Pair, PairTransport};

use crate::id::{JobId, LocalRank, NodeId, Rank};
use crate::inventory::pci::Distance;
use crate::job::InterfaceAddress;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// Version of the table, which changes when a field is removed or changes its meaning.
pub const TABLE_VERSION: u32 = 4;

/// Rank table that is consistent: without gaps, duplicates or references to rows that do not exist.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "UncheckedTable", into = "UncheckedTable")]
pub struct RankTable {
    rows: UncheckedTable,
}

/// Rank table before the check for consistency.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UncheckedTable {
    /// Version of the table ([`TABLE_VERSION`]).
    pub version: u32,
    /// Identifier of the job, 32 hexadecimal digits.
    pub job: String,
    /// Number of ranks.
    pub world_size: u32,
    /// Nodes, in order of their numbers.
    pub nodes: Vec<NodeRow>,
    /// Ranks, in order of their numbers.
    pub ranks: Vec<RankRow>,
    /// Rule for pairs of ranks.
    pub rule: PairRule,
    /// Marks of RDMA packets.
    pub marks: PacketMarks,
    /// Pairs of NICs for which the rule does not hold, sorted, each with the NIC of the lower node
    /// first.
    pub exceptions: Vec<PairException>,
}

/// Row of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRow {
    /// Number of the node.
    pub node: NodeId,
    /// Host as the user typed it.
    pub host: String,
    /// Host name in the node's kernel.
    pub hostname: String,
    /// Architecture, `x86_64` or `aarch64`.
    pub arch: String,
    /// Address at which other nodes reach it out of band, over TCP.
    pub address: IpAddr,
    /// Addresses of its interfaces that are up.
    pub addresses: Vec<InterfaceAddress>,
    /// RDMA ports in the order of their rails. A port with several addresses occurs once for each,
    /// the preferred one first.
    pub nics: Vec<Nic>,
}

/// RDMA port with one of its addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nic {
    /// Name of the device, such as `mlx5_0`.
    pub device: String,
    /// Number of the port, from 1.
    pub port: u8,
    /// Number of the port among those of its node, in the order of PCI addresses. In usual
    /// clusters, ports of the same rail are connected to the same switch.
    pub rail: u32,
    /// Transport protocol.
    pub transport: Transport,
    /// Whether the device is software that runs on the CPU.
    pub software: bool,
    /// Whether queue pairs are made by the RDMA connection manager, as is always the case with
    /// iWARP.
    pub by_manager: bool,
    /// Index of the GID in use.
    pub gid_index: Option<u16>,
    /// GID in use, as the kernel prints it.
    pub gid: Option<String>,
    /// Network interface of the port.
    pub netdev: Option<String>,
    /// IP address of the port.
    pub address: Option<IpAddr>,
    /// Networks that the port can reach, including its own: `192.168.100.0/24` from addresses and
    /// routes of its interface, or `ib fe80000000000000` from InfiniBand's subnet prefix.
    pub networks: Vec<String>,
    /// Active path MTU, in bytes.
    pub mtu: Option<u32>,
    /// Rate in Mb/s; `None` if the driver does not report it.
    pub rate_mbps: Option<u32>,
}

/// Transport protocol of an RDMA port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// InfiniBand, addressed by LID.
    Infiniband,
    /// RoCE v2, addressed by GID.
    Roce,
    /// iWARP and similar protocols, addressed by IP through the RDMA connection manager.
    Iwarp,
}

/// Row of a rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankRow {
    /// Number of the rank.
    pub rank: Rank,
    /// Node on which it runs.
    pub node: NodeId,
    /// Number of the rank on its node.
    pub local_rank: LocalRank,
    /// Address of its node.
    pub address: IpAddr,
    /// PCI address of the rank's own GPU.
    pub gpu: Option<String>,
    /// NUMA node to which the rank is bound.
    pub numa_node: Option<u32>,
    /// CPUs that the rank may use, in the kernel's list format: `0-3,8`.
    pub cpus: Option<String>,
    /// NICs of the rank, nearest first.
    pub nics: Vec<RankNic>,
}

/// NIC that a rank may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankNic {
    /// Index of the NIC in [`NodeRow::nics`].
    pub nic: u32,
    /// Distance from the rank's GPU or, without a GPU, from its NUMA node.
    pub distance: Distance,
}

/// Rule for the connection between two ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PairRule {
    /// Shared memory on one node, TCP between nodes.
    SharedMemoryThenTcp,
    /// Shared memory on one node; between nodes RDMA if two NICs have the same transport and a
    /// common network, otherwise TCP.
    SharedMemoryThenRdmaThenTcp,
}

/// Marks of RDMA packets, which networks use to assign priorities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PacketMarks {
    /// Traffic class: the TOS byte of IP with RoCE, or the field of the global header with
    /// InfiniBand.
    pub traffic_class: u8,
    /// Service level of InfiniBand, 0 to 15.
    pub service_level: u8,
}

/// Rule for connections between ranks, with its exceptions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connectivity {
    /// Rule for all pairs of NICs that are not excepted.
    pub rule: PairRule,
    /// Marks of RDMA packets.
    pub marks: PacketMarks,
    /// Exceptions, sorted.
    pub exceptions: Vec<PairException>,
}

/// Connects ranks of different nodes by TCP only.
impl Default for Connectivity {
    fn default() -> Connectivity {
        let (marks, exceptions) = (PacketMarks::default(), Vec::new());
        Connectivity { rule: PairRule::SharedMemoryThenTcp, marks, exceptions }
    }
}

/// Pair of NICs for which the rule does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PairException {
    /// NIC of the lower node.
    pub a: NicId,
    /// NIC of the higher node.
    pub b: NicId,
    /// Whether the two reach each other.
    pub reach: bool,
    /// Largest packet between them, in bytes, if the network between them carries less than the
    /// NICs.
    pub mtu: Option<u32>,
}

/// Reference to a NIC of the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NicId {
    /// Node of the NIC.
    pub node: NodeId,
    /// Index of the NIC in [`NodeRow::nics`].
    pub nic: u32,
}

/// Inconsistency of a rank table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// The table was made by another version of rlaunch.
    #[error("rank table version {0} is not supported; this build reads version {TABLE_VERSION}")]
    Version(u32),
    /// A row is missing, duplicate or out of order.
    #[error("row {index} of the {what}s belongs to {what} {found}")]
    OutOfOrder {
        /// Kind of row: `node` or `rank`.
        what: &'static str,
        /// Index of the row.
        index: usize,
        /// Number that the row has.
        found: u32,
    },
    /// The job's identifier is not 32 hexadecimal digits.
    #[error("the job's id is not 32 hexadecimal digits")]
    Job,
    /// The table has no ranks.
    #[error("the rank table has no ranks")]
    Empty,
    /// The number of rows differs from the number of ranks.
    #[error("{found} rows of ranks, expected {expected}")]
    WorldSize {
        /// Number of rows.
        found: usize,
        /// Number of ranks ([`UncheckedTable::world_size`]).
        expected: u32,
    },
    /// A rank refers to a node, or to a NIC of its node, that does not exist.
    #[error("rank {0} refers to a node or NIC that does not exist")]
    UnknownNodeOrNic(Rank),
    /// The address of a rank is not that of its node.
    #[error("the address of rank {0} is not that of its node")]
    Address(Rank),
    /// A rank lists a NIC twice.
    #[error("rank {0} lists a NIC twice")]
    RankNics(Rank),
    /// A node lists a port with the same address twice.
    #[error("node {0} lists a NIC twice")]
    NodeNics(NodeId),
    /// Local ranks of a node are not numbered 0, 1, 2 and so on.
    #[error("the local ranks of node {0} have a gap or a duplicate")]
    LocalRanks(NodeId),
    /// An exception refers to NICs that do not exist or have different transports, is out of order
    /// or duplicate, or agrees with the rule.
    #[error("the exception for nodes {0} and {1} is invalid")]
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

    /// Checks that every rank has a node and that the ranks of a node are numbered without gaps.
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
    /// Makes a table. `nodes`, `ranks` and `exceptions` must be in order. Fails if rows are
    /// missing, duplicate or inconsistent.
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

    /// Returns the number of ranks.
    pub fn world_size(&self) -> u32 {
        self.rows.world_size
    }

    /// Returns the rows of nodes, by node.
    pub fn nodes(&self) -> &[NodeRow] {
        &self.rows.nodes
    }

    /// Returns the rows of ranks, by rank.
    pub fn ranks(&self) -> &[RankRow] {
        &self.rows.ranks
    }

    /// Returns the marks of RDMA packets.
    pub fn marks(&self) -> PacketMarks {
        self.rows.marks
    }
}

#[cfg(test)]
mod tests;
