//! Building the rank table from the nodes' reports, and printing it.

use crate::options::{JobView, Options, Transport};
use crate::rank_config::RankConfig;
use rlaunch_bootstrap::id::LocalRank;
use rlaunch_bootstrap::job::NodeFacts;
use rlaunch_bootstrap::protocol::mesh::QpSettings;
use rlaunch_bootstrap::rank_table::{
    Connectivity, NodeRow, PacketPriority, PairRule, RankRow, RankTable, TableError,
};
use rlaunch_text::columns;

/// Builds the rank table. `facts` and `configs` are indexed by node, `configs[node]` by local rank. Returns
/// an error if an entry is missing.
pub fn build(
    options: &Options,
    job: &JobView<'_>,
    facts: &[&NodeFacts],
    configs: &[Vec<RankConfig>],
) -> Result<RankTable, TableError> {
    let map = job.map;
    let mut nodes = Vec::with_capacity(map.nodes.len());
    let mut ranks = Vec::with_capacity(map.world_size as usize);
    let known = facts.iter().zip(job.addresses).zip(job.plan.ports.iter().zip(configs));
    for (mapped, ((facts, &address), (ports, configs))) in map.nodes.iter().zip(known) {
        nodes.push(NodeRow {
            node: mapped.id,
            host: mapped.host.name.clone(),
            hostname: facts.hostname.clone(),
            arch: facts.arch.clone(),
            address,
            addresses: facts.addresses.clone(),
            nics: ports.iter().map(|port| port.nic.clone()).collect(),
        });
        let placed = mapped.ranks.iter().zip(configs).zip(0..);
        ranks.extend(placed.map(|((&rank, config), local)| RankRow {
            rank,
            node: mapped.id,
            local_rank: LocalRank(local),
            address,
            gpu: config.gpu.clone(),
            numa_node: config.placement.numa_node,
            cpus: config.placement.cpus.as_ref().map(ToString::to_string),
            nics: config.nics.clone(),
        }));
    }
    ranks.sort_by_key(|row| row.rank);
    let rule = match options.transport {
        Transport::Auto | Transport::Rdma => PairRule::SharedMemoryThenRdmaThenTcp,
        Transport::Tcp => PairRule::SharedMemoryThenTcp,
    };
    // The settings with which the mesh was proved.
    let QpSettings { traffic_class, service_level, .. } = options.mesh.settings;
    let packet_priority = PacketPriority { traffic_class, service_level };
    let rules = Connectivity { rule, packet_priority, exceptions: job.plan.exceptions.clone() };
    RankTable::new(job.id, map.world_size, nodes, ranks, rules)
}

/// Writes the table as text with a line for each rank, without columns that are empty for all ranks.
pub fn format_table(table: &RankTable) -> String {
    let mut rows = vec![columns::row([
        "rank", "host", "hostname", "local", "address", "cpus", "numa", "gpu", "nics",
    ])];
    for row in table.ranks() {
        let node = &table.nodes()[row.node.index()];
        let mut nics: Vec<&str> =
            row.nics.iter().map(|own| node.nics[own.nic as usize].device.as_str()).collect();
        nics.dedup();
        rows.push(vec![
            row.rank.to_string(),
            node.host.clone(),
            node.hostname.clone(),
            row.local_rank.to_string(),
            row.address.to_string(),
            row.cpus.clone().unwrap_or_default(),
            row.numa_node.map(|numa| numa.to_string()).unwrap_or_default(),
            row.gpu.clone().unwrap_or_default(),
            nics.join(","),
        ]);
    }
    columns::lay_out(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::RankMap;
    use crate::placement::Placement;
    use crate::selection::{Plan, PortOptions};
    use rlaunch_bootstrap::id::JobId;
    use rlaunch_bootstrap::inventory::Inventory;
    use rlaunch_bootstrap::inventory::pci::Distance;
    use rlaunch_bootstrap::rank_table::{Nic, RankNic, Transport as Speaks};
    use std::net::IpAddr;

    fn build_for(hosts: &str, addresses: &[[u8; 4]]) -> Result<RankTable, TableError> {
        let hosts = crate::hosts::parse(&[hosts.into()]).unwrap();
        let map = RankMap::by_slot(&hosts, None, false).unwrap();
        let facts = NodeFacts {
            hostname: "node".into(),
            arch: "x86_64".into(),
            pid: 1,
            guardian: 1,
            uid: 0,
            addresses: vec![],
            ssh_address: None,
            gpus: 0,
            machine: String::new(),
        };
        let addresses: Vec<IpAddr> = addresses.iter().copied().map(IpAddr::from).collect();
        let placement = Placement::default();
        let config = RankConfig { placement, gpu: None, nics: vec![], defaults: vec![] };
        let configs: Vec<_> =
            map.nodes.iter().map(|n| vec![config.clone(); n.ranks.len()]).collect();
        let inventories = vec![Inventory::default(); map.nodes.len()];
        let plan = Plan::new(&inventories, &PortOptions::default());
        let (id, map, inventories) = (JobId(1), &map, &inventories);
        let job = JobView { id, map, inventories, plan: &plan, addresses: &addresses };
        build(&Options::default(), &job, &vec![&facts; map.nodes.len()], &configs)
    }

    #[test]
    fn people_see_what_is_known() {
        assert_eq!(
            format_table(&build_for("a:2,b", &[[10, 1, 0, 1], [10, 1, 0, 2]]).unwrap()),
            "\
rank  host  hostname  local  address
0     a     node      0      10.1.0.1
1     a     node      1      10.1.0.1
2     b     node      0      10.1.0.2
"
        );
    }

    #[test]
    fn columns_come_with_the_first_rank_that_knows() {
        let table = build_for("a,long", &[[10, 1, 0, 1], [10, 1, 0, 20]]).unwrap();
        let (mut nodes, mut ranks) = (table.nodes().to_vec(), table.ranks().to_vec());
        nodes[1].nics = ["mlx5_0", "mlx5_1"].map(nic).to_vec();
        let near = |nic| RankNic { nic, distance: Distance::Switch };
        ranks[1].nics = vec![near(1), near(0)];
        ranks[1].numa_node = Some(0);
        assert_eq!(
            format_table(
                &RankTable::new(JobId(1), 2, nodes, ranks, Connectivity::default()).unwrap()
            ),
            "\
rank  host  hostname  local  address    numa  nics
0     a     node      0      10.1.0.1
1     long  node      0      10.1.0.20  0     mlx5_1,mlx5_0
"
        );
    }

    fn nic(device: &str) -> Nic {
        Nic {
            device: device.into(),
            port: 1,
            rail: 0,
            transport: Speaks::Roce,
            software: false,
            by_manager: false,
            networks: vec![],
            gid_index: None,
            gid: None,
            netdev: None,
            address: None,
            mtu: None,
            rate_mbps: None,
        }
    }

    #[test]
    fn a_node_that_is_not_known_makes_no_smaller_table() {
        let error = build_for("a:2,b", &[[10, 1, 0, 1]]).unwrap_err();
        assert_eq!(error, TableError::WorldSize { found: 2, expected: 3 });
    }
}
