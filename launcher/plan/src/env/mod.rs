//! Environment variables of ranks, each with its reason. Variables that the user or the host set are never
//! overridden.
//!
//! | file | variables |
//! |---|---|
//! | `forwarded` | forwarded from the shell in which rlaunch was started, `-x`, `--env-file` |
//! | `identity` | `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, …, `MASTER_ADDR`, `MASTER_PORT`; `PMIX_*`, `PMI_*`: how MPI libraries find the agent |
//! | `starters` | `PET_*`: torchrun's place among the hosts |
//! | `nccl` | `NCCL_*`, `UCX_NET_DEVICES`: the RDMA ports; NCCL's version and log |
//! | `hardware` | `OMP_NUM_THREADS`, `CUDA_VISIBLE_DEVICES`; `NCCL_SOCKET_IFNAME`, `GLOO_SOCKET_IFNAME`, …: the network interface for TCP |
//! | `horovod` | `HOROVOD_*`: the store through which Horovod's ranks connect |
//! | `styles` | `--env-style`: `TF_CONFIG`, `SLURM_*` |
//!
//! [`ReservedPorts`] are the TCP ports that variables such as MASTER_PORT name.
//!
//! A new variable is one of four kinds, by who knows its value and when:
//!
//! | kind | where |
//! |---|---|
//! | default with a reason, which the value of the user or the host replaces | a function here that returns a [`Variable`], called in `node_variables`, or in `rank_config` of `rank_config.rs` if it differs from rank to rank of a node |
//! | number of a rank | `rank_variables` in `identity` |
//! | address or port | `master_variables` in `identity`, called in `rank_config`, too |
//! | known only on the node, as a path is | the agent: `add_variables` in `worker/src/network/services.rs`, `prepare_program` in `worker/src/ranks/prepare.rs`, `worker/src/ranks/library.rs` |
//!
//! Its name is a constant in `bootstrap/src/env/mod.rs`. Two functions there may have to know it: `is_foreign_launch`, if the value
//! of another launch would mislead this one's ranks, and `is_rank_variable`, if it begins with `RLAUNCH_`. Users read of it in
//! `launcher/help/env.md`.

pub mod forwarded;
pub mod hardware;
pub mod horovod;
pub mod identity;
pub mod nccl;
pub mod starters;
pub(crate) mod styles;

use crate::map::{MappedNode, RankMap};
use crate::options::{EnvStyle, JobView, NamedPort, Options, UserChoices};
use nccl::{Fabric, NcclNetwork};
use rlaunch_bootstrap::env::{RLAUNCH_INIT_TIMEOUT, TORCH_FR_BUFFER_SIZE};
use rlaunch_bootstrap::id::NodeId;
use rlaunch_bootstrap::job::EnvVar;
use std::collections::BTreeMap;
use std::ffi::OsStr;

/// Prefixes of variables that choose a network. If the user sets such a variable, rlaunch does not choose the
/// network.
const NETWORK: &[&str] = &["NCCL_IB_", "NCCL_NET", "UCX_"];

/// Environment variable with the reason for its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    pub name: &'static str,
    pub value: String,
    /// Reason for the value, shown to the user; empty if the name says enough.
    pub reason: String,
}

impl Variable {
    pub fn new(name: &'static str, value: impl Into<String>, reason: &str) -> Variable {
        Variable { name, value: value.into(), reason: reason.to_owned() }
    }
}

/// Returns the variables that are the same for all ranks of a node. `ras` is the port for NCCL's RAS service.
pub(crate) fn node_variables(
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
        let has_rdma = matches!(fabric.network, NcclNetwork::Verbs(_));
        let chosen = user_chose_network(env);
        defaults.extend(hardware::interface(inventory, job.addresses[node], has_rdma || chosen));
        if options.nccl_net_plugin.is_some() {
            defaults.extend(fabric.plugin_variable(node));
        } else if !chosen {
            defaults.extend(fabric.variables(node));
        }
        defaults
            .extend(nccl::packet_priority_variables(options.traffic_class, options.service_level));
    }
    defaults.extend(hardware::oversubscribed(inventory, job.map.nodes[node].ranks.len()));
    defaults.extend(hardware::single_copy(inventory));
    if job.inventories.iter().any(|inventory| !inventory.gpus.is_empty()) {
        defaults.extend(nccl::job_variables(job.short_id(), ras));
        if options.watches_hangs {
            defaults.extend(recorder_variable(env));
        }
    }
    if options.nccl_verify {
        defaults.extend(nccl::log_variables());
    }
    if let Some(timeout) = options.init_timeout {
        let seconds = timeout.as_secs_f64().to_string();
        defaults.push(Variable::new(RLAUNCH_INIT_TIMEOUT, seconds, "--init-timeout"));
    }
    defaults
}

/// Tells whether the user set a variable that chooses a network.
pub(crate) fn user_chose_network(env: &[EnvVar]) -> bool {
    let starts_with =
        |name: &OsStr, prefix: &str| name.as_encoded_bytes().starts_with(prefix.as_bytes());
    env.iter().any(|var| NETWORK.iter().any(|prefix| starts_with(&var.name, prefix)))
}

/// Number of operations that a process keeps, which is torch's default.
const TORCH_OPERATIONS: &str = "2000";
/// Earlier name of the variable. Later versions of torch read it too, but prefer the new one.
const TORCH_EARLIER_NAME: &str = "TORCH_NCCL_TRACE_BUFFER_SIZE";

/// Returns the variable with which processes of torch record their last collective operations, unless the user has set
/// it by its earlier name. The agent adds where they can be asked for them. Versions of torch that know the earlier name
/// alone are left as they are, since the record costs them more.
fn recorder_variable(env: &[EnvVar]) -> Option<Variable> {
    let is_set = env.iter().any(|variable| variable.name == TORCH_EARLIER_NAME);
    (!is_set).then(|| Variable::new(TORCH_FR_BUFFER_SIZE, TORCH_OPERATIONS, "--hang-timeout"))
}

/// Lists the names of the ports of templates that are free on a node.
fn named_on<'a>(
    options: &'a Options,
    map: &'a RankMap,
    node: NodeId,
) -> impl Iterator<Item = &'a str> {
    let is_here = move |port: &&NamedPort| {
        map.nodes_of(port.app).next().is_some_and(|first| first.id == node)
    };
    options.named_ports.iter().filter(is_here).map(|port| port.name.as_str())
}

/// Count of ports that a node reserves for each use. A node's list of reserved ports is in the order of these
/// fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservedPorts {
    /// 1 on rank 0's node, for MASTER_PORT; 0 on other nodes.
    master: u32,
    /// 1 if the agent serves the store through which Horovod's ranks connect, otherwise 0.
    store: u32,
    /// Number of TensorFlow servers: one for each rank, or 0 if none are asked for.
    servers: u32,
    /// Number of ports that templates name and that are free on this node.
    named: u32,
}

impl ReservedPorts {
    /// Counts the ports that a node reserves.
    pub fn for_node(options: &Options, map: &RankMap, node: &MappedNode) -> ReservedPorts {
        let serves = options.env_styles.contains(&EnvStyle::Tensorflow);
        let ranks = u32::try_from(node.ranks.len()).unwrap_or(u32::MAX);
        let is_first = node.id == NodeId(0);
        ReservedPorts {
            master: u32::from(is_first),
            store: u32::from(horovod::is_served(options, map)),
            servers: if serves { ranks } else { 0 },
            named: u32::try_from(named_on(options, map, node.id).count()).unwrap_or(u32::MAX),
        }
    }

    /// Returns the ports that templates name, by name. `ports` is indexed by node.
    pub fn named(options: &Options, map: &RankMap, ports: &[Vec<u16>]) -> BTreeMap<String, u16> {
        let of_node = |(node, ports): (&MappedNode, &Vec<u16>)| {
            let Self { master, store, servers, .. } = Self::for_node(options, map, node);
            let own = ports.iter().skip((master + store + servers) as usize).copied();
            named_on(options, map, node.id).map(str::to_owned).zip(own).collect::<Vec<_>>()
        };
        if options.named_ports.is_empty() {
            return BTreeMap::new();
        }
        map.nodes.iter().zip(ports).flat_map(of_node).collect()
    }

    pub fn count(self) -> u32 {
        (self.master + self.store).saturating_add(self.servers).saturating_add(self.named)
    }

    /// Returns MASTER_PORT, the first reserved port of the first node, or 0 if that node has none. `ports` is
    /// indexed by node.
    pub fn master(ports: &[Vec<u16>]) -> u16 {
        ports.first().and_then(|ports| ports.first()).copied().unwrap_or_default()
    }

    /// Returns the port for Horovod's store from a node's reserved ports; `None` if there is no store.
    pub fn store(self, ports: &[u16]) -> Option<u16> {
        ports.get(self.master as usize).copied().filter(|_| self.store > 0)
    }

    /// Returns the port for NCCL's RAS service (`ncclras`) from a node's reserved ports. Only nodes with GPUs
    /// reserve this port, after those counted here.
    pub fn ras(self, ports: &[u16]) -> Option<u16> {
        ports.get(self.count() as usize).copied()
    }

    /// Returns the port for a rank's TensorFlow server from the reserved ports of the rank's node.
    pub fn server(self, ports: &[u16], local_rank: usize) -> Option<u16> {
        ports.get((self.master + self.store) as usize + local_rank).copied()
    }
}
