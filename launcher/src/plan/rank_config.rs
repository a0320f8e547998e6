//! Configuration of each rank, computed from all nodes' inventories: placement, NICs, and variables by
//! which libraries find their network. Variables that the user or the host set are never overridden.

use crate::plan::env_style::{self, EnvStyle, RankPosition};
use crate::plan::horovod::GlooStore;
use crate::plan::map::{MapBy, RankMap};
use crate::plan::mesh::MeshOptions;
use crate::plan::nccl::{self, Fabric, NcclNetwork};
use crate::plan::placement::{self, Bind, Placement};
use crate::plan::reserved_ports::ReservedPorts;
use crate::plan::selection::{self, Plan, PortWishes, Reachable};
use rlaunch_bootstrap::env::RLAUNCH_INIT_TIMEOUT;
use rlaunch_bootstrap::id::{JobId, Rank};
use rlaunch_bootstrap::inventory::pci::{Distance, PciDevice};
use rlaunch_bootstrap::inventory::{CpuSet, Gpu, GpuVendor, Inventory};
use rlaunch_bootstrap::job::{EnvVar, RankSetup};
use rlaunch_bootstrap::rank_table::RankNic;
use rlaunch_console::exit::Exit;
use rlaunch_console::messages::Failed;
use rlaunch_console::text;
use std::cmp::Reverse;
use std::ffi::OsStr;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// Prefixes of variables that choose a network. If the user sets any of these, rlaunch leaves the network
/// to them.
const NETWORK: &[&str] = &["NCCL_IB_", "NCCL_NET", "UCX_"];

/// Environment variable with the reason for its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Variable {
    pub(crate) name: &'static str,
    pub(crate) value: String,
    /// Reason, or empty if none is needed.
    pub(crate) reason: String,
}

impl Variable {
    pub(crate) fn new(name: &'static str, value: impl Into<String>, reason: &str) -> Variable {
        Variable { name, value: value.into(), reason: reason.to_owned() }
    }
}

/// Configuration of a rank.
#[derive(Clone, Debug)]
pub(crate) struct RankConfig {
    pub(crate) placement: Placement,
    /// PCI address of the rank's GPU.
    pub(crate) gpu: Option<String>,
    /// NICs of the rank, nearest first.
    pub(crate) nics: Vec<RankNic>,
    pub(crate) defaults: Vec<Variable>,
}

impl RankConfig {
    /// Converts the configuration into the form that is sent to the agent.
    pub(crate) fn told(&self) -> RankSetup {
        let pair = |default: &Variable| (default.name.to_owned(), default.value.clone());
        RankSetup {
            cpus: self.placement.cpus.clone(),
            memory_node: self.placement.numa_node.filter(|_| self.placement.cpus.is_some()),
            defaults: self.defaults.iter().map(pair).collect(),
            ..RankSetup::default()
        }
    }
}

/// The user's options for placement and networks.
#[derive(Clone, Debug, Default)]
pub(crate) struct Options {
    /// Mapping of ranks to the NUMA nodes of their host.
    pub(crate) map_by: MapBy,
    pub(crate) bind: Bind,
    /// Restrict each rank to its own GPU.
    pub(crate) gpu_mask: bool,
    pub(crate) transport: Transport,
    /// Require NCCL to use RDMA as well.
    pub(crate) require_rdma: bool,
    pub(crate) ports: PortWishes,
    /// Path of NCCL's network plugin on every host.
    pub(crate) nccl_net_plugin: Option<PathBuf>,
    /// Report the network that NCCL used.
    pub(crate) nccl_verify: bool,
    /// Let ranks share a GPU by presenting each to NCCL as a host of its own.
    pub(crate) nccl_share_gpu: bool,
    pub(crate) env_styles: Vec<EnvStyle>,
    /// Set Horovod's variables.
    pub(crate) horovod: bool,
    pub(crate) mesh: MeshOptions,
    /// Traffic class of RoCE packets: the IP TOS byte.
    pub(crate) traffic_class: Option<u8>,
    /// Service level of InfiniBand packets.
    pub(crate) service_level: Option<u8>,
    /// Time limit for all ranks to create a communicator.
    pub(crate) init_timeout: Option<Duration>,
}

/// `--transport`: transport between ranks of different nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Transport {
    /// RDMA where it connects two hosts, TCP otherwise
    #[default]
    Auto,
    /// RDMA; an error where it does not connect two hosts
    Rdma,
    /// TCP
    Tcp,
}

/// The user's choices that affect the configuration of ranks.
#[derive(Clone, Copy)]
pub(crate) struct UserChoices<'a> {
    pub(crate) options: &'a Options,
    /// Variables that every rank gets from the launching shell.
    pub(crate) env: &'a [EnvVar],
}

/// Read-only view of a job and its nodes; slices are indexed by node.
#[derive(Clone, Copy)]
pub(crate) struct JobView<'a> {
    pub(crate) id: JobId,
    pub(crate) map: &'a RankMap,
    pub(crate) inventories: &'a [Inventory],
    pub(crate) plan: &'a Plan,
    /// Address by which other nodes reach each node.
    pub(crate) addresses: &'a [IpAddr],
}

impl JobView<'_> {
    /// Returns a number that is unlikely to be another job's, positive and of at most 63 bits.
    pub(crate) fn short_id(&self) -> u64 {
        (self.id.0 & u128::from(u64::MAX >> 1)) as u64
    }
}

/// Computes the configuration of all ranks, by node and local rank. `ports` has the ports that each node's
/// agent reserved.
pub(crate) fn decide(
    choices: &UserChoices<'_>,
    job: &JobView<'_>,
    fabric: &Fabric<'_>,
    ports: &[Vec<u16>],
) -> Result<Vec<Vec<RankConfig>>, Failed> {
    let options = choices.options;
    let held: Vec<ReservedPorts> =
        job.map.nodes.iter().map(|node| ReservedPorts::for_node(options, job.map, node)).collect();
    let servers = servers(job, &held, ports);
    let meeting = GlooStore::new(options, job, ports);
    let nodes = job.map.nodes.iter().zip(job.inventories).enumerate();
    let decided = nodes.map(|(node, (mapped, inventory))| {
        let placements =
            placement::place(inventory, mapped.ranks.len(), options.map_by, &options.bind)
                .map_err(|error| Failed::new(Exit::USAGE, format!("{}: {error}", mapped.host)))?;
        let own_ports = ports.get(node).map_or(&[][..], Vec::as_slice);
        let of_node = of_node(choices, job, fabric, node, held[node].ras(own_ports));
        let ranks = mapped.ranks.iter().zip(placements).enumerate();
        let configs = ranks.map(|(local_rank, (&rank, placement))| {
            let place = RankPosition { rank, node, local_rank };
            let mut config = of_rank(choices, job, place, placement, &of_node, &servers);
            let horovod = meeting.as_ref().map(|meeting| meeting.variables(job, place));
            config.defaults.extend(horovod.into_iter().flatten());
            config
        });
        Ok(configs.collect())
    });
    decided.collect()
}

/// Logs nodes with fewer CPUs than ranks.
pub(crate) fn log_crowded(map: &RankMap, inventories: &[Inventory]) {
    for (node, inventory) in map.nodes.iter().zip(inventories) {
        let (ranks, usable) = (node.ranks.len(), inventory.cpus.usable());
        if usable < ranks {
            tracing::info!("{}: {ranks} ranks share {usable} CPUs", node.host);
        }
    }
}

/// Lists, by rank, the address on which each rank's server would listen.
fn servers(job: &JobView<'_>, held: &[ReservedPorts], ports: &[Vec<u16>]) -> Vec<SocketAddr> {
    let nodes = job.map.nodes.iter().zip(job.addresses).zip(held.iter().zip(ports));
    let mut servers: Vec<(Rank, SocketAddr)> = Vec::new();
    for ((node, &address), (held, ports)) in nodes {
        let ranks = node.ranks.iter().enumerate();
        servers.extend(ranks.filter_map(|(local, &rank)| {
            Some((rank, SocketAddr::new(address, held.server(ports, local)?)))
        }));
    }
    servers.sort_unstable_by_key(|(rank, _)| *rank);
    servers.into_iter().map(|(_, address)| address).collect()
}

/// Returns the variables that are the same for all ranks of a node.
fn of_node(
    choices: &UserChoices<'_>,
    job: &JobView<'_>,
    fabric: &Fabric<'_>,
    node: usize,
    ras: Option<u16>,
) -> Vec<Variable> {
    let UserChoices { options, env } = choices;
    let inventory = &job.inventories[node];
    let mut defaults = Vec::new();
    if job.map.nodes.len() > 1 {
        defaults.extend(sockets(inventory, job.addresses[node]));
        if options.nccl_net_plugin.is_some() {
            defaults.extend(fabric.for_plugin(node));
        } else if !has_chosen(env) {
            defaults.extend(fabric.variables(node));
        }
        defaults.extend(nccl::of_packets(options.traffic_class, options.service_level));
    }
    if job.inventories.iter().any(|inventory| !inventory.gpus.is_empty()) {
        defaults.extend(nccl::of_job(job.short_id(), ras));
    }
    if options.nccl_verify {
        defaults.extend(nccl::for_verify());
    }
    if let Some(timeout) = options.init_timeout {
        let seconds = timeout.as_secs_f64().to_string();
        defaults.push(Variable::new(RLAUNCH_INIT_TIMEOUT, seconds, "--init-timeout"));
    }
    defaults
}

fn of_rank(
    choices: &UserChoices<'_>,
    job: &JobView<'_>,
    place: RankPosition,
    placement: Placement,
    of_node: &[Variable],
    servers: &[SocketAddr],
) -> RankConfig {
    let inventory = &job.inventories[place.node];
    let gpu = placement.gpu.and_then(|gpu| inventory.gpus.get(gpu));
    let pci = gpu.map(|gpu| &gpu.pci);
    let ports = &job.plan.ports[place.node];
    let nics = nearest_first(inventory, ports, pci, placement.numa_node, place.local_rank);
    let ranks = job.map.nodes[place.node].ranks.len();
    let mut defaults = vec![threads(inventory, ranks, placement.cpus.as_ref())];
    defaults.extend_from_slice(of_node);
    if let (true, Some(gpu), Some(index)) = (choices.options.gpu_mask, gpu, placement.gpu) {
        defaults.extend(masked(inventory, gpu, index));
    }
    if choices.options.nccl_share_gpu {
        defaults.push(nccl::own_host(&job.map.nodes[place.node].host.name, place.rank));
    }
    for &style in &choices.options.env_styles {
        defaults.extend(env_style::variables(style, job, place, servers));
    }
    RankConfig { gpu: pci.map(|pci| pci.address.clone()), placement, nics, defaults }
}

/// Sorts a rank's NICs: hardware before software, then by distance, then by speed. Equal NICs rotate with
/// the local rank, so that ranks at one PCIe switch do not all use its first NIC.
fn nearest_first(
    inventory: &Inventory,
    ports: &[Reachable],
    gpu: Option<&PciDevice>,
    numa_node: Option<u32>,
    local_rank: usize,
) -> Vec<RankNic> {
    let distance = |port: &Reachable| {
        let device = inventory.rdma.iter().find(|device| device.name == port.nic.device);
        device.map_or(Distance::System, |device| selection::distance(device, gpu, numa_node))
    };
    let key = |port: &Reachable| (port.nic.software, distance(port), Reverse(port.nic.rate_mbps));
    let mut nics: Vec<(_, u32, u32)> =
        (0..).zip(ports).map(|(nic, port)| (key(port), port.nic.rail, nic)).collect();
    nics.sort_unstable();
    for equal in nics.chunk_by_mut(|one, other| one.0 == other.0) {
        let mut rails: Vec<u32> = equal.iter().map(|(_, rail, _)| *rail).collect();
        rails.dedup();
        let first = rails[local_rank % rails.len()];
        // Rotate: NICs from `first` on precede the others.
        equal.sort_by_key(|(_, rail, nic)| (*rail < first, *rail, *nic));
    }
    let row = |((_, distance, _), _, nic)| RankNic { nic, distance };
    nics.into_iter().map(row).collect()
}

/// Returns the variables that restrict a rank to its GPU. They make libraries number GPUs by PCI address,
/// without which the index could mean another GPU.
fn masked(inventory: &Inventory, gpu: &Gpu, index: usize) -> Vec<Variable> {
    let of_vendor = inventory.gpus[..index].iter().filter(|other| other.vendor == gpu.vendor);
    let number = of_vendor.count().to_string();
    let reason = format!("--gpu-mask: GPU {}", gpu.pci.address);
    match gpu.vendor {
        GpuVendor::Nvidia => vec![
            Variable::new("CUDA_DEVICE_ORDER", "PCI_BUS_ID", &reason),
            Variable::new("CUDA_VISIBLE_DEVICES", number, &reason),
        ],
        GpuVendor::Amd => vec![Variable::new("HIP_VISIBLE_DEVICES", number, &reason)],
    }
}

/// Tells whether the user chose a network.
fn has_chosen(env: &[EnvVar]) -> bool {
    let starts_with =
        |name: &OsStr, prefix: &str| name.as_encoded_bytes().starts_with(prefix.as_bytes());
    env.iter().any(|var| NETWORK.iter().any(|prefix| starts_with(&var.name, prefix)))
}

/// Returns a warning and a hint for a job whose GPUs on several nodes will not use RDMA, or may hang when
/// they try; `None` if all is well or if the user chose a network.
pub(crate) fn slow_network(
    choices: &UserChoices<'_>,
    map: &RankMap,
    inventories: &[Inventory],
    network: &NcclNetwork,
) -> Option<(String, Option<String>)> {
    let with_gpus = inventories.iter().filter(|inventory| !inventory.gpus.is_empty()).count();
    let UserChoices { options, env } = choices;
    if with_gpus < 2 || has_chosen(env) || options.nccl_net_plugin.is_some() {
        return None;
    }
    match network {
        NcclNetwork::Verbs(shape) => {
            let (line, hint) = nccl::too_old(map, inventories, *shape)?;
            Some((line, Some(hint)))
        }
        NcclNetwork::Tcp(why) => {
            let line = format!("NCCL will use TCP on every host ({why})");
            Some((line, nccl::cure(map, inventories)))
        }
    }
}

/// Limits OpenMP's threads to the rank's share of CPUs; by default every rank would start one for each CPU
/// of the node.
fn threads(inventory: &Inventory, ranks: usize, bound: Option<&CpuSet>) -> Variable {
    let usable = inventory.cpus.usable();
    let share = (usable / ranks.max(1)).max(1);
    let own = bound.map(CpuSet::len).filter(|&own| own > 0 && own < share);
    let reason = match own {
        Some(own) => format!("the rank is bound to {own} of {usable} CPUs"),
        None => format!("{usable} CPUs for {} of this node", text::count(ranks, "rank")),
    };
    Variable::new("OMP_NUM_THREADS", own.unwrap_or(share).to_string(), &reason)
}

/// Returns the variables that name the interface by which other nodes reach this one. For NCCL, `=` marks
/// an exact name; without it `eth1` would match `eth10` too.
fn sockets(inventory: &Inventory, address: IpAddr) -> Vec<Variable> {
    let netdev = inventory.netdev_with_address(address).filter(|_| !address.is_loopback());
    let Some(netdev) = netdev else { return Vec::new() };
    let reason = format!("{address} of {} is how other nodes reach this one", netdev.name);
    let mut set = vec![
        Variable::new("NCCL_SOCKET_IFNAME", format!("={}", netdev.name), &reason),
        Variable::new("GLOO_SOCKET_IFNAME", &*netdev.name, &reason),
        Variable::new("TP_SOCKET_IFNAME", &*netdev.name, &reason),
    ];
    if address.is_ipv6() {
        set.push(Variable::new("NCCL_SOCKET_FAMILY", "AF_INET6", &reason));
    }
    set
}

#[cfg(test)]
mod tests;
