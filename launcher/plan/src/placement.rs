//! CPUs, GPU and NUMA node of each rank on a node: a pure function of the node's inventory.

use crate::map::MapBy;
use rlaunch_bootstrap::inventory::rdma::PortState;
use rlaunch_bootstrap::inventory::{CpuListError, CpuSet, Inventory, NumaNode};
use std::collections::BTreeSet;
use std::str::FromStr;

/// `--bind`: binding of ranks to CPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Bind {
    /// All CPUs of the NUMA node nearest to the rank's GPU or NIC, shared with other ranks there. If these
    /// are fewer than an equal share of the node's CPUs, the rank may use all CPUs of the node.
    #[default]
    Numa,
    /// All CPUs of the NUMA node nearest to the rank's GPU, even if these are fewer than an equal share of
    /// the node's CPUs.
    Gpu,
    /// Separate CPUs for each rank: this number of them, or an equal share of the node's CPUs if `None`.
    Core(Option<u32>),
    /// CPUs in this list, the same for all ranks.
    List(CpuSet),
    /// These CPUs in turn, by local rank. There is at least one choice.
    Each(Vec<CpuChoice>),
    /// No binding.
    None,
}

impl FromStr for Bind {
    type Err = String;

    fn from_str(text: &str) -> Result<Bind, String> {
        match text {
            "numa" => Ok(Bind::Numa),
            "gpu" => Ok(Bind::Gpu),
            "core" => Ok(Bind::Core(None)),
            "none" => Ok(Bind::None),
            _ => match text.strip_prefix("cpulist:").map(CpuSet::from_str) {
                Some(Ok(cpus)) if !cpus.is_empty() => Ok(Bind::List(cpus)),
                Some(Err(error)) => Err(error.to_string()),
                _ => match text.strip_prefix("each:") {
                    Some(choices) => {
                        choices.split('/').map(str::parse).collect::<Result<_, _>>().map(Bind::Each)
                    }
                    None => {
                        Err("numa, gpu, core, none, cpulist:0-3,8 or each:0-3/4-7 are understood"
                            .to_owned())
                    }
                },
            },
        }
    }
}

/// CPUs of one rank, as the user names them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CpuChoice {
    /// By the numbers of the system.
    Cpus(CpuSet),
    /// All CPUs of these cores, which are numbered from 0 among those that the job may use.
    Cores(CpuSet),
}

impl CpuChoice {
    pub fn cpus(list: &str) -> Result<CpuChoice, String> {
        some_numbers(list).map(CpuChoice::Cpus)
    }

    pub fn cores(list: &str) -> Result<CpuChoice, String> {
        some_numbers(list).map(CpuChoice::Cores)
    }

    /// Returns the chosen CPUs that the job may use on a node.
    pub(crate) fn on(&self, inventory: &Inventory) -> Result<CpuSet, Unplaceable> {
        let allowed = &inventory.cpus.allowed;
        let (wanted, chosen) = match self {
            CpuChoice::Cpus(wanted) => (wanted.clone(), wanted.intersection(allowed)),
            CpuChoice::Cores(numbers) => {
                let cores = allowed_cores(inventory);
                let number = |number: u32| cores.get(number as usize);
                if let Some(core) = numbers.iter().find(|core| number(*core).is_none()) {
                    return Err(Unplaceable::NoCore { core, cores: cores.len() });
                }
                let cpus: CpuSet =
                    numbers.iter().filter_map(number).flat_map(CpuSet::iter).collect();
                (cpus.clone(), cpus)
            }
        };
        if chosen.is_empty() {
            return Err(Unplaceable::NotAllowed { wanted, allowed: allowed.clone() });
        }
        Ok(chosen)
    }
}

/// Parses `0-3,8` as CPUs and `c0-3,8` as cores.
impl FromStr for CpuChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<CpuChoice, String> {
        match text.strip_prefix('c') {
            Some(cores) => CpuChoice::cores(cores),
            None => CpuChoice::cpus(text),
        }
    }
}

fn some_numbers(list: &str) -> Result<CpuSet, String> {
    let numbers: CpuSet = list.parse().map_err(|error: CpuListError| error.to_string())?;
    if numbers.is_empty() { Err("a list of CPUs is empty".to_owned()) } else { Ok(numbers) }
}

/// Lists the cores that the job may use, each with the CPUs that it may use. Where the kernel reports no cores, each CPU is
/// one.
fn allowed_cores(inventory: &Inventory) -> Vec<CpuSet> {
    let allowed = &inventory.cpus.allowed;
    if inventory.cpus.cores.is_empty() {
        return allowed.iter().map(|cpu| std::iter::once(cpu).collect()).collect();
    }
    let cores = inventory.cpus.cores.iter().map(|core| core.intersection(allowed));
    cores.filter(|core| !core.is_empty()).collect()
}

/// Placement of a rank on its node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// CPUs to which the rank is bound; `None` if it may use all CPUs that its agent may use.
    pub cpus: Option<CpuSet>,
    pub numa_node: Option<u32>,
    /// Index of the rank's GPU in the node's inventory; `None` without a GPU.
    pub gpu: Option<usize>,
    /// Reason for the placement, for display.
    pub reason: String,
}

/// Reason why ranks cannot be bound as requested.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unplaceable {
    /// None of the listed CPUs may be used by this job.
    #[error("none of the CPUs {wanted} may be used: this job is allowed {allowed}")]
    NotAllowed { wanted: CpuSet, allowed: CpuSet },
    /// A core is named that the node does not have.
    #[error("there is no core {core}: this job is allowed {cores}, numbered from 0")]
    NoCore { core: u32, cores: usize },
    /// `--cpus-per-rank` asks for more CPUs than the node has.
    #[error("{ranks} ranks of {each} CPUs each are more than the {allowed} that may be used")]
    TooFew { ranks: usize, each: u32, allowed: usize },
    /// `--bind gpu` was given, but this local rank has no GPU whose NUMA node is known.
    #[error("rank {0} of this host has no GPU whose NUMA node is known, as --bind gpu needs")]
    NoGpu(usize),
}

/// Places the `ranks` ranks of a node; returns their placements by local rank. Ranks are bound only to CPUs
/// that the job may use on the node.
pub fn place(
    inventory: &Inventory,
    ranks: usize,
    map_by: MapBy,
    bind: &Bind,
) -> Result<Vec<Placement>, Unplaceable> {
    let allowed = &inventory.cpus.allowed;
    let home = |rank| match map_by {
        MapBy::Numa => RankNumaNode::round_robin(inventory, rank, ranks),
        _ => RankNumaNode::nearest(inventory, rank, ranks),
    };
    let homes: Vec<RankNumaNode<'_>> = (0..ranks).map(home).collect();
    let mut placements: Vec<Placement> = homes.iter().map(RankNumaNode::placement).collect();
    match bind {
        Bind::None => {}
        Bind::Numa => {
            for (home, placement) in homes.iter().zip(&mut placements) {
                share_node(home, placement, allowed, ranks);
            }
        }
        Bind::Gpu => {
            for (rank, (home, placement)) in homes.iter().zip(&mut placements).enumerate() {
                let cpus = Some(home.cpus(allowed)).filter(|cpus| home.at_gpu && !cpus.is_empty());
                placement.cpus = Some(cpus.ok_or(Unplaceable::NoGpu(rank))?);
            }
        }
        Bind::Core(each) => {
            if let Some(each) = each.filter(|each| *each as usize * ranks > allowed.len()) {
                return Err(Unplaceable::TooFew { ranks, each, allowed: allowed.len() });
            }
            take_turns(inventory, &homes, &mut placements, *each);
        }
        Bind::List(wanted) => {
            let cpus = wanted.intersection(allowed);
            if cpus.is_empty() {
                let (wanted, allowed) = (wanted.clone(), allowed.clone());
                return Err(Unplaceable::NotAllowed { wanted, allowed });
            }
            placements.iter_mut().for_each(|placement| placement.cpus = Some(cpus.clone()));
        }
        Bind::Each(choices) => {
            for (placement, choice) in placements.iter_mut().zip(choices.iter().cycle()) {
                placement.bind_to(choice, inventory)?;
            }
        }
    }
    Ok(placements)
}

impl Placement {
    /// Binds the rank to CPUs that the user has named for it.
    pub(crate) fn bind_to(
        &mut self,
        choice: &CpuChoice,
        inventory: &Inventory,
    ) -> Result<(), Unplaceable> {
        let cpus = choice.on(inventory)?;
        let has_all = |node: &&NumaNode| cpus.iter().all(|cpu| node.cpus.contains(cpu));
        self.numa_node = inventory.numa_nodes.iter().find(has_all).map(|node| node.number);
        self.cpus = Some(cpus);
        self.reason = "as named".to_owned();
        Ok(())
    }
}

/// NUMA node of a rank, with the reason.
struct RankNumaNode<'a> {
    node: Option<&'a NumaNode>,
    gpu: Option<usize>,
    /// Whether `node` is known to be the NUMA node of the rank's GPU.
    at_gpu: bool,
    reason: String,
}

impl<'a> RankNumaNode<'a> {
    fn nearest(inventory: &'a Inventory, rank: usize, ranks: usize) -> RankNumaNode<'a> {
        let nodes = with_processors(inventory);
        let numbered = |number: u32| nodes.iter().copied().find(|node| node.number == number);
        let gpu = (!inventory.gpus.is_empty()).then(|| rank % inventory.gpus.len());
        let gpu_node = gpu.and_then(|gpu| numbered(inventory.gpus[gpu].pci.numa_node?));
        let nic = nearest_nic(inventory, rank);
        if let (Some(gpu), Some(node)) = (gpu, gpu_node) {
            let reason = format!("nearest to GPU {}", inventory.gpus[gpu].pci.address);
            return RankNumaNode { node: Some(node), gpu: Some(gpu), at_gpu: true, reason };
        }
        let home = |node, reason: String| RankNumaNode { node, gpu, at_gpu: false, reason };
        if let Some((node, name)) = nic.and_then(|(node, name)| Some((numbered(node)?, name))) {
            return home(Some(node), format!("nearest to {name}"));
        }
        match nodes[..] {
            [] => home(None, "no NUMA node is known".to_owned()),
            // With one NUMA node, missing information in the firmware does not matter.
            [only] => RankNumaNode {
                at_gpu: gpu.is_some(),
                ..home(Some(only), "the only NUMA node".into())
            },
            _ => {
                let node = nodes[rank * nodes.len() / ranks.max(1)];
                let unknown = gpu.map(|gpu| inventory.gpus[gpu].pci.address.as_str());
                let why =
                    unknown.map_or(String::new(), |gpu| format!(": that of GPU {gpu} is unknown"));
                home(Some(node), format!("spread over NUMA nodes{why}"))
            }
        }
    }

    /// Chooses NUMA nodes in turn by local rank, whatever devices are near them. The rank's GPU is still the
    /// GPU with the index of its local rank, because programs choose that GPU.
    fn round_robin(inventory: &'a Inventory, rank: usize, ranks: usize) -> RankNumaNode<'a> {
        let nodes = with_processors(inventory);
        let near = RankNumaNode::nearest(inventory, rank, ranks);
        if nodes.len() < 2 {
            return near;
        }
        let node = nodes[rank % nodes.len()];
        let at_gpu = near.at_gpu && near.node == Some(node);
        RankNumaNode { node: Some(node), at_gpu, reason: "NUMA nodes in turn".to_owned(), ..near }
    }

    fn placement(&self) -> Placement {
        let numa_node = self.node.map(|node| node.number);
        Placement { cpus: None, numa_node, gpu: self.gpu, reason: self.reason.clone() }
    }

    fn cpus(&self, allowed: &CpuSet) -> CpuSet {
        self.node.map(|node| node.cpus.intersection(allowed)).unwrap_or_default()
    }
}

/// Lists the NUMA nodes that have CPUs which the job may use.
fn with_processors(inventory: &Inventory) -> Vec<&NumaNode> {
    let allowed = &inventory.cpus.allowed;
    let has_some = |node: &&NumaNode| !node.cpus.intersection(allowed).is_empty();
    inventory.numa_nodes.iter().filter(has_some).collect()
}

/// Returns the NUMA node and the name of a NIC that has an active port. Successive local ranks get successive
/// NICs.
fn nearest_nic(inventory: &Inventory, rank: usize) -> Option<(u32, &str)> {
    let active = inventory
        .rdma
        .iter()
        .filter(|device| device.ports.iter().any(|port| port.state == PortState::Active));
    let known: Vec<_> = active.filter_map(|d| Some((d.numa_node?, d.name.as_str()))).collect();
    known.get(rank % known.len().max(1)).copied()
}

/// Binds a rank to all CPUs of its NUMA node, or to all allowed CPUs if the NUMA node has fewer than an equal
/// share of them.
fn share_node(home: &RankNumaNode<'_>, placement: &mut Placement, allowed: &CpuSet, ranks: usize) {
    let cpus = home.cpus(allowed);
    if cpus.len() * ranks >= allowed.len() && !cpus.is_empty() {
        placement.cpus = Some(cpus);
    } else if !allowed.is_empty() {
        placement.cpus = Some(allowed.clone());
        if placement.numa_node.take().is_none() {
            return;
        }
        placement.reason = "all that are allowed: its NUMA node has too few".to_owned();
    }
}

/// Binds every rank to the same number of CPUs, taken first from the rank's own NUMA node. Ranks get whole
/// cores if there is at least one core for each rank.
fn take_turns(
    inventory: &Inventory,
    homes: &[RankNumaNode<'_>],
    placements: &mut [Placement],
    each: Option<u32>,
) {
    let allowed = &inventory.cpus.allowed;
    let mut free: Vec<u32> = core_by_core(inventory);
    let threads = inventory.cpus.cores.iter().map(CpuSet::len).max().unwrap_or(1).max(1);
    let share = (allowed.len() / homes.len().max(1)).max(1);
    let whole = if share >= threads { share - share % threads } else { share };
    let each = each.map_or(whole, |each| each as usize);
    for (home, placement) in homes.iter().zip(placements) {
        let near = home.cpus(allowed);
        let (own, other): (Vec<u32>, Vec<u32>) = free.iter().partition(|cpu| near.contains(**cpu));
        let cpus: CpuSet = own.into_iter().chain(other).take(each).collect();
        if cpus.is_empty() {
            // There are more ranks than CPUs: ranks for which no CPU is left share all of them.
            placement.reason = "no processor is left: shares all".to_owned();
            placement.cpus = (!allowed.is_empty()).then(|| allowed.clone());
            continue;
        }
        free.retain(|cpu| !cpus.contains(*cpu));
        placement.cpus = Some(cpus);
    }
}

/// Lists the CPUs that the job may use, with the hyper-threads of a core next to each other.
fn core_by_core(inventory: &Inventory) -> Vec<u32> {
    let allowed = &inventory.cpus.allowed;
    let of_cores = inventory.cpus.cores.iter().flat_map(CpuSet::iter);
    let mut ordered: Vec<u32> = Vec::with_capacity(allowed.len());
    let mut seen = BTreeSet::new();
    for cpu in of_cores.chain(allowed.iter()) {
        if allowed.contains(cpu) && seen.insert(cpu) {
            ordered.push(cpu);
        }
    }
    ordered
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlaunch_bootstrap::inventory::pci::PciDevice;
    use rlaunch_bootstrap::inventory::{Gpu, GpuVendor};

    /// Creates an inventory of NUMA nodes with these CPUs, of which `allowed` may be used. `gpus` has the
    /// NUMA node of each GPU.
    fn inventory(nodes: &[&str], allowed: &str, gpus: &[u32]) -> Inventory {
        let node = |(number, cpus): (u32, &&str)| NumaNode {
            number,
            cpus: cpus.parse().unwrap(),
            memory: None,
            distances: vec![],
        };
        let gpu = |(index, node): (usize, &u32)| Gpu {
            vendor: GpuVendor::Nvidia,
            model: None,
            pci: PciDevice {
                address: format!("0000:{index:02x}:00.0"),
                numa_node: Some(*node),
                ..PciDevice::default()
            },
        };
        let mut inventory = Inventory::default();
        inventory.cpus.allowed = allowed.parse().unwrap();
        inventory.numa_nodes = (0..).zip(nodes).map(node).collect();
        inventory.gpus = gpus.iter().enumerate().map(gpu).collect();
        inventory
    }

    fn cpus(inventory: &Inventory, ranks: usize, bind: &Bind) -> Vec<String> {
        let placements = place(inventory, ranks, MapBy::Slot, bind).unwrap();
        placements.iter().map(|p| p.cpus.as_ref().unwrap().to_string()).collect()
    }

    #[test]
    fn ranks_go_where_their_gpus_are() {
        let inventory = inventory(&["0-15", "16-31"], "0-31", &[0, 0, 1, 1]);
        let placements = place(&inventory, 4, MapBy::Slot, &Bind::Numa).unwrap();
        let nodes: Vec<_> = placements.iter().map(|p| (p.gpu, p.numa_node)).collect();
        let wanted = [(0, 0), (1, 0), (2, 1), (3, 1)].map(|(g, n)| (Some(g), Some(n)));
        assert_eq!(nodes, wanted);
        assert_eq!(placements[2].cpus.as_ref().unwrap().to_string(), "16-31");
        assert_eq!(placements[2].reason, "nearest to GPU 0000:02:00.0");
        // A single rank is not confined to half of the machine because of its GPU.
        assert_eq!(cpus(&inventory, 1, &Bind::Numa), ["0-31"]);
    }

    #[test]
    fn without_devices_ranks_are_spread() {
        let inventory = inventory(&["0-3", "4-7"], "0-7", &[]);
        assert_eq!(cpus(&inventory, 4, &Bind::Numa), ["0-3", "0-3", "4-7", "4-7"]);
        assert_eq!(cpus(&inventory, 4, &Bind::Core(None)), ["0-1", "2-3", "4-5", "6-7"]);
        assert_eq!(cpus(&inventory, 3, &Bind::Core(None)), ["0-1", "2-3", "4-5"]);
    }

    #[test]
    fn numa_nodes_are_taken_in_turn_where_that_is_asked_for() {
        let nodes = |inventory: &Inventory, ranks| {
            let placements = place(inventory, ranks, MapBy::Numa, &Bind::Numa).unwrap();
            let seen = |p: &Placement| (p.numa_node, p.gpu, p.cpus.as_ref().unwrap().to_string());
            placements.iter().map(seen).collect::<Vec<_>>()
        };
        let in_turn = |gpus: [Option<usize>; 4]| {
            let homes = [(0, "0-3"), (1, "4-7"), (0, "0-3"), (1, "4-7")].into_iter().zip(gpus);
            homes.map(|((node, cpus), gpu)| (Some(node), gpu, cpus.to_owned())).collect::<Vec<_>>()
        };
        let plain = inventory(&["0-3", "4-7"], "0-7", &[]);
        assert_eq!(nodes(&plain, 4), in_turn([None; 4]));
        let with_gpus = inventory(&["0-3", "4-7"], "0-7", &[0, 0, 1, 1]);
        assert_eq!(nodes(&with_gpus, 4), in_turn([0, 1, 2, 3].map(Some)));
        let single = inventory(&["0-7"], "0-7", &[]);
        assert_eq!(
            place(&single, 2, MapBy::Numa, &Bind::Numa),
            place(&single, 2, MapBy::Slot, &Bind::Numa)
        );
    }

    #[test]
    fn whole_cores_are_given_as_far_as_they_go() {
        let mut inventory = inventory(&["0-3,8-11", "4-7,12-15"], "0-15", &[]);
        let core = |first: u32| [first, first + 8].into_iter().collect::<CpuSet>();
        inventory.cpus.cores = (0..8).map(core).collect();
        let wanted = ["0-1,8-9", "2-3,10-11", "4-5,12-13", "6-7,14-15"];
        assert_eq!(cpus(&inventory, 4, &Bind::Core(None)), wanted);
        // Five CPUs each would be two and a half cores.
        assert_eq!(cpus(&inventory, 3, &Bind::Core(None)), ["0-1,8-9", "2-3,10-11", "4-5,12-13"]);
        assert_eq!(cpus(&inventory, 2, &Bind::Core(Some(3))), ["0-1,8", "4-5,12"]);
        let error = place(&inventory, 4, MapBy::Slot, &Bind::Core(Some(5))).unwrap_err();
        let wanted = "4 ranks of 5 CPUs each are more than the 16 that may be used";
        assert_eq!(error.to_string(), wanted);
    }

    #[test]
    fn a_rank_can_be_kept_to_its_gpus_node() {
        let inventory = inventory(&["0-15", "16-31"], "0-31", &[1]);
        assert_eq!(cpus(&inventory, 1, &Bind::Gpu), ["16-31"]);
        assert_eq!(cpus(&inventory, 1, &Bind::Numa), ["0-31"]);
        let mut unknown = inventory.clone();
        unknown.gpus[0].pci.numa_node = None;
        assert_eq!(place(&unknown, 1, MapBy::Slot, &Bind::Gpu), Err(Unplaceable::NoGpu(0)));
        let reason = place(&unknown, 1, MapBy::Slot, &Bind::Numa).unwrap().remove(0).reason;
        assert_eq!(reason, "all that are allowed: its NUMA node has too few");
        let reason = place(&unknown, 2, MapBy::Slot, &Bind::Numa).unwrap().remove(0).reason;
        assert_eq!(reason, "spread over NUMA nodes: that of GPU 0000:00:00.0 is unknown");
    }

    #[test]
    fn a_list_is_cut_to_what_is_allowed() {
        let inventory = inventory(&["0-7"], "2-5", &[]);
        let list = |text: &str| text.parse::<Bind>().unwrap();
        assert_eq!(cpus(&inventory, 2, &list("cpulist:0-3")), ["2-3", "2-3"]);
        let error = place(&inventory, 2, MapBy::Slot, &list("cpulist:6-7")).unwrap_err();
        let wanted = "none of the CPUs 6-7 may be used: this job is allowed 2-5";
        assert_eq!(error.to_string(), wanted);
        assert!("cpulist:".parse::<Bind>().is_err() && "socket".parse::<Bind>().is_err());
    }

    #[test]
    fn ranks_take_named_cpus_in_turn() {
        let mut inventory = inventory(&["0-3", "4-7"], "0-5", &[]);
        let each = |text: &str| text.parse::<Bind>().unwrap();
        assert_eq!(cpus(&inventory, 3, &each("each:4/0,2")), ["4", "0,2", "4"]);
        assert_eq!(cpus(&inventory, 1, &each("each:c3")), ["3"]);
        inventory.cpus.cores =
            ["0,4", "1,5", "2,6", "3,7"].map(|core| core.parse().unwrap()).to_vec();
        assert_eq!(cpus(&inventory, 2, &each("each:c0/c1-2")), ["0,4", "1-2,5"]);
        let placed = place(&inventory, 2, MapBy::Slot, &each("each:4-5/0,4")).unwrap();
        assert_eq!([placed[0].numa_node, placed[1].numa_node], [Some(1), None]);
        let error = |text| place(&inventory, 1, MapBy::Slot, &each(text)).unwrap_err().to_string();
        assert_eq!(error("each:c4"), "there is no core 4: this job is allowed 4, numbered from 0");
        assert!(error("each:6").starts_with("none of the CPUs 6 may be used"));
        for bad in ["each:", "each:0/", "each:c", "each:x"] {
            assert!(bad.parse::<Bind>().is_err(), "{bad}");
        }
    }

    #[test]
    fn what_is_promised_holds_for_machines_of_every_kind() {
        let shapes: &[(&[&str], &str)] = &[
            (&["0-15", "16-31"], "0-31"),
            (&["0-15", "16-31"], "3,17-20"),
            (&["0-1", "2-31"], "0-31"),
            (&["0-7", ""], "0-7"),
            (&[], "0-3"),
            (&["0"], "0"),
        ];
        let gpus: [&[u32]; 4] = [&[], &[0], &[1, 0], &[0, 0, 1, 1, 1, 1, 0, 0]];
        for ((nodes, allowed), gpus) in shapes.iter().flat_map(|s| gpus.map(|gpus| (*s, gpus))) {
            let inventory = inventory(nodes, allowed, gpus);
            let allowed = &inventory.cpus.allowed;
            for ranks in 1..=9 {
                for bind in [Bind::Numa, Bind::Core(None)] {
                    let placements = place(&inventory, ranks, MapBy::Slot, &bind).unwrap();
                    assert_eq!(placements.len(), ranks);
                    let sets: Vec<&CpuSet> =
                        placements.iter().map(|p| p.cpus.as_ref().unwrap()).collect();
                    for set in &sets {
                        assert_eq!(set.intersection(allowed), **set, "outside of what is allowed");
                        assert!(
                            set.len() * ranks >= allowed.len() || matches!(bind, Bind::Core(_))
                        );
                        assert!(!set.is_empty());
                    }
                    let all: usize = sets.iter().map(|set| set.len()).sum();
                    let union: BTreeSet<u32> = sets.iter().flat_map(|set| set.iter()).collect();
                    let disjoint = all == union.len();
                    assert!(bind == Bind::Numa || ranks > allowed.len() || disjoint);
                }
            }
        }
    }
}
