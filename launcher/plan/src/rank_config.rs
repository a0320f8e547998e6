//! Programs and ranks of a node as they are sent to it, with the configuration of each rank, computed from all nodes'
//! inventories: its placement, its NICs and its variables.

use crate::env::horovod::GlooStore;
use crate::env::nccl::{self, Fabric, NcclNetwork};
use crate::env::{self, ReservedPorts, Variable, hardware, identity, starters, styles};
use crate::job::JobSpec;
use crate::map::RankMap;
use crate::options::{HIDING_GPUS, JobView, RankPosition, UserChoices};
use crate::placement::{self, Placement};
use crate::program::Starter;
use crate::selection::{self, UsablePort};
use rlaunch_bootstrap::id::{LocalRank, NodeId, Rank};
use rlaunch_bootstrap::inventory::Inventory;
use rlaunch_bootstrap::inventory::pci::{Distance, PciDevice};
use rlaunch_bootstrap::job::{Application, RankSetup, RankSpec};
use rlaunch_bootstrap::rank_table::RankNic;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use std::cmp::Reverse;
use std::net::SocketAddr;

/// Describes a node's programs and ranks for its agent.
pub fn node_applications(
    job: &JobSpec,
    map: &RankMap,
    node: NodeId,
) -> (Vec<Application>, Vec<RankSpec>) {
    let ranks: &[Rank] = map.nodes.get(node.index()).map_or(&[], |node| &node.ranks);
    let mut here: Vec<usize> = ranks.iter().map(|rank| map.application_of(*rank)).collect();
    here.sort_unstable();
    here.dedup();
    let application = |&index: &usize| {
        let app = job.apps.get(index)?;
        Some(Application {
            index: u32::try_from(index).unwrap_or(u32::MAX),
            argv: app.argv.clone(),
            other_names: app.other_names.clone(),
            wdir: app.wdir.clone(),
            env: app.env.clone(),
            script: app.script.clone(),
            in_environment: app.in_environment.clone(),
            offers_mpi: !job.options.starter(index).is_some_and(Starter::is_service),
            preload: app.preload.clone(),
            starts_on_request: !app.after.is_empty(),
        })
    };
    let spec = |(local_rank, &rank): (LocalRank, &Rank)| {
        let at = here.binary_search(&map.application_of(rank)).unwrap_or(0);
        RankSpec {
            rank,
            local_rank,
            application: u32::try_from(at).unwrap_or(u32::MAX),
            env: identity::rank_variables(job, map, node, local_rank),
            stdin: job.stdin.is_read_by(rank),
        }
    };
    let specs = (0u32..).map(LocalRank).zip(ranks).map(spec).collect();
    (here.iter().filter_map(application).collect(), specs)
}

#[derive(Clone, Debug)]
pub struct RankConfig {
    pub placement: Placement,
    /// PCI address of the rank's GPU.
    pub gpu: Option<String>,
    /// NICs of the rank, nearest first.
    pub nics: Vec<RankNic>,
    pub defaults: Vec<Variable>,
}

impl RankConfig {
    /// Converts the configuration into the form that is sent to the agent.
    pub fn to_setup(&self) -> RankSetup {
        let pair = |default: &Variable| (default.name.to_owned(), default.value.clone());
        RankSetup {
            cpus: self.placement.cpus.clone(),
            memory_node: self.placement.numa_node.filter(|_| self.placement.cpus.is_some()),
            defaults: self.defaults.iter().map(pair).collect(),
            ..RankSetup::default()
        }
    }
}

/// Computes the configuration of all ranks, by node and local rank. `ports` has the TCP ports that each
/// node's agent reserved, by node.
pub fn decide(
    choices: &UserChoices<'_>,
    job: &JobView<'_>,
    fabric: &Fabric<'_>,
    ports: &[Vec<u16>],
) -> Result<Vec<Vec<RankConfig>>, Failed> {
    let options = choices.options;
    let bind = options.bind.clone().unwrap_or_default();
    let reserved: Vec<ReservedPorts> =
        job.map.nodes.iter().map(|node| ReservedPorts::for_node(options, job.map, node)).collect();
    let servers = servers(job, &reserved, ports);
    let store = GlooStore::new(options, job, ports);
    let master = job.addresses.first().map(|address| (*address, ReservedPorts::master(ports)));
    let master = master.map(|(address, port)| identity::master_variables(address, port));
    let master = master.unwrap_or_default();
    let nodes = job.map.nodes.iter().zip(job.inventories).enumerate();
    let decided = nodes.map(|(node, (mapped, inventory))| {
        let failed = |error| Failed::new(Exit::USAGE, format!("{}: {error}", mapped.host));
        let mut placements = placement::place(inventory, mapped.ranks.len(), options.map_by, &bind)
            .map_err(failed)?;
        if let Some(list) = &options.rank_list {
            for (rank, placement) in mapped.ranks.iter().zip(&mut placements) {
                let cpus = list.cpus(*rank);
                let bound = cpus.map_or(Ok(()), |cpus| placement.bind_to(cpus, inventory));
                bound.map_err(|error| {
                    Failed::new(Exit::USAGE, format!("rank {rank} on {}: {error}", mapped.host))
                })?;
            }
        }
        let own_ports = ports.get(node).map_or(&[][..], Vec::as_slice);
        let node_variables =
            env::node_variables(choices, job, fabric, node, reserved[node].ras(own_ports));
        let ranks = mapped.ranks.iter().zip(placements).enumerate();
        let configs = ranks.map(|(local_rank, (&rank, placement))| {
            let place = RankPosition { rank, node, local_rank };
            let mut config = rank_config(choices, job, place, placement, &node_variables, &servers);
            let starter = options.starter(job.map.application_of(rank));
            if !starter.is_some_and(Starter::is_service) {
                config.defaults.extend_from_slice(&master);
                let horovod = store.as_ref().map(|store| store.variables(job, place));
                config.defaults.extend(horovod.into_iter().flatten());
            }
            config.defaults.extend(starters::variables(options, job, place, ports));
            config
        });
        Ok(configs.collect())
    });
    decided.collect()
}

/// Logs nodes with fewer CPUs than ranks.
pub fn log_crowded(map: &RankMap, inventories: &[Inventory]) {
    for (node, inventory) in map.nodes.iter().zip(inventories) {
        let (ranks, usable) = (node.ranks.len(), inventory.cpus.usable());
        if usable < ranks {
            tracing::info!("{}: {ranks} ranks share {usable} CPUs", node.host);
        }
    }
}

/// Lists, by rank, the address of each rank's TensorFlow server. The addresses are meaningless if no ports
/// were reserved for such servers.
fn servers(job: &JobView<'_>, reserved: &[ReservedPorts], ports: &[Vec<u16>]) -> Vec<SocketAddr> {
    let nodes = job.map.nodes.iter().zip(job.addresses).zip(reserved.iter().zip(ports));
    let mut servers: Vec<(Rank, SocketAddr)> = Vec::new();
    for ((node, &address), (reserved, ports)) in nodes {
        let ranks = node.ranks.iter().enumerate();
        servers.extend(ranks.filter_map(|(local, &rank)| {
            Some((rank, SocketAddr::new(address, reserved.server(ports, local)?)))
        }));
    }
    servers.sort_unstable_by_key(|(rank, _)| *rank);
    servers.into_iter().map(|(_, address)| address).collect()
}

fn rank_config(
    choices: &UserChoices<'_>,
    job: &JobView<'_>,
    place: RankPosition,
    placement: Placement,
    node_variables: &[Variable],
    servers: &[SocketAddr],
) -> RankConfig {
    let inventory = &job.inventories[place.node];
    let gpu = placement.gpu.and_then(|gpu| inventory.gpus.get(gpu));
    let pci = gpu.map(|gpu| &gpu.pci);
    let ports = &job.plan.ports[place.node];
    let nics = nearest_first(inventory, ports, pci, placement.numa_node, place.local_rank);
    let ranks = job.map.nodes[place.node].ranks.len();
    let mut defaults = Vec::new();
    let starter = choices.options.starter(job.map.application_of(place.rank));
    // What it starts divides the CPUs anew. torchrun, Ray and vLLM set the number where it is not set.
    if starter.is_none() {
        defaults.push(hardware::threads(inventory, ranks, placement.cpus.as_ref()));
    }
    defaults.extend_from_slice(node_variables);
    let is_hidden = choices.env.iter().any(|var| HIDING_GPUS.iter().any(|own| var.name == *own));
    if !is_hidden {
        let is_masked = choices.options.gpu_mask && gpu.is_some();
        defaults.extend(hardware::jax_devices(inventory, ranks, place, is_masked));
    }
    if choices.options.gpu_mask
        && let (Some(gpu), Some(index)) = (gpu, placement.gpu)
    {
        defaults.extend(hardware::gpu_mask(inventory, gpu, index));
    }
    if choices.options.nccl_share_gpu {
        defaults.push(nccl::host_id_variable(&job.map.nodes[place.node].host.name, place.rank));
    }
    let is_service = starter.is_some_and(Starter::is_service);
    for &style in choices.options.env_styles.iter().filter(|_| !is_service) {
        defaults.extend(styles::variables(style, job, place, servers));
    }
    RankConfig { gpu: pci.map(|pci| pci.address.clone()), placement, nics, defaults }
}

/// Sorts a rank's NICs: hardware before software, then by distance, then by speed. Equal NICs rotate with
/// the local rank, so that ranks at one PCIe switch do not all use its first NIC.
fn nearest_first(
    inventory: &Inventory,
    ports: &[UsablePort],
    gpu: Option<&PciDevice>,
    numa_node: Option<u32>,
    local_rank: usize,
) -> Vec<RankNic> {
    let distance = |port: &UsablePort| {
        let device = inventory.rdma.iter().find(|device| device.name == port.nic.device);
        device.map_or(Distance::System, |device| selection::distance(device, gpu, numa_node))
    };
    let key = |port: &UsablePort| (port.nic.software, distance(port), Reverse(port.nic.rate_mbps));
    let mut nics: Vec<(_, u32, u32)> =
        (0..).zip(ports).map(|(nic, port)| (key(port), port.nic.rail, nic)).collect();
    nics.sort_unstable();
    for equal in nics.chunk_by_mut(|one, other| one.0 == other.0) {
        let mut rails: Vec<u32> = equal.iter().map(|(_, rail, _)| *rail).collect();
        rails.dedup();
        let first = rails[local_rank % rails.len()];
        // Rotate: NICs from rail `first` on precede the others.
        equal.sort_by_key(|(_, rail, nic)| (*rail < first, *rail, *nic));
    }
    let row = |((_, distance, _), _, nic)| RankNic { nic, distance };
    nics.into_iter().map(row).collect()
}

/// Returns a warning and a hint for a job with GPUs on several nodes, if NCCL will not use RDMA or may hang
/// when it does. `None` if all is well, or if the user chose a network.
pub fn slow_network(
    choices: &UserChoices<'_>,
    map: &RankMap,
    inventories: &[Inventory],
    network: &NcclNetwork,
) -> Option<(String, Option<String>)> {
    let with_gpus = inventories.iter().filter(|inventory| !inventory.gpus.is_empty()).count();
    let UserChoices { options, env } = choices;
    if with_gpus < 2 || env::user_chose_network(env) || options.nccl_net_plugin.is_some() {
        return None;
    }
    match network {
        NcclNetwork::Verbs(shape) => {
            let (line, hint) = nccl::old_version_warning(map, inventories, *shape)?;
            Some((line, Some(hint)))
        }
        NcclNetwork::Tcp(why) => {
            let line = format!("NCCL will use TCP on every host ({why})");
            Some((line, nccl::erdma_remedy(map, inventories)))
        }
    }
}

#[cfg(test)]
mod tests;
