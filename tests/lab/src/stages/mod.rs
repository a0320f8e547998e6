//! `cargo lab test`: every test of the project in stages, from cheap to expensive. Each stage has a
//! time budget for a machine with two cores.
//!
//! | file | what |
//! |---|---|
//! | `build` | stages without hosts: set-up, lints and build, unit tests, simulation, fuzzing |
//! | `netns`, `vm` | stages with hosts and with guests |
//! | `hosts` | labs for the tests of these stages; second attempts |
//! | `nextest`, `repeat` | runs of nextest, which runs all tests; `--repeat` |
//! | `changed`, `reach` | `--changed`: files that differ, and the tests that they can affect |
//! | `advisories` | check of dependencies |
//! | `tool` | subcommands of cargo, which are installed where they are missing |
//! | `fuzz` | the fuzzer, which is also a verb of its own |
//! | `ledger` | counts and times of stages; times of tests |

mod advisories;
mod build;
mod changed;
pub mod fuzz;
mod hosts;
pub mod ledger;
mod netns;
mod nextest;
mod reach;
mod repeat;
mod tool;
mod vm;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::command::background::Background;
use crate::command::display;
use crate::netns::cgroup;
use crate::setup::venv::Venv;
use crate::setup::{self, PackageSet, mpi, python, roots};
use crate::{LabError, dist};
use changed::Checkout;
use ledger::{Ledger, StageClock, Tally};
use reach::Reach;

pub use build::{check_dependencies, run_simulation};
pub use hosts::{UnderTest, VmUnderTest};
pub use repeat::repeat;

/// Part of the test run.
struct Stage {
    name: &'static str,
    seconds: u64,
    run: fn(&TestPlan) -> Result<Tally, LabError>,
}

/// Free disk space in GiB that a run needs: with less, builds and labs fail for other reasons.
const LEAST_SPACE: u64 = 4;
/// Seconds of search for each fuzz target whose sources have changed.
const FUZZ_SECONDS: u64 = 10;

const SETUP: &str = "setup";
const BUILD: &str = "build";

/// All stages, in order.
const STAGES: &[Stage] = &[
    Stage { name: SETUP, seconds: 60, run: build::set_up },
    Stage { name: BUILD, seconds: 6 * 60, run: build::build },
    Stage { name: build::UNIT, seconds: 2 * 60, run: build::unit },
    Stage { name: build::SIM, seconds: 30, run: build::simulate },
    Stage { name: build::FUZZ, seconds: 2 * 60, run: build::fuzz },
    Stage { name: netns::NAME, seconds: 9 * 60, run: netns::test },
    Stage { name: vm::NAME, seconds: 10 * 60, run: vm::test },
];

/// Selection of tests to run.
#[derive(Debug)]
pub struct TestPlan {
    /// Run only this stage.
    pub stage: Option<String>,
    /// Run only tests whose names contain this.
    pub filter: Option<String>,
    /// Run the tests that are marked `#[ignore]`, and no others.
    pub ignored: bool,
    /// What a change can affect, or all.
    reach: Reach,
    /// Whether only what a change can affect is run.
    is_of_change: bool,
}

impl TestPlan {
    /// Selects all tests of a stage, or of all stages, whose names match the filter.
    pub fn new(stage: Option<String>, filter: Option<String>) -> TestPlan {
        TestPlan { stage, filter, ignored: false, reach: Reach::all(), is_of_change: false }
    }

    /// Leaves out what the changes since `revision` cannot affect, and prints what is run. Without a
    /// revision the changes are those since the branch point from origin/main, or since the last
    /// commit that passed here.
    pub fn changed_since(mut self, revision: Option<&str>) -> Result<TestPlan, LabError> {
        let (base, files) = checkout()?.changed(revision)?;
        println!("changed since {base}: {} files; all that is run:", files.len());
        let reach = Reach::from_files(&files)?;
        println!("{}", reach.describe());
        (self.reach, self.is_of_change) = (reach, true);
        Ok(self)
    }

    /// Returns nextest's filterset of unit tests.
    fn unit_tests(&self) -> String {
        Vec::from_iter(self.reach.unit.clone()).join(" | ")
    }

    /// Returns what is fuzzed. A run of all tests replays known inputs of all targets, and searches
    /// only in those whose sources have changed.
    fn fuzzing(&self) -> Result<fuzz::FuzzOptions, LabError> {
        let owned = |targets: BTreeSet<&str>| targets.into_iter().map(str::to_owned).collect();
        if self.is_of_change {
            let targets = Some(owned(self.reach.fuzz.clone()));
            return Ok(fuzz::FuzzOptions { targets, seconds: FUZZ_SECONDS, searched: None });
        }
        let searched = match checkout()?.changed(None) {
            Ok((base, files)) => {
                println!("compared with {base}");
                Some(owned(reach::fuzz_targets(&files)))
            }
            Err(_) => {
                println!("git cannot tell what has changed");
                None
            }
        };
        Ok(fuzz::FuzzOptions { targets: None, seconds: FUZZ_SECONDS, searched })
    }

    fn is_whole(&self) -> bool {
        self.stage.is_none() && self.filter.is_none() && !self.is_of_change
    }

    /// Returns whether a stage has anything to do.
    fn wants(&self, stage: &str) -> bool {
        let reach = &self.reach;
        match stage {
            netns::NAME => !reach.netns.is_nothing() || reach.everything,
            vm::NAME => !reach.vm.is_nothing(),
            build::SIM => reach.sim,
            build::FUZZ => !reach.fuzz.is_empty(),
            build::UNIT => !reach.unit.is_empty(),
            _ => true,
        }
    }

    /// Tells whether what is run may have one of these names in its name.
    fn is_about(&self, names: &[&str]) -> bool {
        let filter = self.filter.as_ref();
        filter.is_none_or(|filter| names.iter().any(|name| filter.contains(name)))
    }

    /// Starts making the root directories that tests on hosts are likely to need.
    fn make_roots(&self) -> Vec<Background> {
        let roots = [
            ("detached", "logout", &roots::SYSTEMD),
            ("up_systemd", "systemd", &roots::NETWORKED),
            ("images", "mpi", &roots::MPI_IMAGE),
        ];
        let is_wanted = |file: &str, name: &str| {
            self.reach.netns.includes(file)
                && self.is_about(&[file, name])
                && (file == "images" || cgroup::are_available())
        };
        let wanted = roots.into_iter().filter(|(file, name, _)| is_wanted(file, name));
        wanted.filter_map(|(_, _, root)| root.make_beside()).collect()
    }

    /// Starts building the virtual environments that tests on hosts are likely to need. One that is made of another begins
    /// once that is there.
    fn build_venvs(&self) -> Vec<Background> {
        let venvs: [(&[&str], &[&str], &[Venv]); 4] = [
            (&["mpi"], &[], &mpi::LIBRARIES),
            (&["training", "frameworks"], &["torch"], &[python::TORCH]),
            (&["frameworks"], &["jax"], &[python::NEW_JAX]),
            (&["frameworks"], &["torch", "starters"], &[python::TORCH_STARTERS]),
        ];
        let wanted = venvs.into_iter().filter(|(files, names, _)| {
            files.iter().any(|file| self.reach.netns.includes(file))
                && self.is_about(&[*files, *names].concat())
        });
        wanted.flat_map(|(_, _, venvs)| venvs).filter_map(Venv::build_beside).collect()
    }

    /// Returns whether to build the files for hosts of aarch64.
    fn wants_aarch64(&self) -> bool {
        let is_about = |filter: &String| filter.contains("aarch64");
        self.reach.netns.includes("aarch64") && self.filter.as_ref().is_none_or(is_about)
    }
}

/// Returns this checkout.
fn checkout() -> Result<Checkout, LabError> {
    let passed = dist::target_directory()?.join("lab-passed");
    Ok(Checkout { folder: dist::workspace(), passed })
}

/// Returns the names of all stages.
pub fn names() -> Vec<&'static str> {
    STAGES.iter().map(|stage| stage.name).collect()
}

/// Runs a command as one check.
fn check(command: &mut Command) -> Tally {
    println!("$ {}", display(command));
    match command.status() {
        Ok(status) => Tally::check(status.success()),
        Err(source) => {
            failed(&display(command), &LabError::Io { operation: "start".into(), source })
        }
    }
}

/// Counts a check that could not be run as failed, and prints why.
fn failed(what: &str, error: &LabError) -> Tally {
    report(what, error);
    Tally::check(false)
}

/// Prints an error with its causes.
fn report(what: &str, error: &LabError) {
    println!("{what} failed: {}", error.describe());
}

/// Fails where a run would soon be short of disk space.
pub fn check_space() -> Result<(), LabError> {
    let target = dist::target_directory()?;
    is_enough(setup::free_space(&target)?, &target)
}

fn is_enough(free: u64, target: &Path) -> Result<(), LabError> {
    if free >= LEAST_SPACE {
        return Ok(());
    }
    Err(LabError::Unexpected(format!(
        "tests need {LEAST_SPACE} GiB in {}, where {free} GiB are free: `cargo clean` frees what earlier \
         builds take there",
        target.display()
    )))
}

/// Runs the stages and prints the ledger; returns whether nothing failed.
pub fn test(plan: &TestPlan) -> bool {
    let (mut ledger, checkout) = (Ledger::default(), checkout().ok());
    let head = || checkout.as_ref().and_then(Checkout::head);
    let begun = head();
    let target = dist::target_directory().unwrap_or_default();
    let wanted = |stage: &&Stage| {
        plan.stage.as_ref().is_none_or(|name| name == stage.name) && plan.wants(stage.name)
    };
    let stages: Vec<&Stage> = STAGES.iter().filter(wanted).collect();
    let has = |name| stages.iter().any(|stage| stage.name == name);
    let (with_hosts, with_guests) = (has(netns::NAME), has(vm::NAME));
    // A stage by itself needs what the set-up stage installs in other runs. Without it, the stage
    // fails and says what is missing.
    if !has(SETUP)
        && let Err(error) = setup::install(PackageSet::Headers)
    {
        report(SETUP, &error);
    }
    // Builds in the background, which end with this function at the latest.
    let (mut image, mut roots, mut venvs) = (None, None, Vec::new());
    for stage in stages {
        // The first stage installs packages that these need.
        let is_set_up = stage.name != SETUP;
        if with_guests && image.is_none() && is_set_up {
            image = vm::start_image();
        }
        if with_hosts && is_set_up && stage.name != vm::NAME {
            roots.get_or_insert_with(|| plan.make_roots());
            venvs.extend(plan.build_venvs());
        }
        let budget = Duration::from_secs(stage.seconds);
        let free = setup::free_space(&target);
        let free = free.map_or(String::new(), |free| format!(", {free} GiB free"));
        println!("\n== {} (budget {} s{free})", stage.name, stage.seconds);
        let clock = StageClock::start();
        let tally = match ledger.has_failed(BUILD) && dist::build_everything().is_err() {
            true => Tally::skip("the build failed"),
            false => (stage.run)(plan).unwrap_or_else(|error| failed(stage.name, &error)),
        };
        ledger.record(stage.name, clock.stop(), budget, tally);
    }
    println!("\n{ledger}");
    let passed = ledger.total().failed == 0;
    // Not if the commit has changed meanwhile, or if a stage was skipped.
    if passed
        && plan.is_whole()
        && ledger.ran_all()
        && head() == begun
        && let (Some(checkout), Some(head)) = (&checkout, &begun)
    {
        // If this fails a change is compared with an older commit, which runs more tests.
        let _ = checkout.note_passed(head);
    }
    passed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_without_space_is_refused() {
        let target = Path::new("/build/target");
        assert!(is_enough(LEAST_SPACE, target).is_ok());
        let refused = is_enough(LEAST_SPACE - 1, target).unwrap_err().to_string();
        for part in ["need 4 GiB in /build/target", "3 GiB are free", "`cargo clean`"] {
            assert!(refused.contains(part), "{refused}");
        }
    }
}
