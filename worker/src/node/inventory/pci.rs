//! PCI devices and the bridges above them.

use super::Root;
use rlaunch_bootstrap::inventory::pci::{LinkRate, PciDevice, PciLink};

/// The device whose directory in sysfs, or a link to it, is `path`; `None` when it is no PCI
/// device.
pub(super) fn read(root: &Root, path: &str) -> Option<PciDevice> {
    let real = root.real(path)?;
    // A device may hang below a PCI function, as virtio's do: the function is what counts.
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

/// The kernel says -1 where there is nothing to say.
pub(super) fn numa_node(root: &Root, path: &str) -> Option<u32> {
    root.value::<i64>(path).and_then(|node| u32::try_from(node).ok())
}

fn link(root: &Root, address: &str, directory: &str) -> PciLink {
    let rate = |which: &str| {
        let speed = root.text(&format!("{directory}/{which}_link_speed"))?;
        let width = root.text(&format!("{directory}/{which}_link_width"))?;
        LinkRate::parse(&speed, &width)
    };
    let (current, most) = (rate("current"), rate("max"));
    PciLink { address: address.to_owned(), current, most, acs: None }
}

/// Extended capabilities that decide which way data takes between two devices: ACS of bridges, ATS
/// of devices. Both have their control register at 6.
const ACS: u16 = 0x000d;
const ATS: u16 = 0x000f;
/// ACS: requests, and their completions, go up to the host bridge.
const REDIRECT: u16 = 1 << 2 | 1 << 3;
/// ATS is on.
const ENABLE: u16 = 1 << 15;

/// What only root can read of a device and of the bridges above it.
pub(super) fn read_capabilities(root: &Root, pci: &mut PciDevice) {
    pci.ats = control(root, &pci.address, ATS).map(|control| control & ENABLE != 0);
    for bridge in pci.links.iter_mut().skip(1) {
        let control = control(root, &bridge.address, ACS);
        bridge.acs = control.map(|control| control & REDIRECT != 0);
    }
}

/// Where extended capabilities begin, and where they end.
const EXTENDED: u16 = 0x100;
const END: u16 = 0x1000;

/// The control register of an extended capability: 0 without that, `None` when none can be read.
/// Nothing between is read, as some devices do not survive that.
fn control(root: &Root, address: &str, capability: u16) -> Option<u16> {
    let path = format!("/sys/bus/pci/devices/{address}/config");
    let mut offset = EXTENDED;
    // More capabilities do not fit: broken devices have lists without an end.
    for _ in 0..(END - EXTENDED) / 8 {
        let [a, b, c, d, .., e, f] = root.bytes_at::<8>(&path, offset)?;
        let header = u32::from_le_bytes([a, b, c, d]);
        if header & 0xffff == u32::from(capability) {
            return Some(u16::from_le_bytes([e, f]));
        }
        // Twelve bits fit.
        offset = (header >> 20) as u16 & !3;
        if !(EXTENDED..END).contains(&offset) {
            break;
        }
    }
    Some(0)
}

/// `0000:c3:00.0`.
pub(super) fn is_address(text: &str) -> bool {
    let mut parts = text.split([':', '.']);
    let mut hex = |least: usize, most: usize| {
        parts.next().is_some_and(|part| {
            (least..=most).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_hexdigit())
        })
    };
    // Domains context VMD bridges have more than four digits.
    hex(4, 8) && hex(2, 2) && hex(2, 2) && hex(1, 1) && parts.next().is_none()
}
