//! Options for the CPUs and GPUs of ranks.

use rlaunch_plan::placement::Bind;

/// CPUs and GPUs of each rank on its host.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct PlacementArgs {
    /// Bind ranks to CPUs: numa (the default), gpu, core, cpulist:0-3,8 or none
    ///
    /// numa: the CPUs near the rank's GPU or NIC, which ranks share; gpu: those near its GPU; core: CPUs of its
    /// own; cpulist: these CPUs. Ranks are never bound to CPUs that the host does not let them use.
    #[arg(long, value_name = "HOW", help_heading = "Hosts and ranks")]
    pub(crate) bind: Option<Bind>,

    /// Give each rank N CPUs of its own, whole cores if possible
    #[arg(
        long, value_name = "N", help_heading = "Hosts and ranks",
        value_parser = clap::value_parser!(u32).range(1..=65536)
    )]
    pub(crate) cpus_per_rank: Option<u32>,

    /// Let each rank see only its own GPU, by CUDA_VISIBLE_DEVICES and HIP_VISIBLE_DEVICES
    #[arg(long, help_heading = "Hosts and ranks")]
    pub(crate) gpu_mask: bool,
}
