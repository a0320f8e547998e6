//! Box of a host: its NUMA nodes, in them PCIe switches, GPUs, ports and ranks; which CPUs, GPUs and ports ranks use.

use super::networks::HostPort;
use crate::rank_config::RankConfig;
use rlaunch_bootstrap::id::NodeId;
use rlaunch_bootstrap::inventory::pci::{Distance, PciDevice};
use rlaunch_bootstrap::inventory::{CpuSet, Gpu, Inventory, NumaNode};
use rlaunch_bootstrap::rank_table::{Nic, NicId, PairTransport, RankNic, RankRow, RankTable};
use rlaunch_plot::topology::{DeviceGroup, GpuBox, HostBox, PortRow, Section};
use rlaunch_text::text;
use std::collections::{BTreeMap, BTreeSet};

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
    ports: &[HostPort<'_>],
    networks: &[Option<usize>],
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

    fn slot(self) -> Option<&'a str> {
        self.pci()?.slot()
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
    let vendor = gpu.vendor.name();
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

/// Maximum number of ranges of ranks that are written for a device.
const RANGES: usize = 4;

/// Rank of a host, and what it uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RankUse {
    /// Number of the rank, or of the local rank in a box of several hosts.
    pub(super) number: u32,
    /// Whether `number` is that of a local rank.
    pub(super) is_local: bool,
    /// CPUs to which the rank is bound; `None` if to none.
    pub(super) cpus: Option<CpuSet>,
    pub(super) numa_node: Option<u32>,
    /// PCI address of the rank's GPU.
    pub(super) gpu: Option<String>,
    /// RDMA device nearest to the rank.
    pub(super) nearest: Option<String>,
}

/// Ranks of a host, and the devices that they use.
#[derive(Clone, Debug, Default)]
pub(super) struct HostUses {
    pub(super) ranks: Vec<RankUse>,
    /// Ranks by RDMA device and port.
    by_port: BTreeMap<(String, u8), BTreeSet<u32>>,
    /// Interface that carries TCP, and the ranks that use it.
    by_interface: Option<(String, BTreeSet<u32>)>,
    is_local: bool,
}

/// Lists the ranks of a node.
fn ranks_of(table: &RankTable, node: NodeId) -> impl Iterator<Item = &RankRow> {
    table.ranks().iter().filter(move |rank| rank.node == node)
}

/// Returns the first of a rank's ports that reaches a port of another rank; `None` if the two use TCP.
fn port_to<'a>(table: &'a RankTable, rank: &RankRow, other: &RankRow) -> Option<&'a Nic> {
    let pair = table.pair(rank.rank, other.rank)?;
    if pair.connect == PairTransport::Tcp {
        return None;
    }
    let reaches = |own: &&RankNic| {
        let own = NicId { node: rank.node, nic: own.nic };
        let mut theirs = other.nics.iter().map(|nic| NicId { node: other.node, nic: nic.nic });
        theirs.any(|theirs| table.can_reach(own, theirs))
    };
    let nearest = rank.nics.iter().find(reaches)?;
    table.nic(NicId { node: rank.node, nic: nearest.nic })
}

impl RankUse {
    pub(super) fn name(&self) -> String {
        if self.is_local {
            format!("local rank {}", self.number)
        } else {
            format!("rank {}", self.number)
        }
    }
}

impl HostUses {
    /// Finds, for each of a node's ranks, the nearest ports by which it reaches the nodes `peers`. With `is_local`,
    /// ranks have their numbers on the node.
    pub(super) fn new(
        table: &RankTable,
        node: NodeId,
        inventory: &Inventory,
        configs: &[RankConfig],
        peers: &[NodeId],
        is_local: bool,
    ) -> HostUses {
        let mut uses = HostUses { is_local, ..HostUses::default() };
        let Some(row) = table.nodes().get(node.index()) else { return uses };
        let interface = inventory.netdev_with_address(row.address).map(|netdev| &netdev.name);
        let others: Vec<&RankRow> = peers.iter().flat_map(|peer| ranks_of(table, *peer)).collect();
        for rank in ranks_of(table, node) {
            let number = if is_local { rank.local_rank.0 } else { rank.rank.0 };
            for other in others.iter().filter(|other| other.node != node) {
                match (port_to(table, rank, other), interface) {
                    (Some(nic), _) => {
                        let key = (nic.device.clone(), nic.port);
                        uses.by_port.entry(key).or_default().insert(number);
                    }
                    (None, Some(interface)) => {
                        let by = || (interface.clone(), BTreeSet::new());
                        uses.by_interface.get_or_insert_with(by).1.insert(number);
                    }
                    (None, None) => {}
                }
            }
            let nearest = rank.nics.first().and_then(|own| row.nics.get(own.nic as usize));
            let config = configs.get(rank.local_rank.0 as usize);
            uses.ranks.push(RankUse {
                number,
                is_local,
                cpus: config.and_then(|config| config.placement.cpus.clone()),
                numa_node: rank.numa_node,
                gpu: rank.gpu.clone(),
                nearest: nearest.map(|nic| nic.device.clone()),
            });
        }
        uses
    }

    /// Writes the ranks that use a GPU.
    pub(super) fn gpu_users(&self, address: &str) -> Option<String> {
        let own = self.ranks.iter().filter(|rank| rank.gpu.as_deref() == Some(address));
        self.written(own.map(|rank| rank.number))
    }

    /// Writes the ranks that use a port.
    pub(super) fn port_users(&self, port: &HostPort<'_>) -> Option<String> {
        let by_rdma =
            port.device.and_then(|(device, number)| self.by_port.get(&(device.to_owned(), number)));
        let by_tcp =
            self.by_interface.iter().filter(|(name, _)| Some(name.as_str()) == port.netdev);
        let ranks: BTreeSet<u32> =
            by_rdma.into_iter().chain(by_tcp.map(|(_, ranks)| ranks)).flatten().copied().collect();
        self.written(ranks.into_iter())
    }

    fn written(&self, ranks: impl Iterator<Item = u32>) -> Option<String> {
        let ranks: Vec<u32> = ranks.collect();
        let noun = text::plural(ranks.len(), if self.is_local { "local rank" } else { "rank" });
        let numbers = text::ranges(ranks.iter().copied(), RANGES);
        (!ranks.is_empty()).then(|| format!("{noun} {numbers}"))
    }
}
