//! Options for the network between ranks (RDMA, TCP, NCCL), and for that between agents.

use super::values;
use rlaunch_bootstrap::job::PortRange;
use rlaunch_bootstrap::protocol::mesh::QpSettings;
use rlaunch_plan::hosts::addresses::Network;
use rlaunch_plan::options::{EnvStyle, MeshMode, MeshOptions, Preflight, Transport};
use rlaunch_plan::selection::{ConnectBy, HcaFilter};
use std::path::PathBuf;
use std::time::Duration;

/// Network between ranks of different hosts.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct NetworkArgs {
    /// Transport between ranks of different hosts
    ///
    /// auto: RDMA between hosts that it connects, otherwise TCP, which is reported; rdma: no TCP, a job that
    /// needs it fails; tcp: no RDMA.
    #[arg(long, value_parser = values::named::<Transport>(), value_name = "auto|rdma|tcp")]
    #[arg(default_value = "auto", hide_possible_values = true, help_heading = "Network of ranks")]
    pub(crate) transport: Transport,

    /// Like --transport rdma, and NCCL must be able to use it as well
    #[arg(long, help_heading = "Network of ranks")]
    pub(crate) require_rdma: bool,

    /// RDMA ports to use, as NCCL_IB_HCA has them: mlx5 (names that begin so), =mlx5_0:1,mlx5_1 (only these),
    /// ^mlx5_2 (all but these)
    #[arg(long, value_name = "[^][=]DEVICE[:PORT],...", help_heading = "Network of ranks")]
    pub(crate) hca: Option<HcaFilter>,

    /// Method by which RDMA connections are made
    ///
    /// oob: over the agents' TCP connections, without devices that need the RDMA connection manager; rdma_cm: by
    /// the connection manager; auto: by the connection manager for devices that need it, otherwise oob.
    #[arg(long, value_parser = values::named::<ConnectBy>(), value_name = "auto|oob|rdma_cm")]
    #[arg(default_value = "auto", hide_possible_values = true, help_heading = "Network of ranks")]
    pub(crate) connect: ConnectBy,

    /// Entry of every RoCE port's GID table to use, in place of the one that rlaunch would choose
    #[arg(long, value_name = "N", help_heading = "Network of ranks")]
    pub(crate) gid_index: Option<u16>,

    /// NCCL's network plugin, a file that every host has; sets NCCL_NET_PLUGIN
    #[arg(long, value_name = "PATH", help_heading = "Network of ranks")]
    pub(crate) nccl_net_plugin: Option<PathBuf>,

    /// Report at the end which network NCCL used in each rank; with --require-rdma, TCP is an error
    #[arg(long, help_heading = "Network of ranks")]
    pub(crate) nccl_verify: bool,

    /// Let several ranks share a GPU, which NCCL refuses unless they seem to be on different hosts; sets a
    /// NCCL_HOSTID for each. Good for testing a program, not its speed: all data goes over the network
    #[arg(long, help_heading = "Network of ranks")]
    pub(crate) nccl_share_gpu: bool,

    /// Set another launcher's variables as well, for programs that read no others
    #[arg(long, value_parser = values::named::<EnvStyle>())]
    #[arg(value_name = "tensorflow|slurm|openmpi")]
    #[arg(hide_possible_values = true, help_heading = "The program")]
    pub(crate) env_style: Vec<EnvStyle>,

    /// Do not serve the store that Horovod's ranks use for rendezvous, and set none of its variables. By default
    /// programs that use Horovod run without horovodrun
    #[arg(long, help_heading = "The program")]
    pub(crate) no_horovod: bool,

    /// Time that a communicator of rlaunch's library waits for all ranks to create it, in seconds; 300 by
    /// default. Sets RLAUNCH_INIT_TIMEOUT
    #[arg(long, value_name = "SECONDS", help_heading = "Network of ranks")]
    #[arg(value_parser = values::parse_timeout)]
    pub(crate) init_timeout: Option<Duration>,

    /// Checks of the hosts before the program starts
    ///
    /// quick: what can be told without a further message to a host; full: everything that rlaunch doctor checks,
    /// which takes some seconds, and an error of it ends the job; off: nothing beyond what the job needs.
    #[arg(long, value_parser = values::named::<Preflight>(), value_name = "quick|full|off")]
    #[arg(default_value = "quick", hide_possible_values = true, help_heading = "Network of ranks")]
    pub(crate) preflight: Preflight,

    #[command(flatten)]
    pub(crate) mesh: MeshArgs,
}

/// Proof of RDMA before ranks start, and supervision of its links.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct MeshArgs {
    /// Test RDMA before the program starts, with a few bytes and a block in each direction
    ///
    /// auto: for each pair of ranks in jobs of up to 64 ranks, for each pair of ports in larger ones; full: for
    /// each pair of ranks; off: not at all.
    #[arg(long = "mesh", value_parser = values::named::<MeshMode>(), value_name = "auto|full|off")]
    #[arg(default_value = "auto", hide_possible_values = true, help_heading = "Network of ranks")]
    pub(crate) mode: MeshMode,

    /// Time limit of the test of RDMA paths, in seconds; paths not tested by then count as broken
    #[arg(long, value_name = "SECONDS", default_value = "5", help_heading = "Network of ranks")]
    #[arg(value_parser = values::parse_timeout)]
    pub(crate) mesh_timeout: Duration,

    /// Do not watch RDMA links while the program runs. By default a link that goes down is reported within
    /// seconds
    #[arg(long, help_heading = "Network of ranks")]
    pub(crate) no_watch: bool,

    /// End the job when a link that ranks use goes down
    #[arg(long, conflicts_with = "no_watch", help_heading = "Network of ranks")]
    pub(crate) abort_on_link_down: bool,

    /// TOS byte of RoCE packets, which is DSCP times 4. Sets NCCL_IB_TC as well
    #[arg(long, value_name = "0-255", help_heading = "Network of ranks")]
    pub(crate) traffic_class: Option<u8>,

    /// Service level of InfiniBand packets. Sets NCCL_IB_SL as well
    #[arg(long, value_name = "0-15", help_heading = "Network of ranks")]
    #[arg(value_parser = clap::value_parser!(u8).range(0..=15))]
    pub(crate) service_level: Option<u8>,

    /// Acknowledgement timeout of the queue pairs of this test: 4.096 us times 2 to the power of N
    #[arg(long, value_name = "N", default_value = "16", help_heading = "Network of ranks")]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=31))]
    pub(crate) rdma_timeout: u8,

    /// Number of retries of these queue pairs when a packet is not acknowledged
    #[arg(long, value_name = "0-7", default_value = "1", help_heading = "Network of ranks")]
    #[arg(value_parser = clap::value_parser!(u8).range(0..=7))]
    pub(crate) rdma_retries: u8,
}

impl MeshArgs {
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
            measure: false,
        }
    }
}

/// Ports and networks by which agents reach each other.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct RendezvousArgs {
    /// Ports from which rlaunch chooses MASTER_PORT and those of its agents
    #[arg(long, value_name = "FIRST-LAST", default_value = "21000-21511")]
    #[arg(help_heading = "Between hosts", value_parser = values::parse_port_range)]
    pub(crate) port_range: PortRange,

    /// MASTER_PORT, at which ranks reach rank 0: a free port of its host, from 1024 up. By default rlaunch
    /// chooses one
    #[arg(long, value_name = "PORT", help_heading = "Between hosts")]
    #[arg(value_parser = values::parse_master_port)]
    pub(crate) master_port: Option<u16>,

    /// Interfaces by which agents reach each other; by default all that work
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', help_heading = "Between hosts")]
    pub(crate) oob_if: Vec<String>,

    /// Networks by which agents reach each other, such as 10.1.0.0/16
    #[arg(long, value_name = "NETWORK,...", value_delimiter = ',', help_heading = "Between hosts")]
    pub(crate) oob_net: Vec<Network>,

    /// Children of each agent in the tree of agents; by default it depends on the number of hosts
    #[arg(long, value_name = "N", help_heading = "Between hosts")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) radix: Option<u32>,
}
