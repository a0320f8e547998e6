//! What the ports are for that a node holds until its ranks start.

use crate::env_style::EnvStyle;
use crate::map::MappedNode;
use crate::setup::Options;
use rlaunch_bootstrap::id::NodeId;

/// How many of each kind a node holds, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    /// MASTER_PORT, on the node of rank 0.
    master: u32,
    /// For TensorFlow, one for each rank.
    servers: u32,
}

impl Held {
    /// What this node holds.
    pub(crate) fn of(options: &Options, node: &MappedNode) -> Held {
        let serves = options.env_styles.contains(&EnvStyle::Tensorflow);
        let ranks = u32::try_from(node.ranks.len()).unwrap_or(u32::MAX);
        Held { master: u32::from(node.id == NodeId(0)), servers: if serves { ranks } else { 0 } }
    }

    pub(crate) fn count(self) -> u32 {
        self.master.saturating_add(self.servers)
    }

    /// MASTER_PORT among the ports that the nodes hold.
    pub(crate) fn master(ports: &[Vec<u16>]) -> u16 {
        ports.first().and_then(|ports| ports.first()).copied().unwrap_or_default()
    }

    /// For NCCL's service for questions about a job, among the ports of a node: one more, where
    /// there are GPUs.
    pub(crate) fn ras(self, ports: &[u16]) -> Option<u16> {
        ports.get(self.count() as usize).copied()
    }

    /// For a rank's own server, among the ports of its node.
    pub(crate) fn server(self, ports: &[u16], local_rank: usize) -> Option<u16> {
        ports.get(self.master as usize + local_rank).copied()
    }
}
