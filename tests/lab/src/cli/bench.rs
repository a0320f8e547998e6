//! `cargo lab bench`: measurements of rlaunch beside other launchers and MPI libraries, or beside an
//! earlier build of rlaunch.

use std::path::PathBuf;

use clap::builder::{ArgPredicate, PossibleValuesParser};
use clap::{Args, Subcommand};

use rlaunch_lab::LabError;
use rlaunch_lab::bench::against::EarlierBuild;
use rlaunch_lab::bench::{
    comm, failure, inventory, launch, mesh, mpi, output, rendezvous, train, verbs,
};

/// Things that are measured.
#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// Start `hostname` on every host by rlaunch, Hydra, Open MPI and plain ssh in turn.
    Launch {
        /// Number of hosts.
        #[arg(long, default_value_t = 64)]
        hosts: usize,
        /// Number of timed rounds, after one warm-up round; 15 with --against.
        #[arg(
            long,
            default_value_t = 5,
            default_value_if(AGAINST, ArgPredicate::IsPresent, AGAINST_ROUNDS)
        )]
        rounds: usize,
        /// Leave out a launcher.
        #[arg(long, value_parser = PossibleValuesParser::new(launch::launcher_names()))]
        #[arg(conflicts_with = AGAINST)]
        skip: Vec<String>,
        #[command(flatten)]
        against: Against,
    },
    /// Time rank table, barrier and all-gather of two ranks on every host, under rlaunch, Hydra and
    /// Open MPI in turn.
    Rendezvous {
        /// Number of hosts.
        #[arg(long, default_value_t = 64)]
        hosts: usize,
        /// Number of timed jobs of each launcher, after one warm-up job.
        #[arg(long, default_value_t = 5)]
        rounds: usize,
    },
    /// Start an MPI program by rlaunch and by the launcher of its MPI library in turn, for MPICH and
    /// Open MPI.
    Mpi {
        /// Numbers of hosts, each of which is measured.
        #[arg(long, value_delimiter = ',', default_values_t = [16, 64])]
        hosts: Vec<usize>,
        /// Number of ranks on each host.
        #[arg(long, default_value_t = 2)]
        ranks: usize,
        /// Number of timed rounds, after one warm-up round.
        #[arg(long, default_value_t = 5)]
        rounds: usize,
        /// Leave out a library.
        #[arg(long, value_parser = PossibleValuesParser::new(mpi::library_names()))]
        skip: Vec<String>,
    },
    /// Time messages, barrier and all-reduce over shared memory and TCP, and how long ranks take until
    /// they can communicate, with rlaunch, MPICH and Open MPI in turn.
    Comm {
        /// Number of timed rounds, after one warm-up round.
        #[arg(long, default_value_t = 15)]
        rounds: usize,
        /// Measure only rows whose names contain this: latency/8, bandwidth/1048576, barrier/0,
        /// allreduce/8, allreduce/65536, allreduce/16777216, init.
        #[arg(long)]
        row: Option<String>,
        /// Measure only over shared memory, or only over TCP.
        #[arg(long, value_enum)]
        only: Option<comm::Transport>,
        /// Measure peers in less usual configurations as well: Open MPI over UCX, and with copies
        /// through shared memory instead of the kernel.
        #[arg(long, conflicts_with = AGAINST)]
        variants: bool,
        #[command(flatten)]
        against: Against,
    },
    /// Train a network with torch on three hosts, over rlaunch's backend and over gloo in turn.
    Train {
        /// Number of timed trainings over each backend, after one warm-up.
        #[arg(long, default_value_t = 15)]
        rounds: usize,
        /// Number of steps of each training.
        #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u64).range(2..))]
        steps: u64,
    },
    /// Time an agent's reading of a large server's hardware inventory.
    Inventory {
        /// Number of timed readings, after one warm-up.
        #[arg(long, default_value_t = 50)]
        rounds: usize,
    },
    /// Time RDMA writes and messages between two guests, by perftest, rlaunch and perftest in turn.
    Verbs {
        /// Number of rounds; each takes 3 minutes if the guests are emulated.
        #[arg(long, default_value_t = 3)]
        rounds: usize,
        /// Measure only rows whose names contain this, such as "message" or "write latency".
        #[arg(long)]
        row: Option<String>,
    },
    /// Start `hostname` on three guests with and without the RDMA mesh, in turn.
    Mesh {
        /// Number of timed rounds, after one warm-up round.
        #[arg(long, default_value_t = 15)]
        rounds: usize,
    },
    /// Print lines on every host by rlaunch, Hydra and Open MPI in turn, with and without tags, and by
    /// rlaunch to a slow reader.
    Output {
        /// Number of hosts.
        #[arg(long, default_value_t = 4)]
        hosts: usize,
        /// MiB of lines on each host.
        #[arg(long, default_value_t = 64)]
        mebibytes: usize,
        /// Number of timed rounds, after one warm-up round; 15 with --against.
        #[arg(
            long,
            default_value_t = 3,
            default_value_if(AGAINST, ArgPredicate::IsPresent, AGAINST_ROUNDS)
        )]
        rounds: usize,
        #[command(flatten)]
        against: Against,
    },
    /// Make a rank, a launcher, an agent and a host fail under rlaunch, Hydra and Open MPI in turn, and
    /// time how their jobs end; then make MPI programs of six libraries fail.
    Failure {
        /// Number of timed rounds, after one warm-up round; 3 at most for MPI programs.
        #[arg(long, default_value_t = 5)]
        rounds: usize,
        /// Programs of the jobs.
        #[arg(long, value_enum, default_value = "all")]
        programs: failure::FailingPrograms,
    },
}

/// Long help of `--against`. Each paragraph is one line, which clap wraps to the terminal's width.
const AGAINST_HELP: &str = "\
Measure beside an earlier build of rlaunch instead of other launchers.

DIR is the directory target/dist-release that `cargo lab build --profile release` made of the earlier \
build, or a copy of it; the path of the `rlaunch` in it will do as well. `bench comm` also needs the \
programs `measure` and `init` in it. Copy the earlier build before you build this one: this build's own \
directory is refused.

In each round this build and the earlier one run in turn on the same hosts, and which one begins \
alternates. Other launchers and their bars, a slow reader (output) and settings with more ranks than \
processors (comm) are measured only without --against.

Each row prints the median over all rounds of the ratio this build/earlier, for wall time and for CPU \
time (all hosts and the launch node together), the 90 % interval of that median by order statistics, \
and a verdict:

  faster     the whole interval is below 1.00
  no slower  the interval begins at 1.00 or below, and the median is at most 1.05
  SLOWER     neither

A change that must cost nothing has to be \"no slower\" in CPU time. Memory is printed without a \
verdict. The exit code is 1 if any row is SLOWER, or if there are too few rounds for an interval: it \
takes at least 5, and 15 are usual.";

/// Name by which clap knows `--against`.
const AGAINST: &str = "against";
/// Default number of rounds with `--against`.
const AGAINST_ROUNDS: &str = "15";

/// EarlierBuild build to compare with.
#[derive(Debug, Args)]
pub(crate) struct Against {
    /// Measure beside an earlier build of rlaunch instead of other launchers.
    #[arg(id = AGAINST, long = "against", value_name = "DIR", long_help = AGAINST_HELP)]
    directory: Option<PathBuf>,
}

impl Against {
    /// Finds the earlier build, if one was given. Fails if it cannot run here.
    fn find(&self) -> Result<Option<EarlierBuild>, LabError> {
        self.directory.as_deref().map(EarlierBuild::find).transpose()
    }
}

/// Runs a bench; returns whether every bar was met.
pub(super) fn run(verb: &Bench) -> Result<bool, LabError> {
    match verb {
        Bench::Launch { hosts, rounds, skip, against } => {
            let options =
                launch::LaunchOptions { hosts: *hosts, rounds: *rounds, skip: skip.clone() };
            match against.find()? {
                Some(earlier) => launch::run_against(&options, &earlier),
                None => launch::run(&options),
            }
        }
        Bench::Rendezvous { hosts, rounds } => {
            rendezvous::run(&rendezvous::RendezvousOptions { hosts: *hosts, rounds: *rounds })
        }
        Bench::Mpi { hosts, ranks, rounds, skip } => mpi::run(&mpi::MpiOptions {
            hosts: hosts.clone(),
            ranks: *ranks,
            rounds: *rounds,
            skip: skip.clone(),
        }),
        Bench::Comm { rounds, row, only, variants, against } => {
            let (row, only) = (row.clone(), *only);
            let options = comm::CommOptions { rounds: *rounds, row, only, variants: *variants };
            match against.find()? {
                Some(earlier) => comm::run_against(&options, &earlier),
                None => comm::run(&options),
            }
        }
        Bench::Train { rounds, steps } => {
            train::run(&train::TrainOptions { rounds: *rounds, steps: *steps })
        }
        Bench::Inventory { rounds } => {
            inventory::run(&inventory::InventoryOptions { rounds: *rounds })
        }
        Bench::Verbs { rounds, row } => {
            verbs::run(&verbs::VerbsOptions { rounds: *rounds, row: row.clone() })
        }
        Bench::Mesh { rounds } => mesh::run(&mesh::MeshOptions { rounds: *rounds }),
        Bench::Output { hosts, mebibytes, rounds, against } => {
            let options =
                output::OutputOptions { hosts: *hosts, mebibytes: *mebibytes, rounds: *rounds };
            match against.find()? {
                Some(earlier) => output::run_against(&options, &earlier),
                None => output::run(&options),
            }
        }
        Bench::Failure { rounds, programs } => {
            failure::run(&failure::FailureOptions { rounds: *rounds, programs: *programs })
        }
    }
}
