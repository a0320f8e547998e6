//! Box of a host: its NUMA nodes, in them PCIe switches, GPUs, ports and ranks.

use super::ports::HostPort;
use super::uses::{HostUses, RankUse};
use rlaunch_bootstrap::inventory::pci::{Distance, PciDevice};
use rlaunch_bootstrap::inventory::{CpuSet, Gpu, GpuVendor, Inventory, NumaNode};
use rlaunch_plot::topology::{DeviceGroup, GpuBox, HostBox, PortRow, Section};
use rlaunch_text::text;
use std::collections::BTreeMap;

/// Maximum number of ports that are drawn of a host.
const MAX_PORTS: usize = 24;
/// Maximum number of ranks in one group of devices that have rows of their own.
const MAX_RANKS: usize = 12;
/// Maximum length of a list of CPUs, in letters.
const MAX_CPUS: usize = 18;
const GIB: u64 = 1 << 30;

/// Device of a host.
#[derive(Clone, Copy)]
enum DrawnDevice<'a> {
    Gpu(&'a Gpu),
    /// Port with the index of its network.
    Port(&'a HostPort<'a>, Option<usize>),
}

/// Devices of a NUMA node near each other, and ranks.
#[derive(Default)]
struct NearDevices<'a> {
    /// Whether the devices are below one PCIe switch.
    is_switch: bool,
    devices: Vec<DrawnDevice<'a>>,
    ranks: Vec<&'a RankUse>,
}

/// Draws a host. `networks` has the index of each port's network; `uses` says which ranks use what, if the picture shows
/// ranks.
pub(super) fn host_box(
    name: &str,
    inventory: &Inventory,
    (ports, networks): (&[HostPort<'_>], &[Option<usize>]),
    uses: Option<&HostUses>,
) -> HostBox {
    let mut shown: Vec<(&HostPort<'_>, Option<usize>)> =
        ports.iter().zip(networks.iter().copied()).collect();
    // An interface of software is of interest if it connects hosts, or if there is no other.
    let has_major = shown.iter().any(|(port, _)| !port.is_minor);
    shown.retain(|(port, network)| !port.is_minor || network.is_some() || !has_major);
    let left_out = shown.len().saturating_sub(MAX_PORTS);
    if left_out > 0 {
        // Ports that connect hosts come first, and keep their order.
        shown.sort_by_key(|(_, network)| network.is_none());
        shown.truncate(MAX_PORTS);
    }
    let mut by_numa: BTreeMap<NumaPlace, Vec<DrawnDevice<'_>>> = BTreeMap::new();
    for node in inventory.numa_nodes.iter().filter(|node| !node.cpus.is_empty()) {
        by_numa.entry(NumaPlace::Node(node.number)).or_default();
    }
    let gpus = inventory.gpus.iter().map(|gpu| (gpu.pci.numa_node, DrawnDevice::Gpu(gpu)));
    let ports = shown.iter().map(|(port, net)| (port.numa_node, DrawnDevice::Port(port, *net)));
    for (numa, device) in gpus.chain(ports) {
        by_numa.entry(NumaPlace::new(inventory, numa)).or_default().push(device);
    }
    let mut sections: BTreeMap<NumaPlace, Vec<NearDevices<'_>>> =
        by_numa.into_iter().map(|(place, devices)| (place, groups(devices))).collect();
    for rank in uses.iter().flat_map(|uses| &uses.ranks) {
        add_rank(inventory, &mut sections, rank);
    }
    let section = |(place, groups): (&NumaPlace, &Vec<NearDevices<'_>>)| Section {
        label: place.label(inventory, groups),
        groups: groups.iter().map(|group| group.drawn(uses)).collect(),
    };
    let mut summary = summary(inventory);
    if left_out > 0 {
        summary += &format!(", {} not drawn", text::count(left_out, "port"));
    }
    HostBox { name: name.to_owned(), summary, sections: sections.iter().map(section).collect() }
}

/// NUMA node of devices and ranks; those without one come last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum NumaPlace {
    Node(u32),
    Unknown,
}

impl NumaPlace {
    /// Returns the place of a device. With one NUMA node, firmware often does not report it.
    fn new(inventory: &Inventory, numa_node: Option<u32>) -> NumaPlace {
        match (numa_node, &inventory.numa_nodes[..]) {
            (Some(number), _) => NumaPlace::Node(number),
            (None, [only]) => NumaPlace::Node(only.number),
            (None, _) => NumaPlace::Unknown,
        }
    }

    fn label(self, inventory: &Inventory, groups: &[NearDevices<'_>]) -> String {
        let has_devices = groups.iter().any(|group| !group.devices.is_empty());
        match self {
            NumaPlace::Node(number) => {
                let known = inventory.numa_nodes.iter().find(|node| node.number == number);
                known.map_or_else(|| format!("NUMA node {number}"), numa_label)
            }
            NumaPlace::Unknown if inventory.numa_nodes.len() < 2 => String::new(),
            NumaPlace::Unknown if has_devices => "NUMA node not known".to_owned(),
            NumaPlace::Unknown => "all NUMA nodes".to_owned(),
        }
    }
}

fn numa_label(node: &NumaNode) -> String {
    let memory = node.memory.map(|bytes| format!(", {} GiB", bytes / GIB));
    format!("NUMA node {}: {}{}", node.number, cpus(&node.cpus), memory.unwrap_or_default())
}

/// Summarizes a host: `224 CPUs, 2016 GiB`.
fn summary(inventory: &Inventory) -> String {
    let cpus = text::count(inventory.cpus.usable(), "CPU");
    let memory = inventory.numa_nodes.iter().filter_map(|node| node.memory);
    match memory.fold(0, u64::saturating_add) / GIB {
        0 => cpus,
        gib => format!("{cpus}, {gib} GiB"),
    }
}

impl<'a> DrawnDevice<'a> {
    fn pci(self) -> Option<&'a PciDevice> {
        match self {
            DrawnDevice::Gpu(gpu) => Some(&gpu.pci),
            DrawnDevice::Port(port, _) => port.pci,
        }
    }

    /// Returns the PCI address without the number of the function: all functions of a card share it.
    fn slot(self) -> Option<&'a str> {
        let (slot, _) = self.pci()?.address.rsplit_once('.')?;
        Some(slot)
    }
}

/// Groups the devices of a NUMA node: those below each PCIe switch, then all others.
fn groups(devices: Vec<DrawnDevice<'_>>) -> Vec<NearDevices<'_>> {
    let is_near = |one: &DrawnDevice<'_>, other: &DrawnDevice<'_>| {
        let pair = one.pci().zip(other.pci());
        pair.is_some_and(|(one, other)| one.distance(other) <= Distance::Switches)
    };
    let mut groups: Vec<NearDevices<'_>> = Vec::new();
    for device in devices {
        let near =
            |group: &&mut NearDevices<'_>| group.devices.iter().any(|own| is_near(own, &device));
        match groups.iter_mut().find(near) {
            Some(group) => group.devices.push(device),
            None => groups.push(NearDevices { devices: vec![device], ..NearDevices::default() }),
        }
    }
    let (mut switches, others): (Vec<_>, Vec<_>) =
        groups.into_iter().partition(NearDevices::has_several_slots);
    switches.iter_mut().for_each(|group| group.is_switch = true);
    let others: Vec<_> = others.into_iter().flat_map(|group| group.devices).collect();
    if !others.is_empty() {
        switches.push(NearDevices { devices: others, ..NearDevices::default() });
    }
    switches
}

/// Adds a rank to the group of its GPU, or else of its port, or else to its NUMA node.
fn add_rank<'a>(
    inventory: &Inventory,
    sections: &mut BTreeMap<NumaPlace, Vec<NearDevices<'a>>>,
    rank: &'a RankUse,
) {
    let is_own_gpu = |device: &DrawnDevice<'_>| match device {
        DrawnDevice::Gpu(gpu) => Some(&gpu.pci.address) == rank.gpu.as_ref(),
        DrawnDevice::Port(..) => false,
    };
    let is_nearest = |device: &DrawnDevice<'_>| {
        let DrawnDevice::Port(HostPort { device: Some((name, _)), .. }, _) = device else {
            return false;
        };
        rank.nearest.as_deref() == Some(name)
    };
    let groups = sections.entry(NumaPlace::new(inventory, rank.numa_node)).or_default();
    let at = groups.iter().position(|group| group.devices.iter().any(is_own_gpu));
    let at = at.or_else(|| groups.iter().position(|group| group.devices.iter().any(is_nearest)));
    let at = at.or_else(|| groups.iter().rposition(|group| !group.is_switch));
    match at.and_then(|at| groups.get_mut(at)) {
        Some(group) => group.ranks.push(rank),
        None => groups.push(NearDevices { ranks: vec![rank], ..NearDevices::default() }),
    }
}

impl NearDevices<'_> {
    /// Tells whether devices are in several slots, and not functions of one card.
    fn has_several_slots(&self) -> bool {
        let first = self.devices.first().and_then(|device| device.slot());
        self.devices.iter().any(|device| device.slot() != first)
    }

    fn drawn(&self, uses: Option<&HostUses>) -> DeviceGroup {
        let mut drawn = DeviceGroup {
            is_switch: self.is_switch,
            ranks: rank_rows(&self.ranks),
            ..DeviceGroup::default()
        };
        for device in &self.devices {
            match device {
                DrawnDevice::Gpu(gpu) => drawn.gpus.push(GpuBox {
                    name: gpu_name(gpu),
                    used_by: uses.and_then(|uses| uses.gpu_users(&gpu.pci.address)),
                }),
                DrawnDevice::Port(port, network) => drawn.ports.push(PortRow {
                    name: port.name.clone(),
                    rate: port.rate.clone(),
                    address: port.address.clone(),
                    is_down: port.is_down,
                    network: *network,
                    used_by: uses.and_then(|uses| uses.port_users(port)),
                }),
            }
        }
        drawn
    }
}

/// Names a GPU by address and model, without its vendor's name: `0000:13:00.0 H100 80GB HBM3`.
fn gpu_name(gpu: &Gpu) -> String {
    let vendor = match gpu.vendor {
        GpuVendor::Nvidia => "NVIDIA",
        GpuVendor::Amd => "AMD",
    };
    let model = gpu.model.as_deref().unwrap_or(vendor);
    let short = model.strip_prefix(vendor).map(str::trim_start).filter(|rest| !rest.is_empty());
    format!("{} {}", gpu.pci.address, short.unwrap_or(model))
}

/// Writes ranks with their CPUs, or only their number if there are too many.
fn rank_rows(ranks: &[&RankUse]) -> Vec<String> {
    if ranks.len() <= MAX_RANKS {
        return ranks.iter().map(|rank| format!("{} · {}", rank.name(), bound(rank))).collect();
    }
    let first = ranks[0];
    let are_equal = ranks.iter().all(|rank| rank.cpus == first.cpus);
    let numbers = text::ranges(ranks.iter().map(|rank| rank.number), 3);
    let cpus = if are_equal { bound(first) } else { "CPUs of their own".to_owned() };
    vec![format!("ranks {numbers} · {cpus}")]
}

fn bound(rank: &RankUse) -> String {
    rank.cpus.as_ref().map_or_else(|| "all CPUs".to_owned(), cpus)
}

/// Writes CPUs: `CPUs 0-55,112-167`, or `20 CPUs, 0 to 38` if the list is long.
fn cpus(cpus: &CpuSet) -> String {
    let list = cpus.to_string();
    match (cpus.len(), cpus.iter().next(), cpus.iter().last()) {
        (1, ..) => format!("CPU {list}"),
        (count, Some(first), Some(last)) if list.len() > MAX_CPUS => {
            format!("{count} CPUs, {first} to {last}")
        }
        _ => format!("CPUs {list}"),
    }
}
