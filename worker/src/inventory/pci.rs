//! PCI devices and the bridges above them.

use super::Root;
use rlaunch_bootstrap::inventory::pci::{Link, LinkRate, PciDevice};

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
        host_bridge: components.iter().find(|part| part.starts_with("pci")).map(|b| (*b).into()),
        links,
    })
}

/// The kernel says -1 where there is nothing to say.
pub(super) fn numa_node(root: &Root, path: &str) -> Option<u32> {
    root.value::<i64>(path).and_then(|node| u32::try_from(node).ok())
}

fn link(root: &Root, address: &str, directory: &str) -> Link {
    let rate = |which: &str| {
        let speed = root.text(&format!("{directory}/{which}_link_speed"))?;
        let width = root.text(&format!("{directory}/{which}_link_width"))?;
        LinkRate::parse(&speed, &width)
    };
    Link { address: address.to_owned(), current: rate("current"), most: rate("max") }
}

/// `0000:c3:00.0`.
pub(super) fn is_address(text: &str) -> bool {
    let mut parts = text.split([':', '.']);
    let mut hex = |least: usize, most: usize| {
        parts.next().is_some_and(|part| {
            (least..=most).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_hexdigit())
        })
    };
    // Domains behind VMD bridges have more than four digits.
    hex(4, 8) && hex(2, 2) && hex(2, 2) && hex(1, 1) && parts.next().is_none()
}
