//! Options of verbs that run a job in order to measure.

use super::{ConnectArgs, NetworkArgs, PlacementArgs, values};
use std::time::Duration;

/// Hosts and network of a measurement.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct MeasurementArgs {
    /// Hosts, as for a job: `:N` gives a host N slots for ranks
    #[arg(short = 'H', long = "host", visible_alias = "hosts", value_name = "HOST[:N],...")]
    pub(crate) hosts: Vec<String>,

    /// Allow more ranks than slots
    #[arg(long)]
    pub(crate) oversubscribe: bool,

    /// A node from which nothing is received for this time in seconds is lost; by default as in a job
    #[arg(long, value_name = "SECONDS", value_parser = values::parse_node_timeout)]
    pub(crate) node_timeout: Option<Duration>,

    #[command(flatten)]
    pub(crate) placement: PlacementArgs,

    #[command(flatten)]
    pub(crate) network: NetworkArgs,

    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}
