//! `cargo lab bench failure`: what is left, and for how long, when something of a job fails, by
//! rlaunch, Hydra and Open MPI in turn.

mod table;
mod trial;

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use super::launchers::{Launcher, Testbed};
use crate::dist::{self, Profile};
use crate::setup::{self, PackageSet};
use crate::{Lab, LabError, Options};
use table::FailureRow;
use trial::FailingJob;

const NAME: &str = "failure";
const NET: [u8; 2] = [10, 94];
const HOSTS: usize = 4;
const PER_HOST: usize = 2;

const LAUNCHERS: [Launcher; 3] = [Launcher::Rlaunch, Launcher::Hydra, Launcher::OpenMpi];

/// How long a launcher may take to deal with a failure that somebody saw.
const SHORT: Duration = Duration::from_secs(5);
/// The same where nobody is told.
const LONG: Duration = Duration::from_secs(15);

/// How to measure.
#[derive(Debug, Clone)]
pub struct FailureOptions {
    /// How often.
    pub rounds: usize,
}

/// What fails.
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

    /// What is measured, and the most seconds it may take rlaunch.
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

    /// Peers wait in vain for a silent host: once is enough to see it.
    fn rounds(self, launcher: Launcher, rounds: usize) -> usize {
        match (self, launcher) {
            (Failure::Host, Launcher::Hydra | Launcher::OpenMpi) => 1,
            _ => rounds,
        }
    }
}

/// Measures and prints; true if every bar is met.
pub fn run(options: &FailureOptions) -> Result<bool, LabError> {
    setup::install(PackageSet::Peers)?;
    let rlaunch = dist::build(Profile::Release)?;
    // An interrupted run leaves its lab behind, in whatever state.
    Lab::down(NAME)?;
    let lab = Lab::up(&Options { net: NET, ..Options::new(NAME, HOSTS) })?;
    let testbed = Testbed { hosts: lab.hosts(), lab, rlaunch };
    let rows = Scratch::make().and_then(|scratch| measure(&testbed, &scratch, options.rounds));
    Lab::down(NAME)?;
    let rows = rows?;
    println!(
        "\n{} ranks on {HOSTS} hosts, seconds from the failure: median (min–max) of {} rounds",
        HOSTS * PER_HOST,
        options.rounds
    );
    Ok(table::print(&LAUNCHERS.map(Launcher::name), &rows))
}

/// A warm-up, then every case, the launchers in turn.
fn measure(
    testbed: &Testbed,
    scratch: &Scratch,
    rounds: usize,
) -> Result<Vec<FailureRow>, LabError> {
    for launcher in LAUNCHERS {
        FailingJob::start(testbed, scratch, launcher)?.end()?;
    }
    let mut rows = Vec::new();
    for case in Failure::ALL {
        let new = |&(what, bar)| FailureRow::new(what, bar, case.limit(), LAUNCHERS.len());
        let mut of_case: Vec<FailureRow> = case.rows().iter().map(new).collect();
        for round in 1..=rounds {
            for (column, launcher) in LAUNCHERS.into_iter().enumerate() {
                if round > case.rounds(launcher, rounds) {
                    continue;
                }
                let mut trial = FailingJob::start(testbed, scratch, launcher)?;
                let seen = trial.fail(case)?;
                trial.end()?;
                println!("round {round}: {case:?}, {}: {seen}", launcher.name());
                for (row, time) in of_case.iter_mut().zip(seen.times) {
                    row.cells[column].push(time, seen.left);
                }
            }
        }
        rows.append(&mut of_case);
    }
    Ok(rows)
}

/// Where launchers keep their temporary files: the launch node's `/tmp` is the machine's own.
struct Scratch(PathBuf);

impl Scratch {
    fn make() -> Result<Scratch, LabError> {
        let path = std::env::temp_dir().join(format!("rlaunch-lab-{}", std::process::id()));
        fs::create_dir(&path).map_err(LabError::io(format!("make {}", path.display())))?;
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
