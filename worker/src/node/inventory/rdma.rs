//! RDMA devices, from `/sys/class/infiniband`.

use super::{Root, netlink, pci};
use rlaunch_bootstrap::inventory::net::{Netdev, NetdevKind};
use rlaunch_bootstrap::inventory::rdma::{
    Gid, GidKind, LinkLayer, NodeType, Port, PortState, RdmaDevice, Uverbs,
};
use std::net::Ipv6Addr;

const DIRECTORY: &str = "/sys/class/infiniband";
/// File of a recording with the interfaces of ports; each line is `DEVICE/PORT NETDEV`.
const NETDEVS: &str = "/rdma-netdevs";
const VERBS: &str = "/sys/class/infiniband_verbs";
/// Bytes that RoCE adds to a packet's data: GRH or IP, UDP, BTH, the longest extension, checksums
/// (`iboe_get_mtu`, include/rdma/ib_addr.h).
const ROCE_OVERHEAD: u32 = 40 + 8 + 12 + 4 + 28 + 4;
const MTUS: [u32; 5] = [4096, 2048, 1024, 512, 256];

/// Tells whether this machine has an RDMA device; reads one directory.
pub(super) fn is_there(root: &Root) -> bool {
    !root.names(DIRECTORY).is_empty()
}

pub(super) fn read(root: &Root, netdevs: &[Netdev]) -> Vec<RdmaDevice> {
    let names = root.names(DIRECTORY);
    let context = PortContext { reported: reported_netdevs(root, !names.is_empty()), netdevs };
    names.into_iter().map(|name| device(root, name, &context)).collect()
}

/// Information for finding the network interface of a port.
struct PortContext<'a> {
    /// Device name, port number and interface name, as the kernel has reported them.
    reported: Vec<(String, u8, String)>,
    netdevs: &'a [Netdev],
}

fn reported_netdevs(root: &Root, is_there: bool) -> Vec<(String, u8, String)> {
    if !is_there {
        return Vec::new();
    }
    let lines = root.socket_lines(NETDEVS, || {
        let reported = netlink::rdma_netdevs().into_iter();
        reported.map(|(device, port, netdev)| format!("{device}/{port} {netdev}")).collect()
    });
    let parse = |line: &String| {
        let (port, netdev) = line.split_once(' ')?;
        let (device, number) = port.split_once('/')?;
        Some((device.to_owned(), number.parse().ok()?, netdev.to_owned()))
    };
    lines.iter().filter_map(parse).collect()
}

fn device(root: &Root, name: String, context: &PortContext<'_>) -> RdmaDevice {
    let file = |file: &str| format!("{DIRECTORY}/{name}/{file}");
    let pci = pci::read(root, &file("device"));
    let mut device = RdmaDevice {
        node_type: node_type(&root.text(&file("node_type")).unwrap_or_default()),
        driver: driver(root, &name),
        firmware: root.text(&file("fw_ver")).filter(|text| !text.is_empty()),
        node_guid: root.text(&file("node_guid")),
        image_guid: root.text(&file("sys_image_guid")),
        numa_node: pci::numa_node(root, &file("device/numa_node")),
        cpus: root.value(&file("device/local_cpulist")),
        uverbs: uverbs(root, &name),
        ports: Vec::new(),
        pci,
        name,
    };
    let numbers = root.names(&format!("{DIRECTORY}/{}/ports", device.name));
    let numbers: Vec<u8> = numbers.iter().filter_map(|number| number.parse().ok()).collect();
    for number in numbers {
        let port = port(root, &device, number, context);
        device.ports.push(port);
    }
    device
}

/// Parses the file `node_type`, for example `1: CA`.
fn node_type(text: &str) -> NodeType {
    match text.split(':').next() {
        Some("1") => NodeType::ChannelAdapter,
        Some("4") => NodeType::Rnic,
        _ => NodeType::Other,
    }
}

/// Returns the driver of the device's PCI function. Software devices (rxe, siw) have no PCI
/// function; their driver is recognised by their files.
fn driver(root: &Root, name: &str) -> Option<String> {
    let pci = root.link_name(&format!("{DIRECTORY}/{name}/device/driver"));
    let verbs = uverbs_of(root, name);
    // Present only if a driver offers verbs for the device.
    let served = verbs.and_then(|verbs| root.text(&format!("{VERBS}/{verbs}/abi_version")));
    let software = || {
        let is = |module: &str| root.exists(&format!("/sys/module/{module}"));
        let parent = root.exists(&format!("{DIRECTORY}/{name}/parent"));
        match (is("rdma_rxe"), is("siw")) {
            (true, _) if parent => Some("rxe"),
            (_, true) => Some("siw"),
            (true, false) => Some("rxe"),
            _ => None,
        }
    };
    match pci {
        Some(driver) if driver != "virtio_net" => Some(driver),
        _ => served.and_then(|_| software().map(str::to_owned)),
    }
}

fn uverbs_of(root: &Root, name: &str) -> Option<String> {
    let is_of =
        |verbs: &String| root.text(&format!("{VERBS}/{verbs}/ibdev")).as_deref() == Some(name);
    root.names(VERBS).into_iter().find(is_of)
}

fn uverbs(root: &Root, name: &str) -> Uverbs {
    let Some(verbs) = uverbs_of(root, name) else { return Uverbs::Missing };
    let path = format!("/dev/infiniband/{verbs}");
    match root.may_open(&path) {
        Some(true) => Uverbs::Usable(path),
        Some(false) => Uverbs::Denied(path),
        None => Uverbs::Missing,
    }
}

fn port(root: &Root, device: &RdmaDevice, number: u8, context: &PortContext<'_>) -> Port {
    let directory = format!("{DIRECTORY}/{}/ports/{number}", device.name);
    let text = |name: &str| root.text(&format!("{directory}/{name}"));
    let lid = |name: &str| root.hex(&format!("{directory}/{name}")).map(|lid| lid as u16);
    let link_layer = match text("link_layer").as_deref() {
        Some("InfiniBand") => LinkLayer::InfiniBand,
        Some("Ethernet") => LinkLayer::Ethernet,
        _ => LinkLayer::Unknown,
    };
    let slots: Vec<u16> =
        root.names(&format!("{directory}/gids")).iter().filter_map(|i| i.parse().ok()).collect();
    let mut gids: Vec<Gid> = slots.iter().filter_map(|&slot| gid(root, &directory, slot)).collect();
    if link_layer == LinkLayer::Ethernet {
        gids.iter_mut().for_each(|gid| drop_foreign_netdev(gid, context.netdevs));
    }
    let netdev = netdev(root, device, number, link_layer, &gids, context);
    let of_port = netdev.as_ref().and_then(|name| context.netdevs.iter().find(|n| n.name == *name));
    Port {
        number,
        state: text("state").map(|state| PortState::parse(&state)).unwrap_or_default(),
        physical_state: text("phys_state").map(|s| after_colon(&s)),
        link_layer,
        lid: lid("lid"),
        sm_lid: lid("sm_lid"),
        rate: text("rate").filter(|rate| !rate.is_empty()),
        mtu: of_port.filter(|_| link_layer == LinkLayer::Ethernet).and_then(|n| roce_mtu(n.mtu)),
        netdev,
        gid_table_length: slots.len(),
        gids,
    }
}

/// Returns the name after the number, such as `LinkUp` for `5: LinkUp`.
fn after_colon(text: &str) -> String {
    text.split_once(':').map_or(text, |(_, name)| name).trim().to_owned()
}

/// Reads an entry of the GID table; `None` for an empty one, which is zero or cannot be read.
fn gid(root: &Root, directory: &str, index: u16) -> Option<Gid> {
    let value: Ipv6Addr = root.value(&format!("{directory}/gids/{index}"))?;
    if value.is_unspecified() {
        return None;
    }
    let attribute = |name: &str| root.text(&format!("{directory}/gid_attrs/{name}/{index}"));
    let kind = attribute("types").map(|kind| GidKind::parse(&kind)).unwrap_or_default();
    Some(Gid { index, value, kind, netdev: attribute("ndevs").filter(|name| !name.is_empty()) })
}

/// Removes the interface name from a GID entry if the local interface of that name is a different
/// one. The kernel reports the name even if the interface is in another network namespace, and in a
/// pod names like `eth0` are used by other pods as well. The entry belongs to the local interface
/// only if the GID is derived from one of that interface's addresses.
fn drop_foreign_netdev(gid: &mut Gid, netdevs: &[Netdev]) {
    let here = netdevs.iter().find(|netdev| gid.netdev.as_ref() == Some(&netdev.name));
    if here.is_some_and(|netdev| !is_made_of(gid, netdev)) {
        gid.netdev = None;
    }
}

/// Tells whether a GID is derived from an interface: the GID is one of the interface's addresses,
/// or the link-local address made of its MAC address, whether or not the interface has that
/// address.
fn is_made_of(gid: &Gid, netdev: &Netdev) -> bool {
    let link_local = match gid.value.octets() {
        [0xfe, 0x80, .., a, b, c, 0xff, 0xfe, d, e, f] => Some([a ^ 2, b, c, d, e, f]),
        _ => None,
    };
    netdev.addresses.iter().any(|(address, _)| *address == gid.ip())
        || link_local.is_some_and(|mac| netdev.hardware_address == Some(text_of(mac)))
}

/// Finds the network interface of a port. Tries in this order: the interface that the kernel
/// reports, the one in the port's GIDs, the one to which a software device is attached, the one of
/// the same card with the same port number, and the one with the MAC address in an iWARP GID.
fn netdev(
    root: &Root,
    device: &RdmaDevice,
    number: u8,
    link_layer: LinkLayer,
    gids: &[Gid],
    context: &PortContext<'_>,
) -> Option<String> {
    let netdevs = context.netdevs;
    let known = |name: &str| netdevs.iter().any(|netdev| netdev.name == name);
    let is_port = |(name, port, _): &&(String, u8, String)| *name == device.name && *port == number;
    if let Some((.., netdev)) =
        context.reported.iter().find(is_port).filter(|reported| known(&reported.2))
    {
        return Some(netdev.clone());
    }
    let of_gids = gids.iter().filter_map(|gid| gid.netdev.as_deref()).find(|name| known(name));
    if let Some(name) = of_gids {
        return Some(name.to_owned());
    }
    if let Some(parent) = root.text(&format!("{DIRECTORY}/{}/parent", device.name)) {
        return known(&parent).then_some(parent);
    }
    let card = device.pci.as_ref().map(|pci| &pci.address);
    let fits = |netdev: &&Netdev| {
        let is_ipoib = netdev.kind == NetdevKind::Ipoib;
        is_ipoib == (link_layer == LinkLayer::InfiniBand)
    };
    let mut same_card =
        netdevs.iter().filter(|n| card.is_some() && n.pci.as_ref() == card).filter(fits);
    let by_number = |n: &&Netdev| n.device_port == u16::from(number).checked_sub(1);
    let found = same_card.find(by_number).map(|netdev| netdev.name.clone());
    // eRDMA is a PCI function of its own beside that of its interface.
    found.or_else(|| by_hardware_address(gids, netdevs))
}

/// Finds an interface by its MAC address, which an iWARP GID contains.
fn by_hardware_address(gids: &[Gid], netdevs: &[Netdev]) -> Option<String> {
    let gid = gids.iter().find(|gid| gid.is_mac())?;
    let [a, b, c, d, e, f, ..] = gid.value.octets();
    let mac = Some(text_of([a, b, c, d, e, f]));
    netdevs.iter().find(|netdev| netdev.hardware_address == mac).map(|netdev| netdev.name.clone())
}

/// Formats a MAC address as the kernel does.
fn text_of(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// Returns the largest InfiniBand MTU that fits into an interface's MTU.
fn roce_mtu(mtu: u32) -> Option<u32> {
    MTUS.into_iter().find(|&size| mtu >= size + ROCE_OVERHEAD)
}
