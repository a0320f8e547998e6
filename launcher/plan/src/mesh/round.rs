//! Each node's part in a round of proofs.

use super::paths::Proof;
use rlaunch_bootstrap::id::NodeId;
use rlaunch_bootstrap::protocol::mesh::{
    LocalPort, MeshPath, ProofRound, QpSettings, RoundTimeouts,
};
use rlaunch_bootstrap::rank_table::{NicId, RankTable};
use std::collections::BTreeMap;

/// Makes each node's part of round `number`, by node. The paths of `proofs` get ids from `first` on. Nodes
/// without a path get an empty part, since all nodes take part in the round's barrier.
pub fn parts(
    table: &RankTable,
    proofs: &[Proof],
    (number, first): (u32, u32),
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

fn local_port(
    table: &RankTable,
    NicId { node, nic }: NicId,
    by_manager: bool,
) -> Option<LocalPort> {
    let nic = table.nodes().get(node.index())?.nics.get(nic as usize)?;
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
    (number, id): (u32, u32),
    settings: QpSettings,
    limits: RoundTimeouts,
) -> [(NodeId, ProofRound); 2] {
    let rounds = parts(table, &[*proof], (number, id), settings, limits);
    let part_of =
        |node: NodeId| ProofRound { through_launcher: true, ..rounds[node.index()].clone() };
    [proof.from.node, proof.to.node].map(|node| (node, part_of(node)))
}
