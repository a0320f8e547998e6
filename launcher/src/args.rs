//! What was typed. [`crate::job`] turns it into what was meant, after which nothing reads it again.

mod bench;
mod network;
mod setup;
mod spelling;
mod train;
mod values;
mod verbs;

pub(crate) use bench::{BenchArgs, What as BenchWhat};
pub(crate) use network::NetworkArgs;
pub(crate) use setup::SetupArgs;
pub(crate) use train::TrainArgs;
pub(crate) use verbs::{CaptureArgs, ReapArgs, ReportArgs, SshConfigArgs, TopoArgs};

use crate::map::MapBy;
use crate::oob::Network;
use crate::placement::Bind;
use crate::route::Container;
use crate::show::Show;
use clap::{ArgAction, Parser};
use rlaunch_bootstrap::client::command;
use rlaunch_bootstrap::job::{PortRange, Singleton};
use std::ffi::OsString;
use std::path::PathBuf;

/// Start one program on many hosts over SSH.
///
/// Every host is reached at once, the agent arrives by itself, and nothing starts anywhere before
/// everything it needs is known to be there. When it cannot work, one sentence says why.
#[derive(Debug, Parser)]
#[command(
    name = "rlaunch",
    version,
    max_term_width = 100,
    override_usage = "rlaunch [OPTIONS] PROGRAM [ARGUMENT]...",
    after_help = "\
Examples:
  rlaunch -H a,b,c hostname                     one rank on each of three hosts
  rlaunch -H a:8,b:8 -np 16 python3 train.py    eight ranks on each of two hosts
  rlaunch -H a,b --preload train.py python3 train.py   a script only this machine has
  rlaunch -np 4 ./program                       four ranks on this machine, no SSH
  rlaunch topo -H a,b                           what hosts have; see rlaunch topo --help
  rlaunch capture -H a,b -o x.tar               the same to be seen elsewhere
  rlaunch report last                           was it fast; see rlaunch report --help
  rlaunch bench lat -H a,b                      how quick messages are; see rlaunch bench --help
  rlaunch bench train -H a,b --np 1,2 ./train   how a program scales
  rlaunch reap --all -H a,b                     end what jobs left behind; see rlaunch reap --help
  rlaunch ssh-config a                          what ~/.ssh/config says about a host
  rlaunch ssh-setup -H a,b                      let your key in; see rlaunch ssh-setup --help

Each rank finds RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT in its environment.
The exit code is that of the first rank to fail, or 128 + its signal; 0 when all succeed."
)]
pub(crate) struct Args {
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

    /// Give every rank this variable: NAME=VALUE, or NAME to take its value from here. The rest of
    /// this shell's environment goes along, but for what belongs to one host or another launch
    #[arg(
        short = 'x', long = "env", value_name = "NAME[=VALUE]", action = ArgAction::Append,
        help_heading = "The program"
    )]
    pub(crate) env: Vec<OsString>,

    #[command(flatten)]
    pub(crate) placing: PlacingArgs,

    #[command(flatten)]
    pub(crate) network: NetworkArgs,

    /// Run in this directory, which every host must have. Otherwise this one where the host has
    /// it, else the home directory
    #[arg(long, value_name = "DIR", help_heading = "The program")]
    pub(crate) wdir: Option<PathBuf>,

    /// Copy this file to every host for the job; arguments that name it become the copy's path
    #[arg(long, value_name = "FILE", action = ArgAction::Append, help_heading = "The program")]
    pub(crate) preload: Vec<PathBuf>,

    /// What to do when several ranks run MPI, which rlaunch does not serve: each would be rank 0
    /// of 1
    #[arg(
        long,
        value_name = "error|warn|ignore",
        default_value = "error",
        hide_possible_values = true,
        help_heading = "The program"
    )]
    pub(crate) singleton: SingletonArg,

    /// Start every line with `[rank,host]`
    #[arg(long, help_heading = "Output")]
    pub(crate) tag_output: bool,

    /// Say what happens; -vv says it in detail
    #[arg(short, long, action = ArgAction::Count, help_heading = "Output")]
    pub(crate) verbose: u8,

    /// Log from this level up: error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL", help_heading = "Output")]
    pub(crate) log_level: Option<tracing::Level>,

    /// Log as JSON, one object per line
    #[arg(long, help_heading = "Output")]
    pub(crate) log_json: bool,

    /// Write what happens as JSON, one object per line, to a file or to descriptor N
    #[arg(long, value_name = "FILE|fd:N", help_heading = "Output")]
    pub(crate) events: Option<String>,

    /// How long ranks may take to end between TERM and KILL, in seconds
    #[arg(
        long, value_name = "SECONDS", default_value = "5", help_heading = "The end",
        value_parser = values::parse_seconds
    )]
    pub(crate) kill_after: std::time::Duration,

    /// Give up a host that is silent for so long, in seconds: more where machines are slow or stop
    /// for a while, as when they are migrated
    #[arg(
        long, value_name = "SECONDS", default_value = "6", help_heading = "The end",
        value_parser = values::parse_silence
    )]
    pub(crate) node_timeout: std::time::Duration,

    /// End the job after this many seconds, with exit code 124
    #[arg(
        long, value_name = "SECONDS", help_heading = "The end", value_parser = values::parse_timeout
    )]
    pub(crate) timeout: Option<std::time::Duration>,

    /// Let the other ranks run when one fails; the exit code is still that of the first
    #[arg(long, help_heading = "The end")]
    pub(crate) continue_on_error: bool,

    /// Leave no record. Otherwise a job leaves one for `rlaunch report`, with what its ranks printed,
    /// below ~/.local/state/rlaunch ($XDG_STATE_HOME/rlaunch)
    #[arg(long, help_heading = "Output")]
    pub(crate) no_record: bool,

    /// Explain before the ranks start: placement (who runs where, and why), env (variables that
    /// rlaunch sets, and why), mesh (by what ranks of different hosts reach each other), rank-table;
    /// the last two also =json. Repeats add up
    #[arg(
        long, value_name = "WHAT[=json]", action = ArgAction::Append, help_heading = "Output"
    )]
    pub(crate) show: Vec<Show>,

    /// The ports rlaunch may choose from, for MASTER_PORT and its own
    #[arg(
        long, value_name = "FIRST-LAST", default_value = "21000-21511",
        help_heading = "Between hosts", value_parser = values::parse_port_range
    )]
    pub(crate) port_range: PortRange,

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

    #[command(flatten)]
    pub(crate) reach: ReachArgs,

    /// The program and its arguments
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "PROGRAM",
        required = true
    )]
    pub(crate) program: Vec<OsString>,

    /// The command line all this was read from.
    #[arg(skip)]
    pub(crate) typed: Vec<OsString>,

    /// Whether stdout is wanted for something else than ranks' output.
    #[arg(skip)]
    pub(crate) aside: bool,
}

/// `--singleton`.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum SingletonArg {
    Error,
    Warn,
    Ignore,
}

impl From<SingletonArg> for Singleton {
    fn from(typed: SingletonArg) -> Singleton {
        match typed {
            SingletonArg::Error => Singleton::Error,
            SingletonArg::Warn => Singleton::Warn,
            SingletonArg::Ignore => Singleton::Ignore,
        }
    }
}

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

/// Hosts and the way to them.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct ReachArgs {
    /// The SSH port of hosts for which ~/.ssh/config names none
    #[arg(long, value_name = "PORT", help_heading = "Reaching hosts")]
    pub(crate) port: Option<u16>,

    /// Reach hosts by this command and not by SSH of rlaunch's own, as mpirun's remote shell agents
    /// are called: `CMD HOST LINE`, where LINE is for a shell on HOST; a {host} in CMD takes the
    /// host's place: 'ssh -p 2222', 'kubectl exec -i {host} -- sh -c'
    #[arg(
        long, value_name = "CMD", conflicts_with_all = ["port", "ssh_config"],
        help_heading = "Reaching hosts"
    )]
    pub(crate) rsh: Option<String>,

    /// Run in the container of this name on every host: docker:NAME, podman:NAME, nerdctl:NAME or
    /// toolbox:NAME, which runs already; forced:NAME when the login itself leads into it; other:NAME
    #[arg(long, value_name = "KIND:NAME", help_heading = "Reaching hosts")]
    pub(crate) container: Option<Container>,

    /// The command on the hosts that enters the container, with {name} for its name:
    /// 'sudo docker exec -i {name}'
    #[arg(long, value_name = "CMD", help_heading = "Reaching hosts")]
    pub(crate) container_exec: Option<String>,

    /// Read this instead of ~/.ssh/config and /etc/ssh/ssh_config
    #[arg(long, value_name = "FILE", help_heading = "Reaching hosts")]
    pub(crate) ssh_config: Option<PathBuf>,

    /// The agent to send, in place of the one that came with rlaunch
    #[arg(long, value_name = "FILE", help_heading = "Reaching hosts")]
    pub(crate) agent: Option<PathBuf>,

    /// Where hosts keep the agent, in place of ~/.cache/rlaunch
    #[arg(long, value_name = "DIR", help_heading = "Reaching hosts")]
    pub(crate) agent_dir: Option<String>,

    /// How many hosts are logged in to at one time, in place of 128; fewer where an sshd turns
    /// logins away (MaxStartups). Through one jump host it is 8 at most
    #[arg(
        long, value_name = "N", help_heading = "Reaching hosts",
        value_parser = clap::value_parser!(u16).range(1..=4096)
    )]
    pub(crate) ssh_fanout: Option<u16>,
}

/// What rlaunch is asked to do. The verb is the first word; without one it is to run a job.
pub(crate) enum Invocation {
    Run(Box<Args>),
    Reap(ReapArgs),
    Topo(TopoArgs),
    Capture(CaptureArgs),
    Bench(Box<BenchArgs>),
    Train(Box<TrainArgs>),
    Report(ReportArgs),
    SshConfig(SshConfigArgs),
    SshSetup(SetupArgs),
    /// A command of a rank: `rlaunch barrier`, `rlaunch kv get KEY`.
    OfRank(Vec<OsString>),
}

impl Invocation {
    /// Parses the command line, or prints help or what is wrong with it.
    pub(crate) fn parse_or_explain() -> Result<Invocation, clap::Error> {
        let mut typed: Vec<OsString> = std::env::args_os().collect();
        if typed.get(1).is_some_and(|verb| verb == "reap") {
            typed.remove(1);
            return Ok(Invocation::Reap(ReapArgs::try_parse_from(typed)?));
        }
        if typed.get(1).is_some_and(|verb| verb == "topo") {
            typed.remove(1);
            return Ok(Invocation::Topo(TopoArgs::try_parse_from(typed)?));
        }
        if typed.get(1).is_some_and(|verb| verb == "capture") {
            typed.remove(1);
            return Ok(Invocation::Capture(CaptureArgs::try_parse_from(typed)?));
        }
        if typed.get(1).is_some_and(|verb| verb == "report") {
            typed.remove(1);
            return Ok(Invocation::Report(ReportArgs::try_parse_from(typed)?));
        }
        if typed.get(1).is_some_and(|verb| verb == "ssh-config") {
            typed.remove(1);
            return Ok(Invocation::SshConfig(SshConfigArgs::try_parse_from(typed)?));
        }
        if typed.get(1).is_some_and(|verb| verb == "ssh-setup") {
            typed.remove(1);
            return Ok(Invocation::SshSetup(SetupArgs::try_parse_from(typed)?));
        }
        if typed.get(1).is_some_and(|verb| verb == "bench") {
            typed.remove(1);
            if typed.get(1).is_some_and(|what| what == "train") {
                typed.remove(1);
                return Ok(Invocation::Train(Box::new(TrainArgs::parse(typed)?)));
            }
            // `-np`, as for a job.
            let typed =
                typed.into_iter().map(|word| if word == "-np" { "-n".into() } else { word });
            return Ok(Invocation::Bench(Box::new(BenchArgs::try_parse_from(typed)?)));
        }
        let is_of_rank = |verb: &OsString| command::VERBS.iter().any(|known| verb == known);
        if typed.get(1).is_some_and(is_of_rank) {
            return Ok(Invocation::OfRank(typed.split_off(1)));
        }
        let args = Args::try_parse_from(spelling::respell(typed.clone())?)?;
        Ok(Invocation::Run(Box::new(Args { typed, ..args })))
    }
}

#[cfg(test)]
mod tests;
