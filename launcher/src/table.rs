//! The rank table out of what the nodes have said, and how it is shown.

use crate::map::RankMap;
use rlaunch_bootstrap::id::{JobId, LocalRank};
use rlaunch_bootstrap::job::NodeFacts;
use rlaunch_bootstrap::table::{NodeRow, RankRow, RankTable, TableError};
use std::net::IpAddr;

/// Puts the table together. `facts` and `addresses` are by node.
pub(crate) fn build(
    job: JobId,
    map: &RankMap,
    facts: &[&NodeFacts],
    addresses: &[IpAddr],
) -> Result<RankTable, TableError> {
    let mut nodes = Vec::with_capacity(map.nodes.len());
    let mut ranks = Vec::with_capacity(map.world_size as usize);
    for ((mapped, facts), &address) in map.nodes.iter().zip(facts).zip(addresses) {
        nodes.push(NodeRow {
            node: mapped.id,
            host: mapped.host.name.clone(),
            hostname: facts.hostname.clone(),
            arch: facts.arch.clone(),
            address,
            addresses: facts.addresses.clone(),
            nics: Vec::new(),
        });
        ranks.extend(mapped.ranks.iter().zip(0..).map(|(&rank, local)| RankRow {
            rank,
            node: mapped.id,
            local_rank: LocalRank(local),
            address,
            gpu: None,
            numa_node: None,
            cpus: None,
            nics: Vec::new(),
        }));
    }
    ranks.sort_by_key(|row| row.rank);
    RankTable::new(job, nodes, ranks)
}

/// For people: a line for each rank, with the columns that have anything in them.
pub(crate) fn for_people(table: &RankTable) -> String {
    let mut rows: Vec<[String; 9]> = vec![
        ["rank", "host", "hostname", "local", "address", "cpus", "numa", "gpu", "nics"]
            .map(str::to_owned),
    ];
    for row in table.ranks() {
        let node = &table.nodes()[row.node.index()];
        let nics: Vec<&str> =
            row.nics.iter().map(|&nic| node.nics[nic as usize].device.as_str()).collect();
        rows.push([
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
    let width = |column: usize| {
        let known = rows[1..].iter().any(|row| !row[column].is_empty());
        let longest = rows.iter().map(|row| row[column].chars().count()).max();
        longest.filter(|_| known)
    };
    let columns: Vec<(usize, usize)> =
        (0..9).filter_map(|column| Some((column, width(column)?))).collect();
    let line = |row: &[String; 9]| {
        let cells = columns.iter().map(|&(column, width)| format!("{:<width$}", row[column]));
        let line = cells.collect::<Vec<_>>().join("  ");
        format!("{}\n", line.trim_end())
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> RankTable {
        let hosts = crate::hosts::parse(&["a:2,b".into()]).unwrap();
        let map = RankMap::by_slot(&hosts, None, false).unwrap();
        let facts = NodeFacts {
            hostname: "node".into(),
            arch: "x86_64".into(),
            pid: 1,
            uid: 0,
            addresses: vec![],
            ssh_address: None,
        };
        let addresses = [IpAddr::from([10, 1, 0, 1]), IpAddr::from([10, 1, 0, 2])];
        build(JobId(1), &map, &[&facts, &facts], &addresses).unwrap()
    }

    #[test]
    fn people_see_what_is_known() {
        assert_eq!(
            for_people(&table()),
            "\
rank  host  hostname  local  address
0     a     node      0      10.1.0.1
1     a     node      1      10.1.0.1
2     b     node      0      10.1.0.2
"
        );
    }
}
