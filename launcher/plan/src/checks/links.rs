//! Links of RDMA ports: carriers, errors, and links that come and go.

use super::devices::{has_rdma, indexed, others_have_rdma, port_name};
use super::{Check, Cluster, ClusterHost, Needs, quoted};
use crate::findings::{Finding, Fix, Severity, id};
use crate::selection::{self, Rejection};
use rlaunch_bootstrap::inventory::diagnostics::{Counter, Diagnostics, InterfaceState};
use rlaunch_bootstrap::inventory::pci::Distance;
use rlaunch_bootstrap::inventory::rdma::{LinkLayer, Port, PortState, RdmaDevice};
use rlaunch_text::text;

#[cfg(test)]
mod tests;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: id::LINK_DOWN,
        about: "RDMA ports that jobs need have a link",
        needs: Needs::Inventories,
        examine: down,
        causes: &[
            id::MESH_SUBNET, id::MESH_SILENT, id::MESH_ROUTE, id::MESH_BANDWIDTH, id::LINK_FLAPS,
            id::LINK_ERRORS, id::NUMA_FAR, id::NCCL_NET, id::NCCL_EDGE, id::ROCE_GID_EMPTY,
            id::ROCE_LINK_LOCAL, id::DEV_CAPS, id::NET_PAIR, id::LOG_LINK, id::LOG_NIC,
            id::ODD_RATE, id::ODD_HARDWARE,
        ],
        explanation: "\
Symptoms: ibstat shows `State: Down` and `Physical state: Polling` or `Disabled`; `ip link` shows NO-CARRIER; a job uses TCP \
between two hosts, or perftest says `Port is not active`.

The port sees no partner: no cable, a cable in the wrong port, a partner that is off, a transceiver that the card \
refuses, or an interface that is not up. Polling means that the port looks for a partner; Disabled that it was \
switched off. State and physical state were read from sysfs. It is an error if the host has no other port or if \
other hosts are reached through this one only, a warning if a GPU is next to it; ports that no other host uses \
either are not mentioned.

Bring the interface up, then check the cable and the port at its other end; `ethtool INTERFACE` \
shows what the link negotiates, and `mlxlink -d DEVICE` why an NVIDIA adapter refuses a cable. A \
port of InfiniBand does not depend on its interface (ib0): `ibportstate` shows its state.",
    },
    Check {
        id: id::LINK_ERRORS,
        about: "links of RDMA ports transmit without errors",
        needs: Needs::Diagnostics,
        examine: errors,
        causes: &[id::LINK_FLAPS, id::ROCE_LOSS, id::MESH_BANDWIDTH, id::MESH_SILENT],
        explanation: "\
Symptoms: bandwidth that varies from run to run, retries, `Got completion from peer … status=12` after hours of work.

Bits that arrive wrong are counted by the port: symbol_error and port_rcv_errors on InfiniBand, rx_crc_errors on \
Ethernet. A good cable has next to none. The counters were read twice; growth in between is a warning, a large total \
only a note, since it may be old.

Clean or replace the cable or transceiver, and try another port of the switch. If the errors stay with the port, \
the card or the switch port is at fault. The counters start anew with the driver.",
    },
    Check {
        id: id::LINK_FLAPS,
        about: "links of RDMA ports stay up",
        needs: Needs::Diagnostics,
        examine: flaps,
        causes: &[id::ROCE_LOSS, id::MESH_BANDWIDTH, id::LOG_LINK],
        explanation: "\
Symptoms: training stops with NCCL timeouts at irregular times; the kernel's log has `Link is Down` and `Link is Up` in \
turn.

A link that goes down breaks every queue pair on it, even if it is back within a second. Losses \
were read from link_downed of the RDMA port, twice, and from carrier_down_count of its interface. \
Growth of link_downed in between is a warning. A large total is a note: some losses are normal \
when a partner starts.

Reseat or replace the cable, update the firmware of card and switch, and look at both ends: the partner's log tells \
which of them dropped the link first.",
    },
];

/// Total of an error counter from which it is worth a note.
const MANY_ERRORS: u64 = 1000;
/// Number of losses of a link from which it is worth a note.
const MANY_LOSSES: u64 = 20;
/// Counters of bits that arrived wrong, of RDMA ports and of interfaces.
const ERROR_COUNTERS: &str = "\
    symbol_error port_rcv_errors local_link_integrity_errors excessive_buffer_overrun_errors \
    link_error_recovery rx_crc_errors rx_frame_errors";
const LOSS_COUNTER: &str = "link_downed";

type DevicePort<'a> = (&'a RdmaDevice, &'a Port);

fn down(cluster: &Cluster<'_>) -> Vec<Finding> {
    indexed(cluster).flat_map(|(index, host)| down_on_host(cluster, index, host)).collect()
}

fn down_on_host(cluster: &Cluster<'_>, index: usize, host: &ClusterHost<'_>) -> Vec<Finding> {
    let reason = |(device, port): &DevicePort<'_>| {
        selection::examine(device, port, &host.inventory.netdevs).err()
    };
    let is_down = |port: &DevicePort<'_>| {
        matches!(reason(port), Some(Rejection::Down | Rejection::NoCarrier(_)))
    };
    let down: Vec<DevicePort<'_>> = host.rdma_ports().filter(is_down).collect();
    // A port with a link that cannot be used for another reason is what the host lacks.
    let has_link = |port: &DevicePort<'_>| {
        matches!(port.1.state, PortState::Init | PortState::Armed | PortState::Active)
            && !is_down(port)
    };
    if has_rdma(cluster, index) {
        let found = down.iter().filter_map(|port| beside_others(cluster, index, host, *port));
        return found.collect();
    }
    if down.is_empty() || host.rdma_ports().any(|port| has_link(&port)) {
        return Vec::new();
    }
    let is_device_elsewhere =
        indexed(cluster).any(|(other, host)| other != index && !host.inventory.rdma.is_empty());
    let severity = if others_have_rdma(cluster, index) || is_device_elsewhere {
        Severity::Error
    } else {
        Severity::Note
    };
    vec![all_down(host, &down, severity)]
}

/// Makes the finding of a host whose ports are all down.
fn all_down(host: &ClusterHost<'_>, down: &[DevicePort<'_>], severity: Severity) -> Finding {
    let matters = "the host has no other RDMA port";
    if let [port] = down {
        return with_cure(host, *port, link_finding(host, *port, severity, matters));
    }
    let names: Vec<String> = down.iter().map(|(device, port)| port_name(device, port)).collect();
    let seen = format!("{} have no link", text::list(&names));
    let found = Finding::new(id::LINK_DOWN, severity, host.name, seen, matters);
    with_cure(host, down[0], found)
}

/// Judges a port without a link on a host that has others. The result is `None` if no job misses the port.
fn beside_others(
    cluster: &Cluster<'_>,
    index: usize,
    host: &ClusterHost<'_>,
    (device, port): DevicePort<'_>,
) -> Option<Finding> {
    let plan = cluster.plan?;
    let unconnected = plan.unconnected_pairs();
    let peers = unconnected.iter().filter_map(|&(one, other)| match index {
        index if index == one => Some(other),
        index if index == other => Some(one),
        _ => None,
    });
    let peers: Vec<&str> = peers.map(|peer| cluster.hosts[peer].name).collect();
    let is_used_elsewhere = plan
        .ports
        .iter()
        .flatten()
        .any(|used| used.nic.device == device.name && used.nic.port == port.number);
    let count = |node: usize| {
        let mut rails: Vec<u32> = plan.ports[node].iter().map(|port| port.nic.rail).collect();
        rails.dedup();
        rails.len()
    };
    let most = (0..plan.ports.len()).map(count).max().unwrap_or(0);
    let is_missed = is_used_elsewhere || count(index) < most;
    let (severity, matters) = if !peers.is_empty() && is_missed {
        let peers = text::list(&peers);
        (Severity::Error, format!("RDMA to {peers} needs it"))
    } else if is_nearest_to_a_gpu(cluster, index, device) {
        (Severity::Warning, "GPUs next to it use a NIC of another NUMA node".to_owned())
    } else if is_missed {
        (Severity::Note, "other hosts use one port more".to_owned())
    } else {
        return None;
    };
    let found = link_finding(host, (device, port), severity, &matters);
    Some(with_cure(host, (device, port), found))
}

/// Tells whether a GPU of the host is on this device's NUMA node, and all usable devices are on
/// other nodes.
fn is_nearest_to_a_gpu(cluster: &Cluster<'_>, index: usize, device: &RdmaDevice) -> bool {
    let inventory = cluster.hosts[index].inventory;
    let Some(pci) = &device.pci else { return false };
    let mut gpus = inventory.gpus.iter();
    gpus.any(|gpu| {
        let is_near = gpu.pci.distance(pci) < Distance::System;
        is_near && super::pcie::is_far_from_all(cluster, index, gpu)
    })
}

fn link_finding(
    host: &ClusterHost<'_>,
    (device, port): DevicePort<'_>,
    severity: Severity,
    matters: &str,
) -> Finding {
    let physical = port.physical_state.as_deref();
    let physical = physical.map_or(String::new(), |state| format!(" ({state})"));
    let seen = match port.state {
        PortState::Active => {
            format!("{} has no carrier", port.netdev.as_deref().unwrap_or_default())
        }
        state => format!("{state}{physical}: no link"),
    };
    Finding::new(id::LINK_DOWN, severity, host.name, seen, matters).device(port_name(device, port))
}

fn with_cure(host: &ClusterHost<'_>, (device, port): DevicePort<'_>, found: Finding) -> Finding {
    // The interface of IPoIB does not switch the port.
    if port.link_layer == LinkLayer::InfiniBand {
        return with_infiniband_cure((device, port), found);
    }
    let netdev = port.netdev.as_deref();
    let state = netdev.and_then(|name| interface_state(host.diagnostics?, name));
    let is_off = port.physical_state.as_deref() == Some("Disabled");
    let found = match (netdev, state) {
        (Some(netdev), Some(state)) if !state.is_up => found.fixed_by(Fix::interface_up(netdev)),
        (Some(netdev), None) if is_off => found.fixed_by(Fix::interface_up(netdev)),
        _ => found,
    };
    found.advise("check the cable, and the port at its other end")
}

fn with_infiniband_cure((device, port): DevicePort<'_>, found: Finding) -> Finding {
    let (name, number) = (quoted(&device.name), port.number);
    let found = found.run(format!("sudo ibportstate -C {name} -P {number} -D 0 {number} query"));
    let found = match port.physical_state.as_deref() {
        Some("Disabled") => found.advise(
            "the port was switched off: by its firmware (`mlxlink -d DEVICE --port_state UP`), or with ibportstate, which can \
             enable it again",
        ),
        _ => found,
    };
    found.advise("check the cable, and the switch port at its other end; dmesg says if the driver refuses the cable")
}

/// Returns the state of an interface.
pub(super) fn interface_state<'a>(
    diagnostics: &'a Diagnostics,
    name: &str,
) -> Option<&'a InterfaceState> {
    diagnostics.interfaces.iter().find(|state| state.name == name)
}

/// Lists the RDMA ports of a host with their counters and those of their interfaces.
pub(super) fn port_counters<'a>(
    host: &ClusterHost<'a>,
    diagnostics: &'a Diagnostics,
) -> Vec<(String, Vec<&'a Counter>)> {
    let counters = |(device, port): DevicePort<'a>| {
        let state = diagnostics.rdma_ports.iter();
        let state = state.filter(|s| s.device == device.name && s.port == port.number);
        let own = state.flat_map(|state| &state.counters);
        let netdev = port.netdev.as_deref().and_then(|name| interface_state(diagnostics, name));
        let all = own.chain(netdev.into_iter().flat_map(|netdev| &netdev.counters));
        (port_name(device, port), all.collect())
    };
    host.rdma_ports().map(counters).collect()
}

fn errors(cluster: &Cluster<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for (host, diagnostics) in cluster.diagnosed() {
        for (port, counters) in port_counters(host, diagnostics) {
            let wrong =
                counters.iter().filter(|c| ERROR_COUNTERS.split(' ').any(|name| name == c.name));
            let growing = wrong.clone().find(|counter| counter.growth() > 0);
            let large = wrong.clone().find(|counter| counter.last >= MANY_ERRORS);
            let cure = "clean or replace the cable or transceiver; try another port of the switch";
            if let Some(counter) = growing {
                let seen =
                    format!("{} grew by {}", counter.name, describe_growth(counter, diagnostics));
                let matters = "retries slow data down, and may end a job";
                let finding = Finding::warning(id::LINK_ERRORS, host.name, seen, matters);
                found.push(finding.device(port).advise(cure));
            } else if let Some(counter) = large {
                let seen = format!("{} is {}", counter.name, counter.last);
                let matters = "the link had errors since the driver started";
                let finding = Finding::note(id::LINK_ERRORS, host.name, seen, matters);
                found.push(finding.device(port).advise(format!("if it grows, {cure}")));
            }
        }
    }
    found
}

/// Writes by how much a counter grew, and in which time.
pub(super) fn describe_growth(counter: &Counter, diagnostics: &Diagnostics) -> String {
    match diagnostics.interval_ms {
        0 => counter.growth().to_string(),
        interval => format!("{} in {:.1} s", counter.growth(), f64::from(interval) / 1000.0),
    }
}

fn flaps(cluster: &Cluster<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for (host, diagnostics) in cluster.diagnosed() {
        for ((device, port), (name, counters)) in
            host.rdma_ports().zip(port_counters(host, diagnostics))
        {
            // A port that is down is a finding of its own.
            if selection::examine(device, port, &host.inventory.netdevs).err()
                == Some(Rejection::Down)
            {
                continue;
            }
            let netdev = port.netdev.as_deref().and_then(|name| interface_state(diagnostics, name));
            let losses = netdev.and_then(|netdev| netdev.carrier_losses);
            let counter = counters.iter().find(|counter| counter.name == LOSS_COUNTER);
            let most = counter.map(|counter| counter.last).into_iter().chain(losses).max();
            let cure =
                "reseat or replace the cable; the partner's log tells which end dropped the link";
            if let Some(counter) = counter.filter(|counter| counter.growth() > 0) {
                let seen =
                    format!("{LOSS_COUNTER} grew by {}", describe_growth(counter, diagnostics));
                let matters = "each loss breaks the connections of running jobs";
                let finding = Finding::warning(id::LINK_FLAPS, host.name, seen, matters);
                found.push(finding.device(name).advise(cure));
            } else if let Some(most) = most.filter(|most| *most >= MANY_LOSSES) {
                let seen = format!("the link was lost {most} times since the driver started");
                let matters = "each loss breaks the connections of running jobs";
                let finding = Finding::note(id::LINK_FLAPS, host.name, seen, matters);
                found.push(finding.device(name).advise(cure));
            }
        }
    }
    found
}
