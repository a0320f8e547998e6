//! Which hosts, how many ranks, and which of them where.

use super::{ConfigArgs, values};
use crate::plan::map::{MapBy, RankBy};
use clap::{ArgAction, Parser};
use std::path::PathBuf;

/// Hosts, and how ranks are dealt to them.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct HostArgs {
    /// Hosts and their slots, as `a,b:2,user@c,n[01-16]`
    ///
    /// `:N` gives a host N slots, else it has one; repeats add up. Ports come from ~/.ssh/config or --port.
    /// Without -H and --hostfile, the hosts that Slurm, PBS or an MPIJob has allocated, or this machine.
    #[arg(
        short = 'H', long = "host", visible_alias = "hosts", value_name = "HOST[:N],...",
        action = ArgAction::Append, help_heading = "Hosts and ranks"
    )]
    pub(crate) hosts: Vec<String>,

    /// Hosts by lines, as `a slots=4`
    ///
    /// Also `b:4`, `user@c`, `n[01-16] slots=8`; without a number a host has as many slots as GPUs, or one.
    /// With -H as well, -H chooses among them.
    #[arg(
        long = "hostfile", visible_alias = "machinefile", value_name = "FILE",
        action = ArgAction::Append, help_heading = "Hosts and ranks"
    )]
    pub(crate) hostfiles: Vec<PathBuf>,

    /// Leave these hosts out, as `a,n[03-04]`
    #[arg(
        long, value_name = "HOST,...", action = ArgAction::Append,
        help_heading = "Hosts and ranks"
    )]
    pub(crate) exclude: Vec<String>,

    /// How many ranks to start, also `-np N`; without it, one for each slot
    #[arg(
        short = 'n', long = "np", value_name = "N", help_heading = "Hosts and ranks",
        value_parser = values::parse_ranks
    )]
    pub(crate) ranks: Option<u32>,

    /// So many ranks on each host, which needs no slots where none were given; the same as
    /// `--map-by ppr:N:node`
    #[arg(
        long = "npernode", visible_aliases = ["ppn", "nproc-per-node"], value_name = "N",
        help_heading = "Hosts and ranks", value_parser = values::parse_ranks
    )]
    pub(crate) per_node: Option<u32>,

    /// Allow more ranks than slots
    #[arg(long, help_heading = "Hosts and ranks")]
    pub(crate) oversubscribe: bool,

    /// Where ranks go
    ///
    /// slot: ranks fill the slots of one host after the other; node: they take one of each host in
    /// turn; ppr:N:node: N on each host. numa and gpu are slot, and on each host ranks go to its
    /// NUMA nodes in turn, or each to a GPU of its own.
    #[arg(
        long,
        value_name = "slot|node|ppr:N:node|numa|gpu",
        default_value = "slot",
        help_heading = "Hosts and ranks"
    )]
    pub(crate) map_by: MapBy,

    /// Number ranks host by host, or one of each host in turn, wherever they are. As --map-by deals
    /// them out, without it
    #[arg(
        long,
        value_name = "slot|node",
        hide_possible_values = true,
        help_heading = "Hosts and ranks"
    )]
    pub(crate) rank_by: Option<RankBy>,

    /// As root, too, which needs no leave here: for command lines that mpirun has had.
    #[arg(long = "allow-run-as-root", hide = true)]
    pub(crate) _root: bool,
}

/// Print the hosts that a job would have, as a hostfile.
///
/// Ranges are written out, repeats added up, and a comment says where the hosts are from. Nobody is
/// connected to. mpirun and mpiexec read it as well.
#[derive(Debug, Parser)]
#[command(
    name = "rlaunch hostfile",
    version,
    max_term_width = 100,
    after_help = "\
Examples:
  rlaunch hostfile                              what Slurm, PBS or an MPIJob has allocated
  rlaunch hostfile -H 'n[01-16]:8' --exclude n03
  mpirun --hostfile <(rlaunch hostfile) ./program"
)]
pub(crate) struct HostfileArgs {
    /// Hosts, as for a job
    #[arg(
        short = 'H', long = "host", visible_alias = "hosts", value_name = "HOST[:N],...",
        action = ArgAction::Append
    )]
    pub(crate) hosts: Vec<String>,

    /// Hosts by lines, as for a job
    #[arg(
        long = "hostfile", visible_alias = "machinefile", value_name = "FILE",
        action = ArgAction::Append
    )]
    pub(crate) hostfiles: Vec<PathBuf>,

    /// Leave these hosts out
    #[arg(long, value_name = "HOST,...", action = ArgAction::Append)]
    pub(crate) exclude: Vec<String>,

    #[command(flatten)]
    pub(crate) config: ConfigArgs,
}
