//! State of network interfaces.
//!
//! Network cards and InfiniBand controllers on the PCI bus, with or without a driver.
//!
//! State of RDMA ports.
//!
//! This host's own name, and the addresses to which it leads.

use super::program::Background;
use super::{counters, program};
use crate::node::inventory::Root;
use crate::node::inventory::netlink::flow_control;
use rlaunch_bootstrap::inventory::Inventory;
use rlaunch_bootstrap::inventory::diagnostics::{
    InterfaceState, OwnName, PciAdapter, RdmaPortState,
};
use rlaunch_bootstrap::inventory::net::{Netdev, NetdevKind};
use std::fs;
use std::net::IpAddr;
use std::time::Duration;

const DIRECTORY: &str = "/sys/class/net";
/// File of a recording with the priorities that have flow control; each line is `NAME BITS`.
const FLOW_CONTROL: &str = "/flow-control";
/// Flag of an interface that is administratively up (IFF_UP).
const UP: u64 = 1;

pub(super) fn read(root: &Root, inventory: &Inventory) -> Vec<InterfaceState> {
    let netdevs = &inventory.netdevs;
    let lines = root.socket_lines(FLOW_CONTROL, || {
        let physical = netdevs.iter().filter(|netdev| netdev.kind == NetdevKind::Physical);
        let bits = |netdev: &Netdev| Some((netdev.name.clone(), flow_control(&netdev.name)?));
        physical.filter_map(bits).map(|(name, bits)| format!("{name} {bits}")).collect()
    });
    let pfc_of = |name: &str| {
        let bits = lines.iter().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
        let bits: u8 = bits.parse().ok()?;
        Some((0..8).filter(|priority| bits & 1 << priority != 0).collect())
    };
    netdevs.iter().map(|netdev| state(root, netdev, pfc_of(&netdev.name))).collect()
}

fn state(root: &Root, netdev: &Netdev, pfc: Option<Vec<u8>>) -> InterfaceState {
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
        counters: counters::of_interface(root, netdev),
        arp_ignore: setting("arp_ignore"),
        arp_announce: setting("arp_announce"),
        rp_filter: setting("rp_filter"),
        ipv6_disabled: root.value::<u8>(&disable_ipv6) == Some(1),
        roce_ecn: (netdev.kind == NetdevKind::Physical).then(|| ecn(root, &file("ecn"))).flatten(),
        pfc,
    }
}

/// Returns the priorities with congestion control at the notification point and at the reaction
/// point.
fn ecn(root: &Root, directory: &str) -> Option<(Vec<u8>, Vec<u8>)> {
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
    root.names(DEVICES).into_iter().filter_map(|name| adapter(root, inventory, name)).collect()
}

fn adapter(root: &Root, inventory: &Inventory, address: String) -> Option<PciAdapter> {
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
        counters: counters::of_port(root, device, port),
    };
    ports.map(state).collect()
}

/// Returns the RoCE version of the connection manager. The kernel has this file only after a user has
/// made the device's directory; that is left to them.
fn connection_manager_mode(root: &Root, device: &str, port: u8) -> Option<String> {
    root.text(&format!("/sys/kernel/config/rdma_cm/{device}/ports/{port}/default_roce_mode"))
}

/// Time limit for the look-up, after which the name counts as one without an address.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(3);
const HOSTNAME: &str = "/proc/sys/kernel/hostname";
/// Recorded files with addresses and sources, one a line.
const ADDRESSES: &str = "/own-addresses";
const OTHER_SOURCES: &str = "/other-name-sources";

/// Result of a look-up.
#[derive(Debug, Default)]
pub(super) struct FoundName {
    addresses: Vec<String>,
    /// Sources of names that were not asked.
    other_sources: Vec<String>,
}

/// Starts to look up this host's name. Returns `None` for a recorded host.
pub(super) fn look_up(root: &Root) -> Option<Background<FoundName>> {
    let name = root.is_live().then(|| root.text(HOSTNAME)).flatten()?;
    Some(Background::start(move || find(&name)))
}

/// Returns this host's name with its addresses, and the sources of names that were not asked.
pub(super) fn own_name(
    root: &Root,
    looked_up: Option<Background<FoundName>>,
) -> (OwnName, Vec<String>) {
    let found = looked_up.and_then(|lookup| lookup.wait(LOOKUP_TIMEOUT)).unwrap_or_default();
    let lines = root.socket_lines(ADDRESSES, || found.addresses);
    let addresses = lines.iter().filter_map(|line| line.parse::<IpAddr>().ok()).collect();
    let hostname = root.text(HOSTNAME).unwrap_or_default();
    (OwnName { hostname, addresses }, root.socket_lines(OTHER_SOURCES, || found.other_sources))
}

/// Looks up a name as programs do. The agent is linked statically and cannot ask the host's sources
/// of names itself; `getent` can.
fn find(name: &str) -> FoundName {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let Some(getent) = program::find("getent") else {
        let addresses = in_hosts(name, &read("/etc/hosts"));
        return FoundName { addresses, other_sources: other_sources(&read("/etc/nsswitch.conf")) };
    };
    let printed = program::output(&getent, &["ahosts", name]).unwrap_or_default();
    let addresses = printed.lines().filter_map(|line| line.split_whitespace().next());
    // Each address is printed once for each type of socket.
    let mut addresses: Vec<String> = addresses.map(str::to_owned).collect();
    addresses.dedup();
    FoundName { addresses, other_sources: Vec::new() }
}

/// Returns the addresses of a name in `/etc/hosts`.
fn in_hosts(name: &str, hosts: &str) -> Vec<String> {
    let address = |line: &str| {
        let mut words = line.split('#').next()?.split_whitespace();
        let address = words.next()?;
        words.any(|own| own.eq_ignore_ascii_case(name)).then(|| address.to_owned())
    };
    hosts.lines().filter_map(address).collect()
}

/// Returns the sources of names in `/etc/nsswitch.conf` except files. It has a line like
/// `hosts: files dns [NOTFOUND=return] myhostname # comment`; without it, files and DNS are asked.
fn other_sources(text: &str) -> Vec<String> {
    let line = text.lines().find_map(|line| line.trim().strip_prefix("hosts:"));
    let line = line.unwrap_or("files dns").split('#').next().unwrap_or_default();
    // Actions in brackets may have spaces.
    let outside = line.split('[').enumerate().map(|(part, text)| match part {
        0 => text,
        _ => text.split_once(']').map_or("", |(_, after)| after),
    });
    let sources = outside.flat_map(str::split_whitespace).filter(|source| *source != "files");
    sources.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_looked_up() {
        let hosts = "127.0.0.1 localhost\n10.0.0.7\tg7.lan G7 # old: 10.0.0.8 g8\n::1 g7\n";
        assert_eq!(in_hosts("g7", hosts), ["10.0.0.7", "::1"]);
        assert!(in_hosts("g8", hosts).is_empty());
        let addresses = find("localhost").addresses;
        assert!(addresses.iter().all(|own| own.parse::<IpAddr>().unwrap().is_loopback()));
        assert!(!addresses.is_empty());
    }

    #[test]
    fn sources_of_names_are_listed() {
        let text = "passwd: files\nhosts:  files sss [NOTFOUND = return] dns # local\n";
        assert_eq!(other_sources(text), ["sss", "dns"]);
        assert_eq!(other_sources("passwd: files"), ["dns"]);
    }
}
