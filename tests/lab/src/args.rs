//! What can be typed after `cargo lab`.

use std::path::PathBuf;

use clap::builder::{ArgPredicate, PossibleValuesParser};
use clap::{Args as ClapArgs, Parser, Subcommand};

use crate::vm_command::Vm;
use rlaunch_lab::bench::against::Earlier;
use rlaunch_lab::bench::{comm, launch};
use rlaunch_lab::dist::Profile;
use rlaunch_lab::{LabError, names, stages};

const EXAMPLES: &str = "\
From a clean checkout:
  cargo lab demo                      set up, build, and run a job on three hosts
  cargo lab test                      every test, with a ledger at the end
  cargo lab test --changed            what your change can reach
  cargo lab test --stage unit         one stage of it
  cargo lab test --repeat 20 --filter lost::   is a test fragile?

Hosts:
  cargo lab up 3                      hosts a, b and c, each with a real sshd
  cargo lab up 64 --lab big --net 10.92   a second lab beside the first
  cargo lab status                    what is up
  cargo lab down                      remove everything

Work on them:
  cargo lab ssh a hostname            by ssh, from the launch node
  cargo lab exec rlaunch -H a,b hostname   on the launch node, where jobs start
  cargo lab on a ps ax                inside a host, without ssh
  cargo lab ps                        what runs on the hosts

Break them:
  cargo lab cut b --silent            b is a black hole
  cargo lab heal b                    and back
  cargo lab crash c                   power loss
  cargo lab boot c                    and back

Hosts with RDMA:
  cargo lab vm up 3 triangle          guests n1, n2 and n3 with soft RoCE and Soft-iWARP
  cargo lab vm ssh n1 ibv_devinfo     and so on: `cargo lab vm --help`
  cargo lab vm down

Simulate:
  cargo lab sim --seeds 200           small jobs with faults, in virtual time
  cargo lab sim --nodes 10000         a large one, and what it costs

Measure:
  cargo lab bench launch              how quickly jobs start, beside other launchers
  cargo lab bench launch --against DIR   and beside an earlier build of rlaunch
  cargo lab bench rendezvous          how quickly their ranks find each other
  cargo lab bench comm                messages and collectives, beside MPICH and Open MPI
  cargo lab bench train               a training by torch, beside its own backend
  cargo lab bench inventory           how quickly an agent sees what a server has
  cargo lab bench output              how quickly and how whole what ranks print arrives
  cargo lab bench failure             how quickly and cleanly they end when something fails
  cargo lab bench verbs               RDMA writes, beside perftest
  cargo lab bench mesh                what proving RDMA adds to the start of a job
  cargo lab deps                      licences of dependencies, and versions with known faults
  cargo lab tidy                      the order of each crate's folders, long files, names that stand twice
  cargo lab fuzz                      what decoders make of anything
  cargo lab soak launch --load        300 jobs in a row on a busy machine
  cargo lab soak comm                 an hour of messages between 8 ranks
  cargo lab soak teardown             1000 jobs that try to outlive rlaunch";

/// Test hosts on this machine, and everything that runs on them.
///
/// A host is a set of Linux namespaces: its own network address, name, processes, home
/// directories and sshd. The launch node is where rlaunch runs; it reaches the hosts by name.
#[derive(Debug, Parser)]
#[command(name = "cargo lab", bin_name = "cargo lab", after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The lab's name; each name is a lab of its own.
    #[arg(long, global = true, default_value = "lab", value_parser = names::check_lab_name)]
    pub(crate) lab: String,
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Make N hosts (a, b, c, … z, h27, …), or grow the lab to N.
    Up {
        /// How many hosts.
        hosts: usize,
        /// All hosts see the same home directories, as over NFS.
        #[arg(long)]
        shared_home: bool,
        /// The first two octets of the lab's addresses.
        #[arg(long, default_value = "10.91", value_parser = names::parse_net)]
        net: [u8; 2],
    },
    /// Remove the lab and everything that runs in it, after a crash as well.
    Down,
    /// Say what is up.
    Status {
        /// As one line of JSON.
        #[arg(long)]
        json: bool,
    },
    /// Print the hosts' names as rlaunch's -H takes them.
    Hosts {
        /// The first N names; all of the lab's if left out.
        count: Option<usize>,
    },
    /// Run a command on the launch node, in this directory if it exists there.
    Exec {
        /// As the account `user` rather than root.
        #[arg(long)]
        user: bool,
        /// The command and its arguments.
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
    /// Run a command inside a host, without ssh.
    On {
        /// The host.
        host: String,
        /// As the account `user` rather than root.
        #[arg(long)]
        user: bool,
        /// The command and its arguments.
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
    /// Log in to a host by ssh, from the launch node.
    Ssh {
        /// The host.
        host: String,
        /// As the account `user` rather than root.
        #[arg(long)]
        user: bool,
        /// The command and its arguments; a shell if left out.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
    /// List what runs on the hosts beyond init and the listening sshd: host, pid, parent, state,
    /// arguments.
    Ps {
        /// The hosts; all if left out.
        hosts: Vec<String>,
    },
    /// Cut a host's link.
    Cut {
        /// The host.
        host: String,
        /// Drop frames without taking the carrier away.
        #[arg(long)]
        silent: bool,
    },
    /// Bring a host's link back.
    Heal(OneHost),
    /// Power loss: cut the link, then kill every process of the host.
    Crash(OneHost),
    /// Start a crashed host again.
    Boot(OneHost),
    /// Install what the lab and its benches need (apt-get; elsewhere say what is missing).
    Setup,
    /// Build launcher and agent, and print where they are.
    Build {
        /// `lab` is quick to build, `release` is what ships.
        #[arg(long, value_enum, default_value = "lab")]
        profile: Profile,
    },
    /// From a clean checkout to a job on three hosts: set up, build, start, run, each step shown.
    Demo {
        /// Leave the hosts up.
        #[arg(long)]
        keep: bool,
    },
    /// Run every test of the project in stages and print a ledger.
    Test {
        /// Only this stage.
        #[arg(long, value_parser = PossibleValuesParser::new(stages::names()))]
        stage: Option<String>,
        /// Only tests whose names contain this.
        #[arg(long)]
        filter: Option<String>,
        /// Only what the changes since REV can reach: by default since origin/main, else since what
        /// passed here last, else since the commit before. Says what it leaves out.
        #[arg(long, value_name = "REV", num_args = 0..=1, conflicts_with = "repeat")]
        #[expect(clippy::option_option, reason = "the option may stand alone")]
        changed: Option<Option<String>>,
        /// Run these tests so many times, and say how often each failed.
        #[arg(long, value_name = "N", requires = "filter", value_parser = clap::value_parser!(u32).range(1..))]
        repeat: Option<u32>,
    },
    /// The tree of agents in virtual time: `cargo lab sim --help`.
    #[command(disable_help_flag = true)]
    Sim {
        /// What the simulation is told.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
    /// Hosts that are emulated computers, with RDMA devices made of software.
    #[command(subcommand)]
    Vm(Vm),
    /// Check dependencies: licences, sources, duplicates, and versions with known faults.
    Deps {
        /// Also ask RustSec's database of today, which is fetched.
        #[arg(long)]
        online: bool,
    },
    /// Check the sources: each crate's folders use only those below them, files and functions are
    /// short, and a type's name stands once.
    Tidy {
        /// Only this crate: its name, or its folder.
        #[arg(long = "crate", value_name = "CRATE")]
        only: Option<String>,
        /// List each place at which a folder uses another.
        #[arg(long)]
        edges: bool,
        /// List also what is known and allowed so far, with its places.
        #[arg(long)]
        known: bool,
    },
    /// Feed decoders with whatever a fuzzer finds.
    Fuzz {
        /// Only this one.
        target: Option<String>,
        /// For how many seconds each, after what is known was replayed.
        #[arg(long, default_value_t = 10)]
        seconds: u64,
    },
    /// Measure rlaunch beside its peers.
    #[command(subcommand)]
    Bench(Bench),
    /// Do the same thing many times over.
    #[command(subcommand)]
    Soak(Soak),
}

#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// Start `hostname` on every host, by rlaunch, Hydra, Open MPI and plain ssh in turn.
    Launch {
        /// How many hosts.
        #[arg(long, default_value_t = 64)]
        hosts: usize,
        /// How many rounds, after one to warm up; 15 with --against.
        #[arg(
            long,
            default_value_t = 5,
            default_value_if(AGAINST, ArgPredicate::IsPresent, AGAINST_ROUNDS)
        )]
        rounds: usize,
        /// Leave a launcher out.
        #[arg(long, value_parser = PossibleValuesParser::new(launch::launcher_names()))]
        #[arg(conflicts_with = AGAINST)]
        skip: Vec<String>,
        #[command(flatten)]
        against: Against,
    },
    /// Rank table, barrier and all-gather of two ranks on every host, by rlaunch, Hydra and Open MPI
    /// in turn.
    Rendezvous {
        /// How many hosts.
        #[arg(long, default_value_t = 64)]
        hosts: usize,
        /// How many jobs of each, after one to warm up.
        #[arg(long, default_value_t = 5)]
        rounds: usize,
    },
    /// Messages, barrier and all-reduce over shared memory and TCP, and how long it takes until they
    /// can begin, by rlaunch, MPICH and Open MPI in turn.
    Comm {
        /// How often each is started, after once to warm up.
        #[arg(long, default_value_t = 15)]
        rounds: usize,
        /// Only rows whose names contain this: latency/8, bandwidth/1048576, barrier/0,
        /// allreduce/8, allreduce/65536, allreduce/16777216, init.
        #[arg(long)]
        row: Option<String>,
        /// Only over shared memory or only over TCP.
        #[arg(long, value_enum)]
        only: Option<comm::Link>,
        /// Peers also in ways that few people start them in: Open MPI over UCX, and without help from
        /// the kernel.
        #[arg(long, conflicts_with = AGAINST)]
        variants: bool,
        #[command(flatten)]
        against: Against,
    },
    /// Train a network by torch on three hosts, over rlaunch's backend and over gloo in turn.
    Train {
        /// How often over each, after once to warm up.
        #[arg(long, default_value_t = 15)]
        rounds: usize,
        /// How many steps each time.
        #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u64).range(2..))]
        steps: u64,
    },
    /// Read what a large server has.
    Inventory {
        /// How many readings, after one to warm up.
        #[arg(long, default_value_t = 50)]
        rounds: usize,
    },
    /// Write to another guest's memory, by perftest, rlaunch and perftest in turn.
    Verbs {
        /// How many rounds, after one to warm up.
        #[arg(long, default_value_t = 15)]
        rounds: usize,
        /// Only rows whose names contain this, as "message" or "write latency".
        #[arg(long)]
        row: Option<String>,
    },
    /// Start `hostname` on three guests with the mesh of RDMA and without it, in turn.
    Mesh {
        /// How many rounds, after one to warm up.
        #[arg(long, default_value_t = 15)]
        rounds: usize,
    },
    /// Print lines on every host, by rlaunch, Hydra and Open MPI in turn, without tags and with them,
    /// and by rlaunch to a slow reader.
    Output {
        /// How many hosts.
        #[arg(long, default_value_t = 4)]
        hosts: usize,
        /// MiB of lines on each.
        #[arg(long, default_value_t = 64)]
        mebibytes: usize,
        /// How many rounds, after one to warm up; 15 with --against.
        #[arg(
            long,
            default_value_t = 3,
            default_value_if(AGAINST, ArgPredicate::IsPresent, AGAINST_ROUNDS)
        )]
        rounds: usize,
        #[command(flatten)]
        against: Against,
    },
    /// Let a rank, a launcher, an agent and a host fail, under rlaunch, Hydra and Open MPI in turn.
    Failure {
        /// How many rounds, after one to warm up.
        #[arg(long, default_value_t = 5)]
        rounds: usize,
    },
}

/// A line is a paragraph: it is broken where the terminal is.
const AGAINST_HELP: &str = "\
Measure beside an earlier build of rlaunch in place of the peers.

DIR is what `cargo lab build --profile release` made of it in target/dist-release, or a copy of that: \
the directory, or the path of the `rlaunch` in it. For `bench comm` the programs `measure` and `init` \
are there as well. Copy the earlier build before this one is built: the directory that this one goes to \
is refused.

In each round this build and the earlier one run in turn on the same hosts; which one begins \
alternates. Peers, their bars, a slow reader (output) and settings with more ranks than processors \
(comm) are left out: they are for a run without --against.

Each row has the median of the ratios this build/earlier of all rounds, of wall time and of CPU time \
(that of all hosts and the launch node together), with both ends of its 90 % interval by order \
statistics, and a word:

  faster     the whole interval lies below 1.00
  no slower  the 90 % interval of the ratio reaches 1.00, median <= 1.05
  SLOWER     neither

The rule for a change that is to cost nothing is \"the 90 % interval of the ratio of CPU time reaches \
1.00, median <= 1.05\". Memory is only shown. The exit code is 1 if any row is SLOWER, or if there are \
too few rounds to say: below 5 no such interval exists, and 15 are usual.";

/// The name by which clap knows `--against`.
const AGAINST: &str = "against";
/// How many rounds two builds are compared in unless told otherwise.
const AGAINST_ROUNDS: &str = "15";

#[derive(Debug, ClapArgs)]
pub(crate) struct Against {
    /// Measure beside an earlier build of rlaunch in place of the peers.
    #[arg(id = AGAINST, long = "against", value_name = "DIR", long_help = AGAINST_HELP)]
    directory: Option<PathBuf>,
}

impl Against {
    /// The earlier build, if there is to be one; an error if it cannot run.
    pub(crate) fn find(&self) -> Result<Option<Earlier>, LabError> {
        self.directory.as_deref().map(Earlier::find).transpose()
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Soak {
    /// Launch a job of two ranks on every host; none may hang, fail or leave anything behind.
    Launch {
        /// How many jobs, one after the other.
        #[arg(long, default_value_t = 300)]
        launches: usize,
        /// On how many hosts each.
        #[arg(long, default_value_t = 16)]
        hosts: usize,
        /// Keep the machine busy meanwhile.
        #[arg(long)]
        load: bool,
    },
    /// Prove the mesh of three guests again and again; none may hang, fail or leave a queue pair.
    Mesh {
        /// How many jobs, one after the other.
        #[arg(long, default_value_t = 100)]
        launches: usize,
    },
    /// Random messages between 8 ranks on two hosts: none may be lost, late, out of order or wrong,
    /// and no rank may grow. A line a minute says how it goes.
    Comm {
        /// For how long.
        #[arg(long, default_value_t = 3600, value_parser = clap::value_parser!(u64).range(1..))]
        seconds: u64,
    },
    /// Run jobs whose helpers do not want to end with them, four at once, and end them in every way:
    /// nothing of them may be left. A line every hundred jobs says how it goes.
    Teardown {
        /// How many jobs.
        #[arg(long, default_value_t = 1000)]
        jobs: usize,
        /// A directory with another build of rlaunch, in place of this checkout's.
        #[arg(long)]
        of: Option<PathBuf>,
    },
    /// Simulate 10,000 jobs with faults, and see whether faults put in on purpose are noticed.
    Sim {
        /// How many seeds.
        #[arg(long, default_value_t = 10_000)]
        seeds: u64,
    },
}

#[derive(Debug, ClapArgs)]
pub(crate) struct OneHost {
    /// The host.
    pub(crate) host: String,
}

impl Verb {
    /// Whether this touches namespaces; building and listing do not, and of the tests only some.
    pub(crate) fn needs_root(&self) -> bool {
        if let Verb::Vm(vm) = self {
            return vm.needs_root();
        }
        !matches!(
            self,
            Verb::Status { .. }
                | Verb::Hosts { .. }
                | Verb::Setup
                | Verb::Build { .. }
                | Verb::Sim { .. }
                | Verb::Tidy { .. }
                | Verb::Fuzz { .. }
                | Verb::Soak(Soak::Sim { .. })
        )
    }
}
