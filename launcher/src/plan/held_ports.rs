//! What the ports are for that a node holds until its ranks start.

use crate::plan::env_style::EnvStyle;
use crate::plan::horovod;
use crate::plan::map::{MappedNode, RankMap};
use crate::plan::setup::Options;
use rlaunch_bootstrap::id::NodeId;

/// How many of each kind a node holds, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    /// MASTER_PORT, on the node of rank 0.
    master: u32,
    /// For the door to the store of Horovod's ranks.
    store: u32,
    /// For TensorFlow, one for each rank.
    servers: u32,
}

impl Held {
    /// What this node holds.
    pub(crate) fn of(options: &Options, map: &RankMap, node: &MappedNode) -> Held {
        let serves = options.env_styles.contains(&EnvStyle::Tensorflow);
        let ranks = u32::try_from(node.ranks.len()).unwrap_or(u32::MAX);
        let is_first = node.id == NodeId(0);
        Held {
            master: u32::from(is_first),
            store: u32::from(horovod::is_served(options, map)),
            servers: if serves { ranks } else { 0 },
        }
    }

    pub(crate) fn count(self) -> u32 {
        (self.master + self.store).saturating_add(self.servers)
    }

    /// MASTER_PORT among the ports that the nodes hold.
    pub(crate) fn master(ports: &[Vec<u16>]) -> u16 {
        ports.first().and_then(|ports| ports.first()).copied().unwrap_or_default()
    }

    /// For the door to Horovod's store, among the ports of a node.
    pub(crate) fn store(self, ports: &[u16]) -> Option<u16> {
        ports.get(self.master as usize).copied().filter(|_| self.store > 0)
    }

    /// For NCCL's service for questions about a job, among the ports of a node: one more, where
    /// there are GPUs.
    pub(crate) fn ras(self, ports: &[u16]) -> Option<u16> {
        ports.get(self.count() as usize).copied()
    }

    /// For a rank's own server, among the ports of its node.
    pub(crate) fn server(self, ports: &[u16], local_rank: usize) -> Option<u16> {
        ports.get((self.master + self.store) as usize + local_rank).copied()
    }
}
