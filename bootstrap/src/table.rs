//! The rank table: who is where, and by what any two ranks reach each other.
//!
//! The launcher builds it once, from what all nodes have said, and every node gets it. It has a row
//! for each node and each rank and, instead of one for each pair, a rule: [`RankTable::pair`] is a
//! function of the table alone, so both ends of a pair conclude the same.

use crate::id::{JobId, LocalRank, NodeId, Rank};
use crate::job::InterfaceAddress;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// Changes whenever a field changes its meaning or goes.
pub const TABLE_VERSION: u32 = 1;

/// A table without a hole and without a duplicate: there is no other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Rows", into = "Rows")]
pub struct RankTable {
    rows: Rows,
}

/// The table's rows, not yet checked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rows {
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
    /// By what pairs reach each other, but for [`Rows::exceptions`].
    pub rule: PairRule,
    /// Pairs of nodes for which the rule does not hold, the lower node first, in order.
    pub exceptions: Vec<Exception>,
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
    /// Its RDMA ports, in the order of device names.
    pub nics: Vec<Nic>,
}

/// A port of an RDMA device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nic {
    /// `mlx5_0`.
    pub device: String,
    /// From 1.
    pub port: u8,
    /// Which entry of the GID table is used.
    pub gid_index: Option<u16>,
    /// That entry, as the kernel prints it.
    pub gid: Option<String>,
    /// The network interface of the port.
    pub netdev: Option<String>,
    /// Its address.
    pub address: Option<IpAddr>,
    /// The active MTU of the path, in bytes.
    pub mtu: Option<u32>,
    /// In megabits per second; `None` where the driver does not know.
    pub rate_mbps: Option<u32>,
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
    /// Its NICs, as indices into its node's, best first.
    pub nics: Vec<u32>,
}

/// How pairs of ranks reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PairRule {
    /// Ranks of one node by shared memory, ranks of different nodes by TCP between their nodes'
    /// addresses.
    SharedMemoryThenTcp,
}

/// A pair of nodes that reach each other otherwise than by the rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exception {
    /// The lower of the two nodes.
    pub a: NodeId,
    /// The higher.
    pub b: NodeId,
    /// Index of `a`'s NIC.
    pub nic_a: Option<u32>,
    /// Index of `b`'s NIC.
    pub nic_b: Option<u32>,
    /// By what.
    pub connect: Connect,
}

/// By what two ranks reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Connect {
    /// Memory that both have mapped.
    SharedMemory,
    /// TCP between the addresses of their nodes.
    Tcp,
    /// An RDMA queue pair whose endpoints are exchanged out of band.
    Rdma,
    /// An RDMA queue pair made by the RDMA connection manager.
    RdmaCm,
}

/// How one rank reaches another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pair {
    /// One rank.
    pub a: Rank,
    /// The other.
    pub b: Rank,
    /// `a`'s NIC, as an index into its node's.
    pub nic_a: Option<u32>,
    /// `b`'s NIC.
    pub nic_b: Option<u32>,
    /// By what.
    pub connect: Connect,
}

/// Rows that make no table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// Made by another build.
    #[error("a rank table of version {0}, {TABLE_VERSION} is understood")]
    Version(u32),
    /// A row is missing, double or out of order.
    #[error("row {index} of the {what} is that of {what} {found}")]
    OutOfOrder {
        /// `nodes` or `ranks`.
        what: &'static str,
        /// The row.
        index: usize,
        /// Whose it is.
        found: u32,
    },
    /// More or fewer ranks than there should be.
    #[error("{found} ranks where there should be {expected}")]
    WorldSize {
        /// Rows.
        found: usize,
        /// [`Rows::world_size`].
        expected: u32,
    },
    /// A rank on a node that is not there, or with a NIC that its node has not.
    #[error("rank {0} has a node or a NIC that is not there")]
    Dangling(Rank),
    /// Two ranks with one place, or a place left out.
    #[error("the local ranks of node {0} have a hole or a duplicate")]
    LocalRanks(NodeId),
    /// An exception for nodes that are not there, out of order, or double.
    #[error("an exception for nodes {0} and {1} that makes no sense")]
    Exception(NodeId, NodeId),
}

impl TryFrom<Rows> for RankTable {
    type Error = TableError;

    fn try_from(rows: Rows) -> Result<RankTable, TableError> {
        rows.check()?;
        Ok(RankTable { rows })
    }
}

impl From<RankTable> for Rows {
    fn from(table: RankTable) -> Rows {
        table.rows
    }
}

impl Rows {
    fn check(&self) -> Result<(), TableError> {
        if self.version != TABLE_VERSION {
            return Err(TableError::Version(self.version));
        }
        if self.ranks.len() != self.world_size as usize {
            let (found, expected) = (self.ranks.len(), self.world_size);
            return Err(TableError::WorldSize { found, expected });
        }
        in_order("nodes", self.nodes.iter().map(|row| row.node.0))?;
        in_order("ranks", self.ranks.iter().map(|row| row.rank.0))?;
        let mut locals: Vec<Vec<u32>> = vec![Vec::new(); self.nodes.len()];
        for row in &self.ranks {
            let node = self.nodes.get(row.node.index()).ok_or(TableError::Dangling(row.rank))?;
            if row.nics.iter().any(|&nic| nic as usize >= node.nics.len()) {
                return Err(TableError::Dangling(row.rank));
            }
            locals[row.node.index()].push(row.local_rank.0);
        }
        for (node, mut locals) in (0..).map(NodeId).zip(locals) {
            locals.sort_unstable();
            if locals.iter().zip(0..).any(|(&local, expected): (_, u32)| local != expected) {
                return Err(TableError::LocalRanks(node));
            }
        }
        self.check_exceptions()
    }

    fn check_exceptions(&self) -> Result<(), TableError> {
        let mut before = None;
        for exception in &self.exceptions {
            let Exception { a, b, nic_a, nic_b, .. } = *exception;
            let has = |node: NodeId, nic: Option<u32>| {
                let row = self.nodes.get(node.index());
                row.is_some_and(|row| nic.is_none_or(|nic| (nic as usize) < row.nics.len()))
            };
            if a >= b || before >= Some((a, b)) || !has(a, nic_a) || !has(b, nic_b) {
                return Err(TableError::Exception(a, b));
            }
            before = Some((a, b));
        }
        Ok(())
    }
}

fn in_order(what: &'static str, numbers: impl Iterator<Item = u32>) -> Result<(), TableError> {
    for (index, found) in numbers.enumerate() {
        if found as usize != index {
            return Err(TableError::OutOfOrder { what, index, found });
        }
    }
    Ok(())
}

impl RankTable {
    /// A table of `nodes` and `ranks`, each in order, whose pairs all follow the rule.
    pub fn new(
        job: JobId,
        nodes: Vec<NodeRow>,
        ranks: Vec<RankRow>,
    ) -> Result<RankTable, TableError> {
        let world_size = u32::try_from(ranks.len()).unwrap_or(u32::MAX);
        let rows = Rows {
            version: TABLE_VERSION,
            job: job.to_string(),
            world_size,
            nodes,
            ranks,
            rule: PairRule::SharedMemoryThenTcp,
            exceptions: Vec::new(),
        };
        rows.try_into()
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

    /// How `a` and `b` reach each other; `None` when the job has not both. A rank reaches itself
    /// by shared memory.
    pub fn pair(&self, a: Rank, b: Rank) -> Option<Pair> {
        let (node_a, node_b) =
            (self.ranks().get(a.index())?.node, self.ranks().get(b.index())?.node);
        let by = |connect| Pair { a, b, nic_a: None, nic_b: None, connect };
        if node_a == node_b {
            return Some(by(Connect::SharedMemory));
        }
        let (low, high) = (node_a.min(node_b), node_a.max(node_b));
        let exceptions = &self.rows.exceptions;
        let Ok(at) = exceptions.binary_search_by_key(&(low, high), |e| (e.a, e.b)) else {
            let PairRule::SharedMemoryThenTcp = self.rows.rule;
            return Some(by(Connect::Tcp));
        };
        let Exception { nic_a, nic_b, connect, .. } = exceptions[at];
        let (nic_a, nic_b) = if low == node_a { (nic_a, nic_b) } else { (nic_b, nic_a) };
        Some(Pair { a, b, nic_a, nic_b, connect })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Rows {
        let nic = |device: &str| Nic {
            device: device.into(),
            port: 1,
            gid_index: Some(3),
            gid: Some("::ffff:10.1.0.1".into()),
            netdev: Some("eth0".into()),
            address: None,
            mtu: Some(4096),
            rate_mbps: Some(100_000),
        };
        let node = |n: u32| NodeRow {
            node: NodeId(n),
            host: format!("h{n}"),
            hostname: format!("h{n}"),
            arch: "x86_64".into(),
            address: IpAddr::from([10, 1, 0, n as u8]),
            addresses: vec![],
            nics: vec![nic("mlx5_0"), nic("mlx5_1")],
        };
        // Node 1 has its ranks in another order than the others.
        let rank = |(rank, node, local): (u32, u32, u32)| RankRow {
            rank: Rank(rank),
            node: NodeId(node),
            local_rank: LocalRank(local),
            address: IpAddr::from([10, 1, 0, node as u8]),
            gpu: None,
            numa_node: Some(0),
            cpus: Some("0-3".into()),
            nics: vec![1],
        };
        let places = [(0, 0, 0), (1, 0, 1), (2, 1, 1), (3, 2, 0), (4, 1, 0)];
        Rows {
            version: TABLE_VERSION,
            job: JobId(1).to_string(),
            world_size: 5,
            nodes: (0..3).map(node).collect(),
            ranks: places.into_iter().map(rank).collect(),
            rule: PairRule::SharedMemoryThenTcp,
            exceptions: vec![Exception {
                a: NodeId(1),
                b: NodeId(2),
                nic_a: Some(0),
                nic_b: Some(1),
                connect: Connect::Rdma,
            }],
        }
    }

    fn error(change: impl Fn(&mut Rows)) -> TableError {
        let mut rows = rows();
        change(&mut rows);
        RankTable::try_from(rows).unwrap_err()
    }

    #[test]
    fn both_ends_of_a_pair_conclude_the_same() {
        let table = RankTable::try_from(rows()).unwrap();
        for a in (0..5).map(Rank) {
            for b in (0..5).map(Rank) {
                let (here, there) = (table.pair(a, b).unwrap(), table.pair(b, a).unwrap());
                assert_eq!((here.nic_a, here.nic_b), (there.nic_b, there.nic_a));
                assert_eq!(here.connect, there.connect);
            }
        }
        let connect = |a, b| table.pair(Rank(a), Rank(b)).unwrap().connect;
        assert_eq!(connect(2, 4), Connect::SharedMemory);
        assert_eq!(connect(0, 2), Connect::Tcp);
        assert_eq!(table.pair(Rank(3), Rank(2)).unwrap().nic_a, Some(1));
        assert_eq!(table.pair(Rank(0), Rank(5)), None);
    }

    #[test]
    fn there_is_no_table_with_a_hole_or_a_duplicate() {
        assert_eq!(error(|rows| rows.version = 9), TableError::Version(9));
        let missing = TableError::WorldSize { found: 4, expected: 5 };
        assert_eq!(error(|rows| drop(rows.ranks.pop())), missing);
        let double = TableError::OutOfOrder { what: "ranks", index: 4, found: 3 };
        assert_eq!(error(|rows| rows.ranks[4].rank = Rank(3)), double);
        let swapped = TableError::OutOfOrder { what: "nodes", index: 0, found: 1 };
        assert_eq!(error(|rows| rows.nodes.swap(0, 1)), swapped);
        assert_eq!(error(|rows| rows.ranks[0].node = NodeId(7)), TableError::Dangling(Rank(0)));
        assert_eq!(error(|rows| rows.ranks[0].nics = vec![2]), TableError::Dangling(Rank(0)));
        let place = |rows: &mut Rows| rows.ranks[1].local_rank = LocalRank(0);
        assert_eq!(error(place), TableError::LocalRanks(NodeId(0)));
        let turned = TableError::Exception(NodeId(2), NodeId(2));
        assert_eq!(error(|rows| rows.exceptions[0].a = NodeId(2)), turned);
        let no_nic = TableError::Exception(NodeId(1), NodeId(2));
        assert_eq!(error(|rows| rows.exceptions[0].nic_b = Some(2)), no_nic);
    }
}
