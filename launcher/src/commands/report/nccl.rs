//! What NCCL printed: the network that it used in each rank, and checks of nccl-tests' tables: wrong results, averages that are
//! not those of the table, and ranks that ran alone.

use super::log_metrics::collective::CollectiveTable;
use super::log_metrics::nccl_network::{NcclNetworks, ProcessNetwork};
use super::{FindingKind, ReportFinding, agree};
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
pub(super) fn by_rank<'a>(
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

pub(super) fn network_findings(
    uses: &[RankNetwork],
    networks: &NcclNetworks,
) -> Vec<ReportFinding> {
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

/// Way to make one job of ranks that ran alone, as the text of a hint.
pub(crate) const ONE_JOB: &str = "nccl-tests form one job if they are built with `make MPI=1` and an MPI library that \
    the hosts have";

pub(super) fn table_findings(collective: &CollectiveTable) -> Vec<ReportFinding> {
    // The rows of several tables are mixed.
    let average = || average_differs(collective);
    let whole = ran_alone(collective).or_else(average);
    wrong_values(collective).into_iter().chain(whole).collect()
}

/// Returns a finding if several ranks printed a table, although rank 0 does so for all.
fn ran_alone(collective: &CollectiveTable) -> Option<ReportFinding> {
    let printers = collective.printers.len();
    let text = format!("{printers} ranks printed a table of their own: each ran alone");
    (printers > 1).then(|| ReportFinding::new(FindingKind::Alone, text).hint(ONE_JOB))
}

/// Returns a finding if results were wrong.
pub(crate) fn wrong_values(collective: &CollectiveTable) -> Option<ReportFinding> {
    let wrong = collective.timings().filter_map(|(bytes, timing)| Some((bytes, timing.wrong?)));
    let wrong: Vec<(u64, u64)> = wrong.filter(|(_, wrong)| *wrong > 0).collect();
    let (bytes, _) = wrong.first()?;
    let count: u64 = wrong.iter().fold(0, |sum, (_, wrong)| sum.saturating_add(*wrong));
    let text =
        format!("{count} values were wrong, first at {bytes} bytes: do not trust this network");
    Some(ReportFinding::new(FindingKind::WrongValues, text))
}

/// Returns a finding if the printed average is not that of the rows.
pub(crate) fn average_differs(collective: &CollectiveTable) -> Option<ReportFinding> {
    let printed = collective.average_busbw?;
    let count = collective.timings().count() as f64;
    let mean = collective.timings().map(|(_, timing)| timing.busbw).sum::<f64>() / count;
    // Rounding of tiny bandwidths may exceed the tolerance.
    let is_rounding = (printed - mean).abs() < 0.01;
    let text = format!(
        "the bus bandwidths of the table have an average of {mean:.2} GB/s, but the log says \
         {printed}: lines are missing"
    );
    (!is_rounding && !agree(printed, mean))
        .then(|| ReportFinding::new(FindingKind::AverageDiffers, text))
}
