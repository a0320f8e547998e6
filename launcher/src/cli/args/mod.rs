//! Options, grouped by subject for the verbs that share them, and the command line of a job.
//!
//! | file | subject |
//! |---|---|
//! | `hosts` | `-H`, hostfiles, number and order of ranks, their CPUs and GPUs |
//! | `program` | the programs (`:`), their variables, working directory and files; timeouts, restarts, exit |
//! | `network` | RDMA, TCP and NCCL between ranks; ports and networks by which agents reach each other |
//! | `output` | standard input and output, logs, records, dry runs |
//! | `connect` | SSH, containers, the agent; configuration file and profile |
//! | `compat` | hidden options that only other launchers' options are translated to |
//! | `values` | parsers of values |
//!
//! Options of a single verb are defined with that verb, in [`crate::commands`].

mod compat;
mod connect;
mod hosts;
mod network;
mod output;
mod program;
pub(crate) mod values;

pub(crate) use compat::{CompatArgs, NodeCountError};
pub(crate) use connect::{ConfigArgs, ConnectArgs, ImageArgs, SshArgs};
pub(crate) use hosts::{HostArgs, HostListArgs, HostSourceArgs, OTHER_HOSTS, PlacementArgs};
pub(crate) use network::{NetworkArgs, RendezvousArgs};
pub(crate) use output::OutputArgs;
pub(crate) use program::{
    ApplicationArgs, CommandArgs, EnvironmentArgs, ProcessArgs, ProgramArgs, PythonArgs,
    TerminationArgs, split_programs,
};

use clap::{Args, Command, FromArgMatches, Parser};
use rlaunch_engine::run::detach::Detaching;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use std::ffi::OsString;
use std::time::Duration;

/// Long names of options that `rlaunch --help` leaves to `rlaunch help options`.
const RARE: &str = "\
    abort-on-link-down agent agent-dir connect container-exec device engine env-style gid-index hang-report \
    init-timeout job-name launcher log-json log-level mesh-timeout nccl-net-plugin nccl-share-gpu \
    nccl-verify new-hosts no-horovod no-pty no-record no-watch oob-if oob-net port-range pull radix rank-by \
    rankfile rdma-retries rdma-timeout service-level shm-size singleton ssh-fanout straggler-report sync-limit \
    traffic-class user";

/// Start one program on many hosts over SSH.
///
/// rlaunch logs in to all hosts at once, installs its agent where it is missing, and starts no rank before
/// every host has what the job needs. If the job cannot run, an error says why and what to do.
#[derive(Debug, Parser)]
#[command(
    name = "rlaunch",
    version,
    max_term_width = 100,
    override_usage = "rlaunch [OPTIONS] PROGRAM [ARGUMENT]... [: [OPTIONS] PROGRAM [ARGUMENT]...]...",
    mut_args = |arg| {
        let is_rare = arg.get_long().is_some_and(|name| RARE.split(' ').any(|rare| rare == name));
        arg.hide_long_help(is_rare)
    },
    after_long_help = "\
Examples:
  rlaunch -H a,b,c hostname                     one rank on each of three hosts
  rlaunch -H a:8,b:8 -np 16 python3 train.py    eight ranks on each of two hosts
  rlaunch -H a,b --copy train.py python3 train.py   a script that only this machine has
  rlaunch -np 4 ./program                       four ranks on this machine, without SSH
  rlaunch --hostfile hosts --map-by node ./program    hosts from a file, one rank on each in turn
  rlaunch -H a -np 1 ./server : -H b,c ./client    two programs in one job
  rlaunch -d -H a,b python3 train.py            let it outlive this terminal
  rlaunch --dry-run=offline -H a:2,b hostname   print the hosts and ranks that a job would have
  rlaunch topo -H a,b                           show CPUs, GPUs, NICs and networks of hosts
  rlaunch capture -H a,b -o x.tar               record them, to be shown elsewhere
  rlaunch report last                           show how fast the last job was
  rlaunch bench lat -H a,b                      measure the latency of messages
  rlaunch bench train -H a,b --np 1,2 ./train   measure how a program scales
  rlaunch reap --all -H a,b                     end processes that jobs left behind
  rlaunch ssh --show a                          show what ~/.ssh/config says about a host
  rlaunch ssh-setup -H a,b                      set up login by key
  rlaunch trust                                 let ./rlaunch.toml take full effect
  rlaunch completions bash                      print completions for a shell
  rlaunch help env                              explain the variables of a rank; rlaunch help
                                                lists all topics

Rare options: rlaunch help options. Topics: rlaunch help. Ranks have commands of their own:
rlaunch kv --help.

Options of mpirun, mpiexec, torchrun and horovodrun work as they are typed there: -np 4,
-hostfile FILE, -bind-to none, --mca NAME VALUE, -genv NAME VALUE, --nproc_per_node 2. Those that
have no effect here are listed on a line that begins with \"ignored:\".

A word `:` separates programs; type \\: for an argument that is a colon. Options before the first
program are for all programs (-x, --wdir, --copy) or for the job, except -np, --name, --after and
--template, which are for the first program. A program without -H runs on the job's hosts, from the
first free slot on. In arguments, values of -x and files of --template, these placeholders are
replaced: {{host.name}}, {{host.oob_ip}}, {{rank.index}}, {{rank.local}}, {{rank.hca}},
{{rank.hcas | join(\",\")}}, {{world_size}}, {{nodes}}, {{node.index}}, {{node.ranks}}, {{master.addr}},
{{master.port}}, {{port[\"NAME\"]}}, {{app[\"NAME\"].oob_ip}} and {{app[\"NAME\"].hosts}}.

Each rank has RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT in its environment.
The exit code is that of the first rank to fail, or 128 + its signal; 0 if all ranks succeed."
)]
pub(crate) struct JobArgs {
    #[command(flatten)]
    pub(crate) hosts: HostArgs,

    #[command(flatten)]
    pub(crate) placement: PlacementArgs,

    #[command(flatten)]
    pub(crate) environment: EnvironmentArgs,

    #[command(flatten)]
    pub(crate) python: PythonArgs,

    #[command(flatten)]
    pub(crate) application: ApplicationArgs,

    #[command(flatten)]
    pub(crate) network: NetworkArgs,

    #[command(flatten)]
    pub(crate) output: OutputArgs,

    #[command(flatten)]
    pub(crate) termination: TerminationArgs,

    #[command(flatten)]
    pub(crate) rendezvous: RendezvousArgs,

    #[command(flatten)]
    pub(crate) connect: ConnectArgs,

    #[command(flatten)]
    pub(crate) compat: CompatArgs,

    #[command(flatten)]
    pub(crate) command: CommandArgs,

    /// Programs behind the first `:`.
    #[arg(skip)]
    pub(crate) other_programs: Vec<ProgramArgs>,

    /// Whole command line as the user typed it.
    #[arg(skip)]
    pub(crate) typed: Vec<OsString>,

    /// Handle to leave the terminal, in the process that runs a job with `--detach`.
    #[arg(skip)]
    pub(crate) detaching: Option<Detaching>,
}

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

impl MeasurementArgs {
    /// Makes the options for these hosts, where the user can choose no others.
    pub(crate) fn for_hosts(
        hosts: Vec<String>,
        connect: ConnectArgs,
    ) -> Result<MeasurementArgs, Failed> {
        let command = MeasurementArgs::augment_args(Command::new("rlaunch"));
        let parsed = command
            .try_get_matches_from(["rlaunch"])
            .and_then(|matches| MeasurementArgs::from_arg_matches(&matches));
        let defaults = parsed.map_err(|error| Failed::from_error(Exit::BUG, &error))?;
        Ok(MeasurementArgs { hosts, connect, ..defaults })
    }
}

#[cfg(test)]
mod tests;
