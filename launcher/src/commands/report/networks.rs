//! Which network NCCL used in each rank.

use super::{Kind, Remark};
use crate::commands::report::log_metrics::network::{Networks, ProcessUse};
use crate::plan::nccl::{Use, Version};
use rlaunch_console::text;
use serde::Serialize;

/// Of one process, which mostly is one rank.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct RankNetwork {
    /// Those that the process is, where that is known.
    pub(crate) ranks: Vec<u32>,
    pub(crate) host: String,
    pub(crate) pid: u32,
    pub(crate) rdma: bool,
    #[serde(flatten)]
    pub(crate) network: Use,
}

impl RankNetwork {
    /// `rank 0`, or `n pid 17` where no rank is known.
    pub(super) fn name(&self) -> String {
        match &self.ranks[..] {
            [] => format!("{} pid {}", self.host, self.pid),
            [rank] => format!("rank {rank}"),
            ranks => format!("ranks {}", text::list(ranks)),
        }
    }
}

/// Processes that said it, in the order of their ranks. Hosts are called as the launcher does.
pub(super) fn by_rank<'a>(
    networks: &Networks,
    host_of: impl Fn(u32) -> Option<&'a str>,
) -> Vec<RankNetwork> {
    let named = |used: ProcessUse<'_>| {
        let host = used.ranks.first().and_then(|rank| host_of(*rank)).unwrap_or(used.host);
        RankNetwork {
            host: host.to_owned(),
            pid: used.pid,
            rdma: used.network.is_rdma(),
            network: used.network.clone(),
            ranks: used.ranks,
        }
    };
    networks.uses().into_iter().map(named).collect()
}

pub(super) fn remarks(uses: &[RankNetwork], networks: &Networks) -> Vec<Remark> {
    let by_tcp: Vec<String> =
        uses.iter().filter(|used| !used.rdma).map(RankNetwork::name).collect();
    let tcp = (!by_tcp.is_empty()).then(|| {
        let who = match by_tcp.len() == uses.len() {
            true => "any rank".to_owned(),
            false => text::list(&by_tcp),
        };
        let hint = "rlaunch --require-rdma insists, and says what is missing";
        Remark::new(Kind::Tcp, format!("NCCL did not use RDMA in {who}")).hint(hint)
    });
    let failed = networks.failed().map(|pair| {
        let (local, remote) = (&pair.local, &pair.remote);
        let text =
            format!("NCCL could not connect {local} and {remote}: they may be on two subnets");
        let known = Version::SUBNET_AWARE;
        let hint = format!(
            "NCCL {known} or newer chooses ports by subnet; rlaunch --show mesh says which \
             ports meet"
        );
        Remark::new(Kind::Disconnected, text).hint(hint)
    });
    tcp.into_iter().chain(failed).collect()
}
