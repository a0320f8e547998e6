//! Packets of RoCE: the connection manager's mode, congestion control, losses and bonds.

use crate::checks::devices::{indexed, port_name};
use crate::checks::links::{grew, interface, port_counters};
use crate::checks::{Cluster, ClusterHost, quoted};
use crate::findings::{Finding, Severity, id};
use crate::selection::{self, Addressing, ConnectBy};
use rlaunch_bootstrap::inventory::diagnostics::Diagnostics;
use rlaunch_bootstrap::inventory::net::NetdevKind;
use rlaunch_bootstrap::inventory::rdma::{LinkLayer, NodeType, Port, RdmaDevice};

/// Counters that grow when packets are lost.
const LOSSES: &[&str] = &[
    "out_of_sequence",
    "packet_seq_err",
    "local_ack_timeout_err",
    "roce_adp_retrans",
    "req_transport_retries_exceeded",
    "seq_err_naks_rcvd",
    "oos_drop_count",
    "rx_roce_discards",
    // Those of rxe. Its rnr counters grow where a receiver is slow, and say nothing of packets.
    "retry_exceeded_err",
    "out_of_seq_request",
    "rcvd_seq_err",
    "completer_retry_err",
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

pub(super) fn manager_mode(cluster: &Cluster<'_>) -> Vec<Finding> {
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
            let directory = format!("/sys/kernel/config/rdma_cm/{}", quoted(name));
            let seen = format!("the RDMA connection manager uses {}", mode.unwrap_or_default());
            let matters = "routers and many switches drop packets of RoCE v1";
            let finding = Finding::new(id::ROCE_CM_MODE, severity, host.name, seen, matters)
                .device(port_name(device, port))
                .run(format!("sudo mkdir -p {directory}"))
                .run(format!(
                    "echo 'RoCE v2' | sudo tee {directory}/ports/{number}/default_roce_mode"
                ));
            found.push(finding);
        }
    }
    found
}

pub(super) fn congestion_control(cluster: &Cluster<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    if cluster.hosts.len() < SWITCHED || is_cabled(cluster) {
        return found;
    }
    for (host, diagnostics) in cluster.diagnosed() {
        for (device, port) in usable(host) {
            let Some(netdev) = port.netdev.as_deref() else { continue };
            let state = interface(diagnostics, netdev);
            let Some((notifies, reacts)) = state.and_then(|state| state.roce_ecn.as_ref()) else {
                continue;
            };
            if !notifies.is_empty() && !reacts.is_empty() {
                continue;
            }
            let seen = format!("RoCE congestion control (ECN) is off on {netdev}");
            let matters = "throughput collapses when several hosts send to one";
            let files = format!("/sys/class/net/{}/ecn", quoted(netdev));
            let finding = Finding::note(id::ROCE_ECN, host.name, seen, matters)
                .device(port_name(device, port))
                .run(format!(
                    "echo 1 | sudo tee {files}/roce_np/enable/{PRIORITY} {files}/roce_rp/enable/{PRIORITY}"
                ));
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

pub(super) fn losses(cluster: &Cluster<'_>) -> Vec<Finding> {
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
            let seen = format!("{} grew by {}", counter.name, grew(counter, diagnostics));
            let seen = match has_no_flow_control(port, diagnostics) {
                true => format!("{seen}, and no priority has flow control (PFC)"),
                false => seen,
            };
            let matters = "packets of a running job are lost and sent again";
            let finding = Finding::warning(id::ROCE_LOSS, host.name, seen, matters).device(name);
            found.push(match selection::is_software(device) {
                true => finding.advise("give soft RoCE a processor of its own, or fewer ranks"),
                false => finding.advise(
                    "turn on PFC or ECN for RoCE's priority, on hosts and switches; --traffic-class selects it",
                ),
            });
        }
    }
    found
}

fn is_roce(device: &RdmaDevice, port: &Port) -> bool {
    port.link_layer == LinkLayer::Ethernet && device.node_type != NodeType::Rnic
}

fn has_no_flow_control(port: &Port, diagnostics: &Diagnostics) -> bool {
    let state = port.netdev.as_deref().and_then(|netdev| interface(diagnostics, netdev));
    state.is_some_and(|state| state.pfc.as_ref().is_some_and(Vec::is_empty))
}

pub(super) fn bond(cluster: &Cluster<'_>) -> Vec<Finding> {
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
