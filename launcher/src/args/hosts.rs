//! Which hosts, how many ranks, and which of them where.

use super::values;
use crate::map::MapBy;
use clap::ArgAction;

/// Hosts, and how ranks are dealt to them.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct HostArgs {
    /// Hosts, as `a,b:2,user@c`: `:N` gives a host N slots, else it has one; repeats add up.
    /// Ports come from ~/.ssh/config or --port
    #[arg(
        short = 'H', long = "host", visible_alias = "hosts", value_name = "HOST[:N],...",
        action = ArgAction::Append, help_heading = "Hosts and ranks"
    )]
    pub(crate) hosts: Vec<String>,

    /// How many ranks to start; also `-np N`. Without it, one for each slot
    #[arg(
        short = 'n', long = "np", value_name = "N", help_heading = "Hosts and ranks",
        value_parser = values::parse_ranks
    )]
    pub(crate) ranks: Option<u32>,

    /// Allow more ranks than slots
    #[arg(long, help_heading = "Hosts and ranks")]
    pub(crate) oversubscribe: bool,

    /// Ranks fill the slots of one host after the other, or take one of each host in turn
    #[arg(
        long,
        value_name = "slot|node",
        default_value = "slot",
        hide_possible_values = true,
        help_heading = "Hosts and ranks"
    )]
    pub(crate) map_by: MapBy,

    /// As root, too, which needs no leave here: for command lines that mpirun has had.
    #[arg(long = "allow-run-as-root", hide = true)]
    pub(crate) _root: bool,
}
