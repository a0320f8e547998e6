//! Entries of GID tables.

use crate::checks::devices::{
    has_rdma, in_container, indexed, others_have_rdma, port_name, severity_of_loss,
};
use crate::checks::{Cluster, ClusterHost, quoted};
use crate::findings::{Finding, Severity, id};
use crate::selection::{self, Addressing, Rejection, UsablePort};
use rlaunch_bootstrap::inventory::rdma::{
    Gid, GidKind, LinkLayer, NodeType, Port, PortState, RdmaDevice,
};
use rlaunch_bootstrap::rank_table::Transport;
use rlaunch_text::text;
use std::net::IpAddr;

/// Maximum number of GID entries that a line lists.
const MAX_ENTRIES: usize = 6;

/// Lists the ports of all hosts with the reason why they are not used.
fn rejections<'c, 'a>(
    cluster: &'c Cluster<'a>,
) -> impl Iterator<Item = (usize, &'c ClusterHost<'a>, (&'a RdmaDevice, &'a Port), Rejection)> {
    indexed(cluster).flat_map(move |(index, host)| {
        host.rdma_ports().filter_map(move |(device, port)| {
            let netdevs = &host.inventory.netdevs;
            let examined = selection::examine_wanted(device, port, netdevs, &cluster.ports);
            Some((index, host, (device, port), examined.err()?))
        })
    })
}

/// Describes the entries of a GID table, as in `1 (192.168.1.2 v2)`.
fn entries(port: &Port) -> String {
    let entry = |gid: &Gid| {
        let version = match gid.kind {
            GidKind::RoceV2 => " v2",
            GidKind::IbOrRoceV1 => " v1",
            GidKind::Unknown => "",
        };
        format!("{} ({}{version})", gid.index, gid.ip())
    };
    let mut entries: Vec<String> = port.gids.iter().take(MAX_ENTRIES).map(entry).collect();
    if port.gids.len() > MAX_ENTRIES {
        entries.push("…".to_owned());
    }
    if entries.is_empty() { "none".to_owned() } else { entries.join(", ") }
}

pub(super) fn empty(cluster: &Cluster<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for (index, host, (device, port), reason) in rejections(cluster) {
        let name = port_name(device, port);
        match reason {
            Rejection::EmptyGid(entry) => {
                let seen =
                    format!("entry {entry} of its GID table is empty; filled: {}", entries(port));
                let matters = "queue pairs cannot connect with --gid-index";
                let finding = Finding::error(id::ROCE_GID_EMPTY, host.name, seen, matters);
                let best = selection::examine(device, port, &host.inventory.netdevs);
                let instead = match best {
                    Ok(Addressing::Gid { gid, .. }) => {
                        format!("leave --gid-index out; rlaunch would use entry {}", gid.index)
                    }
                    _ => "leave --gid-index out".to_owned(),
                };
                found.push(finding.device(name).advise(instead));
            }
            Rejection::NoGid => {
                let is_missed = is_used_elsewhere(cluster, index, device, port);
                if !is_missed && (has_rdma(cluster, index) || !others_have_rdma(cluster, index)) {
                    continue;
                }
                found.push(empty_table(host, device, port));
            }
            // The other reasons have checks of their own.
            _ => {}
        }
    }
    found
}

/// Makes the finding of a port without any GID.
fn empty_table(host: &ClusterHost<'_>, device: &RdmaDevice, port: &Port) -> Finding {
    let netdev = port.netdev.as_deref().unwrap_or("INTERFACE");
    let assign = format!("sudo ip addr add ADDRESS/24 dev {}", quoted(netdev));
    let finding = |seen: String| {
        Finding::error(id::ROCE_GID_EMPTY, host.name, seen, "RDMA cannot use the port")
            .device(port_name(device, port))
    };
    if device.node_type == NodeType::Rnic {
        return finding(format!("its interface {netdev} has no IP address")).run(assign);
    }
    if host.netdev_of(port).is_none() {
        return finding(format!("its GID table is empty, and its interface {netdev} is not there"))
            .advise("`rdma link` shows the port's interface, dmesg why it is not there");
    }
    // A link-local address alone would fill entries of the table.
    finding(format!("its GID table is empty, though its interface {netdev} is up")).advise(format!(
        "is {netdev} a part of a bond or bridge, whose own address counts? else give it one: {assign}"
    ))
}

/// Tells whether another host uses the port of the same name.
fn is_used_elsewhere(
    cluster: &Cluster<'_>,
    index: usize,
    device: &RdmaDevice,
    port: &Port,
) -> bool {
    let nodes = cluster.plan.into_iter().flat_map(|plan| plan.ports.iter().enumerate());
    let mut others = nodes.filter(|(node, _)| *node != index).flat_map(|(_, ports)| ports);
    others.any(|other| other.nic.device == device.name && other.nic.port == port.number)
}

pub(super) fn only_version_1(cluster: &Cluster<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for (index, host, (device, port), reason) in rejections(cluster) {
        if reason != Rejection::OnlyRoceV1 {
            continue;
        }
        let netdev = port.netdev.as_deref().unwrap_or("INTERFACE");
        let seen = format!("only RoCE v1 GIDs on {netdev}");
        let severity = severity_of_loss(cluster, index);
        let matters = "routers and many switches drop its packets, so it is not used";
        let finding = Finding::new(id::ROCE_NO_V2, severity, host.name, seen, matters)
            .device(port_name(device, port))
            .run(format!("sudo ip addr add ADDRESS/24 dev {}", quoted(netdev)))
            .advise("if there is still only v1, card or driver know no other version");
        found.push(finding);
    }
    found
}

pub(super) fn different_versions(cluster: &Cluster<'_>) -> Vec<Finding> {
    let Some(index) = cluster.ports.gid_index else { return Vec::new() };
    let mut selected: Vec<(&str, String, GidKind)> = Vec::new();
    for host in &cluster.hosts {
        for (device, port) in host.rdma_ports() {
            let netdevs = &host.inventory.netdevs;
            let examined = selection::examine_wanted(device, port, netdevs, &cluster.ports);
            if let Ok(Addressing::Gid { gid, .. }) = examined {
                selected.push((host.name, port_name(device, port), gid.kind));
            }
        }
    }
    if !selected.iter().any(|(.., kind)| *kind == GidKind::RoceV2) {
        return Vec::new();
    }
    let old = selected.into_iter().filter(|(.., kind)| *kind == GidKind::IbOrRoceV1);
    let finding = |(host, port, _): (&str, String, GidKind)| {
        let seen = format!("entry {index} of its GID table is RoCE v1, and v2 on other ports");
        Finding::error(id::ROCE_VERSIONS, host, seen, "the two versions do not connect")
            .device(port)
            .advise("leave --gid-index out: rlaunch selects version 2 on every port")
    };
    old.map(finding).collect()
}

/// Tells whether an active RoCE port has only link-local addresses.
fn has_only_link_local(host: &ClusterHost<'_>, port: &Port) -> bool {
    let is_link_local = |gid: &Gid| selection::is_link_local(gid.ip());
    let is_here = |gid: &Gid| {
        let netdev = gid.netdev.as_ref().or(port.netdev.as_ref());
        host.inventory.netdevs.iter().any(|known| Some(&known.name) == netdev && known.running)
    };
    port.link_layer == LinkLayer::Ethernet
        && port.state == PortState::Active
        && port.gids.iter().any(|gid| gid.kind == GidKind::RoceV2)
        && port.gids.iter().all(|gid| is_link_local(gid) && is_here(gid))
}

pub(super) fn link_local(cluster: &Cluster<'_>) -> Vec<Finding> {
    let Some(plan) = cluster.plan else { return Vec::new() };
    let is_global = |port: &UsablePort| {
        let address = port.nic.address;
        port.nic.transport == Transport::Roce
            && address.is_some_and(|address| !selection::is_link_local(address))
    };
    let mut found = Vec::new();
    for (index, host) in indexed(cluster) {
        let own = plan.ports.get(index).into_iter().flatten();
        let has_global = own.clone().any(is_global);
        let nodes = plan.ports.iter().enumerate().filter(|(node, _)| *node != index);
        let others: Vec<&UsablePort> =
            nodes.flat_map(|(_, ports)| ports).filter(|port| is_global(port)).collect();
        for (device, port) in host.rdma_ports() {
            // Peers show that the port is meant to have an address: those that use the one of the same name, or
            // all that have addresses where this host has none.
            let is_expected = if has_global {
                others
                    .iter()
                    .any(|other| other.nic.device == device.name && other.nic.port == port.number)
            } else {
                !others.is_empty()
            };
            if !is_expected || !has_only_link_local(host, port) {
                continue;
            }
            let netdev = port.netdev.as_deref().unwrap_or("INTERFACE");
            let seen = format!("only link-local addresses on {netdev}");
            let matters = "ports of other hosts have addresses, and cannot be reached from it";
            let finding = Finding::error(id::ROCE_LINK_LOCAL, host.name, seen, matters)
                .device(port_name(device, port))
                .run(format!("sudo ip addr add ADDRESS/24 dev {}", quoted(netdev)));
            found.push(finding);
        }
    }
    found
}

pub(super) fn families(cluster: &Cluster<'_>) -> Vec<Finding> {
    let Some(plan) = cluster.plan else { return Vec::new() };
    let family = |ports: &Vec<UsablePort>| {
        let roce = ports.iter().filter(|port| port.nic.transport == Transport::Roce);
        let addresses: Vec<IpAddr> = roce.filter_map(|port| port.nic.address).collect();
        let global: Vec<&IpAddr> =
            addresses.iter().filter(|address| !selection::is_link_local(**address)).collect();
        let is_v6 = global.first()?.is_ipv6();
        global.iter().all(|address| address.is_ipv6() == is_v6).then_some(is_v6)
    };
    let families: Vec<Option<bool>> = plan.ports.iter().map(family).collect();
    let hosts = |is_v6: bool| -> Vec<String> {
        let of = indexed(cluster).filter(|(index, _)| families.get(*index) == Some(&Some(is_v6)));
        of.map(|(_, host)| host.name.to_owned()).collect()
    };
    let (v4, v6) = (hosts(false), hosts(true));
    if v4.is_empty() || v6.is_empty() {
        return Vec::new();
    }
    // The smaller group is the odd one.
    let (odd, rest, own, other) =
        if v6.len() <= v4.len() { (v6, v4, "IPv6", "IPv4") } else { (v4, v6, "IPv4", "IPv6") };
    let seen = format!(
        "RoCE ports have only {own} addresses, those of {} only {other}",
        text::list(&rest)
    );
    let matters = "GIDs of different families do not connect";
    let mut found = Finding::new(id::ROCE_FAMILY, Severity::Error, "", seen, matters)
        .advise(format!("add {other} addresses to their RDMA interfaces"));
    found.hosts = odd;
    vec![found]
}

pub(super) fn elsewhere(cluster: &Cluster<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for (index, host, (device, port), reason) in rejections(cluster) {
        // In a container, this is a consequence of its own network.
        if reason != Rejection::InterfaceElsewhere || in_container(cluster, host) {
            continue;
        }
        let severity = match severity_of_loss(cluster, index) {
            Severity::Error if !others_have_rdma(cluster, index) => Severity::Note,
            severity => severity,
        };
        let seen = "its interface is in another network namespace";
        let matters = "its GIDs cannot be used here";
        let finding = Finding::new(id::ROCE_NETDEV, severity, host.name, seen, matters)
            .device(port_name(device, port))
            .advise(
                "run ranks in that namespace, or move the interface: ip link set INTERFACE netns NAME",
            );
        found.push(finding);
    }
    found
}
