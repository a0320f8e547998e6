//! Network interfaces, their addresses, and routes.

use super::{Root, devices, netlink};
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::SockaddrStorage;
use rlaunch_bootstrap::inventory::net::{Netdev, NetdevKind, Route};
use std::net::IpAddr;

const DIRECTORY: &str = "/sys/class/net";
/// File of a recording with the addresses; each line is `NAME ADDRESS/PREFIX`.
const ADDRESSES: &str = "/addresses";
/// File of a recording with the routes; each line is `NAME DESTINATION/PREFIX via GATEWAY`, or
/// without a gateway.
const ROUTES: &str = "/routes";
/// Values in the file `type` of an interface: IP over InfiniBand (ARPHRD_INFINIBAND), and loopback.
const INFINIBAND: u32 = 32;
const LOOPBACK: u32 = 772;

pub(super) fn read(root: &Root) -> Vec<Netdev> {
    let addresses = read_addresses(root);
    let netdev = |name: String| {
        let file = |file: &str| format!("{DIRECTORY}/{name}/{file}");
        let own = addresses.iter().filter(|(interface, ..)| *interface == name);
        Some(Netdev {
            index: root.value(&file("ifindex"))?,
            kind: find_kind(root, &name),
            mtu: root.value(&file("mtu")).unwrap_or(0),
            // The kernel reports -1 or an error if the speed is unknown, as without a carrier.
            speed: root.value::<i64>(&file("speed")).and_then(|speed| u32::try_from(speed).ok()),
            running: is_running(root, &name),
            hardware_address: root.text(&file("address")).filter(|text| !text.is_empty()),
            pci: pci_address(root, &name),
            port_name: root.text(&file("phys_port_name")).filter(|name| !name.is_empty()),
            device_port: root.value(&file("dev_port")),
            addresses: own.map(|(_, address, prefix)| (*address, *prefix)).collect(),
            name,
        })
    };
    let mut netdevs: Vec<Netdev> = root.names(DIRECTORY).into_iter().filter_map(netdev).collect();
    netdevs.sort_unstable_by(|one, other| (one.index, &one.name).cmp(&(other.index, &other.name)));
    netdevs
}

/// Reads the names and addresses of interfaces that have an address, which of them is loopback, and which can send.
pub(super) fn read_addressed(root: &Root) -> Vec<Netdev> {
    let mut netdevs: Vec<Netdev> = Vec::new();
    for (name, address, prefix) in read_addresses(root) {
        match netdevs.iter_mut().find(|netdev| netdev.name == name) {
            Some(netdev) => netdev.addresses.push((address, prefix)),
            None => {
                let addresses = vec![(address, prefix)];
                let running = is_running(root, &name);
                netdevs.push(Netdev { name, addresses, running, ..Netdev::default() });
            }
        }
    }
    let is_loopback =
        |netdev: &&mut Netdev| netdev.addresses.iter().any(|(address, _)| address.is_loopback());
    for netdev in netdevs.iter_mut().filter(is_loopback) {
        netdev.kind = NetdevKind::Loopback;
    }
    netdevs
}

/// Tells whether the interface is up. Drivers that do not track the state report `unknown`.
fn is_running(root: &Root, name: &str) -> bool {
    let state = root.text(&format!("{DIRECTORY}/{name}/operstate"));
    let carrier = root.value::<u8>(&format!("{DIRECTORY}/{name}/carrier"));
    match state.as_deref() {
        Some("up") => true,
        Some("unknown") => carrier == Some(1),
        _ => false,
    }
}

fn find_kind(root: &Root, name: &str) -> NetdevKind {
    let has = |file: &str| root.exists(&format!("{DIRECTORY}/{name}/{file}"));
    let link_type: u32 = root.value(&format!("{DIRECTORY}/{name}/type")).unwrap_or(0);
    let driver = root.link_name(&format!("{DIRECTORY}/{name}/device/driver"));
    match link_type {
        LOOPBACK => NetdevKind::Loopback,
        INFINIBAND => NetdevKind::Ipoib,
        _ if has("bonding") => NetdevKind::Bond,
        _ if has("bridge") => NetdevKind::Bridge,
        _ if driver.is_some_and(|driver| driver.starts_with("thunderbolt")) => {
            NetdevKind::Thunderbolt
        }
        _ if has("device") => NetdevKind::Physical,
        // A VLAN lists the interface below it; that of a veth is in another namespace.
        _ if root.names(&format!("{DIRECTORY}/{name}")).iter().any(|n| n.starts_with("lower_")) => {
            NetdevKind::Upper
        }
        _ => NetdevKind::Virtual,
    }
}

fn pci_address(root: &Root, name: &str) -> Option<String> {
    let real = root.real(&format!("{DIRECTORY}/{name}/device"))?;
    real.split('/').rev().find(|part| devices::is_address(part)).map(str::to_owned)
}

/// Reads the unicast routes that lead out of this machine.
pub(super) fn read_routes(root: &Root, netdevs: &[Netdev]) -> Vec<Route> {
    let leads_out = |netdev: &&Netdev| netdev.kind != NetdevKind::Loopback;
    let name_of = |index| {
        let netdev = netdevs.iter().filter(leads_out).find(|netdev| netdev.index == index);
        netdev.map(|netdev| netdev.name.clone())
    };
    let is_wanted = |route: &Route| !route.destination.is_multicast();
    let lines = root.asked_lines(ROUTES, || {
        let routes = netlink::list_routes(name_of).into_iter().filter(is_wanted);
        routes.map(|route| route.to_string()).collect()
    });
    lines.iter().filter_map(|line| line.parse().ok()).collect()
}

/// Reads the addresses of all interfaces: interface name, address, prefix length.
fn read_addresses(root: &Root) -> Vec<(String, IpAddr, u8)> {
    let lines = root.asked_lines(ADDRESSES, || {
        let entries = getifaddrs().into_iter().flatten();
        let line = |entry: nix::ifaddrs::InterfaceAddress| {
            let address = entry.address.as_ref().and_then(ip_address)?;
            let prefix = prefix_length(entry.netmask.as_ref().and_then(ip_address));
            // `eth0:1` is a label of an address of eth0.
            let name = entry.interface_name.split(':').next()?;
            Some(format!("{name} {address}/{prefix}"))
        };
        entries.filter_map(line).collect()
    });
    let parse = |line: &String| {
        let (name, address) = line.split_once(' ')?;
        let (address, prefix) = address.trim().split_once('/')?;
        Some((name.to_owned(), address.parse().ok()?, prefix.parse().ok()?))
    };
    lines.iter().filter_map(parse).collect()
}

/// Returns the prefix length of a network mask, 0 without a mask.
pub(crate) fn prefix_length(mask: Option<IpAddr>) -> u8 {
    let bits = match mask {
        Some(IpAddr::V4(mask)) => mask.to_bits().leading_ones(),
        Some(IpAddr::V6(mask)) => mask.to_bits().leading_ones(),
        None => 0,
    };
    u8::try_from(bits).unwrap_or(0)
}

/// Returns the IP address in a socket address of the kernel.
pub(crate) fn ip_address(storage: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = storage.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
    v4.or_else(|| storage.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
}
