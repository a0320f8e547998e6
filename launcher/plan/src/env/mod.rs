//! Environment variables of ranks, each with its reason. Variables that the user or the host set are never
//! overridden.
//!
//! | file | variables |
//! |---|---|
//! | `forwarded`, `env_file` | forwarded from the shell in which rlaunch was started, `-x`, `--env-file` |
//! | `identity` | `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, …, `MASTER_ADDR`, `MASTER_PORT` |
//! | `interfaces` | `NCCL_SOCKET_IFNAME`, `GLOO_SOCKET_IFNAME`: the network interface for TCP |
//! | `mpi` | `OMPI_MCA_btl_tcp_if_include`, `FI_TCP_IFACE`: the network interface for MPI libraries |
//! | `process_manager` | `PMIX_*`, `PMI_*`: how MPI libraries find the agent |
//! | `nccl` | `NCCL_*`, `UCX_NET_DEVICES`: the RDMA ports; NCCL's version and log |
//! | `torch` | `TORCH_FR_BUFFER_SIZE`: the record of operations that the hang watch reads |
//! | `hardware` | `OMP_NUM_THREADS`, `CUDA_VISIBLE_DEVICES` |
//! | `horovod` | `HOROVOD_*`: the store through which Horovod's ranks connect |
//! | `styles` | `--env-style`: `TF_CONFIG`, `SLURM_*` |

pub mod env_file;
pub mod forwarded;
pub mod hardware;
pub mod horovod;
pub mod identity;
pub mod interfaces;
pub mod mpi;
pub mod nccl;
pub mod process_manager;
pub(crate) mod styles;
pub mod torch;

use crate::options::{JobView, UserChoices};
use nccl::{Fabric, NcclNetwork};
use rlaunch_bootstrap::env::RLAUNCH_INIT_TIMEOUT;
use rlaunch_bootstrap::job::EnvVar;
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
        defaults.extend(interfaces::variables(inventory, job.addresses[node]));
        let has_rdma = matches!(fabric.network, NcclNetwork::Verbs(_));
        let chosen = user_chose_network(env);
        defaults.extend(mpi::interface(inventory, job.addresses[node], has_rdma || chosen));
        if options.nccl_net_plugin.is_some() {
            defaults.extend(fabric.plugin_variable(node));
        } else if !chosen {
            defaults.extend(fabric.variables(node));
        }
        defaults
            .extend(nccl::packet_priority_variables(options.traffic_class, options.service_level));
    }
    defaults.extend(mpi::oversubscribed(inventory, job.map.nodes[node].ranks.len()));
    if job.inventories.iter().any(|inventory| !inventory.gpus.is_empty()) {
        defaults.extend(nccl::job_variables(job.short_id(), ras));
        if options.watches_hangs {
            defaults.extend(torch::recorder_variable(env));
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
