//! Comparison of a measured bandwidth with what limits it: the slowest link between two ports, or a TCP connection
//! where no limit is known.

use super::Unit;
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::rank_table::{Nic, NodeRow, Pair, PairTransport};
use rlaunch_engine::run::job_run::StartFacts;
use rlaunch_plan::findings::{CheckId, id};
use rlaunch_plan::limit::{HEALTHY, Limit};
use serde_json::{Value, json};

/// Findings of `rlaunch doctor` that explain a bandwidth far below its limit, the likeliest first.
const CAUSES: [CheckId; 7] = [
    id::MTU_PATH,
    id::PCIE_DEGRADED,
    id::PCIE_BOTTLENECK,
    id::NUMA_FAR,
    id::ROCE_LOSS,
    id::LINK_ERRORS,
    id::MESH_BANDWIDTH,
];

/// Percentage of the usable rate above which the limit itself is wrong. PCIe packets of 512 bytes, which some machines
/// use, carry 4 percent more than the limit assumes.
const ABOVE: f64 = 106.0;

/// Explanation of a rate above the limit that rlaunch's own program has measured.
pub(super) const ABOVE_OF_OURS: &str = "above the limit: the limit is wrong, please report this";

/// Explanation of a rate above the limit that another program has measured.
pub(super) const ABOVE_OF_OTHERS: &str =
    "above the limit of one port: the program has used several, or others";

/// Upper bound of the bandwidth between two ranks.
#[derive(Clone, Debug)]
pub(super) enum Ceiling {
    /// Links between the ranks' ports.
    Known(Limit),
    /// The limit is not known: `why` names the device or network. `tcp` is the rate of a TCP connection in Mb/s.
    Unknown { why: String, tcp: Option<f64> },
}

/// NIC of a rank for messages to another one, with its node.
pub(super) struct RankPort<'a> {
    pub(super) node: &'a NodeRow,
    pub(super) index: usize,
    /// `None` if the ranks do not use RDMA.
    pub(super) nic: Option<&'a Nic>,
}

/// Finds the ports that two ranks use for messages to each other.
pub(super) fn ports<'a>(
    facts: &'a StartFacts,
    (a, b): (Rank, Rank),
) -> Option<(Pair, RankPort<'a>, RankPort<'a>)> {
    let pair = facts.table.pair(a, b)?;
    let port = |rank: Rank, nic: Option<u32>| {
        let node = facts.table.ranks().get(rank.0 as usize)?.node;
        let row = facts.table.nodes().get(node.index())?;
        let nic = nic.and_then(|nic| row.nics.get(nic as usize));
        Some(RankPort { node: row, index: node.index(), nic })
    };
    let (one, other) = (port(pair.a, pair.nic_a)?, port(pair.b, pair.nic_b)?);
    Some(if pair.a == a { (pair, one, other) } else { (pair, other, one) })
}

/// Returns why the limit of a port is not known.
fn reason(port: &RankPort<'_>, nic: &Nic) -> String {
    let why = match nic.software {
        true => "is emulated by software",
        false => "shares a card, or does not report its rate",
    };
    format!("{} of {} {why}", nic.device, port.node.host)
}

impl Ceiling {
    /// Returns the bound for messages between two ranks; `None` if they are on one host. `mtu` is the path MTU in
    /// bytes if it is lower than usual.
    pub(super) fn between(
        facts: &StartFacts,
        ranks: (Rank, Rank),
        mtu: Option<u32>,
    ) -> Option<Ceiling> {
        let (pair, from, to) = ports(facts, ranks)?;
        let unknown = |why: String| Some(Ceiling::Unknown { why, tcp: None });
        match pair.connect {
            PairTransport::SharedMemory => None,
            PairTransport::Tcp => unknown("TCP".to_owned()),
            PairTransport::Rdma | PairTransport::RdmaCm => {
                let (Some(one), Some(other)) = (from.nic, to.nic) else {
                    return unknown("RDMA".to_owned());
                };
                let limit = |port: &RankPort<'_>, nic| {
                    Limit::new(facts.inventories.get(port.index)?, nic, mtu.or(pair.mtu))
                };
                match (limit(&from, one), limit(&to, other)) {
                    (Some(one), Some(other)) => Some(Ceiling::Known(one.lower(other))),
                    (None, _) => unknown(reason(&from, one)),
                    (_, None) => unknown(reason(&to, other)),
                }
            }
        }
    }

    /// Returns the bound that is reached first. One that is not known may be reached first.
    pub(super) fn lower(self, other: Ceiling) -> Ceiling {
        match (self, other) {
            (Ceiling::Known(one), Ceiling::Known(other)) => Ceiling::Known(one.lower(other)),
            (Ceiling::Known(_), unknown) | (unknown, _) => unknown,
        }
    }

    /// Adds the rate of a TCP connection between the same hosts, in Mb/s.
    pub(super) fn with_tcp(self, rate: Option<f64>) -> Ceiling {
        match self {
            Ceiling::Unknown { why, .. } => Ceiling::Unknown { why, tcp: rate },
            known @ Ceiling::Known(_) => known,
        }
    }

    /// Compares a rate in Mb/s with the bound, in one or two lines. `hosts` is the value of `-H` for a line to paste;
    /// without it, a low rate is no reason to look for a cause, as with small messages. `above` explains a rate that
    /// is not possible.
    pub(super) fn judge(&self, megabits: f64, hosts: Option<&str>, above: &str) -> Vec<String> {
        match self {
            Ceiling::Known(limit) => {
                let (raw, usable) = limit.shares(megabits);
                let share =
                    format!("{raw:.1} % of the link, {usable:.1} % of what is usable: {limit}");
                if usable > ABOVE {
                    return vec![share, above.to_owned()];
                }
                let low = hosts.filter(|_| usable < f64::from(HEALTHY));
                let advice = low.map(|hosts| {
                    let causes = CAUSES.map(|id| id.to_string()).join(",");
                    format!(
                        "below {HEALTHY} % of what is usable; look for the cause with: \
                         rlaunch doctor -H {hosts} --probe --only {causes}"
                    )
                });
                [share].into_iter().chain(advice).collect()
            }
            Ceiling::Unknown { why, tcp: Some(tcp) } => {
                let (share, tcp) = (megabits * 100.0 / tcp, tcp / 1000.0);
                vec![format!(
                    "limit not known ({why}); {share:.0} % of one TCP connection between the same hosts \
                     ({tcp:.2} Gb/s)"
                )]
            }
            Ceiling::Unknown { why, tcp: None } => vec![format!("limit not known ({why})")],
        }
    }

    /// Returns the bound as a line in a plot: its name, and its value in `unit`. `None` if it is not known.
    pub(super) fn line(&self, unit: Unit) -> Option<(String, f64)> {
        match self {
            Ceiling::Known(limit) => {
                Some((format!("usable: {limit}"), unit.convert(f64::from(limit.usable) / 8e3)))
            }
            Ceiling::Unknown { tcp: Some(tcp), .. } => {
                Some(("one TCP connection".to_owned(), unit.convert(tcp / 8e3)))
            }
            Ceiling::Unknown { tcp: None, .. } => None,
        }
    }

    pub(super) fn json(&self, megabits: f64) -> Value {
        match self {
            Ceiling::Known(limit) => {
                let (raw, usable) = limit.shares(megabits);
                json!({
                    "bound": limit.to_string(),
                    "raw_mbps": limit.raw,
                    "usable_mbps": limit.usable,
                    "port_mbps": limit.port,
                    "percent_of_raw": raw,
                    "percent_of_usable": usable,
                })
            }
            Ceiling::Unknown { why, tcp } => json!({ "unknown": why, "tcp_mbps": tcp }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlaunch_plan::selection::{PortOptions, usable};
    use rlaunch_plan::testing::inventory;

    fn connectx3() -> Ceiling {
        let machine = inventory("connectx3");
        let ports = usable(&machine, &PortOptions::default());
        Ceiling::Known(Limit::new(&machine, &ports[0].nic, None).unwrap())
    }

    #[test]
    fn a_rate_is_compared_with_the_link_that_binds() {
        let lines = connectx3().judge(27_628.7, Some("a,b"), ABOVE_OF_OURS);
        let expected = "87.7 % of the link, 95.9 % of what is usable: PCIe 8.0 GT/s x4 at 0000:00:02.5 (port: 56 Gb/s)";
        assert_eq!(lines, [expected]);
    }

    #[test]
    fn a_low_rate_leads_to_doctor_and_an_impossible_one_to_a_report() {
        let lines = connectx3().judge(14_000.0, Some("a,b"), ABOVE_OF_OURS);
        assert!(lines[1].contains("rlaunch doctor -H a,b --probe --only mtu.path,"), "{lines:?}");
        assert_eq!(connectx3().judge(14_000.0, None, ABOVE_OF_OURS).len(), 1, "small messages");
        for above in [ABOVE_OF_OURS, ABOVE_OF_OTHERS] {
            assert_eq!(connectx3().judge(40_000.0, Some("a,b"), above)[1], above);
        }
    }

    #[test]
    fn without_a_limit_a_tcp_connection_is_the_measure() {
        let unknown =
            Ceiling::Unknown { why: "rxe0 of a is emulated by software".into(), tcp: None };
        let lines = unknown.clone().judge(9_000.0, Some("a,b"), ABOVE_OF_OURS);
        assert_eq!(lines, ["limit not known (rxe0 of a is emulated by software)"]);
        let lines = unknown.with_tcp(Some(10_000.0)).judge(9_000.0, Some("a,b"), ABOVE_OF_OURS);
        assert!(
            lines[0].ends_with("; 90 % of one TCP connection between the same hosts (10.00 Gb/s)"),
            "{lines:?}"
        );
    }
}
