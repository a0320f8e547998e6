//! What was typed. [`crate::job`] turns it into what was meant, after which nothing reads it again.

use crate::env_style::EnvStyle;
use crate::oob::Network;
use crate::placement::Bind;
use crate::selection::HcaFilter;
use crate::setup::Transport;
use crate::show::Show;
use clap::{ArgAction, CommandFactory, Parser};
use rlaunch_bootstrap::client::command;
use rlaunch_bootstrap::job::{PortRange, Singleton};
use std::ffi::{OsStr, OsString};
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
  rlaunch reap --all -H a,b                     end what jobs left behind; see rlaunch reap --help

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
        value_parser = parse_ranks
    )]
    pub(crate) ranks: Option<u32>,

    /// Allow more ranks than slots
    #[arg(long, help_heading = "Hosts and ranks")]
    pub(crate) oversubscribe: bool,

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
        value_parser = parse_seconds
    )]
    pub(crate) kill_after: std::time::Duration,

    /// End the job after this many seconds, with exit code 124
    #[arg(
        long, value_name = "SECONDS", help_heading = "The end", value_parser = parse_timeout
    )]
    pub(crate) timeout: Option<std::time::Duration>,

    /// Let the other ranks run when one fails; the exit code is still that of the first
    #[arg(long, help_heading = "The end")]
    pub(crate) continue_on_error: bool,

    /// Explain before the ranks start: placement (who runs where, and why), env (variables that
    /// rlaunch sets, and why), rank-table or rank-table=json. Repeats add up
    #[arg(
        long, value_name = "WHAT[=json]", action = ArgAction::Append, help_heading = "Output"
    )]
    pub(crate) show: Vec<Show>,

    /// The ports rlaunch may choose from, for MASTER_PORT and its own
    #[arg(
        long, value_name = "FIRST-LAST", default_value = "21000-21511",
        help_heading = "Between hosts", value_parser = parse_port_range
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
#[derive(Debug, clap::Args)]
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

/// How ranks of different hosts reach each other.
#[derive(Debug, clap::Args)]
pub(crate) struct NetworkArgs {
    /// auto: by RDMA where it connects two hosts, by TCP otherwise, which is said; rdma: TCP is an
    /// error; tcp: RDMA is left alone
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

    /// NCCL's network plugin, a file that every host has; sets NCCL_NET_PLUGIN
    #[arg(long, value_name = "PATH", help_heading = "Network of ranks")]
    pub(crate) nccl_net_plugin: Option<PathBuf>,

    /// Say at the end which network NCCL has really used in each rank; with --require-rdma, TCP is
    /// an error
    #[arg(long, help_heading = "Network of ranks")]
    pub(crate) nccl_verify: bool,

    /// Set another launcher's variables as well, for programs that know nothing else
    #[arg(
        long, value_name = "tensorflow|slurm|openmpi", action = ArgAction::Append,
        hide_possible_values = true, help_heading = "The program"
    )]
    pub(crate) env_style: Vec<EnvStyle>,
}

/// Hosts and the way to them.
#[derive(Debug, clap::Args)]
pub(crate) struct ReachArgs {
    /// The SSH port of hosts for which ~/.ssh/config names none
    #[arg(long, value_name = "PORT", help_heading = "Reaching hosts")]
    pub(crate) port: Option<u16>,

    /// Read this instead of ~/.ssh/config and /etc/ssh/ssh_config
    #[arg(long, value_name = "FILE", help_heading = "Reaching hosts")]
    pub(crate) ssh_config: Option<PathBuf>,

    /// The agent to send, in place of the one that came with rlaunch
    #[arg(long, value_name = "FILE", help_heading = "Reaching hosts")]
    pub(crate) agent: Option<PathBuf>,

    /// Where hosts keep the agent, in place of ~/.cache/rlaunch
    #[arg(long, value_name = "DIR", help_heading = "Reaching hosts")]
    pub(crate) agent_dir: Option<String>,
}

/// End whatever a job left on its hosts, when its agents could not: `rlaunch reap JOB -H a,b`.
///
/// A job's processes are known by the job's id in their environment, so nothing else is touched.
/// Running it twice does no harm.
#[derive(Debug, Parser)]
#[command(name = "rlaunch reap", version, max_term_width = 100)]
pub(crate) struct ReapArgs {
    /// The job's id, as RLAUNCH_JOB_ID and the events have it
    #[arg(value_name = "JOB", required_unless_present = "all", value_parser = parse_job)]
    pub(crate) job: Option<String>,

    /// Every job of yours on these hosts, running ones included
    #[arg(long, conflicts_with = "job")]
    pub(crate) all: bool,

    /// The hosts, as for a job; this machine when none is given
    #[arg(short = 'H', long = "host", visible_alias = "hosts", value_name = "HOST,...")]
    pub(crate) hosts: Vec<String>,

    #[command(flatten)]
    pub(crate) reach: ReachArgs,
}

/// Show what hosts have: processors, RDMA ports and what limits them, GPUs, interfaces.
///
/// Each RDMA port has a line: how it would be used, or why it is not. Nothing is changed and no
/// other program is asked.
#[derive(Debug, Parser)]
#[command(
    name = "rlaunch topo",
    max_term_width = 100,
    after_help = "\
Examples:
  rlaunch topo                    this machine
  rlaunch topo -H a,b             two hosts
  rlaunch topo -H a,b --gids      their GID tables
  rlaunch topo -H a --tree        a drawing of bridges, GPUs and NICs
  rlaunch topo -H a --json        everything that is known
  rlaunch topo --from x.tar       hosts that rlaunch capture has recorded"
)]
pub(crate) struct TopoArgs {
    /// The hosts, as for a job; this machine when none is given
    #[arg(short = 'H', long = "host", visible_alias = "hosts", value_name = "HOST,...")]
    pub(crate) hosts: Vec<String>,

    /// Not of hosts but of what `rlaunch capture` has recorded
    #[arg(long, value_name = "FILE", conflicts_with = "hosts")]
    pub(crate) from: Option<PathBuf>,

    /// Print GID tables, as `show_gids` does
    #[arg(long, group = "what")]
    pub(crate) gids: bool,

    /// Draw NUMA nodes, bridges, GPUs and NICs
    #[arg(long, group = "what")]
    pub(crate) tree: bool,

    /// Print what programs can ask of RDMA devices
    #[arg(long, group = "what")]
    pub(crate) caps: bool,

    /// Print everything as JSON
    #[arg(long, group = "what")]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) reach: ReachArgs,
}

/// Record the files that say what hosts have, for `rlaunch topo --from`.
///
/// They are the kernel's files on devices, processors and interfaces, and the agent's own limits:
/// no environment, no secret, nothing of yours.
#[derive(Debug, Parser)]
#[command(
    name = "rlaunch capture",
    max_term_width = 100,
    after_help = "\
Examples:
  rlaunch capture -H a,b -o x.tar
  rlaunch topo --from x.tar"
)]
pub(crate) struct CaptureArgs {
    /// The hosts, as for a job; this machine when none is given
    #[arg(short = 'H', long = "host", visible_alias = "hosts", value_name = "HOST,...")]
    pub(crate) hosts: Vec<String>,

    /// The archive to write
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,

    #[command(flatten)]
    pub(crate) reach: ReachArgs,
}

/// What rlaunch is asked to do. The verb is the first word; without one it is to run a job.
pub(crate) enum Invocation {
    Run(Box<Args>),
    Reap(ReapArgs),
    Topo(TopoArgs),
    Capture(CaptureArgs),
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
        let is_of_rank = |verb: &OsString| command::VERBS.iter().any(|known| verb == known);
        if typed.get(1).is_some_and(is_of_rank) {
            return Ok(Invocation::OfRank(typed.split_off(1)));
        }
        Ok(Invocation::Run(Box::new(Args::try_parse_from(respell(typed)?)?)))
    }
}

/// Turns mpirun's spelling into clap's before the program begins: `-np 4` is `--np 4`, and the
/// verb `run` as the first word is dropped.
fn respell(typed: Vec<OsString>) -> Result<Vec<OsString>, clap::Error> {
    let mut command = Args::command();
    command.build();
    let mut words = typed.into_iter().peekable();
    let mut spelled: Vec<OsString> = words.next().into_iter().collect();
    words.next_if(|word| word == "run");
    while let Some(word) = words.next() {
        let text = word.to_string_lossy().into_owned();
        if !text.starts_with('-') || text == "--" {
            spelled.push(word);
            break;
        }
        let word = if text == "-np" { OsString::from("--np") } else { word };
        // What clap does not know here it would take for the program.
        if !is_option(&command, &word) {
            return Err(unknown(&command, &text));
        }
        let value_follows = takes_next_word(&command, &word);
        spelled.push(word);
        if value_follows {
            spelled.extend(words.next());
        }
    }
    spelled.extend(words);
    Ok(spelled)
}

/// Whether this is an option of rlaunch: `--long`, `--long=value`, or letters of which the first
/// is known.
fn is_option(command: &clap::Command, word: &OsStr) -> bool {
    let text = word.to_string_lossy();
    match text.strip_prefix("--") {
        Some(long) => {
            let name = long.split_once('=').map_or(long, |(name, _)| name);
            long_option(command, name).is_some()
        }
        None => {
            let letter = text.chars().nth(1);
            letter.is_some() && command.get_arguments().any(|arg| arg.get_short() == letter)
        }
    }
}

fn long_option<'a>(command: &'a clap::Command, name: &str) -> Option<&'a clap::Arg> {
    command.get_arguments().find(|arg| {
        let aliases = arg.get_all_aliases().unwrap_or_default();
        arg.get_long() == Some(name) || aliases.contains(&name)
    })
}

/// `--no-such-option` is unknown; the option nearest to it may be meant.
fn unknown(command: &clap::Command, word: &str) -> clap::Error {
    let name = word.trim_start_matches('-').split('=').next().unwrap_or_default();
    let near = |long: &&str| {
        strsim::levenshtein(long, name) <= 2 || (name.len() > 2 && long.starts_with(name))
    };
    let longs = command.get_arguments().filter_map(clap::Arg::get_long);
    let meant = longs.filter(near).min_by_key(|long| strsim::levenshtein(long, name));
    let tip = meant.map_or(String::new(), |long| format!("\n\n  tip: --{long} exists"));
    let message = format!("unexpected argument '{word}' found{tip}");
    command.clone().error(clap::error::ErrorKind::UnknownArgument, message)
}

/// Whether this option's value is the next word.
fn takes_next_word(command: &clap::Command, word: &OsStr) -> bool {
    let text = word.to_string_lossy();
    let takes_value = |arg: &clap::Arg| arg.get_action().takes_values();
    if let Some(long) = text.strip_prefix("--") {
        return long_option(command, long).is_some_and(takes_value);
    }
    // In `-vn 4` the last letter takes the value; in `-n4` the value has begun.
    let mut letters = text.chars().skip(1);
    while let Some(letter) = letters.next() {
        let arg = command.get_arguments().find(|arg| arg.get_short() == Some(letter));
        if arg.is_some_and(takes_value) {
            return letters.next().is_none();
        }
    }
    false
}

fn parse_job(text: &str) -> Result<String, String> {
    let is_id = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_id.then(|| text.to_owned()).ok_or_else(|| "32 hexadecimal digits".to_owned())
}

fn parse_ranks(text: &str) -> Result<u32, String> {
    let ranks = text.trim().parse().ok().filter(|&n: &u32| n > 0);
    ranks.ok_or_else(|| "a number of ranks, 1 or more".to_owned())
}

fn parse_seconds(text: &str) -> Result<std::time::Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "a number of seconds".to_owned())?;
    let duration = std::time::Duration::try_from_secs_f64(seconds);
    duration.ok().filter(|d| d.as_secs() <= 3600).ok_or_else(|| "0 to 3600 seconds".to_owned())
}

fn parse_timeout(text: &str) -> Result<std::time::Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "a number of seconds".to_owned())?;
    let duration = std::time::Duration::try_from_secs_f64(seconds).ok();
    duration.filter(|d| !d.is_zero()).ok_or_else(|| "more than 0 seconds".to_owned())
}

/// Ports that eRDMA's compat mode takes for itself.
const ERDMA_PORTS: std::ops::RangeInclusive<u16> = 30608..=30623;

fn parse_port_range(text: &str) -> Result<PortRange, String> {
    let wanted = || "a range of ports like 21000-21511".to_owned();
    let (first, last) = text.split_once('-').ok_or_else(wanted)?;
    let first: u16 = first.trim().parse().map_err(|_| wanted())?;
    let last: u16 = last.trim().parse().map_err(|_| wanted())?;
    if first < 1024 || first > last {
        return Err("ports from 1024 up, the lower one first".to_owned());
    }
    if first <= *ERDMA_PORTS.end() && last >= *ERDMA_PORTS.start() {
        return Err("ports other than 30608-30623, which eRDMA's compat mode takes".to_owned());
    }
    Ok(PortRange { first, last })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Args {
        let words = std::iter::once("rlaunch").chain(line.split(' ')).map(OsString::from).collect();
        Args::try_parse_from(respell(words).unwrap()).unwrap()
    }

    #[test]
    fn the_definition_is_sound() {
        Args::command().debug_assert();
    }

    #[test]
    fn mpiruns_spelling_ends_where_the_program_begins() {
        let args = parse("-H a,b,c -np 3 python train.py -np 7 --tag-output");
        assert_eq!(args.hosts, ["a,b,c"]);
        assert_eq!(args.ranks, Some(3));
        assert!(!args.tag_output);
        assert_eq!(args.program, ["python", "train.py", "-np", "7", "--tag-output"]);
    }

    #[test]
    fn values_are_not_taken_for_programs() {
        let args = parse("--tag-output -x A=1 -H a -H b:2 -vn 2 run -np");
        assert_eq!(args.program, ["run", "-np"]);
        assert_eq!(args.ranks, Some(2));
        assert_eq!(parse("run -np 2 -- -odd").program, ["-odd"]);
    }

    #[test]
    fn unknown_options_are_no_programs() {
        let words = |line: &str| line.split(' ').map(OsString::from).collect();
        let error = respell(words("rlaunch -H a --tag-outptu hostname")).unwrap_err();
        assert!(error.to_string().contains("--tag-output exists"), "{error}");
        assert!(respell(words("rlaunch -H a -Q hostname")).is_err());
        assert!(respell(words("rlaunch -H a -- -Q hostname")).is_ok());
        assert!(respell(words("rlaunch --help")).is_ok());
    }

    #[test]
    fn ranges_and_times_are_checked() {
        assert!(parse_port_range("21511-21000").is_err());
        assert!(parse_port_range("1-2").is_err());
        assert!(parse_port_range("30000-30608").unwrap_err().contains("eRDMA"));
        assert!(parse_port_range("30623-30700").is_err());
        assert!(parse_port_range("30624-30700").is_ok());
        assert_eq!(parse_seconds("0.5"), Ok(std::time::Duration::from_millis(500)));
        assert!(parse_seconds("-1").is_err());
        assert_eq!(parse_ranks(" 4 "), Ok(4));
        assert!(parse_ranks("0").is_err());
    }
}
