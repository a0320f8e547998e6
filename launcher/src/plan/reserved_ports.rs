//! Uses of the ports that each node reserves until its ranks start.

use crate::plan::env::horovod;
use crate::plan::map::{MappedNode, RankMap};
use crate::plan::options::EnvStyle;
use crate::plan::options::Options;
use rlaunch_bootstrap::id::NodeId;

/// Numbers of ports that a node reserves for each use, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReservedPorts {
    /// MASTER_PORT, on the node of rank 0.
    master: u32,
    /// Listener for the store of Horovod's ranks.
    store: u32,
    /// TensorFlow servers, one for each rank.
    servers: u32,
}

impl ReservedPorts {
    /// Counts the ports that a node reserves.
    pub(crate) fn for_node(options: &Options, map: &RankMap, node: &MappedNode) -> ReservedPorts {
        let serves = options.env_styles.contains(&EnvStyle::Tensorflow);
        let ranks = u32::try_from(node.ranks.len()).unwrap_or(u32::MAX);
        let is_first = node.id == NodeId(0);
        ReservedPorts {
            master: u32::from(is_first),
            store: u32::from(horovod::is_served(options, map)),
            servers: if serves { ranks } else { 0 },
        }
    }

    pub(crate) fn count(self) -> u32 {
        (self.master + self.store).saturating_add(self.servers)
    }

    /// Picks MASTER_PORT from the reserved ports of all nodes.
    pub(crate) fn master(ports: &[Vec<u16>]) -> u16 {
        ports.first().and_then(|ports| ports.first()).copied().unwrap_or_default()
    }

    /// Picks the port for Horovod's store from a node's ports.
    pub(crate) fn store(self, ports: &[u16]) -> Option<u16> {
        ports.get(self.master as usize).copied().filter(|_| self.store > 0)
    }

    /// Picks the port for NCCL's RAS service (`ncclras`) from a node's ports; nodes with GPUs reserve one
    /// port more for it.
    pub(crate) fn ras(self, ports: &[u16]) -> Option<u16> {
        ports.get(self.count() as usize).copied()
    }

    /// Picks the port for a rank's TensorFlow server from its node's ports.
    pub(crate) fn server(self, ports: &[u16], local_rank: usize) -> Option<u16> {
        ports.get((self.master + self.store) as usize + local_rank).copied()
    }
}
