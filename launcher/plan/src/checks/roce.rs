//! RoCE: GID tables, versions of packets, congestion control, lost packets and bonds. `gids` has which entries GID tables have.

mod gids;
#[cfg(test)]
mod tests;

use super::devices::{indexed, port_name};
use super::links::{describe_growth, interface_state, port_counters};
use super::{Check, Cluster, ClusterHost, Needs};
use crate::findings::{Finding, Fix, Severity, id};
use crate::selection::{self, Addressing, ConnectBy};
use rlaunch_bootstrap::inventory::diagnostics::Diagnostics;
use rlaunch_bootstrap::inventory::net::NetdevKind;
use rlaunch_bootstrap::inventory::rdma::{LinkLayer, NodeType, Port, RdmaDevice};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: id::ROCE_GID_EMPTY,
        about: "the GID entries that ranks are to use are filled",
        needs: Needs::Inventories,
        examine: gids::empty,
        causes: &[id::MESH_SUBNET, id::NCCL_NET, id::NCCL_EDGE, id::NUMA_FAR],
        explanation: "\
Symptoms: `Failed to modify QP to RTR`, `Unable to Connect the HCA's through the link`, or a GID of zeros in the output of \
perftest.

RoCE addresses a port by an entry of its GID table, which the kernel fills from the addresses of the port's \
interface. The entry with the right address is 1 on some machines and 3, 5 or 11 on others; tables have gaps. Either \
--gid-index names an entry that is empty here, or the whole table is empty, though an interface that is up has an entry for its \
link-local address at least: it is a part of a bond, or not there. For iWARP it is the IP address that is missing. The \
table was read from sysfs.

Leave --gid-index out: rlaunch scans the table of each port by itself. If the interface has no address, assign one; \
the kernel adds the entries at once.",
    },
    Check {
        id: id::ROCE_NO_V2,
        about: "RoCE ports have GIDs of version 2",
        needs: Needs::Inventories,
        examine: gids::only_version_1,
        causes: &[id::MESH_SUBNET, id::NCCL_NET, id::NUMA_FAR],
        explanation: "\
Symptoms: connections stay silent across a switch or router, or work only within one segment; show_gids lists `v1` \
alone.

Packets of RoCE v1 are Ethernet frames of their own type: they are not routed, and many switches drop them. Version 2 puts \
them into UDP. All entries of this port's GID table are of version 1, so rlaunch does not use it. ConnectX-3 without \
Pro has no version 2; other cards lack it when the driver was told so.

Assign an IPv4 address to the interface, which adds an entry of each version that the card knows. If only version 1 \
appears, use TCP with this card, or InfiniBand if it can do both.",
    },
    Check {
        id: id::ROCE_VERSIONS,
        about: "all RoCE ports use the same version of packets",
        needs: Needs::Inventories,
        examine: gids::different_versions,
        causes: &[id::MESH_SILENT, id::MESH_ROUTE],
        explanation: "\
Symptoms: perftest prints `Found Incompatibility issue with GID types`; `Got completion from peer … status=12 … vendor err 129`; \
one direction works and the other does not.

Two ports understand each other only if both use RoCE v1 or both v2. The index of an entry says nothing about its \
version: entry 3 may be version 2 on one host and version 1 on another. --gid-index selects entries of different \
versions here.

Leave --gid-index and NCCL_IB_GID_INDEX out. rlaunch selects version 2 on every port and sets the index for NCCL only \
where one number is right for all ports of a host.",
    },
    Check {
        id: id::ROCE_LINK_LOCAL,
        about: "RoCE ports that jobs need have more than a link-local address",
        needs: Needs::Inventories,
        examine: gids::link_local,
        causes: &[
            id::ROCE_GID_EMPTY, id::MESH_SUBNET, id::MESH_SILENT, id::MESH_ROUTE, id::NCCL_NET,
            id::NCCL_EDGE,
        ],
        explanation: "\
Symptoms: `ibv_modify_qp failed with 110 Connection timed out` with a GID that begins with fe80; two hosts that share a \
cable are said to share no subnet.

The interface of the port has only the link-local address that the kernel makes. It does not show which hosts are on the \
same cable or switch, every interface is on fe80::/10, and NCCL does not use it unless told. Other hosts have an address on \
this port. Addresses and GID tables were read from the kernel.

Assign an address of the subnet that the peers use on this cable or switch, and make it permanent in netplan or \
NetworkManager.",
    },
    Check {
        id: id::ROCE_FAMILY,
        about: "RoCE ports of all hosts have addresses of one IP version",
        needs: Needs::Inventories,
        examine: gids::families,
        causes: &[id::MESH_SUBNET, id::NCCL_NET, id::NCCL_EDGE],
        explanation: "\
Symptoms: NCCL picks GID index 0 on a network with IPv6 alone; hosts with IPv4 and hosts with IPv6 do not connect.

A connection needs GIDs of one family at both ends. NCCL looks for IPv4 unless NCCL_IB_ADDR_FAMILY says otherwise; \
rlaunch sets it where all ports have IPv6 only. Here some hosts have only IPv4 addresses on their RoCE ports and others only \
IPv6.

Give all hosts addresses of one family; both may be set side by side.",
    },
    Check {
        id: id::ROCE_NETDEV,
        about: "interfaces of RoCE ports are in the network namespace of ranks",
        needs: Needs::Inventories,
        examine: gids::elsewhere,
        causes: &[id::MESH_SUBNET, id::NCCL_NET, id::NUMA_FAR, id::MESH_PROOF],
        explanation: "\
Symptoms: `ibv_modify_qp failed with 19 No such device`; all GIDs read as `0000:0000:…`; the same program works outside of \
the namespace.

A RoCE port takes its addresses from a network interface. The device is visible in every network namespace, but its \
interface is in another one than the ranks, so that its GIDs cannot be used here. The interfaces of this namespace were \
compared with those that the GID table names.

Run ranks in the namespace of the interface, or move the interface to theirs. A container needs --net=host or an \
interface of its own on the adapter (a virtual function, or macvlan with entries in the GID table).",
    },
    Check {
        id: id::ROCE_CM_MODE,
        about: "the RDMA connection manager uses RoCE v2",
        needs: Needs::Diagnostics,
        examine: manager_mode,
        causes: &[id::MESH_SILENT],
        explanation: "\
Symptom: programs that connect through the connection manager (perftest -R, NFS over RDMA, --connect rdma_cm) send RoCE v1, which \
routers and many switches drop, while others work.

The connection manager has a default version for each port, which it applies whatever entry of the GID table a program \
names. It is RoCE v1 here. The mode was read from configfs. Programs that exchange addresses themselves, as NCCL and \
rlaunch do, are not affected.

Write the mode as shown; it is lost at the next boot. The file gid_attrs/types cannot be written.",
    },
    Check {
        id: id::ROCE_ECN,
        about: "RoCE congestion control is on where the driver offers it",
        needs: Needs::Diagnostics,
        examine: congestion_control,
        causes: &[id::ROCE_LOSS, id::MESH_BANDWIDTH],
        explanation: "\
Symptom: throughput collapses when several hosts send to one, and counters such as out_of_sequence rise.

RoCE slows senders down when switches mark packets (ECN, the algorithm is called DCQCN). With MLNX_OFED the driver has files that \
turn it on for each priority, at the notification point and at the reaction point; they say that it is off for all \
priorities. Between two hosts on one cable it does not matter, so it is only noted if three or more hosts share a \
network. net.ipv4.tcp_ecn is about TCP and has no effect on RoCE.

Turn it on for the priority that carries RoCE, at both points, and let the switches mark packets of that priority.",
    },
    Check {
        id: id::ROCE_LOSS,
        about: "RoCE packets are not lost",
        needs: Needs::Diagnostics,
        examine: losses,
        causes: &[id::MESH_BANDWIDTH],
        explanation: "\
Symptoms: `Got completion from peer … status=12` under load, throughput that collapses when several hosts send to one.

RoCE expects a network that hardly loses packets; each loss makes the NIC send everything after it again. The counters of \
packets out of order, of missing acknowledgements and of repeated packets were read twice and grew in between, so another job \
is losing packets now. Ports of InfiniBand and iWARP are not looked at.

Turn on priority flow control or congestion control in the switches and on the hosts, for the priority that RoCE uses: \
--traffic-class selects it, and mlnx_qos shows how the host maps it. Soft RoCE loses packets when processors are busy.",
    },
    Check {
        id: id::ROCE_BOND,
        about: "ranks use both ports of a bond",
        needs: Needs::Inventories,
        examine: bond,
        causes: &[],
        explanation: "\
Symptom: half of the bandwidth of a bond of two ports.

Over a bond, each queue pair uses one of the ports, chosen by a hash of its addresses and numbers. One connection \
with one queue pair therefore has the bandwidth of one port. The port's interface is a bond.

rlaunch sets NCCL_IB_QPS_PER_CONNECTION=4 and NCCL_IB_SPLIT_DATA_ON_QPS=0, so that NCCL's connections use both. In \
perftest, -q 4 does the same. NVIDIA advises against bonds for RDMA: two ports with an address each give NCCL a free \
choice.",
    },
];

/// Counters that grow when packets are lost.
const LOSSES: &[&str] = &[
    "out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "roce_adp_retrans",
    "req_transport_retries_exceeded", "seq_err_naks_rcvd", "oos_drop_count", "rx_roce_discards",
    // Those of rxe. Its rnr counters grow where a receiver is slow, and say nothing of packets.
    "retry_exceeded_err", "out_of_seq_request", "rcvd_seq_err", "completer_retry_err",
];
/// Priority that carries RoCE by convention.
const PRIORITY: u8 = 3;
/// Number of hosts from which a network has a switch.
const SWITCHED: usize = 3;

/// Lists the RoCE ports of a host that can be used.
fn usable<'a>(host: &ClusterHost<'a>) -> impl Iterator<Item = (&'a RdmaDevice, &'a Port)> {
    let netdevs = &host.inventory.netdevs;
    host.rdma_ports().filter(|(device, port)| {
        matches!(selection::examine(device, port, netdevs), Ok(Addressing::Gid { .. }))
    })
}

fn manager_mode(cluster: &Cluster<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for (host, diagnostics) in cluster.diagnosed() {
        for (device, port) in usable(host) {
            let mut states = diagnostics.rdma_ports.iter();
            let state = states.find(|s| s.device == device.name && s.port == port.number);
            let mode = state.and_then(|state| state.cm_roce_mode.as_deref());
            if !mode.is_some_and(|mode| mode.contains("v1")) {
                continue;
            }
            let severity = match cluster.ports.connect {
                ConnectBy::RdmaCm => Severity::Warning,
                _ => Severity::Note,
            };
            let (name, number) = (&device.name, port.number);
            let mode_file =
                format!("/sys/kernel/config/rdma_cm/{name}/ports/{number}/default_roce_mode");
            let seen = format!("the RDMA connection manager uses {}", mode.unwrap_or_default());
            let matters = "routers and many switches drop packets of RoCE v1";
            let finding = Finding::new(id::ROCE_CM_MODE, severity, host.name, seen, matters)
                .device(port_name(device, port))
                .fixed_by(Fix::write("RoCE v2", &[mode_file]));
            found.push(finding);
        }
    }
    found
}

fn congestion_control(cluster: &Cluster<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    if cluster.hosts.len() < SWITCHED || is_cabled(cluster) {
        return found;
    }
    for (host, diagnostics) in cluster.diagnosed() {
        for (device, port) in usable(host) {
            let Some(netdev) = port.netdev.as_deref() else { continue };
            let state = interface_state(diagnostics, netdev);
            let Some((notifies, reacts)) = state.and_then(|state| state.roce_ecn.as_ref()) else {
                continue;
            };
            if !notifies.is_empty() && !reacts.is_empty() {
                continue;
            }
            let seen = format!("RoCE congestion control (ECN) is off on {netdev}");
            let matters = "throughput collapses when several hosts send to one";
            let files = ["roce_np", "roce_rp"]
                .map(|point| format!("/sys/class/net/{netdev}/ecn/{point}/enable/{PRIORITY}"));
            let finding = Finding::note(id::ROCE_ECN, host.name, seen, matters)
                .device(port_name(device, port))
                .fixed_by(Fix::write("1", &files));
            found.push(finding);
        }
    }
    found
}

/// Tells whether hosts are joined by cables without a switch, as far as their networks show: no network has ports of
/// more than two hosts.
fn is_cabled(cluster: &Cluster<'_>) -> bool {
    let ports = cluster.plan.into_iter().flat_map(|plan| plan.ports.iter().enumerate());
    let mut hosts: std::collections::BTreeMap<String, std::collections::BTreeSet<usize>> =
        std::collections::BTreeMap::new();
    for (node, port) in ports.flat_map(|(node, ports)| ports.iter().map(move |port| (node, port))) {
        if let Some(subnet) = port.reachability.own_subnet() {
            hosts.entry(subnet.to_string()).or_default().insert(node);
        }
    }
    hosts.values().all(|hosts| hosts.len() < SWITCHED)
}

fn losses(cluster: &Cluster<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for (host, diagnostics) in cluster.diagnosed() {
        let counters = port_counters(host, diagnostics);
        let ports = host.rdma_ports().zip(counters);
        // Drivers count the same on InfiniBand, which loses packets for other reasons, and for iWARP TCP sends again.
        let roce = ports.filter(|((device, port), _)| is_roce(device, port));
        for ((device, port), (name, counters)) in roce {
            let is_loss = |name: &str| LOSSES.contains(&name);
            let mut lost = counters.iter().filter(|counter| is_loss(&counter.name));
            let Some(counter) = lost.find(|counter| counter.growth() > 0) else { continue };
            let seen =
                format!("{} grew by {}", counter.name, describe_growth(counter, diagnostics));
            let seen = if has_no_flow_control(port, diagnostics) {
                format!("{seen}, and no priority has flow control (PFC)")
            } else {
                seen
            };
            let matters = "packets of a running job are lost and sent again";
            let finding = Finding::warning(id::ROCE_LOSS, host.name, seen, matters).device(name);
            let advice = if selection::is_software(device) {
                "give soft RoCE a processor of its own, or fewer ranks"
            } else {
                "turn on PFC or ECN for RoCE's priority, on hosts and switches; --traffic-class \
                selects it"
            };
            found.push(finding.advise(advice));
        }
    }
    found
}

fn is_roce(device: &RdmaDevice, port: &Port) -> bool {
    port.link_layer == LinkLayer::Ethernet && device.node_type != NodeType::Rnic
}

fn has_no_flow_control(port: &Port, diagnostics: &Diagnostics) -> bool {
    let state = port.netdev.as_deref().and_then(|netdev| interface_state(diagnostics, netdev));
    state.is_some_and(|state| state.pfc.as_ref().is_some_and(Vec::is_empty))
}

fn bond(cluster: &Cluster<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for (_, host) in indexed(cluster) {
        for (device, port) in usable(host) {
            let netdev = host.netdev_of(port).filter(|netdev| netdev.kind == NetdevKind::Bond);
            if let Some(netdev) = netdev {
                let seen = format!("its interface {} is a bond", netdev.name);
                let matters = "one queue pair uses one port of it; rlaunch has NCCL use four for each connection";
                let finding = Finding::note(id::ROCE_BOND, host.name, seen, matters);
                found.push(finding.device(port_name(device, port)));
            }
        }
    }
    found
}
