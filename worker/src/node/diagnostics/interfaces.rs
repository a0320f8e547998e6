//! State of network interfaces and of RDMA ports; network cards and InfiniBand controllers on the PCI
//! bus, with or without a driver.

use super::counters;
use crate::node::inventory::Root;
use crate::node::inventory::netlink::flow_control;
use rlaunch_bootstrap::inventory::Inventory;
use rlaunch_bootstrap::inventory::diagnostics::{InterfaceState, PciAdapter, RdmaPortState};
use rlaunch_bootstrap::inventory::net::{Netdev, NetdevKind};

const DIRECTORY: &str = "/sys/class/net";
/// File of a recording with the priorities that have flow control; each line is `NAME BITS`.
const FLOW_CONTROL: &str = "/flow-control";
/// Flag of an interface that is administratively up (IFF_UP).
const UP: u64 = 1;

pub(super) fn read(root: &Root, inventory: &Inventory) -> Vec<InterfaceState> {
    let netdevs = &inventory.netdevs;
    let lines = root.asked_lines(FLOW_CONTROL, || {
        let physical = netdevs.iter().filter(|netdev| netdev.kind == NetdevKind::Physical);
        let bits = |netdev: &Netdev| Some((netdev.name.clone(), flow_control(&netdev.name)?));
        physical.filter_map(bits).map(|(name, bits)| format!("{name} {bits}")).collect()
    });
    let pfc_of = |name: &str| {
        let bits = lines.iter().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
        let bits: u8 = bits.parse().ok()?;
        Some((0..8).filter(|priority| bits & 1 << priority != 0).collect())
    };
    netdevs.iter().map(|netdev| read_state(root, netdev, pfc_of(&netdev.name))).collect()
}

fn read_state(root: &Root, netdev: &Netdev, pfc: Option<Vec<u8>>) -> InterfaceState {
    let file = |file: &str| format!("{DIRECTORY}/{}/{file}", netdev.name);
    let setting = |name: &str| {
        let of = |place: &str| root.value::<u8>(&format!("/proc/sys/net/ipv4/conf/{place}/{name}"));
        of(&netdev.name).max(of("all"))
    };
    let disable_ipv6 = format!("/proc/sys/net/ipv6/conf/{}/disable_ipv6", netdev.name);
    InterfaceState {
        name: netdev.name.clone(),
        is_up: root.hex(&file("flags")).map_or(netdev.running, |flags| flags & UP != 0),
        // The kernel refuses to tell while the interface is down.
        has_carrier: root.value::<u8>(&file("carrier")).map(|carrier| carrier == 1),
        carrier_losses: root.value(&file("carrier_down_count")),
        counters: counters::read_interface(root, netdev),
        arp_ignore: setting("arp_ignore"),
        arp_announce: setting("arp_announce"),
        rp_filter: setting("rp_filter"),
        ipv6_disabled: root.value::<u8>(&disable_ipv6) == Some(1),
        roce_ecn: (netdev.kind == NetdevKind::Physical)
            .then(|| read_ecn(root, &file("ecn")))
            .flatten(),
        pfc,
    }
}

/// Returns the priorities with congestion control at the notification point and at the reaction
/// point.
fn read_ecn(root: &Root, directory: &str) -> Option<(Vec<u8>, Vec<u8>)> {
    if !root.exists(directory) {
        return None;
    }
    let enabled = |point: &str| {
        let is_on = |priority: &u8| {
            root.value::<u8>(&format!("{directory}/{point}/enable/{priority}")) == Some(1)
        };
        (0..8).filter(is_on).collect()
    };
    Some((enabled("roce_np"), enabled("roce_rp")))
}

const DEVICES: &str = "/sys/bus/pci/devices";
/// PCI base class of network controllers.
const NETWORK: u32 = 0x02;
/// PCI class and subclass of old InfiniBand controllers.
const INFINIBAND: u32 = 0x0c06;

pub(super) fn read_adapters(root: &Root, inventory: &Inventory) -> Vec<PciAdapter> {
    root.names(DEVICES).into_iter().filter_map(|name| read_adapter(root, inventory, name)).collect()
}

fn read_adapter(root: &Root, inventory: &Inventory, address: String) -> Option<PciAdapter> {
    let file = |name: &str| format!("{DEVICES}/{address}/{name}");
    let class = u32::try_from(root.hex(&file("class"))?).ok()?;
    if class >> 16 != NETWORK && class >> 8 != INFINIBAND {
        return None;
    }
    let id = |name: &str| root.hex(&file(name)).and_then(|id| u16::try_from(id).ok());
    let mut devices = inventory.rdma.iter().filter_map(|device| device.pci.as_ref());
    let mut netdevs = inventory.netdevs.iter();
    let netdev = netdevs.find(|netdev| netdev.pci.as_ref() == Some(&address));
    Some(PciAdapter {
        vendor: id("vendor").unwrap_or_default(),
        device: id("device").unwrap_or_default(),
        class,
        driver: root.link_name(&file("driver")),
        // In a container, the device may belong to another network namespace.
        has_rdma: devices.any(|pci| pci.address == address)
            || !root.names(&file("infiniband")).is_empty(),
        netdev: netdev.map(|netdev| netdev.name.clone()),
        address,
    })
}

pub(super) fn read_rdma_ports(root: &Root, inventory: &Inventory) -> Vec<RdmaPortState> {
    let ports = inventory.rdma.iter().flat_map(|device| {
        device.ports.iter().map(move |port| (device.name.as_str(), port.number))
    });
    let state = |(device, port): (&str, u8)| RdmaPortState {
        device: device.to_owned(),
        port,
        cm_roce_mode: connection_manager_mode(root, device, port),
        counters: counters::read_port(root, device, port),
    };
    ports.map(state).collect()
}

/// Returns the RoCE version of the connection manager. The kernel has this file only after a user has
/// made the device's directory; that is left to them.
fn connection_manager_mode(root: &Root, device: &str, port: u8) -> Option<String> {
    root.text(&format!("/sys/kernel/config/rdma_cm/{device}/ports/{port}/default_roce_mode"))
}
