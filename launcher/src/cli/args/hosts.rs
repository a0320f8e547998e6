//! Options for the hosts of a job, and for the number, the order, the CPUs and the GPUs of its ranks.

use super::values;
use rlaunch_plan::map::{MapBy, RankBy};
use rlaunch_plan::placement::Bind;
use std::path::PathBuf;

/// Hosts of a job, and how ranks are dealt to them.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct HostArgs {
    /// Hosts and their slots, such as `a,b:2,user@c,n[01-16]`
    ///
    /// `:N` gives a host N slots, otherwise it has one; slots of repeated hosts add up. `@gpu` stands for a group
    /// of rlaunch.toml. Ports come from ~/.ssh/config or --port. Without -H and --hostfile the job runs on the
    /// hosts of rlaunch.toml, or those that Slurm, another batch system or an MPIJob has allocated, or on this machine.
    #[arg(short = 'H', long = "host", visible_alias = "hosts", value_name = "HOST[:N],...")]
    #[arg(help_heading = "Hosts and ranks")]
    pub(crate) hosts: Vec<String>,

    /// File with a line for each host, such as `a slots=4`
    ///
    /// Also `b:4`, `user@c` and `n[01-16] slots=8`. A host without a number has one slot for each of its GPUs,
    /// or one slot. With -H as well, -H chooses among the hosts of the file.
    #[arg(long = "hostfile", visible_alias = "machinefile", value_name = "FILE")]
    #[arg(value_parser = values::path(), help_heading = "Hosts and ranks")]
    pub(crate) hostfiles: Vec<PathBuf>,

    /// File with a line for each rank: `rank 0=a slot=0-3`, or just its host
    ///
    /// slot= binds the rank to these cores, numbered from 0 on its host; slot=p0-3 to CPUs. Without -H the hosts are
    /// those of the file.
    #[arg(long, value_name = "FILE", value_parser = values::path(), help_heading = "Hosts and ranks")]
    pub(crate) rankfile: Option<PathBuf>,

    /// Leave out these hosts, such as `a,n[03-04]`
    #[arg(long, value_name = "HOST,...", help_heading = "Hosts and ranks")]
    pub(crate) exclude: Vec<String>,

    /// Number of ranks, also `-np N`; by default one for each slot
    #[arg(short = 'n', long = "np", value_name = "N", help_heading = "Hosts and ranks")]
    #[arg(value_parser = values::parse_ranks)]
    pub(crate) ranks: Option<u32>,

    /// Start N ranks on each host, which needs no slots; the same as `--map-by ppr:N:node`
    #[arg(long = "npernode", visible_aliases = ["ppn", "nproc-per-node"], value_name = "N")]
    #[arg(help_heading = "Hosts and ranks", value_parser = values::parse_ranks)]
    pub(crate) per_node: Option<u32>,

    /// Allow more ranks than slots
    #[arg(long, help_heading = "Hosts and ranks")]
    pub(crate) oversubscribe: bool,

    /// Order in which slots are filled with ranks
    ///
    /// slot: all slots of a host, then the next host; node: one slot of each host in turn; ppr:N:node: N ranks on
    /// each host. numa and gpu: like slot, and on each host ranks go to its NUMA nodes in turn, or to a GPU
    /// each.
    #[arg(long, value_name = "slot|node|ppr:N:node|numa|gpu", default_value = "slot")]
    #[arg(help_heading = "Hosts and ranks")]
    pub(crate) map_by: MapBy,

    /// Number ranks host by host (slot), or one of each host in turn (node); by default in the order in which
    /// --map-by deals them out
    #[arg(long, value_parser = values::named::<RankBy>(), value_name = "slot|node")]
    #[arg(hide_possible_values = true, help_heading = "Hosts and ranks")]
    pub(crate) rank_by: Option<RankBy>,

    /// Accepted for mpirun's command lines; root needs no permission here
    #[arg(long = "allow-run-as-root", hide = true)]
    pub(crate) _root: bool,
}

/// Hosts of a verb, where they may also come from files or from a scheduler.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct HostSourceArgs {
    /// Hosts, as for a job; by default those of rlaunch.toml or of a scheduler, or this machine
    #[arg(short = 'H', long = "host", visible_alias = "hosts", value_name = "HOST,...")]
    pub(crate) hosts: Vec<String>,

    /// Files with a line for each host, as for a job
    #[arg(long = "hostfile", visible_alias = "machinefile", value_name = "FILE")]
    pub(crate) hostfiles: Vec<PathBuf>,

    /// Leave out these hosts
    #[arg(long, value_name = "HOST,...")]
    pub(crate) exclude: Vec<String>,
}

/// Help of `-H` for verbs that do nothing to this machine unless it is named.
pub(crate) const OTHER_HOSTS: &str =
    "Hosts, as for a job; by default those of rlaunch.toml or of a scheduler";

/// Hosts that a verb asks, all at once.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct HostListArgs {
    /// Hosts, as for a job; by default those of rlaunch.toml, or this machine
    #[arg(short = 'H', long = "host", visible_alias = "hosts", value_name = "HOST,...")]
    pub(crate) hosts: Vec<String>,
}

/// CPUs and GPUs of each rank on its host.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct PlacementArgs {
    /// Bind ranks to CPUs: numa (the default), gpu, core, cpulist:0-3,8, each:0-3/4-7 or none
    ///
    /// numa: the CPUs near the rank's GPU or NIC, which ranks share; gpu: those near its GPU; core: CPUs of its
    /// own; cpulist: these CPUs; each: these in turn, by local rank, and with a c, as in each:c0/c1, cores. Ranks are never bound to CPUs that the host does not let them use.
    #[arg(long, value_name = "HOW", help_heading = "Hosts and ranks")]
    pub(crate) bind: Option<Bind>,

    /// Give each rank N CPUs of its own, whole cores if possible
    #[arg(long, value_name = "N", help_heading = "Hosts and ranks")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub(crate) cpus_per_rank: Option<u32>,

    /// Let each rank see only its own GPU, by CUDA_VISIBLE_DEVICES and HIP_VISIBLE_DEVICES
    #[arg(long, help_heading = "Hosts and ranks")]
    pub(crate) gpu_mask: bool,
}
