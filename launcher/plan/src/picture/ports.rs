//! Network ports of a host: RDMA ports, and interfaces without RDMA.

use crate::limit;
use crate::selection::{self, Subnet, UsablePort, is_link_local};
use rlaunch_bootstrap::inventory::Inventory;
use rlaunch_bootstrap::inventory::net::{Netdev, NetdevKind};
use rlaunch_bootstrap::inventory::pci::PciDevice;
use rlaunch_bootstrap::inventory::rdma::{Port, PortState, RdmaDevice};
use rlaunch_bootstrap::rank_table::Transport;
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
pub(super) fn list<'a>(inventory: &'a Inventory, usable: &[UsablePort]) -> Vec<HostPort<'a>> {
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
    let slot = |address: &str| address.rsplit_once('.').map(|(slot, _)| slot.to_owned());
    let own = netdev.pci.as_deref().and_then(slot);
    let card = inventory.rdma.iter().find(|device| {
        let pci = device.pci.as_ref();
        own.is_some() && pci.and_then(|pci| slot(&pci.address)) == own
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
