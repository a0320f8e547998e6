//! Network ports of hosts, with RDMA and without, and the networks between hosts: which ports are in one network, by
//! their addresses and routes.

use crate::limit;
use crate::mesh::show::transport_name;
use crate::selection::{self, Plan, Subnet, UsablePort, is_link_local};
use rlaunch_bootstrap::inventory::Inventory;
use rlaunch_bootstrap::inventory::net::{Netdev, NetdevKind};
use rlaunch_bootstrap::inventory::pci::PciDevice;
use rlaunch_bootstrap::inventory::rdma::{Port, PortState, RdmaDevice};
use rlaunch_bootstrap::rank_table::{NicId, Transport};
use rlaunch_plot::topology::{LineStyle, Network};
use rlaunch_text::text;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// Port of a host, with what the picture shows of it.
#[derive(Clone, Debug, Default)]
pub(super) struct HostPort<'a> {
    /// Names of device and interface, such as `mlx5_0/1 (eth1)`.
    pub(super) name: String,
    /// Rate as text, with what limits it, or the state of a port that is down.
    pub(super) rate: String,
    /// Rate in Mb/s, if the driver reports it.
    pub(super) megabits: Option<u32>,
    pub(super) address: String,
    pub(super) is_down: bool,
    pub(super) numa_node: Option<u32>,
    /// PCI device; `None` for software devices, and for interfaces whose card has no RDMA device.
    pub(super) pci: Option<&'a PciDevice>,
    /// Name of the RDMA device and number of its port.
    pub(super) device: Option<(&'a str, u8)>,
    pub(super) netdev: Option<&'a str>,
    /// Transport of the RDMA port, if a job can use it.
    pub(super) transport: Option<Transport>,
    /// Networks of which other ports may be part.
    pub(super) networks: Vec<PortNetwork>,
    /// Whether the port is drawn only if it is in a network with other hosts: interfaces of software.
    pub(super) is_minor: bool,
}

/// Network of a port, in the rank table's format, and the port's own address in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PortNetwork {
    pub(super) name: String,
    /// IP address; `None` for subnets of InfiniBand.
    pub(super) address: Option<IpAddr>,
}

/// Lists the ports of a host: RDMA ports by PCI address, then other interfaces. `usable` are the RDMA ports that a job
/// can use.
pub(super) fn list_ports<'a>(inventory: &'a Inventory, usable: &[UsablePort]) -> Vec<HostPort<'a>> {
    let rdma = selection::sorted_ports(inventory);
    let mut ports: Vec<HostPort<'a>> =
        rdma.iter().map(|(device, port)| rdma_port(inventory, device, port, usable)).collect();
    let is_of_rdma = |netdev: &&Netdev| {
        rdma.iter().any(|(_, port)| port.netdev.as_deref() == Some(netdev.name.as_str()))
    };
    let others = inventory.netdevs.iter().filter(|netdev| !is_of_rdma(netdev));
    ports.extend(others.filter_map(|netdev| interface(inventory, netdev)));
    ports
}

fn rdma_port<'a>(
    inventory: &'a Inventory,
    device: &'a RdmaDevice,
    port: &'a Port,
    usable: &[UsablePort],
) -> HostPort<'a> {
    let entries = || {
        let is_own =
            |entry: &&UsablePort| entry.nic.device == device.name && entry.nic.port == port.number;
        usable.iter().filter(is_own)
    };
    let netdev = port.netdev.as_deref();
    let netdev = inventory.netdevs.iter().find(|candidate| Some(&*candidate.name) == netdev);
    let mut name = format!("{}/{}", device.name, port.number);
    name += &netdev.map(|netdev| format!(" ({})", netdev.name)).unwrap_or_default();
    let mut networks = netdev.map(interface_networks).unwrap_or_default();
    for entry in entries() {
        let is_infiniband = entry.nic.transport == Transport::Infiniband;
        let address = entry.nic.address.filter(|_| !is_infiniband);
        if address.is_some_and(is_link_local) {
            continue;
        }
        let names = entry.nic.networks.iter().cloned();
        networks.extend(names.map(|name| PortNetwork { name, address }));
    }
    let transport = entries().map(|entry| entry.nic.transport).next();
    let is_down = port.state == PortState::Down;
    let megabits = selection::megabits(selection::rate(device, port));
    HostPort {
        name,
        rate: rdma_rate(inventory, device, port, transport.is_some()),
        megabits,
        address: netdev.map(address).unwrap_or_default(),
        is_down,
        numa_node: device.numa_node,
        pci: device.pci.as_ref(),
        device: Some((&device.name, port.number)),
        netdev: netdev.map(|netdev| netdev.name.as_str()),
        transport,
        networks: if is_down { Vec::new() } else { networks },
        is_minor: false,
    }
}

/// Describes the rate of an RDMA port: `200 Gb/s, PCIe 126` if the PCIe link is slower.
fn rdma_rate(inventory: &Inventory, device: &RdmaDevice, port: &Port, is_usable: bool) -> String {
    if port.state != PortState::Active {
        return port.state.to_string();
    }
    let megabits = selection::megabits(selection::rate(device, port));
    let mut parts: Vec<String> = megabits.map(gigabits).into_iter().collect();
    if selection::is_software(device) {
        parts.push("software".to_owned());
    }
    let is_whole = |pci: &&PciDevice| !selection::is_virtual_function(pci);
    let pcie = device.pci.as_ref().filter(is_whole).and_then(limit::pcie_megabits);
    if let Some(pcie) = pcie.filter(|pcie| megabits.is_some_and(|port| *pcie < port)) {
        parts.push(format!("PCIe {}", limit::short_gigabits(pcie)));
    }
    if !is_usable {
        // Link-local addresses are not used beside others.
        let has_address = selection::examine(device, port, &inventory.netdevs).is_ok();
        parts.push(if has_address { "no address" } else { "no RDMA" }.to_owned());
    }
    parts.join(", ")
}

/// Describes an interface without an RDMA device; `None` if it is of no interest.
fn interface<'a>(inventory: &'a Inventory, netdev: &'a Netdev) -> Option<HostPort<'a>> {
    let is_minor = match netdev.kind {
        NetdevKind::Loopback => return None,
        NetdevKind::Physical | NetdevKind::Thunderbolt | NetdevKind::Ipoib | NetdevKind::Bond => {
            false
        }
        NetdevKind::Bridge | NetdevKind::Upper | NetdevKind::Virtual => true,
    };
    if is_minor && netdev.addresses.is_empty() {
        return None;
    }
    // The inventory has the NUMA nodes of RDMA devices, of which the interface may be another function.
    let own = netdev.pci.as_deref().and_then(|address| address.rsplit_once('.'));
    let card = inventory.rdma.iter().find(|device| {
        own.is_some_and(|(own, _)| device.pci.as_ref().and_then(PciDevice::slot) == Some(own))
    });
    Some(HostPort {
        name: netdev.name.clone(),
        rate: match (netdev.running, netdev.speed) {
            (false, _) => "down".to_owned(),
            (true, speed) => speed.map(gigabits).unwrap_or_default(),
        },
        megabits: netdev.speed.filter(|_| netdev.running),
        address: address(netdev),
        is_down: !netdev.running,
        numa_node: card.and_then(|card| card.numa_node),
        pci: card.and_then(|card| card.pci.as_ref()),
        netdev: Some(&netdev.name),
        networks: if netdev.running { interface_networks(netdev) } else { Vec::new() },
        is_minor,
        ..HostPort::default()
    })
}

fn gigabits(megabits: u32) -> String {
    format!("{} Gb/s", limit::short_gigabits(megabits))
}

/// Lists an interface's subnets. Link-local ones say nothing about what an interface is connected to.
fn interface_networks(netdev: &Netdev) -> Vec<PortNetwork> {
    let known = netdev.addresses.iter().filter(|(address, _)| !is_link_local(*address));
    let network = |(address, prefix): &(IpAddr, u8)| PortNetwork {
        name: Subnet::new(*address, *prefix).to_string(),
        address: Some(*address),
    };
    known.map(network).collect()
}

/// Writes an interface's address, one of IPv4 if there is one, and the number of others: `10.0.0.1/24 +1`.
fn address(netdev: &Netdev) -> String {
    let mut known: Vec<&(IpAddr, u8)> =
        netdev.addresses.iter().filter(|(address, _)| !is_link_local(*address)).collect();
    known.sort_by_key(|(address, _)| address.is_ipv6());
    match known[..] {
        [] => String::new(),
        [(only, prefix)] => format!("{only}/{prefix}"),
        [(first, prefix), ..] => format!("{first}/{prefix} +{}", known.len() - 1),
    }
}

/// Maximum number of subnets that are named for one network.
const NAMED: usize = 2;

/// Networks that connect hosts.
#[derive(Clone, Debug, Default)]
pub(super) struct HostNetworks {
    pub(super) networks: Vec<Network>,
    /// Index of each port's network, by host and port.
    by_port: Vec<Vec<Option<usize>>>,
}

/// Port by the indices of its host and of the port there.
type PortId = (usize, usize);

/// Set of ports that are connected, as a forest in which each port leads to another of its network.
struct Connected {
    parents: BTreeMap<PortId, PortId>,
}

impl Connected {
    fn root(&self, port: PortId) -> PortId {
        let mut port = port;
        while let Some(parent) = self.parents.get(&port) {
            port = *parent;
        }
        port
    }

    /// Connects two ports. The lower one of their networks' roots is that of both.
    fn connect(&mut self, one: PortId, other: PortId) {
        let (one, other) = (self.root(one), self.root(other));
        if one != other {
            self.parents.insert(one.max(other), one.min(other));
        }
    }
}

impl HostNetworks {
    /// Finds the networks between hosts with these ports.
    pub(super) fn find(names: &[&str], ports: &[Vec<HostPort<'_>>], plan: &Plan) -> HostNetworks {
        let members = members(ports);
        let mut connected = Connected { parents: BTreeMap::new() };
        for ids in members.values() {
            ids.iter().for_each(|id| connected.connect(ids[0], *id));
        }
        for exception in plan.exceptions.iter().filter(|exception| exception.reach) {
            let ends = [exception.a, exception.b].map(|nic| port_of(ports, plan, nic));
            if let [Some(one), Some(other)] = ends {
                connected.connect(one, other);
            }
        }
        let all = (0..ports.len()).flat_map(|host| (0..ports[host].len()).map(move |p| (host, p)));
        let mut groups: BTreeMap<PortId, Vec<PortId>> = BTreeMap::new();
        for id in all {
            groups.entry(connected.root(id)).or_default().push(id);
        }
        let mut found = HostNetworks {
            networks: Vec::new(),
            by_port: ports.iter().map(|ports| vec![None; ports.len()]).collect(),
        };
        for ids in groups.into_values() {
            let hosts: BTreeSet<usize> = ids.iter().map(|(host, _)| *host).collect();
            if hosts.len() < 2 {
                continue;
            }
            for (host, port) in &ids {
                found.by_port[*host][*port] = Some(found.networks.len());
            }
            found.networks.push(describe(names, ports, &ids, &hosts, &members));
        }
        found
    }

    /// Returns the index of a port's network.
    pub(super) fn network_of(&self, host: usize, port: usize) -> Option<usize> {
        self.by_port.get(host)?.get(port).copied().flatten()
    }
}

/// Lists the ports of each network that has ports of several hosts, with different addresses: an address that hosts
/// share, such as that of a container engine's bridge, connects nothing.
fn members(ports: &[Vec<HostPort<'_>>]) -> BTreeMap<String, Vec<PortId>> {
    let mut members: BTreeMap<String, Vec<(PortId, Option<IpAddr>)>> = BTreeMap::new();
    for (host, ports) in ports.iter().enumerate() {
        for (index, port) in ports.iter().enumerate() {
            for network in &port.networks {
                let member = ((host, index), network.address);
                members.entry(network.name.clone()).or_default().push(member);
            }
        }
    }
    members.retain(|_, members| {
        let Some(((first, _), address)) = members.first().copied() else { return false };
        let is_other = |((host, _), own): &(PortId, Option<IpAddr>)| {
            *host != first && (own.is_none() || *own != address)
        };
        members.iter().any(is_other)
    });
    let ids = |members: Vec<(PortId, Option<IpAddr>)>| members.into_iter().map(|m| m.0).collect();
    members.into_iter().map(|(name, members)| (name, ids(members))).collect()
}

/// Returns the port of an RDMA port in the plan.
fn port_of(ports: &[Vec<HostPort<'_>>], plan: &Plan, nic: NicId) -> Option<PortId> {
    let host = nic.node.index();
    let usable = &plan.ports.get(host)?.get(nic.nic as usize)?.nic;
    let wanted = Some((usable.device.as_str(), usable.port));
    let index = ports.get(host)?.iter().position(|port| port.device == wanted)?;
    Some((host, index))
}

/// Describes a network: subnets, transport, rate, and hosts or their number.
fn describe(
    names: &[&str],
    ports: &[Vec<HostPort<'_>>],
    ids: &[PortId],
    hosts: &BTreeSet<usize>,
    members: &BTreeMap<String, Vec<PortId>>,
) -> Network {
    let own = |(host, port): &PortId| &ports[*host][*port];
    let mut transports: Vec<(Transport, usize)> = Vec::new();
    for (host, transport) in ids.iter().filter_map(|id| Some((id.0, own(id).transport?))) {
        if !transports.contains(&(transport, host)) {
            transports.push((transport, host));
        }
    }
    let is_shared =
        |transport: &Transport| transports.iter().filter(|(own, _)| own == transport).count() > 1;
    let all = [Transport::Infiniband, Transport::Roce, Transport::Iwarp];
    let shared: Vec<Transport> = all.into_iter().filter(is_shared).collect();
    let style = match shared[..] {
        [] => LineStyle::Dashed,
        [Transport::Infiniband, ..] => LineStyle::Wide,
        _ => LineStyle::Plain,
    };
    let by = match shared[..] {
        [] => "TCP".to_owned(),
        _ => shared.iter().copied().map(transport_name).collect::<Vec<_>>().join(" and "),
    };
    let mut parts = vec![format!("{}: {by}", subnets(ids, members))];
    parts.extend(rates(ids.iter().filter_map(|id| own(id).megabits)));
    let hosts: Vec<&str> = hosts.iter().filter_map(|host| names.get(*host).copied()).collect();
    parts.push(match hosts[..] {
        [one, other] => format!("{one} and {other}"),
        _ => text::count(hosts.len(), "host"),
    });
    Network { text: parts.join(", "), style }
}

/// Names the subnets of a network, those of most ports first.
fn subnets(ids: &[PortId], members: &BTreeMap<String, Vec<PortId>>) -> String {
    let ids: BTreeSet<PortId> = ids.iter().copied().collect();
    let is_own = |(_, members): &(&String, &Vec<PortId>)| {
        members.first().is_some_and(|first| ids.contains(first))
    };
    let mut names: Vec<(&String, &Vec<PortId>)> = members.iter().filter(is_own).collect();
    // Default routes lead everywhere.
    let is_special = |name: &str| !name.ends_with("/0");
    if names.iter().any(|(name, _)| is_special(name)) {
        names.retain(|(name, _)| is_special(name));
    }
    names.sort_by_key(|(name, members)| (std::cmp::Reverse(members.len()), *name));
    let shown = names.iter().take(NAMED).map(|(name, _)| match name.strip_prefix("ib ") {
        Some(prefix) => format!("subnet {prefix}"),
        None => (*name).clone(),
    });
    let mut shown: Vec<String> = shown.collect();
    if names.len() > NAMED {
        shown.push(format!("{} more", names.len() - NAMED));
    }
    if shown.is_empty() { "routed".to_owned() } else { shown.join(" and ") }
}

/// Describes rates in Mb/s: `200 Gb/s`, or `25 to 100 Gb/s`.
fn rates(megabits: impl Iterator<Item = u32>) -> Option<String> {
    let all: BTreeSet<u32> = megabits.collect();
    let (least, most) = (*all.first()?, *all.last()?);
    let (least, most) = (limit::short_gigabits(least), limit::short_gigabits(most));
    Some(if least == most { format!("{most} Gb/s") } else { format!("{least} to {most} Gb/s") })
}
