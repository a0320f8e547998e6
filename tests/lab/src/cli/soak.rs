//! `cargo lab soak`: runs one kind of test many times.

use std::path::PathBuf;

use clap::Subcommand;
use clap::builder::PossibleValuesParser;

use rlaunch_lab::bench::mesh;
use rlaunch_lab::dist::{self, Profile};
use rlaunch_lab::stages::sim;
use rlaunch_lab::{LabError, mpi, soak};

/// Things that are repeated.
#[derive(Debug, Subcommand)]
pub(crate) enum Soak {
    /// Launch jobs of two ranks on every host; fails if one hangs, fails or leaves anything behind.
    Launch {
        /// Number of jobs, one after the other.
        #[arg(long, default_value_t = 300)]
        launches: usize,
        /// Number of hosts of each job.
        #[arg(long, default_value_t = 16)]
        hosts: usize,
        /// Keep the machine's processors busy meanwhile.
        #[arg(long)]
        load: bool,
    },
    /// Prove the RDMA mesh of three guests repeatedly; fails if a job hangs, fails or leaves a queue
    /// pair.
    Mesh {
        /// Number of jobs, one after the other.
        #[arg(long, default_value_t = 100)]
        launches: usize,
    },
    /// Put random faults into three guests, one at a time; fails if rlaunch doctor does not show a
    /// fault first, or finds something as severe beside it.
    Doctor {
        /// Number of faults.
        #[arg(long, default_value_t = 30)]
        faults: usize,
        /// Seed that chooses faults and places.
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Send random messages between 8 ranks on two hosts; fails if one is lost, late, out of order or
    /// wrong, or if a rank's memory grows. Prints a line of progress every minute.
    Comm {
        /// Duration in seconds.
        #[arg(long, default_value_t = 3600, value_parser = clap::value_parser!(u64).range(1..))]
        seconds: u64,
    },
    /// Launch programs of six MPI libraries that check their results, on 1, 2, 4 and 16 hosts; fails
    /// if one hangs, fails or leaves anything behind. With --suite, compare rlaunch with the libraries'
    /// own launchers instead.
    Mpi {
        /// Maximum duration in seconds; if it is too short, some shapes get fewer launches.
        #[arg(long, default_value_t = 1200, value_parser = clap::value_parser!(u64).range(1..))]
        seconds: u64,
        /// Run mpi4py's own tests on four ranks of two hosts, under rlaunch and under the launcher of each
        /// library; fails if a test ends in another way under rlaunch, apart from known differences.
        #[arg(long, conflicts_with = "seconds")]
        suite: bool,
        /// Run the suite with this library only; can be repeated.
        #[arg(long, requires = "suite", value_parser = PossibleValuesParser::new(mpi::NAMES))]
        library: Vec<String>,
    },
    /// Run jobs whose helpers try to outlive them, four at once, and end them in every possible way;
    /// fails if a process is left. Prints a line of progress every hundred jobs.
    Teardown {
        /// Number of jobs.
        #[arg(long, default_value_t = 1000)]
        jobs: usize,
        /// Directory of another build of rlaunch to test instead of this checkout's.
        #[arg(long)]
        of: Option<PathBuf>,
    },
    /// Simulate jobs with faults, then check that bugs planted on purpose are detected.
    Sim {
        /// Number of seeds.
        #[arg(long, default_value_t = 10_000)]
        seeds: u64,
    },
}

impl Soak {
    /// Returns whether the verb needs hosts or guests, and thus root.
    pub(super) fn needs_root(&self) -> bool {
        !matches!(self, Soak::Sim { .. })
    }
}

/// Runs a soak; returns whether it found nothing wrong.
pub(super) fn run(verb: &Soak) -> Result<bool, LabError> {
    match verb {
        Soak::Launch { launches, hosts, load } => {
            let options = soak::SoakOptions { launches: *launches, hosts: *hosts, load: *load };
            soak::launch(&options, &dist::build(Profile::Lab)?)
        }
        Soak::Mesh { launches } => mesh::soak(*launches),
        Soak::Doctor { faults, seed } => soak::doctor(*faults, *seed),
        Soak::Comm { seconds } => soak::comm(*seconds),
        Soak::Mpi { suite: true, library, .. } => {
            soak::mpi_suite(library, &dist::build(Profile::Lab)?)
        }
        Soak::Mpi { seconds, .. } => soak::mpi(*seconds, &dist::build(Profile::Lab)?),
        Soak::Teardown { jobs, of } => {
            let rlaunch = match of {
                Some(directory) => directory.join("rlaunch"),
                None => dist::build(Profile::Lab)?,
            };
            soak::teardown(*jobs, &rlaunch)
        }
        Soak::Sim { seeds } => {
            let seeds = sim::run(&["--seeds", &seeds.to_string()])?;
            Ok(sim::run(&["--mutations"])? && seeds)
        }
    }
}
