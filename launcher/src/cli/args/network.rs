//! Options of the network that ranks use among themselves.

use super::values;
use crate::plan::env_style::EnvStyle;
use crate::plan::mesh::{MeshOptions, Mode};
use crate::plan::rank_config::Transport;
use crate::plan::selection::{ConnectBy, HcaFilter};
use clap::ArgAction;
use rlaunch_bootstrap::protocol::mesh::QpSettings;
use std::path::PathBuf;
use std::time::Duration;

/// How ranks of different hosts reach each other.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct NetworkArgs {
    /// How ranks of different hosts reach each other
    ///
    /// auto: by RDMA where it connects two hosts, else by TCP, and a line says so; rdma: TCP is an
    /// error; tcp: RDMA is left alone.
    #[arg(
        long,
        value_name = "auto|rdma|tcp",
        default_value = "auto",
        hide_possible_values = true,
        help_heading = "Network of ranks"
    )]
    pub(crate) transport: Transport,

    /// As --transport rdma, and NCCL must be able to use it
    #[arg(long, help_heading = "Network of ranks")]
    pub(crate) require_rdma: bool,

    /// The RDMA ports that may be used, as NCCL_IB_HCA has them: mlx5 (all that begin so),
    /// =mlx5_0:1,mlx5_1 (these), ^mlx5_2 (all but these)
    #[arg(long, value_name = "[^][=]DEVICE[:PORT],...", help_heading = "Network of ranks")]
    pub(crate) hca: Option<HcaFilter>,

    /// auto: out of band, or by the RDMA connection manager where a device takes nothing else;
    /// rdma_cm: by that for all; oob: devices that take RDMA_CM only are left out
    #[arg(
        long,
        value_name = "auto|oob|rdma_cm",
        default_value = "auto",
        rename_all = "snake_case",
        hide_possible_values = true,
        help_heading = "Network of ranks"
    )]
    pub(crate) connect: ConnectBy,

    /// This entry of every RoCE port's GID table, in place of the one that suits it best
    #[arg(long, value_name = "N", help_heading = "Network of ranks")]
    pub(crate) gid_index: Option<u16>,

    /// NCCL's network plugin, a file that every host has; sets NCCL_NET_PLUGIN
    #[arg(long, value_name = "PATH", help_heading = "Network of ranks")]
    pub(crate) nccl_net_plugin: Option<PathBuf>,

    /// Say at the end which network NCCL has really used in each rank; with --require-rdma, TCP is
    /// an error
    #[arg(long, help_heading = "Network of ranks")]
    pub(crate) nccl_verify: bool,

    /// Let several ranks use one GPU, which NCCL takes for a mistake: each is told to be a host of its
    /// own (NCCL_HOSTID). To see that a program works, not how fast it is: all data goes by the
    /// network
    #[arg(long, help_heading = "Network of ranks")]
    pub(crate) nccl_share_gpu: bool,

    /// Set another launcher's variables as well, for programs that know nothing else
    #[arg(
        long, value_name = "tensorflow|slurm|openmpi", action = ArgAction::Append,
        hide_possible_values = true, help_heading = "The program"
    )]
    pub(crate) env_style: Vec<EnvStyle>,

    /// Do not serve the store by which Horovod's ranks meet, and set none of its variables.
    /// Otherwise programs that use Horovod start as they are, without horovodrun
    #[arg(long, help_heading = "The program")]
    pub(crate) no_horovod: bool,

    /// How long a communicator of rlaunch's waits for all ranks to ask for it, in seconds; 300
    /// without. Sets RLAUNCH_INIT_TIMEOUT
    #[arg(
        long, value_name = "SECONDS", help_heading = "Network of ranks",
        value_parser = values::parse_timeout
    )]
    pub(crate) init_timeout: Option<Duration>,

    #[command(flatten)]
    pub(crate) mesh: MeshArgs,
}

/// Proving RDMA, and watching it.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct MeshArgs {
    /// What of RDMA is proved before the program starts, by a few bytes and a block each way. auto:
    /// each pair of ranks in jobs of up to 64, each pair of ports in larger ones; full: each pair of
    /// ranks; off: nothing
    #[arg(
        long = "mesh",
        value_name = "auto|full|off",
        default_value = "auto",
        hide_possible_values = true,
        help_heading = "Network of ranks"
    )]
    pub(crate) mode: Mode,

    /// How long that may take, in seconds; what is not proved by then counts as not working
    #[arg(
        long, value_name = "SECONDS", default_value = "5", help_heading = "Network of ranks",
        value_parser = values::parse_timeout
    )]
    pub(crate) mesh_timeout: Duration,

    /// Do not watch RDMA while the program runs. Otherwise a link that goes down is named within
    /// seconds
    #[arg(long, help_heading = "Network of ranks")]
    pub(crate) no_watch: bool,

    /// End the job when a link that ranks use goes down
    #[arg(long, conflicts_with = "no_watch", help_heading = "Network of ranks")]
    pub(crate) abort_on_link_down: bool,

    /// Mark RoCE's packets, the TOS byte of IP: DSCP times 4. Sets NCCL_IB_TC as well
    #[arg(long, value_name = "0-255", help_heading = "Network of ranks")]
    pub(crate) traffic_class: Option<u8>,

    /// The service level of InfiniBand's packets. Sets NCCL_IB_SL as well
    #[arg(
        long, value_name = "0-15", help_heading = "Network of ranks",
        value_parser = clap::value_parser!(u8).range(0..=15)
    )]
    pub(crate) service_level: Option<u8>,

    /// How long the mesh's queue pairs wait for an answer: 4.096 us times 2 to the power of N
    #[arg(
        long, value_name = "N", default_value = "16", help_heading = "Network of ranks",
        value_parser = clap::value_parser!(u8).range(1..=31)
    )]
    pub(crate) rdma_timeout: u8,

    /// How often the mesh's queue pairs send again what is not answered
    #[arg(
        long, value_name = "0-7", default_value = "1", help_heading = "Network of ranks",
        value_parser = clap::value_parser!(u8).range(0..=7)
    )]
    pub(crate) rdma_retries: u8,
}

impl MeshArgs {
    /// As the mesh takes them.
    pub(crate) fn options(&self) -> MeshOptions {
        MeshOptions {
            mode: self.mode,
            timeout: self.mesh_timeout,
            settings: QpSettings {
                traffic_class: self.traffic_class.unwrap_or(0),
                service_level: self.service_level.unwrap_or(0),
                timeout: self.rdma_timeout,
                retries: self.rdma_retries,
            },
            watch: !self.no_watch,
            abort_on_link_down: self.abort_on_link_down,
        }
    }
}
