//! PCI devices and the bridges above them.

use super::Root;
use rlaunch_bootstrap::inventory::pci::{LinkRate, PciDevice, PciLink};

/// Reads a PCI device from its sysfs directory, or a link to it. Returns `None` if the path is not
/// that of a PCI device.
pub(super) fn read(root: &Root, path: &str) -> Option<PciDevice> {
    let real = root.real(path)?;
    // Some devices, like virtio's, are below a PCI function; the function is what counts.
    let components: Vec<&str> = real.split('/').filter(|part| !part.is_empty()).collect();
    let last = components.iter().rposition(|part| is_address(part))?;
    let below = |index: usize| format!("/{}", components[..=index].join("/"));
    let on_the_way = (0..=last).rev().filter(|&index| is_address(components[index]));
    let links = on_the_way.map(|index| link(root, components[index], &below(index))).collect();
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

fn link(root: &Root, address: &str, directory: &str) -> PciLink {
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
    pci.ats = control(root, &pci.address, ATS).flatten().map(|control| control & ENABLE != 0);
    for bridge in pci.links.iter_mut().skip(1) {
        let control = control(root, &bridge.address, ACS);
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
fn control(root: &Root, address: &str, capability: u16) -> Option<Option<u16>> {
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
