//! Measurements of rlaunch beside its peers, in one run on one machine. Ratios are reported, since
//! times alone depend on the machine. A *bar* is the limit that a ratio or a time has to meet.
//!
//! | file | what |
//! |---|---|
//! | `launch`, `rendezvous`, `output` | launchers beside `mpirun` and `mpiexec.hydra` |
//! | `mpi` | MPI programs under rlaunch and under the launchers of their libraries |
//! | `comm` | the communicator beside MPI libraries |
//! | `copy` | copies of files to hosts beside scp, rsync, socat and clush |
//! | `images` | jobs in containers beside `docker run`; copies of images beside `docker save \| ssh docker load` |
//! | `monitor` | CPU time of the live page |
//! | `table`, `series` | the harness: rows, rounds in turn, bars; values and their interval |
//! | `contender`, `against` | what takes turns, and on which hosts; an earlier build |

use clap::Subcommand;

use crate::LabError;

mod against;
mod comm;
mod contender;
mod copy;
mod images;
mod launch;
mod monitor;
mod mpi;
mod output;
mod rendezvous;
mod series;
mod table;

pub(crate) use series::Series;

/// Things that are measured.
#[derive(Debug, Subcommand)]
pub enum Bench {
    /// Start `hostname` on every host by rlaunch, Hydra, Open MPI and plain ssh in turn.
    Launch(launch::LaunchOptions),
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
    },
    /// Time messages, barrier and all-reduce over shared memory and TCP, and how long ranks take until
    /// they can communicate, with rlaunch, MPICH and Open MPI in turn.
    Comm(comm::CommOptions),
    /// Measure the CPU time of `rlaunch monitor` at a terminal.
    Monitor(monitor::MonitorOptions),
    /// Print lines on every host by rlaunch, Hydra and Open MPI in turn, with and without tags, and by
    /// rlaunch to a slow reader and to a terminal.
    Output(output::OutputOptions),
    /// Copy a file to seven hosts over slow links and to one over a fast one, files that are there, and one with
    /// a changed byte: by rlaunch push, scp, rsync, clush and a chain of socats in turn.
    Copy(copy::CopyOptions),
    /// Start `hostname` in containers by rlaunch, by docker run on each host and by a loop of ssh in turn; then copy an image of
    /// 200 MB to hosts over slow links, by rlaunch push and by docker save | ssh docker load.
    Images(images::ImagesOptions),
}

/// Runs a bench; returns whether every bar was met.
pub fn run(bench: &Bench) -> Result<bool, LabError> {
    match bench {
        Bench::Launch(options) => launch::run(options),
        Bench::Rendezvous { hosts, rounds } => rendezvous::run(*hosts, *rounds),
        Bench::Mpi { hosts, ranks, rounds } => mpi::run(hosts, *ranks, *rounds),
        Bench::Comm(options) => comm::run(options),
        Bench::Monitor(options) => monitor::run(options),
        Bench::Output(options) => output::run(options),
        Bench::Copy(options) => copy::run(options),
        Bench::Images(options) => images::run(options),
    }
}
