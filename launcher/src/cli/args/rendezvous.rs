//! How agents reach one another.

use super::values;
use crate::hosts::addresses::Network;
use rlaunch_bootstrap::job::PortRange;

/// How agents reach one another.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct BetweenArgs {
    /// The ports rlaunch may choose from, for MASTER_PORT and its own
    #[arg(
        long, value_name = "FIRST-LAST", default_value = "21000-21511",
        help_heading = "Between hosts", value_parser = values::parse_port_range
    )]
    pub(crate) port_range: PortRange,

    /// MASTER_PORT, where ranks meet rank 0: a free port of its host, from 1024 up. Otherwise one that
    /// is free there is chosen
    #[arg(
        long, value_name = "PORT", help_heading = "Between hosts",
        value_parser = values::parse_master_port
    )]
    pub(crate) master_port: Option<u16>,

    /// The interfaces by which agents reach one another; otherwise whichever can be used
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', help_heading = "Between hosts")]
    pub(crate) oob_if: Vec<String>,

    /// The networks by which agents reach one another, as 10.1.0.0/16
    #[arg(long, value_name = "NETWORK,...", value_delimiter = ',', help_heading = "Between hosts")]
    pub(crate) oob_net: Vec<Network>,

    /// How many agents each agent serves in the tree; chosen by the number of hosts otherwise
    #[arg(
        long, value_name = "N", help_heading = "Between hosts",
        value_parser = clap::value_parser!(u32).range(1..=1024)
    )]
    pub(crate) radix: Option<u32>,
}
