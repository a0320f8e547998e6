//! Where ranks run on their hosts.

use crate::plan::placement::Bind;

/// Where ranks run on their hosts.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct PlacingArgs {
    /// Bind ranks: numa (default: to the processors near their GPU or NIC, shared), gpu (to those
    /// near their GPU), core (to their own), cpulist:0-3,8 (to these) or none. Never to what the
    /// host does not allow
    #[arg(long, value_name = "HOW", help_heading = "Hosts and ranks")]
    pub(crate) bind: Option<Bind>,

    /// Give each rank so many processors of its own, whole cores as far as they go
    #[arg(
        long, value_name = "N", help_heading = "Hosts and ranks",
        value_parser = clap::value_parser!(u32).range(1..=65536)
    )]
    pub(crate) cpus_per_rank: Option<u32>,

    /// Let each rank see its own GPU alone: CUDA_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES
    #[arg(long, help_heading = "Hosts and ranks")]
    pub(crate) gpu_mask: bool,
}
