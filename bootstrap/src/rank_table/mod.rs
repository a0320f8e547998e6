//! The rank table: where each rank runs, and how any two ranks reach each other.
//!
//! The launcher builds the table once, from the reports of all nodes, and sends it to every node.
//! It has one row for each node and one for each rank. Pairs of ranks have no rows, because their
//! number grows with the square of the number of ranks: [`RankTable::pair`] computes the connection
//! of a pair from the table alone, so both ends get the same result. The files
//! `rank-table.schema.json` and `rank-table.example.json` describe the table as JSON.

mod pair;

pub use pair::{Pair, PairTransport};

use crate::id::{JobId, LocalRank, NodeId, Rank};
use crate::inventory::pci::Distance;
use crate::job::InterfaceAddress;
use crate::rendezvous::payload::Payload;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// Version of the table's format, which changes when a field is removed or changes its meaning.
pub const TABLE_VERSION: u32 = 4;

/// Rank table that was checked: it has no gaps, no duplicates and no references to missing rows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "UncheckedTable", into = "UncheckedTable")]
pub struct RankTable {
    rows: UncheckedTable,
}

/// Rank table that has not been checked for consistency.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UncheckedTable {
    /// Version of the table ([`TABLE_VERSION`]).
    pub version: u32,
    /// Identifier of the job, 32 hexadecimal digits.
    pub job: String,
    /// Number of ranks in the job.
    pub world_size: u32,
    /// Nodes, in order of their numbers.
    pub nodes: Vec<NodeRow>,
    /// Ranks, in order of their numbers.
    pub ranks: Vec<RankRow>,
    /// Rule that determines the connection of any two ranks.
    pub rule: PairRule,
    /// Priority of RDMA packets.
    #[serde(rename = "marks")]
    pub packet_priority: PacketPriority,
    /// Pairs of NICs for which `rule` does not hold, in ascending order. In each pair the NIC of
    /// the node with the lower number is first.
    pub exceptions: Vec<PairException>,
}

/// Row of the table that describes a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRow {
    pub node: NodeId,
    /// Name of the host as the user typed it.
    pub host: String,
    /// Host name that the node's kernel reports.
    pub hostname: String,
    /// Architecture of the CPUs, `x86_64` or `aarch64`.
    pub arch: String,
    /// Address at which other nodes reach the node out of band, over TCP.
    pub address: IpAddr,
    /// Addresses of the node's interfaces that are up, except loopback and link-local addresses.
    pub addresses: Vec<InterfaceAddress>,
    /// RDMA ports in the order of their rails. A port with several addresses has an entry for each
    /// of them, the preferred one first.
    pub nics: Vec<Nic>,
}

/// RDMA port with one of its addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nic {
    /// Name of the device, such as `mlx5_0`.
    pub device: String,
    /// Number of the port, from 1.
    pub port: u8,
    /// Number of the port among the ports of its node, in the order of PCI addresses. In usual
    /// clusters, ports with the same number are connected to the same switch.
    pub rail: u32,
    pub transport: Transport,
    /// Whether the device is emulated by software on the CPU.
    pub software: bool,
    /// Whether queue pairs must be made by the RDMA connection manager; always true with iWARP.
    pub by_manager: bool,
    /// Index of the GID in use; `None` if packets are addressed by LID alone.
    pub gid_index: Option<u16>,
    /// GID in use, as the kernel prints it.
    pub gid: Option<String>,
    /// Name of the port's network interface.
    pub netdev: Option<String>,
    /// IP address of the port's network interface.
    pub address: Option<IpAddr>,
    /// Networks that the port can reach, including its own: `192.168.100.0/24` from the addresses
    /// and routes of its interface, or `ib fe80000000000000` from the subnet prefix of InfiniBand.
    pub networks: Vec<String>,
    /// Maximum packet size of the port at present (active path MTU), in bytes.
    pub mtu: Option<u32>,
    /// Data rate in Mb/s; `None` if the driver does not report it.
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

/// Row of the table that describes a rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankRow {
    pub rank: Rank,
    pub node: NodeId,
    /// Number of the rank on its node, from 0.
    pub local_rank: LocalRank,
    /// Address of the rank's node, equal to [`NodeRow::address`].
    pub address: IpAddr,
    /// PCI address of the rank's own GPU; `None` if the rank has none.
    pub gpu: Option<String>,
    /// NUMA node that the rank is bound to; `None` if the rank is not bound.
    pub numa_node: Option<u32>,
    /// CPUs that the rank may use, in the kernel's list format such as `0-3,8`; `None` if the rank
    /// is not bound.
    pub cpus: Option<String>,
    /// NICs that the rank may use, nearest first.
    pub nics: Vec<RankNic>,
}

/// NIC that a rank may use, with its distance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankNic {
    /// Index of the NIC in [`NodeRow::nics`].
    pub nic: u32,
    /// Distance of the NIC from the rank's GPU or, without a GPU, from the rank's NUMA node.
    pub distance: Distance,
}

/// Rule that determines how two ranks communicate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PairRule {
    /// Shared memory between ranks of one node, TCP between nodes.
    SharedMemoryThenTcp,
    /// Shared memory between ranks of one node. Between nodes RDMA, if both ranks have a NIC with
    /// the same transport in a common network, otherwise TCP.
    SharedMemoryThenRdmaThenTcp,
}

/// Fields of RDMA packets by which networks assign priorities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PacketPriority {
    /// Traffic class: the TOS byte of IP with RoCE, or a field of the global routing header with
    /// InfiniBand.
    pub traffic_class: u8,
    /// Service level with InfiniBand, 0 to 15.
    pub service_level: u8,
}

/// Rule for connections between ranks, with the exceptions to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connectivity {
    /// Rule for all pairs of NICs that are not in `exceptions`.
    pub rule: PairRule,
    /// Priority of RDMA packets.
    pub packet_priority: PacketPriority,
    /// Pairs of NICs for which `rule` does not hold, in ascending order.
    pub exceptions: Vec<PairException>,
}

/// Connects ranks of one node by shared memory and ranks of different nodes by TCP.
impl Default for Connectivity {
    fn default() -> Connectivity {
        let (packet_priority, exceptions) = (PacketPriority::default(), Vec::new());
        Connectivity { rule: PairRule::SharedMemoryThenTcp, packet_priority, exceptions }
    }
}

/// Pair of NICs for which the [`PairRule`] does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PairException {
    /// NIC of the node with the lower number.
    pub a: NicId,
    /// NIC of the node with the higher number.
    pub b: NicId,
    /// Whether the two NICs reach each other.
    pub reach: bool,
    /// Maximum packet size between the two NICs in bytes, if the network between them carries less
    /// than the NICs.
    pub mtu: Option<u32>,
}

/// Reference to a NIC in the rank table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NicId {
    pub node: NodeId,
    /// Index of the NIC in [`NodeRow::nics`].
    pub nic: u32,
}

/// Reason why a rank table is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// The table has this version, not [`TABLE_VERSION`].
    #[error("rank table version {0} is not supported; this build reads version {TABLE_VERSION}")]
    Version(u32),
    /// A row is missing, duplicate or out of order.
    #[error("row {index} of the {what}s belongs to {what} {found}")]
    OutOfOrder {
        /// Kind of row: `node` or `rank`.
        what: &'static str,
        /// Index at which the row was found.
        index: usize,
        /// Number of the node or rank in the row.
        found: u32,
    },
    /// The job's identifier is not 32 hexadecimal digits.
    #[error("the job's id is not 32 hexadecimal digits")]
    Job,
    /// The table has no ranks.
    #[error("the rank table has no ranks")]
    Empty,
    /// The number of rows for ranks differs from the number of ranks.
    #[error("{found} rows of ranks, expected {expected}")]
    WorldSize {
        /// Number of rows for ranks.
        found: usize,
        /// Number of ranks in the job ([`UncheckedTable::world_size`]).
        expected: u32,
    },
    /// A rank refers to a node that does not exist, or to a NIC that its node does not have.
    #[error("rank {0} refers to a node or NIC that does not exist")]
    UnknownNodeOrNic(Rank),
    /// The address of a rank differs from the address of its node.
    #[error("the address of rank {0} is not that of its node")]
    Address(Rank),
    /// A rank lists a NIC twice.
    #[error("rank {0} lists a NIC twice")]
    RankNics(Rank),
    /// A node lists the same port twice with the same address.
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

    /// Checks that every rank has a node, and that the local ranks of each node have no gaps.
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
    /// Makes a table from rows in the order of their numbers and exceptions in ascending order.
    /// Fails if rows are missing, duplicate or inconsistent.
    pub fn new(
        job: JobId,
        world_size: u32,
        nodes: Vec<NodeRow>,
        ranks: Vec<RankRow>,
        Connectivity { rule, packet_priority, exceptions }: Connectivity,
    ) -> Result<RankTable, TableError> {
        let (version, job) = (TABLE_VERSION, job.to_string());
        UncheckedTable { version, job, world_size, nodes, ranks, rule, packet_priority, exceptions }
            .try_into()
    }

    /// Returns the number of ranks in the job.
    pub fn world_size(&self) -> u32 {
        self.rows.world_size
    }

    /// Returns the rows of the nodes, indexed by node number.
    pub fn nodes(&self) -> &[NodeRow] {
        &self.rows.nodes
    }

    /// Returns the rows of the ranks, indexed by rank.
    pub fn ranks(&self) -> &[RankRow] {
        &self.rows.ranks
    }

    /// Returns a NIC, or `None` if the table does not have it.
    pub fn nic(&self, end: NicId) -> Option<&Nic> {
        self.rows.nic(end)
    }

    /// Returns the priority of RDMA packets.
    pub fn packet_priority(&self) -> PacketPriority {
        self.rows.packet_priority
    }
}

/// Nodes and programs of a job's ranks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankLayout {
    /// Nodes, in order of their numbers.
    pub nodes: Vec<NodeRanks>,
    /// First rank of each program except the first, in ascending order.
    pub first_ranks: Vec<Rank>,
}

/// Ranks of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRanks {
    /// Name of the host as the user typed it.
    pub host: String,
    /// Ranks, indexed by local rank.
    pub ranks: Vec<Rank>,
}

/// Error of reading a distributed table.
#[derive(Debug, thiserror::Error)]
pub enum TableMessageError {
    /// The message ends before the table does.
    #[error("the message with the rank table is incomplete")]
    CutOff,
    #[error("the layout of the ranks is invalid: {0}")]
    Layout(#[from] postcard::Error),
}

impl RankLayout {
    /// Makes the layout of a table. `first_ranks` has the first rank of each program except the
    /// first program.
    pub fn new(table: &RankTable, first_ranks: Vec<Rank>) -> RankLayout {
        let empty = |host: &str| NodeRanks { host: host.to_owned(), ranks: Vec::new() };
        let mut nodes: Vec<_> = table.nodes().iter().map(|row| empty(&row.host)).collect();
        let mut rows: Vec<_> = table.ranks().iter().collect();
        rows.sort_by_key(|row| row.local_rank);
        for row in rows {
            if let Some(node) = nodes.get_mut(row.node.index()) {
                node.ranks.push(row.rank);
            }
        }
        RankLayout { nodes, first_ranks }
    }

    /// Returns the index of the program that a rank runs.
    pub fn application_of(&self, rank: Rank) -> usize {
        self.first_ranks.partition_point(|first| *first <= rank)
    }

    /// Encodes the message that distributes a table: its JSON text, and this layout.
    pub fn encode_message(&self, json: &[u8]) -> Result<Vec<u8>, postcard::Error> {
        let mut message = u32::try_from(json.len()).unwrap_or(u32::MAX).to_le_bytes().to_vec();
        message.extend_from_slice(json);
        postcard::to_extend(self, message)
    }
}

/// Message that distributes the rank table, as an agent receives it: the table as JSON, for ranks, and a compact layout
/// of the ranks, for agents.
///
/// ```text
/// length of the table: u32, little endian    table: JSON    layout: postcard
/// ```
///
/// Agents read the layout only if MPI programs connect to them, and need no JSON parser for it.
#[derive(Clone, Debug)]
pub struct TableMessage {
    bytes: Vec<u8>,
    /// Offset of the layout in the message, in bytes.
    layout: usize,
}

impl TableMessage {
    /// Length of the field that contains the length of the table, in bytes.
    const HEADER: usize = 4;

    /// Splits a message into table and layout. Fails if the table is incomplete. The layout is not
    /// decoded before [`TableMessage::layout()`].
    pub fn parse(message: &Payload) -> Result<TableMessage, TableMessageError> {
        let bytes = message.to_vec();
        let (header, rest) = bytes.split_first_chunk().ok_or(TableMessageError::CutOff)?;
        let length = u32::from_le_bytes(*header) as usize;
        if rest.len() < length {
            return Err(TableMessageError::CutOff);
        }
        Ok(TableMessage { layout: Self::HEADER + length, bytes })
    }

    /// Returns the table's JSON text.
    pub fn json(&self) -> &[u8] {
        &self.bytes[Self::HEADER..self.layout]
    }

    /// Reads the layout of the ranks.
    pub fn layout(&self) -> Result<RankLayout, TableMessageError> {
        Ok(postcard::from_bytes(&self.bytes[self.layout..])?)
    }
}

#[cfg(test)]
mod tests;
