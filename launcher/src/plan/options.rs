//! Inputs of planning: the user's options, and a view of the job and its nodes.

use crate::plan::map::{MapBy, RankMap};
use crate::plan::mesh::MeshOptions;
use crate::plan::placement::Bind;
use crate::plan::selection::{Plan, PortOptions};
use rlaunch_bootstrap::id::{JobId, Rank};
use rlaunch_bootstrap::inventory::Inventory;
use rlaunch_bootstrap::job::EnvVar;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Options of the user for placement and networks.
#[derive(Clone, Debug, Default)]
pub(crate) struct Options {
    /// `--map-by`, from which planning learns whether ranks take the NUMA nodes of their host in turn.
    pub(crate) map_by: MapBy,
    pub(crate) bind: Bind,
    /// Hide all GPUs but its own from each rank.
    pub(crate) gpu_mask: bool,
    pub(crate) transport: Transport,
    pub(crate) preflight: Preflight,
    /// `--require-rdma`: fail if NCCL cannot use RDMA.
    pub(crate) require_rdma: bool,
    pub(crate) ports: PortOptions,
    /// Path of NCCL's network plugin on every host.
    pub(crate) nccl_net_plugin: Option<PathBuf>,
    /// Report, for each rank, the network that NCCL used.
    pub(crate) nccl_verify: bool,
    /// Let ranks share a GPU, by making NCCL believe that each rank runs on a separate host.
    pub(crate) nccl_share_gpu: bool,
    pub(crate) env_styles: Vec<EnvStyle>,
    /// Set Horovod's variables.
    pub(crate) horovod: bool,
    pub(crate) mesh: MeshOptions,
    /// Traffic class of RoCE packets, which is the TOS byte of their IP header; `None` if not given.
    pub(crate) traffic_class: Option<u8>,
    /// Service level of InfiniBand packets, 0 to 15; `None` if not given.
    pub(crate) service_level: Option<u8>,
    /// Time limit for ranks to create a communicator together.
    pub(crate) init_timeout: Option<Duration>,
    /// Whether libraries record what the hang watch asks them for: `--hang-timeout` is set.
    pub(crate) watches_hangs: bool,
}

/// `--preflight`: checks of hosts before a job's program starts.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    strum::EnumString,
    strum::IntoStaticStr,
    strum::VariantArray,
)]
#[strum(serialize_all = "kebab-case")]
pub(crate) enum Preflight {
    /// Checks of inventories, which every job reads
    #[default]
    Quick,
    /// All checks of `rlaunch doctor`
    Full,
    /// None
    Off,
}

/// `--transport`: transport between ranks of different nodes.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    strum::EnumString,
    strum::IntoStaticStr,
    strum::VariantArray,
)]
#[strum(serialize_all = "kebab-case")]
pub(crate) enum Transport {
    /// RDMA where it connects two hosts, TCP otherwise
    #[default]
    Auto,
    /// RDMA; an error where it does not connect two hosts
    Rdma,
    /// TCP
    Tcp,
}

/// User's options and variables that affect the configuration of ranks.
#[derive(Clone, Copy)]
pub(crate) struct UserChoices<'a> {
    pub(crate) options: &'a Options,
    /// Variables that every rank gets from the shell in which rlaunch was started.
    pub(crate) env: &'a [EnvVar],
}

/// Read-only view of a job and its nodes. Slices are indexed by node.
#[derive(Clone, Copy)]
pub(crate) struct JobView<'a> {
    pub(crate) id: JobId,
    pub(crate) map: &'a RankMap,
    pub(crate) inventories: &'a [Inventory],
    pub(crate) plan: &'a Plan,
    /// Address by which other nodes reach a node, by node.
    pub(crate) addresses: &'a [IpAddr],
}

impl JobView<'_> {
    /// Returns the low 63 bits of the job's id, which are unlikely to equal those of another job.
    pub(crate) fn short_id(&self) -> u64 {
        (self.id.0 & u128::from(u64::MAX >> 1)) as u64
    }
}

/// Position of a rank in the job and on its node.
#[derive(Clone, Copy)]
pub(crate) struct RankPosition {
    pub(crate) rank: Rank,
    pub(crate) node: usize,
    pub(crate) local_rank: usize,
}

/// `--env-style`: launcher or framework whose variables are set.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, strum::EnumString, strum::IntoStaticStr, strum::VariantArray,
)]
#[strum(serialize_all = "kebab-case")]
pub(crate) enum EnvStyle {
    /// TF_CONFIG, with a port for each rank's server
    Tensorflow,
    /// SLURM_*, from which JAX and others read ranks
    Slurm,
    /// OMPI_MCA_orte_hnp_uri, by which JAX finds rank 0
    Openmpi,
}
