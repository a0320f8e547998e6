//! PCI devices and the bridges above them; RDMA devices, from `/sys/class/infiniband`; GPUs,
//! recognised by their PCI class. Loading the vendor's library would take longer than reading
//! all the rest of the inventory.

use super::{Root, netlink};
use rlaunch_bootstrap::inventory::net::{Netdev, NetdevKind};
use rlaunch_bootstrap::inventory::pci::{LinkRate, PciDevice, PciLink};
use rlaunch_bootstrap::inventory::rdma::{
    Gid, GidKind, LinkLayer, NodeType, Port, PortState, RdmaDevice, Uverbs,
};
use rlaunch_bootstrap::inventory::{Gpu, GpuVendor};
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
pub(super) fn has_rdma(root: &Root) -> bool {
    !root.names(DIRECTORY).is_empty()
}

pub(super) fn read(root: &Root, netdevs: &[Netdev]) -> Vec<RdmaDevice> {
    let names = root.names(DIRECTORY);
    let context = PortContext { reported: reported_netdevs(root, !names.is_empty()), netdevs };
    names.into_iter().map(|name| read_device(root, name, &context)).collect()
}

/// Information for finding the network interface of a port.
struct PortContext<'a> {
    reported: Vec<ReportedNetdev>,
    netdevs: &'a [Netdev],
}

/// Interface of a port, as the kernel has reported it.
struct ReportedNetdev {
    device: String,
    port: u8,
    netdev: String,
}

fn reported_netdevs(root: &Root, is_there: bool) -> Vec<ReportedNetdev> {
    if !is_there {
        return Vec::new();
    }
    let lines = root.asked_lines(NETDEVS, || {
        let reported = netlink::rdma_netdevs().into_iter();
        reported.map(|(device, port, netdev)| format!("{device}/{port} {netdev}")).collect()
    });
    let parse = |line: &String| {
        let (port, netdev) = line.split_once(' ')?;
        let (device, number) = port.split_once('/')?;
        Some(ReportedNetdev {
            device: device.to_owned(),
            port: number.parse().ok()?,
            netdev: netdev.to_owned(),
        })
    };
    lines.iter().filter_map(parse).collect()
}

fn read_device(root: &Root, name: String, context: &PortContext<'_>) -> RdmaDevice {
    let file = |file: &str| format!("{DIRECTORY}/{name}/{file}");
    let pci = read_pci(root, &file("device"));
    let mut device = RdmaDevice {
        node_type: node_type(&root.text(&file("node_type")).unwrap_or_default()),
        driver: find_driver(root, &name),
        firmware: root.text(&file("fw_ver")).filter(|text| !text.is_empty()),
        node_guid: root.text(&file("node_guid")),
        image_guid: root.text(&file("sys_image_guid")),
        numa_node: numa_node(root, &file("device/numa_node")),
        cpus: root.value(&file("device/local_cpulist")),
        uverbs: find_uverbs(root, &name),
        ports: Vec::new(),
        pci,
        name,
    };
    let numbers = root.names(&format!("{DIRECTORY}/{}/ports", device.name));
    let numbers: Vec<u8> = numbers.iter().filter_map(|number| number.parse().ok()).collect();
    for number in numbers {
        let port = read_port(root, &device, number, context);
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
fn find_driver(root: &Root, name: &str) -> Option<String> {
    let pci = root.link_name(&format!("{DIRECTORY}/{name}/device/driver"));
    let verbs = uverbs_of(root, name);
    // Present only if a driver offers verbs for the device.
    let served = verbs.and_then(|verbs| root.text(&format!("{VERBS}/{verbs}/abi_version")));
    let software = || {
        let is = |module: &str| root.exists(&format!("/sys/module/{module}"));
        let has_parent = root.exists(&format!("{DIRECTORY}/{name}/parent"));
        let (has_rxe, has_siw) = (is("rdma_rxe"), is("siw"));
        // The file `parent` is rxe's. A device without it is taken for siw's, if that is loaded.
        if has_rxe && (has_parent || !has_siw) { Some("rxe") } else { has_siw.then_some("siw") }
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

fn find_uverbs(root: &Root, name: &str) -> Uverbs {
    let Some(verbs) = uverbs_of(root, name) else { return Uverbs::Missing };
    let path = format!("/dev/infiniband/{verbs}");
    match root.may_open(&path) {
        Some(true) => Uverbs::Usable(path),
        Some(false) => Uverbs::Denied(path),
        None => Uverbs::Missing,
    }
}

fn read_port(root: &Root, device: &RdmaDevice, number: u8, context: &PortContext<'_>) -> Port {
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
    let mut gids: Vec<Gid> =
        slots.iter().filter_map(|&slot| read_gid(root, &directory, slot)).collect();
    if link_layer == LinkLayer::Ethernet {
        gids.iter_mut().for_each(|gid| drop_foreign_netdev(gid, context.netdevs));
    }
    let netdev = find_netdev(root, device, number, link_layer, &gids, context);
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
fn read_gid(root: &Root, directory: &str, index: u16) -> Option<Gid> {
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
        || link_local.is_some_and(|mac| netdev.hardware_address == Some(mac_text(mac)))
}

/// Finds the network interface of a port. Tries in this order: the interface that the kernel
/// reports, the one in the port's GIDs, the one to which a software device is attached, the one of
/// the same card with the same port number, and the one with the MAC address in an iWARP GID.
fn find_netdev(
    root: &Root,
    device: &RdmaDevice,
    number: u8,
    link_layer: LinkLayer,
    gids: &[Gid],
    context: &PortContext<'_>,
) -> Option<String> {
    let netdevs = context.netdevs;
    let known = |name: &str| netdevs.iter().any(|netdev| netdev.name == name);
    let is_port = |one: &&ReportedNetdev| one.device == device.name && one.port == number;
    let reported = context.reported.iter().find(is_port).map(|reported| &reported.netdev);
    if let Some(netdev) = reported.filter(|netdev| known(netdev)) {
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
    let mac = Some(mac_text([a, b, c, d, e, f]));
    netdevs.iter().find(|netdev| netdev.hardware_address == mac).map(|netdev| netdev.name.clone())
}

/// Formats a MAC address as the kernel does.
fn mac_text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// Returns the largest InfiniBand MTU that fits into an interface's MTU.
fn roce_mtu(mtu: u32) -> Option<u32> {
    MTUS.into_iter().find(|&size| mtu >= size + ROCE_OVERHEAD)
}

/// Reads a PCI device from its sysfs directory, or a link to it. Returns `None` if the path is not
/// that of a PCI device.
pub(super) fn read_pci(root: &Root, path: &str) -> Option<PciDevice> {
    let real = root.real(path)?;
    // Some devices, like virtio's, are below a PCI function; the function is what counts.
    let components: Vec<&str> = real.split('/').filter(|part| !part.is_empty()).collect();
    let last = components.iter().rposition(|part| is_address(part))?;
    let below = |index: usize| format!("/{}", components[..=index].join("/"));
    let on_the_way = (0..=last).rev().filter(|&index| is_address(components[index]));
    let links = on_the_way.map(|index| read_link(root, components[index], &below(index))).collect();
    let file = |name: &str| format!("{}/{name}", below(last));
    let id = |name: &str| root.hex(&file(name)).and_then(|id| u16::try_from(id).ok());
    Some(PciDevice {
        address: components[last].to_owned(),
        vendor: id("vendor"),
        device: id("device"),
        driver: root.link_name(&file("driver")),
        numa_node: numa_node(root, &file("numa_node")),
        ats: None,
        physical_function: root.link_name(&file("physfn")),
        host_bridge: components.iter().find(|part| part.starts_with("pci")).map(|b| (*b).into()),
        links,
    })
}

/// Reads a NUMA node from a file, where the kernel writes -1 if the node is unknown.
pub(super) fn numa_node(root: &Root, path: &str) -> Option<u32> {
    root.value::<i64>(path).and_then(|node| u32::try_from(node).ok())
}

fn read_link(root: &Root, address: &str, directory: &str) -> PciLink {
    let rate = |which: &str| {
        let speed = root.text(&format!("{directory}/{which}_link_speed"))?;
        let width = root.text(&format!("{directory}/{which}_link_width"))?;
        LinkRate::parse(&speed, &width)
    };
    let (current, max) = (rate("current"), rate("max"));
    PciLink { address: address.to_owned(), current, max, acs: None }
}

/// Extended capabilities that decide which path data takes between two devices: ACS of bridges and
/// ATS of devices. The control register of both is at offset 6.
const ACS: u16 = 0x000d;
const ATS: u16 = 0x000f;
/// Bits of the ACS control register: requests and completions are redirected up to the host bridge.
const REDIRECT: u16 = 1 << 2 | 1 << 3;
/// Bit of the ATS control register: ATS is enabled.
const ENABLE: u16 = 1 << 15;

/// Reads the capabilities of a device and of the bridges above it. Only root can read them.
pub(super) fn read_capabilities(root: &Root, pci: &mut PciDevice) {
    pci.ats =
        control_register(root, &pci.address, ATS).flatten().map(|control| control & ENABLE != 0);
    for bridge in pci.links.iter_mut().skip(1) {
        let control = control_register(root, &bridge.address, ACS);
        // A bridge without the capability redirects nothing.
        bridge.acs = control.map(|control| control.unwrap_or(0) & REDIRECT != 0);
    }
}

/// Offsets in the configuration space, in bytes, at which extended capabilities begin and end.
const EXTENDED: u16 = 0x100;
const END: u16 = 0x1000;

/// Returns the control register of an extended capability, or `Some(None)` if the device lacks the
/// capability; `None` if the configuration cannot be read. Skips all registers in between, because reading some
/// of them hangs some devices.
fn control_register(root: &Root, address: &str, capability: u16) -> Option<Option<u16>> {
    let path = format!("/sys/bus/pci/devices/{address}/config");
    let mut offset = EXTENDED;
    // As many capabilities as fit at most; lists of broken devices may be circular.
    for _ in 0..(END - EXTENDED) / 8 {
        let [a, b, c, d, .., e, f] = root.bytes_at::<8>(&path, offset)?;
        let header = u32::from_le_bytes([a, b, c, d]);
        if header & 0xffff == u32::from(capability) {
            return Some(Some(u16::from_le_bytes([e, f])));
        }
        // The value has twelve bits.
        offset = (header >> 20) as u16 & !3;
        if !(EXTENDED..END).contains(&offset) {
            break;
        }
    }
    Some(None)
}

/// Tells whether the text is a PCI address like `0000:c3:00.0`.
pub(super) fn is_address(text: &str) -> bool {
    let mut parts = text.split([':', '.']);
    let mut hex = |least: usize, most: usize| {
        parts.next().is_some_and(|part| {
            (least..=most).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_hexdigit())
        })
    };
    // Domains of VMD bridges have more than four digits.
    hex(4, 8) && hex(2, 2) && hex(2, 2) && hex(1, 1) && parts.next().is_none()
}

const DEVICES: &str = "/sys/bus/pci/devices";
const DRIVEN: &str = "/sys/bus/pci/drivers";
const DRIVERS: [&str; 2] = ["amdgpu", "nvidia"];
/// PCI classes of GPUs: display controllers, and processing accelerators (AMD Instinct).
const CLASSES: [u64; 2] = [0x03, 0x12];

/// Reads all GPUs, with or without a driver.
pub(super) fn read_gpus(root: &Root) -> Vec<Gpu> {
    root.names(DEVICES).iter().filter_map(|name| read_gpu(root, name)).collect()
}

/// Reads the GPUs that programs can use, that is, those with a driver. Uses the drivers' lists of
/// devices, so that no other PCI device is read.
pub(super) fn read_driven_gpus(root: &Root) -> Vec<Gpu> {
    driven_names(root).iter().filter_map(|name| read_gpu(root, name)).collect()
}

/// Counts the GPUs that programs can use, without reading the details of each.
pub(super) fn count_gpus(root: &Root) -> usize {
    driven_names(root).iter().filter(|name| gpu_vendor(root, name).is_some()).count()
}

/// Returns the PCI addresses of all devices with a GPU driver, sorted.
fn driven_names(root: &Root) -> Vec<String> {
    let names = DRIVERS.iter().flat_map(|driver| root.names(&format!("{DRIVEN}/{driver}")));
    let mut names: Vec<String> = names.filter(|name| is_address(name)).collect();
    names.sort_unstable();
    names
}

/// Tells whether this machine has a GPU that programs can use.
pub(super) fn has_gpus(root: &Root) -> bool {
    let is_driven = |name: &String| is_address(name);
    DRIVERS.iter().any(|driver| root.names(&format!("{DRIVEN}/{driver}")).iter().any(is_driven))
}

/// Returns the vendor, or `None` if the device is not a GPU.
fn gpu_vendor(root: &Root, name: &str) -> Option<GpuVendor> {
    let vendor = match root.hex(&format!("{DEVICES}/{name}/vendor"))? {
        0x10de => GpuVendor::Nvidia,
        0x1002 => GpuVendor::Amd,
        _ => return None,
    };
    let class = root.hex(&format!("{DEVICES}/{name}/class"))? >> 16;
    CLASSES.contains(&class).then_some(vendor)
}

fn read_gpu(root: &Root, name: &str) -> Option<Gpu> {
    let directory = format!("{DEVICES}/{name}");
    let vendor = gpu_vendor(root, name)?;
    let pci = read_pci(root, &directory)?;
    Some(Gpu { vendor, model: gpu_model(root, vendor, name, &directory), pci })
}

fn gpu_model(root: &Root, vendor: GpuVendor, address: &str, directory: &str) -> Option<String> {
    match vendor {
        GpuVendor::Nvidia => {
            let path = format!("/proc/driver/nvidia/gpus/{address}/information");
            let text = root.text(&path)?;
            let line = text.lines().find_map(|line| line.strip_prefix("Model:"))?;
            Some(line.trim().to_owned())
        }
        GpuVendor::Amd => {
            root.text(&format!("{directory}/product_name")).filter(|name| !name.is_empty())
        }
    }
}
