//! NCCL: its version, the network that it can use, and what rlaunch sets so that it does.

use super::devices::{prevented, uses_nccl};
use super::{Check, Cluster, Needs};
use crate::env::nccl::network::{self, MissingEdge, NcclPorts, Obstacle};
use crate::env::nccl::{Shape, Version, reason_for_tcp};
use crate::findings::{Finding, id};
use crate::options::Transport;
use rlaunch_bootstrap::inventory::Inventory;
use rlaunch_text::text;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: id::NCCL_OLD,
        about: "NCCL chooses ports by subnet where each pair of hosts has its own cable",
        needs: Needs::Inventories,
        examine: old,
        causes: &[id::NCCL_EDGE],
        explanation: "\
Symptoms: `ibv_modify_qp failed with 110 Connection timed out … local GID ::ffff:192.168.100.1, remote GID ::ffff:192.168.101.3`; ranks hang \
in init_process_group with three hosts, and two hosts work.

NCCL assumes that every NIC reaches every NIC. With a cable and a subnet for each pair of hosts it connects ports that do not meet. From \
2.30.7 on it can choose the port by the peer's subnet (NCCL_IB_SUBNET_AWARE_ROUTING=1, which rlaunch sets); PyTorch brings older \
versions. The version of the library that the program would load was read from its file.

Install a newer nvidia-nccl package beside PyTorch, or name a network plugin that knows such meshes with --nccl-net-plugin, or \
let NCCL use TCP with -x NCCL_IB_DISABLE=1.",
    },
    Check {
        id: id::NCCL_EDGE,
        about: "NCCL finds every cable between hosts",
        needs: Needs::Inventories,
        examine: edges,
        causes: &[],
        explanation: "\
Symptoms: `ibv_modify_qp failed with 110 Connection timed out` although NCCL is new and rlaunch finds that all paths work; three hosts hang and two \
work; a ring of four hosts never starts.

A rank of NCCL listens on one network device and offers only the addresses of that device. The two ports of one card are one device, \
so that both addresses are offered and every cable is found. Ports on different cards stay apart: the listening one may face \
another host than the one that connects, above all if a cable joins ports of the same number, since then no direction around \
the ring fits. And NCCL connects the neighbours in its rings and trees, and for all-to-all or send and receive any pair. It \
does not know the cables when it orders its rings: in a ring of four hosts, those on the diagonal have no cable and may be \
neighbours all the same. The cabling was read from addresses and routes.

Swap cables so that port 0 of each host leads to port 1 of the next, or let NCCL merge the ports with NCCL_NET_FORCE_MERGE. For \
a ring of four, use a switch, or a plugin that uses TCP where there is no cable.",
    },
    Check {
        id: id::NCCL_NET,
        about: "NCCL can use RDMA where hosts have it",
        needs: Needs::Inventories,
        examine: network,
        causes: &[],
        explanation: "\
Symptoms: NCCL logs `Using network Socket` or `NET/IB : No device found`; all-reduce between hosts runs at the speed of TCP, often that \
of the login network.

NCCL uses one network for all ranks: if one host has no port that NCCL can use, or two hosts share no network, all use TCP. It \
cannot use devices that need the RDMA connection manager. The reason in the finding is the first one that was met in the \
inventories of the hosts.

Cure what the reason names; other findings of that host usually say how. --nccl-verify prints after a job what each rank \
used, and --require-rdma makes TCP an error.",
    },
    Check {
        id: id::NCCL_PREFIX,
        about: "NCCL uses exactly the ports that were chosen",
        needs: Needs::Nothing,
        examine: prevented,
        causes: &[],
        explanation: "\
Symptoms elsewhere: `No Active HCA`, `ncclInternalError` at start, or NCCL on the management port, with \
NCCL_IB_HCA=mlx5_1 on a host that also has mlx5_10.

NCCL takes the names in NCCL_IB_HCA as prefixes unless the list begins with `=`: mlx5_1 also selects mlx5_10 to mlx5_19. rlaunch \
prevents it by writing the exact form with port numbers, such as NCCL_IB_HCA==mlx5_1:1, and the same for \
NCCL_SOCKET_IFNAME. If you set these variables yourself, begin their values with `=` as well.",
    },
    Check {
        id: id::NCCL_PORTS,
        about: "NCCL's sockets of different jobs do not meet",
        needs: Needs::Nothing,
        examine: prevented,
        causes: &[],
        explanation: "\
Symptoms elsewhere: `Message from wrong magic`, `RAS: address already in use`, two jobs on one host that disturb each other.

NCCL's RAS service listens on a fixed port by default, and sockets of all jobs begin with the same number. rlaunch prevents both: \
each job with GPUs has its own NCCL_SOCKET_MAGIC, and a free port in NCCL_RAS_ADDR. NCCL_COMM_ID is never set, since all \
communicators of a job would share its address.",
    },
];

fn inventories<'a>(cluster: &Cluster<'a>) -> Vec<&'a Inventory> {
    cluster.hosts.iter().map(|host| host.inventory).collect()
}

fn old(cluster: &Cluster<'_>) -> Vec<Finding> {
    let Some(plan) = cluster.plan else { return Vec::new() };
    if NcclPorts::from_plan(plan).shape != Ok(Shape::Mesh) {
        return Vec::new();
    }
    let mut found = Vec::new();
    for host in &cluster.hosts {
        let Some(library) = network::too_old(host.inventory) else { continue };
        let seen =
            format!("NCCL {} ({}) does not choose ports by subnet", library.version, library.path);
        let matters =
            "the hosts' cables are on different subnets, and ranks may hang when they connect";
        let finding = Finding::error(id::NCCL_OLD, host.name, seen, matters)
            .advise(format!(
                "install nvidia-nccl-cu12 (with CUDA 13: -cu13) {} or newer beside PyTorch",
                Version::SUBNET_AWARE
            ))
            .advise("or --nccl-net-plugin PATH, or -x NCCL_IB_DISABLE=1 for TCP");
        found.push(finding);
    }
    found
}

fn network(cluster: &Cluster<'_>) -> Vec<Finding> {
    let Some(plan) = cluster.plan else { return Vec::new() };
    let is_expected = plan.ports.iter().any(|ports| !ports.is_empty());
    if !is_expected || !uses_nccl(cluster) || cluster.transport == Transport::Tcp {
        return Vec::new();
    }
    let NcclPorts { ports, shape } = NcclPorts::from_plan(plan);
    let matters = "NCCL uses TCP on every host";
    match shape {
        Ok(_) => Vec::new(),
        Err(Obstacle::Pair { one, other, .. }) => {
            let seen = "no RDMA port of one reaches one of the other";
            let found = Finding::warning(id::NCCL_NET, cluster.hosts[one].name, seen, matters);
            vec![found.peer(cluster.hosts[other].name)]
        }
        Err(Obstacle::Portless(_)) => {
            let portless = ports.iter().zip(&cluster.hosts).filter(|(ports, _)| ports.is_empty());
            let finding = |host: &super::ClusterHost<'_>| {
                let reason = reason_for_tcp(host.inventory, &cluster.ports);
                Finding::warning(id::NCCL_NET, host.name, reason, matters)
            };
            portless.map(|(_, host)| finding(host)).collect()
        }
    }
}

fn edges(cluster: &Cluster<'_>) -> Vec<Finding> {
    let Some(plan) = cluster.plan else { return Vec::new() };
    if !uses_nccl(cluster) || cluster.transport == Transport::Tcp {
        return Vec::new();
    }
    let missing = network::missing_edges(&inventories(cluster), plan);
    let unfound = missing.iter().map(|edge| unfound_cable(cluster, edge));
    unfound.chain(diagonals(cluster)).collect()
}

/// Makes the finding of a cable that NCCL may not find.
fn unfound_cable(cluster: &Cluster<'_>, edge: &MissingEdge) -> Finding {
    let MissingEdge { one, other, ports: (own, theirs), listener, unmerged } = edge;
    let (host, peer) = (cluster.hosts[*one].name, cluster.hosts[*other].name);
    let listener = cluster.hosts[*listener].name;
    let seen = format!(
        "the cable joins port {own} and port {theirs}; NCCL listens at {listener} on one of {}, which are different cards",
        text::list(unmerged)
    );
    let matters =
        "where it listens on the other port, this cable is not found and connecting times out";
    let mut found = Finding::warning(id::NCCL_EDGE, host, seen, matters).peer(peer);
    if own == theirs {
        // The other port of a card with two.
        let other_port = 1 - (*own).min(1);
        found = found.advise(format!(
            "swap the cable between {host} and {peer} to port {other_port} of {listener}, with its address, so that it joins \
             ports of different numbers"
        ));
    }
    let names: Vec<&str> = unmerged.iter().map(String::as_str).collect();
    found.advise(format!("or let NCCL merge them: -x NCCL_NET_FORCE_MERGE={}", names.join(",")))
}

/// Finds pairs of hosts without a cable in a cluster that cables connect otherwise, such as the diagonals of a ring of four.
fn diagonals(cluster: &Cluster<'_>) -> Vec<Finding> {
    let Some(plan) = cluster.plan else { return Vec::new() };
    let pairs = plan.unconnected_pairs();
    let is_whole = plan.nodes_without_ports().next().is_none();
    if pairs.is_empty()
        || !is_whole
        || !is_connected(plan.ports.len(), |a, b| plan.nodes_connect(a, b))
    {
        return Vec::new();
    }
    let finding = |&(one, other): &(usize, usize)| {
        let seen = "no cable joins them";
        let matters = "NCCL connects them for all-to-all, and where a ring or tree makes them neighbours; rlaunch has it use \
                       TCP on every host";
        let host = cluster.hosts[one].name;
        Finding::warning(id::NCCL_EDGE, host, seen, matters)
            .peer(cluster.hosts[other].name)
            .advise("use a switch, or one more cable; or --nccl-net-plugin PATH with a plugin that uses TCP where there is no cable")
    };
    pairs.iter().map(finding).collect()
}

/// Tells whether every node is reached from the first, by way of others.
fn is_connected(nodes: usize, connect: impl Fn(usize, usize) -> bool) -> bool {
    let (mut reached, mut open) = (vec![false; nodes], vec![0]);
    while let Some(node) = open.pop() {
        if let Some(is_reached) = reached.get_mut(node).filter(|is_reached| !**is_reached) {
            *is_reached = true;
            open.extend((0..nodes).filter(|other| *other != node && connect(node, *other)));
        }
    }
    reached.iter().all(|is_reached| *is_reached)
}

#[cfg(test)]
mod tests;
