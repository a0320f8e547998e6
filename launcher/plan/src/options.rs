//! Inputs of planning: the user's options, and a view of the job and its nodes.

use crate::map::{MapBy, RankMap};
use crate::placement::{Bind, CpuChoice};
use crate::program::Starter;
use crate::rank_list::RankList;
use crate::selection::{Plan, PortOptions};
use rlaunch_bootstrap::id::{JobId, Rank};
use rlaunch_bootstrap::inventory::Inventory;
use rlaunch_bootstrap::job::EnvVar;
use rlaunch_bootstrap::protocol::mesh::QpSettings;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;
use strum::{EnumString, IntoStaticStr, VariantArray};

/// Variables by which a shell hides GPUs from programs, and numbers the others anew.
pub(crate) const HIDING_GPUS: [&str; 4] =
    ["CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"];

/// Options of the user for placement and networks.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// `--map-by`, from which planning learns whether ranks take the NUMA nodes of their host in turn.
    pub map_by: MapBy,
    /// `--bind` or `--cpus-per-rank`; `None` if the user has asked for neither, which leaves it to [`Bind::default`].
    pub bind: Option<Bind>,
    /// `--rankfile`: the host of each rank and its CPUs.
    pub rank_list: Option<RankList>,
    /// Hide all GPUs but its own from each rank.
    pub gpu_mask: bool,
    pub transport: Transport,
    pub preflight: Preflight,
    /// `--require-rdma`: fail if NCCL cannot use RDMA.
    pub require_rdma: bool,
    pub ports: PortOptions,
    /// Path of NCCL's network plugin on every host.
    pub nccl_net_plugin: Option<PathBuf>,
    /// Report, for each rank, the network that NCCL used.
    pub nccl_verify: bool,
    /// Let ranks share a GPU, by making NCCL believe that each rank runs on a separate host.
    pub nccl_share_gpu: bool,
    pub env_styles: Vec<EnvStyle>,
    /// Set Horovod's variables.
    pub horovod: bool,
    pub mesh: MeshOptions,
    /// Traffic class of RoCE packets, which is the TOS byte of their IP header; `None` if not given.
    pub traffic_class: Option<u8>,
    /// Service level of InfiniBand packets, 0 to 15; `None` if not given.
    pub service_level: Option<u8>,
    /// Time limit for ranks to create a communicator together.
    pub init_timeout: Option<Duration>,
    /// Whether libraries record what the hang watch asks them for: `--hang-timeout` is set.
    pub watches_hangs: bool,
    /// Ports that templates name.
    pub named_ports: Vec<NamedPort>,
    /// Programs that start processes themselves, by number; `None` for others.
    pub starters: Vec<Option<Starter>>,
}

impl Options {
    /// Tells whether agents must say which CPUs are of one core.
    pub fn wants_cores(&self) -> bool {
        let is_core = |choice: &CpuChoice| matches!(choice, CpuChoice::Cores(_));
        let by_bind = match &self.bind {
            Some(Bind::Core(_)) => true,
            Some(Bind::Each(choices)) => choices.iter().any(is_core),
            _ => false,
        };
        by_bind || self.rank_list.iter().flat_map(RankList::choices).any(is_core)
    }

    /// Tells whether ranks have CPUs by `--rankfile`.
    pub fn binds_by_list(&self) -> bool {
        self.rank_list.iter().flat_map(RankList::choices).next().is_some()
    }

    /// Returns what a program is if it starts processes itself. `app` is its number, from 0.
    pub fn starter(&self, app: usize) -> Option<Starter> {
        self.starters.get(app).copied().flatten()
    }
}

/// Port that a template names by `port["NAME"]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedPort {
    pub name: String,
    /// Number of the program, from 0, on whose first node the port is free.
    pub app: usize,
}

/// `--preflight`: checks of hosts before a job's program starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, EnumString, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub enum Preflight {
    /// Checks of inventories, which every job reads
    #[default]
    Quick,
    /// All checks of `rlaunch doctor`
    Full,
    /// None
    Off,
}

/// `--transport`: transport between ranks of different nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, EnumString, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub enum Transport {
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
pub struct UserChoices<'a> {
    pub options: &'a Options,
    /// Variables that every rank gets from the shell in which rlaunch was started.
    pub env: &'a [EnvVar],
}

/// Read-only view of a job and its nodes. Slices are indexed by node.
#[derive(Clone, Copy)]
pub struct JobView<'a> {
    pub id: JobId,
    pub map: &'a RankMap,
    pub inventories: &'a [Inventory],
    pub plan: &'a Plan,
    /// Address by which other nodes reach a node, by node.
    pub addresses: &'a [IpAddr],
}

impl JobView<'_> {
    /// Returns the low 63 bits of the job's id, which are unlikely to equal those of another job.
    pub fn short_id(&self) -> u64 {
        (self.id.0 & u128::from(u64::MAX >> 1)) as u64
    }
}

/// Position of a rank in the job and on its node.
#[derive(Clone, Copy)]
pub struct RankPosition {
    pub rank: Rank,
    pub node: usize,
    pub local_rank: usize,
}

/// `--env-style`: launcher or framework whose variables are set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumString, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub enum EnvStyle {
    /// TF_CONFIG, with a port for each rank's server
    Tensorflow,
    /// SLURM_*, from which JAX and others read ranks
    Slurm,
    /// OMPI_MCA_orte_hnp_uri, which every rank has by now
    Openmpi,
}

/// Number of ranks up to which `--mesh auto` proves every pair of ranks.
const MAX_FULL_RANKS: u32 = 64;

/// `--mesh`: paths to prove before ranks start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, EnumString, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub enum MeshMode {
    /// Every pair of ranks in jobs of up to 64, every pair of ports in larger ones
    #[default]
    Auto,
    /// Every pair of ranks
    Full,
    /// No proof
    Off,
}

impl MeshMode {
    /// Tells whether every pair of ranks is proved, rather than every pair of ports once.
    pub fn is_full(self, world_size: u32) -> bool {
        match self {
            MeshMode::Auto => world_size <= MAX_FULL_RANKS,
            MeshMode::Full => true,
            MeshMode::Off => false,
        }
    }
}

/// Options of the user for the mesh.
#[derive(Clone, Debug)]
pub struct MeshOptions {
    pub mode: MeshMode,
    /// Time limit for all rounds together.
    pub timeout: Duration,
    pub settings: QpSettings,
    /// Watch the paths while the job runs.
    pub watch: bool,
    /// End the job when a watched path goes down.
    pub abort_on_link_down: bool,
    /// Measure the bandwidth of each cable after the proofs. Jobs do not.
    pub measure: bool,
}

impl Default for MeshOptions {
    fn default() -> MeshOptions {
        MeshOptions {
            mode: MeshMode::default(),
            timeout: Duration::from_secs(5),
            settings: QpSettings::default(),
            watch: true,
            abort_on_link_down: false,
            measure: false,
        }
    }
}
