//! What was typed after a verb.

use super::{ReachArgs, values};
use clap::Parser;
use std::ffi::OsString;
use std::path::PathBuf;

/// End whatever a job left on its hosts, if its agents could not.
///
/// `rlaunch reap JOB -H a,b` ends what that job left there, `rlaunch reap --all -H a,b` every job of yours.
/// A job's processes are known by the job's id in their environment, so nothing else is touched.
/// Running it twice does no harm.
#[derive(Debug, Parser)]
#[command(name = "rlaunch reap", version, max_term_width = 100)]
pub(crate) struct ReapArgs {
    /// The job's id, as RLAUNCH_JOB_ID and the events have it
    #[arg(value_name = "JOB", required_unless_present = "all", value_parser = values::parse_job)]
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

/// Say whether a run was fast, whether its figures add up, and which network it used.
///
/// It reads what tf_cnn_benchmarks, Horovod's synthetic benchmarks and nccl-tests print, and what
/// NCCL logs (NCCL_DEBUG=INFO), with `--tag-output` of rlaunch or Open MPI or without: images/sec of
/// each rank (the mean of the last 5 values, +/- their standard deviation) and of all, tables of
/// bandwidths, the network of each rank. What does not fit is a warning. Several runs of different
/// sizes are compared; of a job on record also with a smaller one of the same program.
#[derive(Debug, Parser)]
#[command(
    name = "rlaunch report",
    max_term_width = 100,
    after_help = "\
Examples:
  rlaunch report last                  the last job, from its record
  rlaunch report 0199f3a2c4d1          another, by its id or how that begins
  rlaunch report train.log             what any launcher's job has printed
  rlaunch report np1.log np4.log       two runs beside each other
  mpirun … | rlaunch report -          as it comes from a program"
)]
pub(crate) struct ReportArgs {
    /// Files with output, `-` for standard input, `last` for the last job, or a job's id
    #[arg(value_name = "FILE|JOB|last|-", required = true)]
    pub(crate) sources: Vec<OsString>,

    /// Print everything as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Show what SSH's configuration says about hosts, as rlaunch understands it.
///
/// The form is that of `ssh -G`: a keyword and its value, but only of the words that rlaunch follows;
/// others are ignored, in blocks that match as well. Nobody is connected to. A comment names the
/// files that were read and what in them is not followed (`Match exec`).
#[derive(Debug, Parser)]
#[command(
    name = "rlaunch ssh-config",
    max_term_width = 100,
    after_help = "\
Examples:
  rlaunch ssh-config a                          how a would be reached, and with which keys
  rlaunch ssh-config root@a b                   the same as root, and for b
  diff <(rlaunch ssh-config a | sort) <(ssh -G a | sort)    what rlaunch would do otherwise

Words that are followed: Host, Match (host, originalhost, user, localuser, all), Include, HostName,
User, Port, AddressFamily, BindAddress, ProxyJump, ProxyCommand, ConnectTimeout, ConnectionAttempts,
ServerAliveInterval, ServerAliveCountMax, RekeyLimit, IdentityFile, CertificateFile, IdentityAgent,
IdentitiesOnly, StrictHostKeyChecking, UserKnownHostsFile, GlobalKnownHostsFile, HostKeyAlias,
KexAlgorithms, Ciphers, HostKeyAlgorithms, PubkeyAcceptedAlgorithms."
)]
pub(crate) struct SshConfigArgs {
    /// The hosts, as ssh would be given them or as for a job
    #[arg(value_name = "HOST", required = true)]
    pub(crate) hosts: Vec<String>,

    /// The SSH port of hosts for which the configuration names none
    #[arg(long, value_name = "PORT")]
    pub(crate) port: Option<u16>,

    /// Read this instead of ~/.ssh/config and /etc/ssh/ssh_config
    #[arg(long, value_name = "FILE")]
    pub(crate) ssh_config: Option<PathBuf>,
}
