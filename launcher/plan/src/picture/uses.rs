//! CPUs, GPU and ports that ranks use.

use super::ports::HostPort;
use crate::rank_config::RankConfig;
use rlaunch_bootstrap::id::NodeId;
use rlaunch_bootstrap::inventory::{CpuSet, Inventory};
use rlaunch_bootstrap::rank_table::{Nic, NicId, PairTransport, RankNic, RankRow, RankTable};
use rlaunch_text::text;
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of ranges of ranks that are written for a device.
const RANGES: usize = 4;

/// Rank of a host, and what it uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RankUse {
    /// Number of the rank, or of the local rank in a box of several hosts.
    pub(super) number: u32,
    /// Whether `number` is that of a local rank.
    pub(super) is_local: bool,
    /// CPUs to which the rank is bound; `None` if to none.
    pub(super) cpus: Option<CpuSet>,
    pub(super) numa_node: Option<u32>,
    /// PCI address of the rank's GPU.
    pub(super) gpu: Option<String>,
    /// RDMA device nearest to the rank.
    pub(super) nearest: Option<String>,
}

/// Ranks of a host, and the devices that they use.
#[derive(Clone, Debug, Default)]
pub(super) struct HostUses {
    pub(super) ranks: Vec<RankUse>,
    /// Ranks by RDMA device and port.
    by_port: BTreeMap<(String, u8), BTreeSet<u32>>,
    /// Interface that carries TCP, and the ranks that use it.
    by_interface: Option<(String, BTreeSet<u32>)>,
    is_local: bool,
}

/// Lists the ranks of a node.
fn ranks_of(table: &RankTable, node: NodeId) -> impl Iterator<Item = &RankRow> {
    table.ranks().iter().filter(move |rank| rank.node == node)
}

/// Returns the first of a rank's ports that reaches a port of another rank; `None` if the two use TCP.
fn port_to<'a>(table: &'a RankTable, rank: &RankRow, other: &RankRow) -> Option<&'a Nic> {
    let pair = table.pair(rank.rank, other.rank)?;
    if pair.connect == PairTransport::Tcp {
        return None;
    }
    let reaches = |own: &&RankNic| {
        let own = NicId { node: rank.node, nic: own.nic };
        let mut theirs = other.nics.iter().map(|nic| NicId { node: other.node, nic: nic.nic });
        theirs.any(|theirs| table.can_reach(own, theirs))
    };
    let nearest = rank.nics.iter().find(reaches)?;
    table.nodes().get(rank.node.index())?.nics.get(nearest.nic as usize)
}

impl RankUse {
    pub(super) fn name(&self) -> String {
        match self.is_local {
            true => format!("local rank {}", self.number),
            false => format!("rank {}", self.number),
        }
    }
}

impl HostUses {
    /// Finds, for each of a node's ranks, the nearest ports by which it reaches the nodes `peers`. With `is_local`,
    /// ranks have their numbers on the node.
    pub(super) fn new(
        table: &RankTable,
        (node, inventory): (NodeId, &Inventory),
        configs: &[RankConfig],
        peers: &[NodeId],
        is_local: bool,
    ) -> HostUses {
        let mut uses = HostUses { is_local, ..HostUses::default() };
        let Some(row) = table.nodes().get(node.index()) else { return uses };
        let interface = inventory.netdev_with_address(row.address).map(|netdev| &netdev.name);
        let others: Vec<&RankRow> = peers.iter().flat_map(|peer| ranks_of(table, *peer)).collect();
        for rank in ranks_of(table, node) {
            let number = if is_local { rank.local_rank.0 } else { rank.rank.0 };
            for other in others.iter().filter(|other| other.node != node) {
                match (port_to(table, rank, other), interface) {
                    (Some(nic), _) => {
                        let key = (nic.device.clone(), nic.port);
                        uses.by_port.entry(key).or_default().insert(number);
                    }
                    (None, Some(interface)) => {
                        let by = || (interface.clone(), BTreeSet::new());
                        uses.by_interface.get_or_insert_with(by).1.insert(number);
                    }
                    (None, None) => {}
                }
            }
            let nearest = rank.nics.first().and_then(|own| row.nics.get(own.nic as usize));
            let config = configs.get(rank.local_rank.0 as usize);
            uses.ranks.push(RankUse {
                number,
                is_local,
                cpus: config.and_then(|config| config.placement.cpus.clone()),
                numa_node: rank.numa_node,
                gpu: rank.gpu.clone(),
                nearest: nearest.map(|nic| nic.device.clone()),
            });
        }
        uses
    }

    /// Writes the ranks that use a GPU.
    pub(super) fn gpu_users(&self, address: &str) -> Option<String> {
        let own = self.ranks.iter().filter(|rank| rank.gpu.as_deref() == Some(address));
        self.written(own.map(|rank| rank.number))
    }

    /// Writes the ranks that use a port.
    pub(super) fn port_users(&self, port: &HostPort<'_>) -> Option<String> {
        let by_rdma =
            port.device.and_then(|(device, number)| self.by_port.get(&(device.to_owned(), number)));
        let by_tcp =
            self.by_interface.iter().filter(|(name, _)| Some(name.as_str()) == port.netdev);
        let ranks: BTreeSet<u32> =
            by_rdma.into_iter().chain(by_tcp.map(|(_, ranks)| ranks)).flatten().copied().collect();
        self.written(ranks.into_iter())
    }

    fn written(&self, ranks: impl Iterator<Item = u32>) -> Option<String> {
        let ranks: Vec<u32> = ranks.collect();
        let noun = text::plural(ranks.len(), if self.is_local { "local rank" } else { "rank" });
        let numbers = text::ranges(ranks.iter().copied(), RANGES);
        (!ranks.is_empty()).then(|| format!("{noun} {numbers}"))
    }
}
