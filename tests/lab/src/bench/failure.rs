//! `cargo lab bench failure`: what is left of a job and for how long, when a part of it fails,
//! under rlaunch, Hydra and Open MPI in turn; then the same for MPI programs.

mod job;
mod mpi;
mod table;

use std::path::Path;
use std::time::Duration;

use super::launchers::Launcher;
use super::testbed::{Scratch, Testbed};
use crate::dist::{self, Profile};
use crate::setup::{self, PackageSet};
use crate::{LabError, Options};
use job::FailingJob;
use table::FailureRow;

const NAME: &str = "failure";
const NET: [u8; 2] = [10, 94];
const HOSTS: usize = 4;
const PER_HOST: usize = 2;

/// Time limit for a launcher to deal with a failure that a process can observe at once.
const SHORT: Duration = Duration::from_secs(5);
/// Time limit for a host that falls silent, which is noticed only by a timeout.
const LONG: Duration = Duration::from_secs(15);

/// Options of the bench.
#[derive(Debug, Clone)]
pub struct FailureOptions {
    /// Number of timed rounds; 3 at most for MPI programs.
    pub rounds: usize,
    /// Programs of the jobs.
    pub programs: FailingPrograms,
}

/// Programs of the jobs that fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum FailingPrograms {
    /// Both kinds.
    All,
    /// MPI programs.
    Mpi,
    /// Programs without MPI.
    Other,
}

/// Part of a job that fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Failure {
    /// One rank exits with 3.
    Rank,
    /// The launcher is killed.
    Launcher,
    /// The agent of one host is killed.
    Agent,
    /// One host falls silent.
    Host,
}

impl Failure {
    const ALL: [Failure; 4] = [Failure::Rank, Failure::Launcher, Failure::Agent, Failure::Host];

    /// Returns the names of what is measured, each with the maximum in seconds for rlaunch.
    fn rows(self) -> &'static [(&'static str, f64)] {
        match self {
            Failure::Rank => &[("one rank of 8 exits with 3: launcher returned", 0.15)],
            Failure::Launcher => &[("launcher killed: all ranks gone", 0.1)],
            Failure::Agent => &[
                ("agent of a host killed: launcher returned", 0.3),
                ("    and the host's ranks gone", 0.3),
            ],
            Failure::Host => &[
                ("host silent: named, launcher returned", 10.0),
                ("    and the host's ranks gone", 10.0),
            ],
        }
    }

    fn limit(self) -> Duration {
        if self == Failure::Host { LONG } else { SHORT }
    }

    /// Returns the number of rounds. Peers do not notice a silent host, so one round is enough for
    /// them.
    fn rounds(self, launcher: Launcher, rounds: usize) -> usize {
        match (self, launcher) {
            (Failure::Host, Launcher::Hydra | Launcher::OpenMpi) => 1,
            _ => rounds,
        }
    }
}

/// Measures and prints; returns whether every bar is met.
pub fn run(options: &FailureOptions) -> Result<bool, LabError> {
    setup::install(PackageSet::Headers)?;
    setup::mpi::build()?;
    let rlaunch = dist::build(Profile::Release)?;
    // The launchers' temporary files: the launch node's `/tmp` is the machine's own.
    let scratch = Scratch::make()?;
    let lab = Options { net: NET, ..Options::new(NAME, HOSTS) };
    let (rows, of_mpi) = Testbed::with_fresh(&lab, rlaunch, |testbed| {
        let rows = match options.programs {
            FailingPrograms::Mpi => Vec::new(),
            _ => measure(testbed, scratch.path(), options.rounds)?,
        };
        let of_mpi = match options.programs {
            FailingPrograms::Other => Vec::new(),
            _ => mpi::measure(testbed, options.rounds)?,
        };
        Ok((rows, of_mpi))
    })?;
    println!(
        "\n{} ranks on {HOSTS} hosts, seconds from the failure: median (min–max) of {} rounds",
        HOSTS * PER_HOST,
        options.rounds
    );
    let met = table::print(&Launcher::WITH_SERVICES.map(Launcher::name), &rows);
    println!("\nMPI programs: launcher returned, and all ranks gone");
    Ok(table::print(&mpi::COLUMNS, &of_mpi) && met)
}

/// Runs a warm-up, then every failure, with launchers in turn.
fn measure(testbed: &Testbed, scratch: &Path, rounds: usize) -> Result<Vec<FailureRow>, LabError> {
    for launcher in Launcher::WITH_SERVICES {
        FailingJob::start(testbed, scratch, launcher)?.end()?;
    }
    let mut rows = Vec::new();
    for failure in Failure::ALL {
        let new = |&(what, bar)| {
            FailureRow::new(what, bar, failure.limit(), Launcher::WITH_SERVICES.len())
        };
        let mut of_failure: Vec<FailureRow> = failure.rows().iter().map(new).collect();
        for round in 1..=rounds {
            for (column, launcher) in Launcher::WITH_SERVICES.into_iter().enumerate() {
                if round > failure.rounds(launcher, rounds) {
                    continue;
                }
                let mut job = FailingJob::start(testbed, scratch, launcher)?;
                let observed = job.fail(failure)?;
                job.end()?;
                println!("round {round}: {failure:?}, {}: {observed}", launcher.name());
                for (row, time) in of_failure.iter_mut().zip(observed.times) {
                    row.cells[column].push(time, observed.left);
                }
            }
        }
        rows.append(&mut of_failure);
    }
    Ok(rows)
}
