//! Variables for torchrun itself, which takes the defaults of its options from them: its place among the hosts, so that it
//! needs no options for that.

use super::{ReservedPorts, Variable};
use crate::options::{JobView, NamedPort, Options, RankPosition};
use crate::program::{Nodes, Starter, StarterKind};
use rlaunch_bootstrap::env as names;
use rlaunch_bootstrap::id::Rank;

/// Returns the ports at which further programs that are torchrun meet. The first has MASTER_PORT.
pub fn ports(starters: &[Option<Starter>]) -> impl Iterator<Item = NamedPort> {
    let is_torchrun = |starter: &Starter| matches!(starter.kind, StarterKind::Torchrun(_));
    let further = starters.iter().enumerate().skip(1);
    let meeting = further.filter(move |(_, starter)| starter.as_ref().is_some_and(is_torchrun));
    meeting.map(|(app, _)| NamedPort { name: name_of(app), app })
}

/// Returns the name of a program's port, which no template can have.
fn name_of(app: usize) -> String {
    format!("\0torchrun {app}")
}

/// Returns the variables of a rank that is torchrun; none if it is to be alone on its host.
pub(crate) fn variables(
    options: &Options,
    job: &JobView<'_>,
    place: RankPosition,
    ports: &[Vec<u16>],
) -> Vec<Variable> {
    const WHY: &str = "torchrun takes the default of its option from it";
    let app = job.map.application_of(place.rank);
    let kind = options.starter(app).map(|starter| starter.kind);
    if !matches!(kind, Some(StarterKind::Torchrun(Nodes::Untold | Nodes::Told(..)))) {
        return Vec::new();
    }
    let is_its = |rank: &Rank| job.map.application_of(*rank) == app;
    // A node for torchrun is one of it, of which a host may have several. The first is where the others meet.
    let nodes = job.map.nodes_of(app).flat_map(|node| node.ranks.iter().copied()).filter(is_its);
    let nodes: Vec<Rank> = nodes.collect();
    let number = nodes.iter().position(|rank| *rank == place.rank).unwrap_or_default();
    let first = job.map.nodes_of(app).next().and_then(|node| job.addresses.get(node.id.index()));
    let named = ReservedPorts::named(options, job.map, ports).get(&name_of(app)).copied();
    let port = named.unwrap_or_else(|| ReservedPorts::master(ports));
    let mut set = vec![
        Variable::new(names::PET_NNODES, nodes.len().to_string(), WHY),
        Variable::new(names::PET_NODE_RANK, number.to_string(), WHY),
        Variable::new(names::PET_MASTER_PORT, port.to_string(), WHY),
    ];
    set.extend(
        first.map(|address| Variable::new(names::PET_MASTER_ADDR, address.to_string(), WHY)),
    );
    set
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::RankMap;
    use crate::program;
    use crate::selection::Plan;
    use rlaunch_bootstrap::id::JobId;
    use std::ffi::OsString;
    use std::net::IpAddr;

    fn starter(line: &str) -> Option<Starter> {
        program::read(&line.split(' ').map(OsString::from).collect::<Vec<_>>()).starter
    }

    fn set(options: &Options, map: &RankMap, rank: u32, ports: &[Vec<u16>]) -> Vec<String> {
        let addresses = [1, 2, 3].map(|last| IpAddr::from([10, 0, 0, last]));
        let rank = rlaunch_bootstrap::id::Rank(rank);
        let node = map.node_of(rank).unwrap().id.index();
        let plan = Plan::default();
        let job =
            JobView { id: JobId(1), map, inventories: &[], plan: &plan, addresses: &addresses };
        let place = RankPosition { rank, node, local_rank: 0 };
        let set = variables(options, &job, place, ports).into_iter();
        set.map(|own| format!("{}={}", own.name, own.value)).collect()
    }

    #[test]
    fn torchrun_knows_its_place_unless_it_is_to_be_alone() {
        let hosts = crate::hosts::parse(&["a,b".into()]).unwrap();
        let map = RankMap::by_slot(&hosts, None, false).unwrap();
        let ports = [vec![21_000], vec![]];
        let of = |line: &str| {
            let options = Options { starters: vec![starter(line)], ..Options::default() };
            set(&options, &map, 1, &ports)
        };
        let expected = [
            "PET_NNODES=2", "PET_NODE_RANK=1", "PET_MASTER_PORT=21000", "PET_MASTER_ADDR=10.0.0.1",
        ];
        assert_eq!(of("torchrun --nproc-per-node 8 x.py"), expected);
        assert_eq!(of("python3 -m torch.distributed.run --nnodes 2 x.py"), expected);
        for line in ["torchrun --standalone x.py", "python3 x.py", "accelerate launch x.py"] {
            assert!(of(line).is_empty(), "{line}");
        }
    }

    #[test]
    fn torchruns_of_one_host_are_nodes_of_their_own() {
        let hosts = crate::hosts::parse(&["a:2,b:2".into()]).unwrap();
        let map = RankMap::by_slot(&hosts, None, false).unwrap();
        let options = Options { starters: vec![starter("torchrun x.py")], ..Options::default() };
        let ports = [vec![21_000], vec![]];
        for rank in 0..4 {
            let own = set(&options, &map, rank, &ports);
            assert_eq!(own[..2], ["PET_NNODES=4".into(), format!("PET_NODE_RANK={rank}")]);
        }
    }

    #[test]
    fn a_second_torchrun_meets_at_a_port_of_its_own() {
        let hosts =
            ["a", "b", "c"].map(|name| crate::hosts::parse(&[name.into()]).unwrap()[0].clone());
        let ranks = [0, 1, 2].map(|rank| vec![rlaunch_bootstrap::id::Rank(rank)]);
        let firsts = vec![rlaunch_bootstrap::id::Rank(1)];
        let map = RankMap::from_assignment(hosts.into_iter().zip(ranks).collect(), firsts);
        let mut options = Options {
            starters: vec![starter("torchrun x.py"), starter("torchrun y.py")],
            ..Options::default()
        };
        options.named_ports = super::ports(&options.starters).collect();
        let ports = [vec![21_000], vec![21_007], vec![]];
        assert_eq!(
            set(&options, &map, 2, &ports),
            [
                "PET_NNODES=2", "PET_NODE_RANK=1", "PET_MASTER_PORT=21007",
                "PET_MASTER_ADDR=10.0.0.2"
            ]
        );
        let first = ["PET_NNODES=1", "PET_NODE_RANK=0", "PET_MASTER_PORT=21000"];
        assert_eq!(set(&options, &map, 0, &ports)[..3], first);
    }
}
