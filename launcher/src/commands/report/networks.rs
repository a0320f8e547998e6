//! Network that NCCL used in each rank.

use super::log_metrics::nccl_network::{NcclNetworks, ProcessNetwork};
use super::{FindingKind, ReportFinding};
use rlaunch_plan::env::nccl::{LoggedNetwork, Version};
use rlaunch_text::text;
use serde::Serialize;

/// Network of one process, which usually is one rank.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct RankNetwork {
    /// Ranks of the process, as far as they are known.
    pub(crate) ranks: Vec<u32>,
    pub(crate) host: String,
    pub(crate) pid: u32,
    pub(crate) rdma: bool,
    #[serde(flatten)]
    pub(crate) network: LoggedNetwork,
}

impl RankNetwork {
    /// Returns a name for messages: `rank 0`, or `node-0 pid 17` if no rank is known.
    pub(crate) fn name(&self) -> String {
        match &self.ranks[..] {
            [] => format!("{} pid {}", self.host, self.pid),
            [rank] => format!("rank {rank}"),
            ranks => format!("ranks {}", text::list(ranks)),
        }
    }
}

/// Lists the processes whose network is known, in the order of their ranks. `host_of` returns the launcher's
/// name for a rank's host; if it returns `None`, the host has the name in NCCL's log.
pub(crate) fn by_rank<'a>(
    networks: &NcclNetworks,
    host_of: impl Fn(u32) -> Option<&'a str>,
) -> Vec<RankNetwork> {
    let named = |used: ProcessNetwork<'_>| {
        let host = used.ranks.first().and_then(|rank| host_of(*rank)).unwrap_or(used.host);
        RankNetwork {
            host: host.to_owned(),
            pid: used.pid,
            rdma: used.network.is_rdma(),
            network: used.network.clone(),
            ranks: used.ranks,
        }
    };
    networks.by_process().into_iter().map(named).collect()
}

pub(crate) fn findings(uses: &[RankNetwork], networks: &NcclNetworks) -> Vec<ReportFinding> {
    let by_tcp: Vec<String> =
        uses.iter().filter(|used| !used.rdma).map(RankNetwork::name).collect();
    let tcp = (!by_tcp.is_empty()).then(|| {
        let ranks = match by_tcp.len() == uses.len() {
            true => "any rank".to_owned(),
            false => text::list(&by_tcp),
        };
        let hint = "rlaunch --require-rdma fails without RDMA, and says what is missing";
        ReportFinding::new(FindingKind::Tcp, format!("NCCL did not use RDMA in {ranks}")).hint(hint)
    });
    let failed = networks.failed().map(|pair| {
        let (local, remote) = (&pair.local, &pair.remote);
        let text =
            format!("NCCL could not connect {local} and {remote}: they may be on different subnets");
        let known = Version::SUBNET_AWARE;
        let hint = format!(
            "NCCL {known} or newer chooses ports by subnet; rlaunch --show mesh lists the ports that \
             reach each other"
        );
        ReportFinding::new(FindingKind::Disconnected, text).hint(hint)
    });
    tcp.into_iter().chain(failed).collect()
}
