//! Cables in wrong ports.

use crate::checks::cluster::{Probe, ProbeKind, ProbeOutcome};
use crate::checks::devices::{indexed, port_name};
use crate::checks::{Cluster, ClusterHost};
use crate::findings::{Finding, id};
use crate::selection::{self, Plan, UsablePort};
use rlaunch_bootstrap::inventory::net::Netdev;
use rlaunch_bootstrap::inventory::rdma::{LinkLayer, Port, PortState, RdmaDevice};
use rlaunch_text::text;
use std::collections::BTreeSet;
use std::net::IpAddr;

pub(super) fn misplaced(cluster: &Cluster<'_>) -> Vec<Finding> {
    let beside: Vec<Finding> = indexed(cluster)
        .filter_map(|(index, host)| in_the_port_beside(cluster, index, host))
        .collect();
    if beside.is_empty() { swapped(cluster) } else { beside }
}

type NamedPort<'a> = (&'a RdmaDevice, &'a Port, &'a Netdev);

/// Finds a host with a cable in a port that has no address, while a port with an address has no cable.
fn in_the_port_beside(
    cluster: &Cluster<'_>,
    index: usize,
    host: &ClusterHost<'_>,
) -> Option<Finding> {
    let ports = host.rdma_ports().filter(|(_, port)| port.link_layer == LinkLayer::Ethernet);
    let ports: Vec<NamedPort<'_>> =
        ports.filter_map(|(device, port)| Some((device, port, host.netdev_of(port)?))).collect();
    let has_link =
        |(_, port, netdev): &NamedPort<'_>| port.state == PortState::Active && netdev.running;
    let (up, down): (Vec<_>, Vec<_>) = ports.into_iter().partition(has_link);
    let (addressed, bare): (Vec<NamedPort<'_>>, Vec<NamedPort<'_>>) =
        up.into_iter().partition(|(_, _, n)| address(n).is_some());
    let addressed_down = down.iter().filter(|(_, _, n)| address(n).is_some());
    let addressed: Vec<&NamedPort<'_>> = addressed.iter().chain(addressed_down).collect();
    // Functions of one card that share a physical port have a carrier together; one address is enough for them.
    let is_covered = |(device, port, netdev): &NamedPort<'_>| {
        let shares_port = addressed.iter().any(|(other, _, known)| {
            other.image_guid == device.image_guid
                && netdev.port_name.is_some()
                && known.port_name == netdev.port_name
        });
        shares_port || is_bare_elsewhere(cluster, index, device, port)
    };
    let bare: Vec<NamedPort<'_>> = bare.into_iter().filter(|port| !is_covered(port)).collect();
    let down: Vec<(NamedPort<'_>, IpAddr)> =
        down.into_iter().filter_map(|port| Some((port, address(port.2)?))).collect();
    let ([(wanted, own)], [found]) = (&down[..], &bare[..]) else { return None };
    let (wanted_device, wanted_port, wanted_netdev) = wanted;
    let peer = peer_on_subnet(cluster.plan?, index, *own)?;
    let seen = format!(
        "{} has {own} and no carrier, {} beside it a carrier and no address",
        wanted_netdev.name, found.2.name
    );
    let matters = format!("the cable to {} is likely in the wrong port", cluster.hosts[peer].name);
    let finding = Finding::error(id::MESH_CABLING, host.name, seen, matters)
        .device(port_name(wanted_device, wanted_port));
    Some(finding.advise(format!(
        "move the cable from {} to {}, or the address the other way",
        found.2.name, wanted_netdev.name
    )))
}

/// Returns another host with a port on the subnet of `address`.
fn peer_on_subnet(plan: &Plan, index: usize, address: IpAddr) -> Option<usize> {
    let mut others = plan.ports.iter().enumerate().filter(|(node, _)| *node != index);
    let is_there = |ports: &[UsablePort]| {
        let mut subnets = ports.iter().filter_map(|port| port.reachability.own_subnet());
        subnets.any(|subnet| subnet.contains(address))
    };
    others.find(|(_, ports)| is_there(ports)).map(|(node, _)| node)
}

/// Tells whether another host has a link and no address on the port of the same name, so that the
/// port is meant to have none.
fn is_bare_elsewhere(
    cluster: &Cluster<'_>,
    index: usize,
    device: &RdmaDevice,
    port: &Port,
) -> bool {
    let others = indexed(cluster).filter(|(other, _)| *other != index);
    let mut others = others.flat_map(|(_, host)| host.rdma_ports().map(move |port| (host, port)));
    others.any(|(host, (other, other_port))| {
        let is_bare = host.netdev_of(other_port).is_some_and(|n| address(n).is_none());
        (&other.name, other_port.number) == (&device.name, port.number)
            && other_port.state == PortState::Active
            && is_bare
    })
}

/// Returns the interface's first address that is not link-local.
fn address(netdev: &Netdev) -> Option<IpAddr> {
    let mut addresses = netdev.addresses.iter().map(|(address, _)| *address);
    addresses.find(|address| !selection::is_link_local(*address))
}

/// Finds hosts whose RDMA interfaces get no answer at all, although several have a carrier and TCP
/// reaches the same peers: their cables are likely swapped.
fn swapped(cluster: &Cluster<'_>) -> Vec<Finding> {
    let probes = cluster.probes.unwrap_or_default();
    let of_links = |probe: &&Probe| matches!(probe.kind, ProbeKind::PathMtu(_));
    let links: Vec<&Probe> = probes.iter().filter(of_links).collect();
    let silent: Vec<&Probe> = links.iter().copied().filter(|probe| is_silent(probe)).collect();
    let mut found = Vec::new();
    let mut explained: BTreeSet<(usize, usize)> = BTreeSet::new();
    for (index, host) in indexed(cluster) {
        let own: Vec<&&Probe> = links.iter().filter(|probe| probe.from == index).collect();
        let own_silent: Vec<&&Probe> = silent.iter().filter(|probe| probe.from == index).collect();
        let netdevs: BTreeSet<&str> =
            own_silent.iter().filter_map(|probe| probe.netdev.as_deref()).collect();
        let peers: BTreeSet<usize> = own_silent.iter().map(|probe| probe.to).collect();
        let pair = |peer: usize| (peer.min(index), peer.max(index));
        let is_known = peers.iter().all(|peer| {
            has_filter(cluster, *peer) == Some(false)
                && reaches_by_tcp(probes, index, *peer)
                && !explained.contains(&pair(*peer))
        });
        // All silent links of the cluster end here, or one pair of hosts has no other.
        let is_center =
            silent.iter().all(|probe| probe.from == index || probe.to == index) || peers.len() == 1;
        let is_sure = netdevs.len() >= 2
            && own_silent.len() == own.len()
            && is_known
            && is_center
            && has_filter(cluster, index) == Some(false)
            && has_subnets(cluster, index, netdevs.len());
        if !is_sure {
            continue;
        }
        explained.extend(peers.iter().map(|peer| pair(*peer)));
        let names: Vec<&str> = netdevs.iter().copied().collect();
        let peers: Vec<&str> = peers.iter().map(|peer| cluster.hosts[*peer].name).collect();
        let seen = format!(
            "{} have a carrier, and nothing answers on them from {}",
            text::list(&names),
            text::list(&peers)
        );
        let matters = "their cables are likely swapped";
        let finding = Finding::error(id::MESH_CABLING, host.name, seen, matters);
        found.push(finding.advise(format!(
            "at {}, swap the cables of {}, or the addresses of these interfaces",
            host.name,
            text::list(&names)
        )));
    }
    found
}

/// Tells whether a probe of a link got no answer.
fn is_silent(probe: &Probe) -> bool {
    match &probe.outcome {
        ProbeOutcome::Silent => true,
        // The kernel's text of EHOSTUNREACH: the neighbour does not answer ARP.
        ProbeOutcome::Failed(cause) => cause.contains("No route to host"),
        ProbeOutcome::Worked(_) | ProbeOutcome::OnlyShort | ProbeOutcome::Unproved(_) => false,
    }
}

/// Tells whether a packet filter of the host drops anything; `None` if that is not known.
fn has_filter(cluster: &Cluster<'_>, index: usize) -> Option<bool> {
    let firewall = cluster.hosts.get(index)?.diagnostics?.firewall.as_ref()?;
    let drops = firewall.rules.iter().any(|rule| !rule.accepts);
    Some(firewall.drops_by_default || drops)
}

fn reaches_by_tcp(probes: &[Probe], from: usize, to: usize) -> bool {
    probes.iter().any(|probe| {
        probe.kind == ProbeKind::Tcp
            && (probe.from, probe.to) == (from, to)
            && matches!(probe.outcome, ProbeOutcome::Worked(_))
    })
}

/// Tells whether the host's ports are on at least `count` different subnets.
fn has_subnets(cluster: &Cluster<'_>, index: usize, count: usize) -> bool {
    let ports = cluster.plan.and_then(|plan| plan.ports.get(index)).into_iter().flatten();
    let subnets: BTreeSet<_> = ports.filter_map(|port| port.reachability.own_subnet()).collect();
    subnets.len() >= count
}
