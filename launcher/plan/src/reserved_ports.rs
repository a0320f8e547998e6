//! TCP ports that each node reserves until its ranks start, and their uses.

use crate::env::horovod;
use crate::map::{MappedNode, RankMap};
use crate::options::{EnvStyle, Options};
use rlaunch_bootstrap::id::NodeId;

/// Count of ports that a node reserves for each use. A node's list of reserved ports is in the order of these
/// fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservedPorts {
    /// 1 on rank 0's node, for MASTER_PORT; 0 on other nodes.
    master: u32,
    /// 1 if the agent serves the store through which Horovod's ranks connect, otherwise 0.
    store: u32,
    /// Number of TensorFlow servers: one for each rank, or 0 if none are asked for.
    servers: u32,
}

impl ReservedPorts {
    /// Counts the ports that a node reserves.
    pub fn for_node(options: &Options, map: &RankMap, node: &MappedNode) -> ReservedPorts {
        let serves = options.env_styles.contains(&EnvStyle::Tensorflow);
        let ranks = u32::try_from(node.ranks.len()).unwrap_or(u32::MAX);
        let is_first = node.id == NodeId(0);
        ReservedPorts {
            master: u32::from(is_first),
            store: u32::from(horovod::is_served(options, map)),
            servers: if serves { ranks } else { 0 },
        }
    }

    pub fn count(self) -> u32 {
        (self.master + self.store).saturating_add(self.servers)
    }

    /// Returns MASTER_PORT, the first reserved port of the first node, or 0 if that node has none. `ports` is
    /// indexed by node.
    pub fn master(ports: &[Vec<u16>]) -> u16 {
        ports.first().and_then(|ports| ports.first()).copied().unwrap_or_default()
    }

    /// Returns the port for Horovod's store from a node's reserved ports; `None` if there is no store.
    pub fn store(self, ports: &[u16]) -> Option<u16> {
        ports.get(self.master as usize).copied().filter(|_| self.store > 0)
    }

    /// Returns the port for NCCL's RAS service (`ncclras`) from a node's reserved ports. Only nodes with GPUs
    /// reserve this port, after those counted here.
    pub fn ras(self, ports: &[u16]) -> Option<u16> {
        ports.get(self.count() as usize).copied()
    }

    /// Returns the port for a rank's TensorFlow server from the reserved ports of the rank's node.
    pub fn server(self, ports: &[u16], local_rank: usize) -> Option<u16> {
        ports.get((self.master + self.store) as usize + local_rank).copied()
    }
}
