//! Options for the connections between agents.

use super::values;
use rlaunch_bootstrap::job::PortRange;
use rlaunch_plan::hosts::addresses::Network;

/// Ports that rlaunch uses without `--port-range`.
pub(crate) const DEFAULT_PORTS: PortRange = PortRange::DEFAULT;

/// Ports and networks by which agents reach each other.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct RendezvousArgs {
    /// Ports from which rlaunch chooses MASTER_PORT and those of its agents
    #[arg(
        long, value_name = "FIRST-LAST", default_value = "21000-21511",
        help_heading = "Between hosts", value_parser = values::parse_port_range
    )]
    pub(crate) port_range: PortRange,

    /// MASTER_PORT, at which ranks reach rank 0: a free port of its host, from 1024 up. By default rlaunch
    /// chooses one
    #[arg(
        long, value_name = "PORT", help_heading = "Between hosts",
        value_parser = values::parse_master_port
    )]
    pub(crate) master_port: Option<u16>,

    /// Interfaces by which agents reach each other; by default all that work
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', help_heading = "Between hosts")]
    pub(crate) oob_if: Vec<String>,

    /// Networks by which agents reach each other, as 10.1.0.0/16
    #[arg(long, value_name = "NETWORK,...", value_delimiter = ',', help_heading = "Between hosts")]
    pub(crate) oob_net: Vec<Network>,

    /// Children of each agent in the tree of agents; by default it depends on the number of hosts
    #[arg(
        long, value_name = "N", help_heading = "Between hosts",
        value_parser = clap::value_parser!(u32).range(1..=1024)
    )]
    pub(crate) radix: Option<u32>,
}
