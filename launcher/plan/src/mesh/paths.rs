//! Choice of the paths to prove, each node's part in a round of proofs, and the choice of the paths whose bandwidth is
//! measured: pure functions of the rank table and of the plan.

use crate::options::MeshMode;
use crate::selection::{Plan, UsablePort};
use rlaunch_bootstrap::id::{NodeId, Rank};
use rlaunch_bootstrap::protocol::mesh::{
    LocalPort, MeshPath, ProofRound, QpSettings, RoundTimeouts,
};
use rlaunch_bootstrap::rank_table::{NicId, Pair, PairTransport, RankTable};
use std::collections::{BTreeMap, BTreeSet};

/// Proof of the path between two ranks of different nodes over one NIC of each, in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Proof {
    pub a: Rank,
    pub b: Rank,
    /// NIC of rank `a`, whose node starts the connection.
    pub from: NicId,
    /// NIC of rank `b`.
    pub to: NicId,
    /// MTU in bytes, if it is lower than that of both NICs.
    pub mtu: Option<u32>,
    pub by_manager: bool,
}

impl Proof {
    pub fn nodes(&self) -> [NodeId; 2] {
        [self.from.node, self.to.node]
    }

    /// Returns the two NICs; the NIC of the node with the lower id is first.
    pub fn nics(&self) -> (NicId, NicId) {
        (self.from.min(self.to), self.from.max(self.to))
    }
}

/// Lists every pair of ranks on different nodes. The lower rank is first.
pub fn pairs(table: &RankTable) -> impl Iterator<Item = Pair> {
    let ranks = table.world_size();
    let all = (0..ranks).flat_map(move |a| (a + 1..ranks).map(move |b| (Rank(a), Rank(b))));
    let pairs = all.filter_map(|(a, b)| table.pair(a, b));
    pairs.filter(|pair| pair.connect != PairTransport::SharedMemory)
}

/// Lists the paths that are proved in this mode.
pub fn wanted(table: &RankTable, mode: MeshMode) -> Vec<Proof> {
    if mode == MeshMode::Off {
        return Vec::new();
    }
    let all = pairs(table).filter_map(|pair| proof(table, &pair));
    if mode.is_full(table.world_size()) {
        return all.collect();
    }
    let mut seen = BTreeSet::new();
    all.filter(|proof| seen.insert((proof.nics(), proof.mtu))).collect()
}

/// Returns the proof for a pair of ranks, or `None` if the rank table does not connect the pair by RDMA.
pub fn proof(table: &RankTable, pair: &Pair) -> Option<Proof> {
    let Pair { a, b, nic_a, nic_b, connect, mtu } = *pair;
    let by_manager = match connect {
        PairTransport::Rdma => false,
        PairTransport::RdmaCm => true,
        PairTransport::SharedMemory | PairTransport::Tcp => return None,
    };
    let node = |rank: Rank| Some(table.ranks().get(rank.index())?.node);
    let from = NicId { node: node(a)?, nic: nic_a? };
    let to = NicId { node: node(b)?, nic: nic_b? };
    let port_mtu = |end: NicId| table.nic(end)?.mtu;
    let carried = port_mtu(from).into_iter().chain(port_mtu(to)).min();
    Some(Proof { a, b, from, to, mtu: mtu.filter(|_| mtu != carried), by_manager })
}

/// Makes each node's part of round `number`, by node. The paths of `proofs` get ids from `first` on. Nodes
/// without a path get an empty part, since all nodes take part in the round's barrier.
pub fn parts(
    table: &RankTable,
    proofs: &[Proof],
    number: u32,
    first: u32,
    settings: QpSettings,
    limits: RoundTimeouts,
) -> Vec<ProofRound> {
    let mut nodes: Vec<RoundBuilder> =
        table.nodes().iter().map(|_| RoundBuilder::default()).collect();
    for (id, proof) in (first..).zip(proofs) {
        for (own, peer, dials) in [(proof.from, proof.to, true), (proof.to, proof.from, false)] {
            let Some(builder) = nodes.get_mut(own.node.index()) else { continue };
            let port_index = builder.port_index(table, own, proof.by_manager);
            let path = MeshPath { id, port_index, peer: peer.node, dials, mtu: proof.mtu };
            builder.paths.push(path);
        }
    }
    let round = |RoundBuilder { ports, paths, .. }| ProofRound {
        number,
        ports,
        paths,
        settings,
        limits,
        through_launcher: false,
    };
    nodes.into_iter().map(round).collect()
}

/// Part of one node in a round, under construction.
#[derive(Default)]
struct RoundBuilder {
    ports: Vec<LocalPort>,
    /// Position of each port in `ports`, by index of the NIC and whether the RDMA connection manager is used.
    indices: BTreeMap<(u32, bool), u32>,
    paths: Vec<MeshPath>,
}

impl RoundBuilder {
    fn port_index(&mut self, table: &RankTable, own: NicId, by_manager: bool) -> u32 {
        let RoundBuilder { ports, indices, .. } = self;
        *indices.entry((own.nic, by_manager)).or_insert_with(|| {
            ports.extend(local_port(table, own, by_manager));
            u32::try_from(ports.len().saturating_sub(1)).unwrap_or(u32::MAX)
        })
    }
}

fn local_port(table: &RankTable, own: NicId, by_manager: bool) -> Option<LocalPort> {
    let nic = table.nic(own)?;
    Some(LocalPort {
        device: nic.device.clone(),
        port: nic.port,
        gid_index: nic.gid_index,
        cm_address: nic.address.filter(|_| by_manager),
    })
}

/// Makes the parts of the two nodes of a path that is proved again while the job runs. The two nodes exchange
/// endpoints through the launcher.
pub fn single_path(
    table: &RankTable,
    proof: &Proof,
    number: u32,
    id: u32,
    settings: QpSettings,
    limits: RoundTimeouts,
) -> [(NodeId, ProofRound); 2] {
    let rounds = parts(table, &[*proof], number, id, settings, limits);
    let part_of =
        |node: NodeId| ProofRound { through_launcher: true, ..rounds[node.index()].clone() };
    [proof.from.node, proof.to.node].map(|node| (node, part_of(node)))
}

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
pub fn measured_rounds(plan: &Plan) -> Vec<Vec<Proof>> {
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
    use crate::testing::{inventory, triangle};
    use rlaunch_bootstrap::inventory::Inventory;

    /// Writes each round as pairs of `NODE.NIC`.
    fn chosen(machines: &[Inventory]) -> Vec<String> {
        let plan = Plan::new(machines, &PortOptions::default());
        let end = |nic: NicId| format!("{}.{}", nic.node.0, nic.nic);
        let path = |proof: &Proof| format!("{}-{}", end(proof.from), end(proof.to));
        let line = |round: &Vec<Proof>| round.iter().map(path).collect::<Vec<_>>().join(" ");
        measured_rounds(&plan).iter().map(line).collect()
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
