//! `rlaunch topo --tree`: a tree of NUMA nodes, bridges, GPUs and NICs.

use super::model;
use rlaunch_bootstrap::inventory::pci::{PciDevice, PciLink, gigabits};
use rlaunch_bootstrap::inventory::{Inventory, NumaNode};
use std::collections::BTreeMap;

/// Node of the printed tree, with the nodes below it.
#[derive(Default)]
struct Branch {
    label: String,
    below: BTreeMap<String, Branch>,
}

impl Branch {
    fn child(&mut self, key: &str, label: impl FnOnce() -> String) -> &mut Branch {
        let make = || Branch { label: label(), below: BTreeMap::new() };
        self.below.entry(key.to_owned()).or_insert_with(make)
    }

    fn draw(&self, text: &mut String, before: &str) {
        let last = self.below.len().saturating_sub(1);
        for (number, branch) in self.below.values().enumerate() {
            let (corner, bar) =
                if number == last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
            *text += &format!("{before}{corner}{}\n", branch.label);
            branch.draw(text, &format!("{before}{bar}"));
        }
    }
}

pub(super) fn format(host: &str, inventory: &Inventory) -> String {
    let mut root = Branch::default();
    for node in &inventory.numa_nodes {
        root.child(&key(Some(node.number)), || numa_label(node));
    }
    for gpu in &inventory.gpus {
        let model = model(gpu);
        let place = node_of(&mut root, &gpu.pci, &inventory.numa_nodes);
        place.label = format!("{} GPU {model}{}", gpu.pci.address, link(gpu.pci.links.first()));
    }
    for device in &inventory.rdma {
        let interfaces: Vec<&str> =
            device.ports.iter().filter_map(|port| port.netdev.as_deref()).collect();
        let interfaces = match interfaces.is_empty() {
            true => String::new(),
            false => format!(" ({})", interfaces.join(", ")),
        };
        match &device.pci {
            Some(pci) => {
                let place = node_of(&mut root, pci, &inventory.numa_nodes);
                let (address, link) = (&pci.address, link(pci.links.first()));
                place.label = format!("{address} NIC {}{interfaces}{link}", device.name);
            }
            None => {
                let label = format!("NIC {}{interfaces}, software", device.name);
                root.child(&format!("software {}", device.name), || label);
            }
        }
    }
    let mut text = format!("{host}\n");
    root.draw(&mut text, "");
    text
}

/// Returns a key that sorts NUMA nodes by number, and devices without one behind them.
fn key(numa_node: Option<u32>) -> String {
    numa_node.map_or("numa ?".to_owned(), |number| format!("numa {number:06}"))
}

fn numa_label(node: &NumaNode) -> String {
    let memory = node.memory.map(|bytes| format!(", {:.1} GiB", bytes as f64 / super::GIB as f64));
    format!("NUMA node {}: CPUs {}{}", node.number, node.cpus, memory.unwrap_or_default())
}

/// Returns the tree's node of a device, below its NUMA node, host bridge and bridges.
fn node_of<'a>(root: &'a mut Branch, pci: &PciDevice, nodes: &[NumaNode]) -> &'a mut Branch {
    // If there is only one NUMA node, firmware often does not report it.
    let only = match nodes {
        [only] => Some(only.number),
        _ => None,
    };
    let numa_node = pci.numa_node.or(only);
    let unknown = || match numa_node {
        Some(number) => format!("NUMA node {number}"),
        None => "NUMA node not known".to_owned(),
    };
    let mut place = root.child(&key(numa_node), unknown);
    if let Some(bridge) = &pci.host_bridge {
        place = place.child(bridge, || format!("host bridge {bridge}"));
    }
    for bridge in pci.links.iter().skip(1).rev() {
        let redirects = if bridge.acs == Some(true) { ", ACS redirects" } else { "" };
        let label = || format!("{} bridge{}{redirects}", bridge.address, link(Some(bridge)));
        place = place.child(&bridge.address, label);
    }
    place.child(&pci.address, String::new)
}

/// Formats the speed of a link, and its maximum if higher: `, 504.112 Gb/s (32.0 GT/s PCIe x16)`.
fn link(link: Option<&PciLink>) -> String {
    let Some(PciLink { current: Some(current), max: most, .. }) = link else {
        return String::new();
    };
    let slower = most.filter(|most| most.megabits() > current.megabits());
    let most = slower.map(|most| format!(" of {}", gigabits(most.megabits()))).unwrap_or_default();
    format!(", {}{most} Gb/s ({current})", gigabits(current.megabits()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlaunch_plan::testing::inventory;
    use rlaunch_plan::testing::is_golden;

    #[test]
    fn machines_are_drawn() {
        is_golden("tree-connectx3", &format("pc1", &inventory("connectx3")));
        is_golden("tree-dgx", &format("dgx1", &inventory("dgx")));
        let drawn = format("vm1", &inventory("rxe"));
        assert!(drawn.ends_with("└─ NIC rxe0 (ens2), software\n"), "{drawn}");
    }
}
