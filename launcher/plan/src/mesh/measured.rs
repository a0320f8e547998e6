//! Choice of the paths whose bandwidth is measured: a pure function of the plan.

use super::paths::Proof;
use crate::selection::{Plan, UsablePort};
use rlaunch_bootstrap::id::{NodeId, Rank};
use rlaunch_bootstrap::rank_table::NicId;
use std::collections::BTreeSet;

/// Maximum number of rounds. Two are enough where each port reaches all others, or one other.
const MAX_ROUNDS: usize = 4;

/// Port of a node, whatever its address: the index of the node, and the port's rail.
type NodePort = (usize, u32);

/// Path between two ports.
struct Candidate<'a> {
    ends: [NodePort; 2],
    nics: [NicId; 2],
    ports: [&'a UsablePort; 2],
}

/// Chooses paths over the cables of all hardware ports whose rate is known, in rounds. Within a round each port is the
/// end of at most one path, so that paths do not share a cable; and each path measures a port that no other has. The
/// ranks of the proofs are meaningless.
pub fn rounds(plan: &Plan) -> Vec<Vec<Proof>> {
    let candidates = candidates(plan);
    let mut covered: BTreeSet<NodePort> = BTreeSet::new();
    let mut rounds = Vec::new();
    while rounds.len() < MAX_ROUNDS {
        let mut busy: BTreeSet<NodePort> = BTreeSet::new();
        let mut round = Vec::new();
        for candidate in &candidates {
            let is_free = candidate.ends.iter().all(|end| !busy.contains(end));
            if is_free && candidate.ends.iter().any(|end| !covered.contains(end)) {
                busy.extend(candidate.ends);
                covered.extend(candidate.ends);
                round.push(candidate.proof());
            }
        }
        if round.is_empty() {
            break;
        }
        rounds.push(round);
    }
    rounds
}

/// Lists the paths between nodes, those between ports of one rail first.
fn candidates(plan: &Plan) -> Vec<Candidate<'_>> {
    let nics = |node: usize| {
        let measured = |port: &UsablePort| !port.nic.software && port.nic.rate_mbps.is_some();
        let ports = plan.ports[node].iter().zip(0..).filter(move |(port, _)| measured(port));
        let id = NodeId(u32::try_from(node).unwrap_or(u32::MAX));
        ports.map(move |(port, nic)| (port, NicId { node: id, nic }))
    };
    let mut found = Vec::new();
    for one in 0..plan.ports.len() {
        for other in one + 1..plan.ports.len() {
            for (a, nic_a) in nics(one) {
                let reached = nics(other).filter(|(b, _)| a.reach(b));
                found.extend(reached.map(|(b, nic_b)| Candidate {
                    ends: [(one, a.nic.rail), (other, b.nic.rail)],
                    nics: [nic_a, nic_b],
                    ports: [a, b],
                }));
            }
        }
    }
    found.sort_by_key(|candidate| candidate.ends[0].1 != candidate.ends[1].1);
    found
}

impl Candidate<'_> {
    fn proof(&self) -> Proof {
        let [from, to] = self.nics;
        let by_manager = self.ports.iter().any(|port| port.nic.by_manager);
        Proof { a: Rank(0), b: Rank(0), from, to, mtu: None, by_manager }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::selection::PortOptions;
    use crate::testing::inventory;
    use crate::testing::triangle;
    use rlaunch_bootstrap::inventory::Inventory;

    /// Writes each round as pairs of `NODE.NIC`.
    fn chosen(machines: &[Inventory]) -> Vec<String> {
        let plan = Plan::new(machines, &PortOptions::default());
        let end = |nic: NicId| format!("{}.{}", nic.node.0, nic.nic);
        let path = |proof: &Proof| format!("{}-{}", end(proof.from), end(proof.to));
        let line = |round: &Vec<Proof>| round.iter().map(path).collect::<Vec<_>>().join(" ");
        rounds(&plan).iter().map(line).collect()
    }

    #[test]
    fn each_cable_is_measured_once() {
        let cables = chosen(&triangle());
        assert_eq!(cables.len(), 1, "{cables:?}");
        assert_eq!(cables[0].split(' ').count(), 3, "{cables:?}");
    }

    #[test]
    fn ports_of_a_switch_are_measured_in_pairs() {
        let hosts = |count| vec![inventory("esxi-vm"); count];
        assert_eq!(chosen(&hosts(4)), ["0.0-1.0 2.0-3.0"]);
        assert_eq!(chosen(&hosts(3)), ["0.0-1.0", "0.0-2.0"]);
        assert_eq!(chosen(&hosts(1)), [""; 0]);
        let rails = chosen(&vec![inventory("dgx"); 2]);
        let same = |path: &str| path.split_once('-').is_some_and(|(a, b)| a[2..] == b[2..]);
        assert!(rails.len() == 1 && rails[0].split(' ').all(same), "{rails:?}");
    }

    #[test]
    fn ports_without_a_rate_are_left_out() {
        for name in ["rxe", "siw", "erdma-compat", "no-rdma"] {
            assert_eq!(chosen(&vec![inventory(name); 2]), [""; 0], "{name}");
        }
    }
}
