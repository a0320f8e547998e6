//! Arguments as they were typed. [`crate::cli::lower`] turns them into a job, after which nothing reads them
//! again.

mod bench;
mod compat;
mod config;
mod environment;
mod hosts;
mod invocation;
mod manual;
mod meant;
mod network;
mod output;
mod placing;
mod program;
mod reach;
mod rendezvous;
mod setup;
mod termination;
mod train;
mod trust;
mod values;
mod verbs;

pub(crate) use bench::{BenchArgs, What as BenchWhat};
pub(crate) use compat::{ForeignArgs, OtherNodes};
pub(crate) use config::ConfigArgs;
pub(crate) use environment::{CommandArgs, ProgramArgs};
pub(crate) use hosts::{HostArgs, HostfileArgs};
pub(crate) use invocation::{Invocation, definition};
pub(crate) use manual::{CompletionsArgs, HelpArgs, ManArgs, Shell};
pub(crate) use network::NetworkArgs;
pub(crate) use output::OutputArgs;
pub(crate) use placing::PlacingArgs;
pub(crate) use program::{AnotherArgs, ApplicationArgs};
pub(crate) use reach::ReachArgs;
pub(crate) use rendezvous::BetweenArgs;
#[cfg(test)]
pub(crate) use setup::Engine;
pub(crate) use setup::{NamedContainer, SetupArgs};
pub(crate) use termination::EndArgs;
pub(crate) use train::TrainArgs;
pub(crate) use trust::TrustArgs;
pub(crate) use verbs::{CaptureArgs, ReapArgs, ReportArgs, SshConfigArgs, TopoArgs};

use clap::Parser;
use std::ffi::OsString;

/// The options that `rlaunch -h` shows.
const COMMON: [&str; 10] = [
    "host",
    "hostfile",
    "np",
    "map-by",
    "env",
    "wdir",
    "preload",
    "transport",
    "tag-output",
    "dry-run",
];

/// Start one program on many hosts over SSH.
///
/// Every host is reached at once, the agent arrives by itself, and nothing starts anywhere before
/// everything it needs is known to be there. When it cannot work, one sentence says why.
#[derive(Debug, Parser)]
#[command(
    name = "rlaunch",
    version,
    max_term_width = 100,
    override_usage = "rlaunch [OPTIONS] PROGRAM [ARGUMENT]... [: [OPTIONS] PROGRAM [ARGUMENT]...]...",
    mut_args = |arg| {
        let is_common = arg.get_long().is_some_and(|name| COMMON.contains(&name));
        arg.hide_short_help(!is_common)
    },
    after_help = "\
rlaunch --help has all options and examples, rlaunch help the topics (hosts, ssh, env, mesh, ...).
Ranks have commands of their own: rlaunch kv --help.",
    after_long_help = "\
Examples:
  rlaunch -H a,b,c hostname                     one rank on each of three hosts
  rlaunch -H a:8,b:8 -np 16 python3 train.py    eight ranks on each of two hosts
  rlaunch -H a,b --preload train.py python3 train.py   a script only this machine has
  rlaunch -np 4 ./program                       four ranks on this machine, no SSH
  rlaunch --hostfile hosts --map-by node ./program    hosts from a file, a rank on each in turn
  rlaunch hostfile                              which hosts that would be; see rlaunch hostfile --help
  rlaunch -H a -np 1 ./server : -H b,c ./client    two programs in one job
  rlaunch topo -H a,b                           what hosts have; see rlaunch topo --help
  rlaunch capture -H a,b -o x.tar               the same to be seen elsewhere
  rlaunch report last                           was it fast; see rlaunch report --help
  rlaunch bench lat -H a,b                      how quick messages are; see rlaunch bench --help
  rlaunch bench train -H a,b --np 1,2 ./train   how a program scales
  rlaunch reap --all -H a,b                     end what jobs left behind; see rlaunch reap --help
  rlaunch ssh-config a                          what ~/.ssh/config says about a host
  rlaunch ssh-setup -H a,b                      let your key in; see rlaunch ssh-setup --help
  rlaunch trust                                 let ./rlaunch.toml count; see rlaunch trust --help
  rlaunch completions bash                      for your shell; see rlaunch completions --help
  rlaunch help env                              the variables of a rank; rlaunch help lists topics

Words of mpirun, mpiexec, torchrun and horovodrun are understood as they are typed there: -np 4,
-hostfile FILE, -bind-to none, --mca NAME VALUE, -genv NAME VALUE, --nproc_per_node 2. What has no
meaning here is named on a line that begins with \"ignored:\".

A `:` between programs is a word of its own, and \\: is a colon among arguments. What stands before
the first program is for all of them (-x, --wdir, --preload) or for the job; -np, --name, --after
and --template are the first program's. Without -H a program runs on the job's hosts, from the first
free slot on. In arguments, values of -x and files of --template, {{host.name}}, {{host.oob_ip}},
{{rank.index}}, {{rank.local}}, {{rank.hca}}, {{rank.hcas | join(\",\")}}, {{world_size}},
{{app[\"NAME\"].oob_ip}} and {{app[\"NAME\"].hosts}} are filled in.

Each rank finds RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT in its environment.
The exit code is that of the first rank to fail, or 128 + its signal; 0 when all succeed."
)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) hosts: HostArgs,

    #[command(flatten)]
    pub(crate) placing: PlacingArgs,

    #[command(flatten)]
    pub(crate) program: ProgramArgs,

    #[command(flatten)]
    pub(crate) application: ApplicationArgs,

    #[command(flatten)]
    pub(crate) network: NetworkArgs,

    #[command(flatten)]
    pub(crate) output: OutputArgs,

    #[command(flatten)]
    pub(crate) end: EndArgs,

    #[command(flatten)]
    pub(crate) between: BetweenArgs,

    #[command(flatten)]
    pub(crate) reach: ReachArgs,

    #[command(flatten)]
    pub(crate) foreign: ForeignArgs,

    #[command(flatten)]
    pub(crate) command: CommandArgs,

    /// The programs behind the first, with options of their own.
    #[arg(skip)]
    pub(crate) others: Vec<AnotherArgs>,

    /// The command line all this was read from.
    #[arg(skip)]
    pub(crate) typed: Vec<OsString>,

    /// Whether stdout is wanted for something else than ranks' output.
    #[arg(skip)]
    pub(crate) aside: bool,
}

#[cfg(test)]
mod tests;
