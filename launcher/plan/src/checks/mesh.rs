//! RDMA paths between hosts: which ports should reach each other, and which do.
//!
//! | file | subject |
//! |---|---|
//! | `cables` | cables in wrong ports |
//! | `probed` | paths on which probes found something |

mod cables;
mod probed;
#[cfg(test)]
mod tests;

pub(super) use probed::failures;

use super::devices::indexed;
use super::links::interface_state;
use super::{Check, Cluster, Needs};
use crate::findings::{Finding, Fix, Severity, id};
use crate::options::Transport;
use crate::selection::{Plan, UsablePort};
use rlaunch_text::text;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: id::MESH_CABLING,
        about: "cables are in the ports that have their addresses",
        needs: Needs::Inventories,
        examine: cables::misplaced,
        causes: &[
            id::LINK_DOWN, id::MESH_SUBNET, id::MESH_ROUTE, id::MESH_SILENT, id::MTU_PATH,
            id::ROCE_LINK_LOCAL, id::ROCE_GID_EMPTY, id::NCCL_NET, id::NCCL_EDGE, id::NET_ARP,
        ],
        explanation: "\
Symptoms: two hosts are cabled and do not reach each other; `ping` says \
`Destination Host Unreachable` on a link with both ends up; NCCL fails with \
`ibv_modify_qp failed with 110 Connection timed out`.

With one subnet for each cable, the addresses say which port belongs to which peer. A cable in the other port joins two \
interfaces of different subnets. Either a port with an address has no carrier while a port beside it has a carrier and no \
address, or none of the host's addressed ports gets an answer although all have a carrier, the login network works, and no \
packet filter drops anything.

Swap the two cables at this host, or the addresses of the two interfaces. `ethtool -p INTERFACE` \
makes the port's LED blink.",
    },
    Check {
        id: id::MESH_SUBNET,
        about: "every two hosts have RDMA ports on a common network",
        needs: Needs::Inventories,
        examine: unconnected,
        causes: &[id::NCCL_NET, id::NCCL_EDGE],
        explanation: "\
Symptoms: `ibv_modify_qp failed with 110 Connection timed out … local GID ::ffff:192.168.100.1, remote GID ::ffff:192.168.101.3`; the mesh \
plugin for NCCL says `No local NIC found`; rlaunch says that TCP is used between two hosts.

Ports connect if they are in one IP subnet, or if routes lead from each interface to the other's address; on InfiniBand, if \
the subnet prefix is equal. Both hosts have usable ports, and no two of them match. Addresses, prefix lengths and routes \
of every port were read from the kernel. With a cable for each pair of hosts, one more host needs one more port and subnet on \
each.

Give the two ends of each cable addresses of one subnet, a different one for each cable. If these hosts are not meant to have a \
cable, their ranks use TCP, and NCCL uses TCP for all.",
    },
    Check {
        id: id::MESH_DUPLICATE,
        about: "RDMA ports of one host are on different subnets, or each answers ARP for itself only",
        needs: Needs::Diagnostics,
        examine: duplicate,
        causes: &[id::MESH_SILENT, id::MESH_ROUTE, id::MESH_CABLING, id::NET_ARP, id::MTU_PATH],
        explanation: "\
Symptoms: the first of two adapters works and the second times out; traffic of both goes through one port; \
`Connection timed out` on some paths only, different ones after each start.

Linux answers ARP for any of its addresses on any interface. With two RDMA interfaces on one subnet, peers learn the \
hardware address of the wrong one and send RoCE packets there, which that adapter drops. Two interfaces of this host are on \
one subnet, and their settings arp_ignore and arp_announce do not prevent this.

Use a subnet for each interface, or set arp_ignore=1 and arp_announce=2, so that each interface answers for itself; \
rp_filter=2 accepts packets that come in on either.",
    },
    Check {
        id: id::MESH_ROUTE,
        about: "the kernel finds a way to each RDMA address",
        needs: Needs::Probes,
        examine: probed::unreachable,
        causes: &[id::MESH_SILENT],
        explanation: "\
Symptoms: `ibv_modify_qp failed with 101 Network is unreachable` or `113 No route to host`; `Failed to modify QP to RTR`.

The kernel resolves a peer's address before a queue pair connects: it needs a route through the \
interface of the port, and an answer to ARP or neighbour discovery. A probe between two RDMA \
interfaces failed at this step. `No route to host` means that no port on that cable or switch \
answers for the address; `Network is unreachable` that there is no route.

The commands of the fix show the route and what the kernel knows of the neighbour. Check the address at the peer, the \
prefix length at both ends, and VLANs of the switch.",
    },
    Check {
        id: id::MESH_SILENT,
        about: "packets between RDMA ports arrive",
        needs: Needs::Probes,
        examine: probed::silent,
        // Paths without an answer use up the time for the others.
        causes: &[id::MESH_PROOF],
        explanation: "\
Symptoms: `Got completion from peer … status=12 … vendor err 129`, `retry exceeded`, a job that hangs in its first collective.

Two RDMA ports should reach each other by their addresses, but no answer came back: to a queue pair that wrote a token, or to \
datagrams between the two interfaces. Typical causes are a packet filter that drops UDP port 4791, a switch that \
isolates its ports, a wrong VLAN, or a peer whose answer takes another way.

Start with the ping of the cure: if it fails too, look at cables, VLANs and addresses; if it works, look for a packet filter \
on both hosts and compare the GID types of both ports. On InfiniBand, ping takes another way: use ibping, and compare the \
partition keys.",
    },
    Check {
        id: id::MESH_PROOF,
        about: "the test of RDMA paths fails for no other reason",
        needs: Needs::Probes,
        examine: probed::failed,
        causes: &[],
        explanation: "\
Symptoms: a job says `no RDMA between …` and names a step: `prepare`, `exchange`, `connect` or `token`.

Before a job, and in rlaunch doctor, each path between RDMA ports is tested: queue pairs are prepared, connected, and carry \
a token and a block in each direction. A step failed, and not for lack of an answer or a route. If the cause is one that \
another check knows, as too little locked memory, the finding has the id of that check; otherwise it is the \
kernel's or the library's own error, or the time did not suffice for all paths (`not tried`).

Cure what the cause names. If paths were not tried, the silent ones among the others have used up the time; a job can have more \
by --mesh-timeout.",
    },
    Check {
        id: id::MESH_BANDWIDTH,
        about: "RDMA writes over each cable are as fast as its ports (--probe)",
        needs: Needs::Probes,
        examine: probed::slow,
        causes: &[],
        explanation: "\
Symptoms: one host holds the others up; all-reduce is as slow as the slowest path; perftest between two hosts is below what \
other pairs reach.

With --probe, one path over the cable of each port carries RDMA writes for a second, in one direction. The bandwidth was \
compared with the slower of port and PCIe link, each without its headers, and with the median of the other paths. This one is \
below nine tenths of the limit or of the median. Other jobs on the network, a PCIe link with fewer lanes, a processor far \
from the NIC, or a cable with errors are usual causes. Virtual functions have only the median, and emulated devices are not \
measured.

Look for findings on pcie, mtu, link and numa of the two hosts, repeat when the network is idle, and then exchange cable \
and switch port to see whether the fault moves with them.",
    },
];

/// Maximum number of ports that a line lists for a host.
const MAX_PORTS: usize = 4;

fn unconnected(cluster: &Cluster<'_>) -> Vec<Finding> {
    let Some(plan) = cluster.plan else { return Vec::new() };
    let severity = match cluster.transport {
        Transport::Tcp => return Vec::new(),
        Transport::Rdma => Severity::Error,
        Transport::Auto => Severity::Warning,
    };
    let mut pairs = plan.unconnected_pairs();
    let mut found = Vec::new();
    // The host in the most pairs is the odd one: one line names all that it does not reach.
    while let Some(odd) = busiest(&pairs, cluster.hosts.len()) {
        let is_its = |(one, other): &(usize, usize)| *one == odd || *other == odd;
        let (its, rest): (Vec<_>, Vec<_>) = pairs.into_iter().partition(is_its);
        pairs = rest;
        let others: Vec<usize> =
            its.iter().map(|(one, other)| if *one == odd { *other } else { *one }).collect();
        found.push(unconnected_finding(cluster, plan, severity, odd, &others));
    }
    found
}

/// Returns the node that is in most pairs, the lowest of several; `None` if there are no pairs.
fn busiest(pairs: &[(usize, usize)], nodes: usize) -> Option<usize> {
    let count = |node: usize| pairs.iter().filter(|(a, b)| *a == node || *b == node).count();
    let counts = (0..nodes).map(|node| (count(node), node)).filter(|(count, _)| *count > 0);
    counts.min_by_key(|(count, node)| (std::cmp::Reverse(*count), *node)).map(|(_, node)| node)
}

fn unconnected_finding(
    cluster: &Cluster<'_>,
    plan: &Plan,
    severity: Severity,
    odd: usize,
    others: &[usize],
) -> Finding {
    let name = |node: usize| cluster.hosts[node].name;
    let names: Vec<&str> = others.iter().map(|node| name(*node)).collect();
    let first = others[0];
    let seen = format!(
        "shares no RDMA network with {}: it has {}; {} has {}",
        text::list(&names),
        list_ports(&plan.ports[odd]),
        name(first),
        list_ports(&plan.ports[first])
    );
    let matters = "TCP is used between them, and by NCCL on all hosts";
    let found = Finding::new(id::MESH_SUBNET, severity, name(odd), seen, matters);
    let found = if names.len() == 1 { found.peer(names[0]) } else { found };
    found.advise("give the ends of a cable, or all ports of a switch, addresses of one subnet")
}

/// Lists the first ports of a host.
fn list_ports(ports: &[UsablePort]) -> String {
    let mut words: Vec<String> = ports.iter().take(MAX_PORTS).map(UsablePort::to_string).collect();
    if ports.len() > MAX_PORTS {
        words.push(format!("{} more", ports.len() - MAX_PORTS));
    }
    words.join(", ")
}

fn duplicate(cluster: &Cluster<'_>) -> Vec<Finding> {
    let Some(plan) = cluster.plan else { return Vec::new() };
    let mut found = Vec::new();
    for (index, host) in indexed(cluster) {
        let (Some(diagnostics), Some(ports)) = (host.diagnostics, plan.ports.get(index)) else {
            continue;
        };
        let is_v4 = |port: &&UsablePort| port.nic.address.is_some_and(|a| a.is_ipv4());
        let ports: Vec<&UsablePort> = ports.iter().filter(is_v4).collect();
        let answers_for_others = |port: &UsablePort| {
            let netdev = port.nic.netdev.as_deref().unwrap_or_default();
            let state = interface_state(diagnostics, netdev);
            let settings = state.and_then(|state| Some((state.arp_ignore?, state.arp_announce?)));
            settings.is_some_and(|(ignore, announce)| ignore == 0 || announce < 2)
        };
        let filters = |port: &UsablePort| {
            let netdev = port.nic.netdev.as_deref().unwrap_or_default();
            interface_state(diagnostics, netdev).is_none_or(|state| state.rp_filter != Some(0))
        };
        let pair = ports.iter().enumerate().find_map(|(at, one)| {
            let subnet = one.reachability.own_subnet()?;
            let other = ports[at + 1..].iter().find(|other| {
                other.nic.netdev != one.nic.netdev
                    && other.reachability.own_subnet() == Some(subnet)
                    && (answers_for_others(one) || answers_for_others(other))
            })?;
            Some((subnet, *one, *other))
        });
        let Some((subnet, one, other)) = pair else { continue };
        let name = |port: &UsablePort| port.nic.netdev.clone().unwrap_or_default();
        let seen = format!("{} and {} are both on {subnet}", name(one), name(other));
        let matters = "each answers ARP for the other, so RoCE packets reach the wrong port";
        let mut settings =
            vec![("net.ipv4.conf.all.arp_ignore", "1"), ("net.ipv4.conf.all.arp_announce", "2")];
        // The check of sources is eased only where there is one.
        if filters(one) || filters(other) {
            settings.push(("net.ipv4.conf.all.rp_filter", "2"));
        }
        let finding = Finding::warning(id::MESH_DUPLICATE, host.name, seen, matters)
            .fixed_by(Fix::sysctl("rdma", &settings))
            .advise("or use a subnet for each interface");
        found.push(finding);
    }
    found
}
