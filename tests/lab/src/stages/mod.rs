//! `cargo lab test`: every test of the project, from cheap to dear, each stage with a budget on
//! two cores.

mod advisories;
mod build;
mod deny;
pub mod fuzz;
pub mod ledger;
mod netns;
mod reach;
mod repeat;
mod retry;
mod run;
pub mod sim;
mod vm;

use std::collections::BTreeSet;
use std::env;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::setup::python;
use crate::vm::VmLab;
use crate::{Lab, LabError, dist};
use ledger::{Ledger, Tally};
use reach::{Reach, changed_files, fuzz_targets_changed, note_passed};

pub use build::check_dependencies;
pub use repeat::repeat;

/// How `cargo lab test` tells the tests of rlaunch which lab is theirs.
const LAB_VARIABLE: &str = "RLAUNCH_LAB";
/// How it tells them where the launcher is.
const LAUNCHER_VARIABLE: &str = "RLAUNCH_LAB_LAUNCHER";

/// A part of the test run.
struct Stage {
    name: &'static str,
    seconds: u64,
    run: fn(&TestPlan, &Ledger) -> Result<Tally, LabError>,
}

const BUILD: &str = "build";

/// All stages, in order.
const STAGES: &[Stage] = &[
    Stage { name: "setup", seconds: 60, run: build::set_up },
    Stage { name: BUILD, seconds: 6 * 60, run: build::build },
    Stage { name: build::UNIT, seconds: 2 * 60, run: build::unit },
    Stage { name: build::SIM, seconds: 30, run: build::simulate },
    Stage { name: build::FUZZ, seconds: 2 * 60, run: build::fuzz },
    Stage { name: netns::NAME, seconds: 9 * 60, run: netns::test },
    Stage { name: vm::NAME, seconds: 10 * 60, run: vm::test },
];

/// What to run.
#[derive(Debug, Default)]
pub struct TestPlan {
    /// Only this stage.
    pub stage: Option<String>,
    /// Only tests whose names contain this.
    pub filter: Option<String>,
    /// Only what a change can reach.
    reach: Option<Reach>,
}

impl TestPlan {
    /// All that the two leave.
    pub fn new(stage: Option<String>, filter: Option<String>) -> TestPlan {
        TestPlan { stage, filter, reach: None }
    }

    /// Leaves out what the changes since `revision` cannot reach, and prints what that is. None
    /// stands for the branch that the change is for, or what passed here last.
    pub fn changed_since(mut self, revision: Option<&str>) -> Result<TestPlan, LabError> {
        let (base, files) = changed_files(revision, &last_passed()?)?;
        println!("changed since {base}: {} files", files.len());
        let reach = Reach::from_files(&files)?;
        println!("{}", reach.describe());
        self.reach = Some(reach);
        Ok(self)
    }

    /// Packages whose tests run; none for all.
    fn packages(&self) -> Option<&BTreeSet<String>> {
        self.reach.as_ref().map(|reach| &reach.packages)
    }

    /// Whether anything is compiled at all.
    fn wants_build(&self) -> bool {
        !self.reach.as_ref().is_some_and(|reach| reach.doc_only)
    }

    fn wants_sim(&self) -> bool {
        self.reach.as_ref().is_none_or(|reach| reach.sim)
    }

    /// Whether the tests of the lab itself and the short soak of stage netns run.
    fn wants_lab(&self) -> bool {
        self.reach.as_ref().is_none_or(|reach| reach.everything)
    }

    /// Whether a test of stage netns runs, as far as the filter leaves it.
    fn wants_netns(&self, name: &str) -> bool {
        self.reach.as_ref().is_none_or(|reach| reach.netns.includes(name))
    }

    /// Whether a test of stage vm runs, likewise.
    fn wants_vm(&self, name: &str) -> bool {
        self.reach.as_ref().is_none_or(|reach| reach.vm.includes(name))
    }

    /// Targets of the fuzzer that look for more than is known; none if all do. A whole run asks what
    /// has changed, too.
    fn searched_targets(&self) -> Result<Option<Vec<String>>, LabError> {
        if let Some(reach) = &self.reach {
            return Ok(Some(reach.fuzz.clone().unwrap_or_default()));
        }
        let Ok((base, files)) = changed_files(None, &last_passed()?) else {
            println!("git does not say what has changed");
            return Ok(None);
        };
        println!("compared with {base}");
        Ok(Some(fuzz_targets_changed(&files).into_iter().map(str::to_owned).collect()))
    }

    fn is_whole(&self) -> bool {
        self.stage.is_none() && self.filter.is_none() && self.reach.is_none()
    }

    /// Whether a stage has anything to do.
    fn wants(&self, stage: &str) -> bool {
        let Some(reach) = &self.reach else { return true };
        match stage {
            netns::NAME => !reach.netns.is_nothing() || reach.everything,
            vm::NAME => !reach.vm.is_nothing(),
            build::SIM => self.wants_sim(),
            build::FUZZ => reach.fuzz.is_some(),
            build::UNIT => !reach.packages.is_empty(),
            _ => true,
        }
    }

    /// Whether a Python with torch is worth being built before it is known that a test needs it.
    fn wants_torch(&self) -> bool {
        let about =
            |filter: &String| ["torch", "training"].iter().any(|name| filter.contains(name));
        self.takes_netns("training") && self.filter.as_ref().is_none_or(about)
    }

    /// Whether what hosts of aarch64 are sent is worth being built.
    fn wants_aarch64(&self) -> bool {
        let is_about = |filter: &String| filter.contains("aarch64");
        self.takes_netns("aarch64") && self.filter.as_ref().is_none_or(is_about)
    }

    fn takes_netns(&self, module: &str) -> bool {
        self.reach.as_ref().is_none_or(|reach| reach.netns.includes_module(module))
    }
}

/// Gives the file that names the last commit to pass a whole run here.
fn last_passed() -> Result<PathBuf, LabError> {
    Ok(dist::target_directory()?.join("lab-passed"))
}

/// What a test of rlaunch runs with.
#[derive(Debug)]
pub struct UnderTest {
    /// Hosts a to h.
    pub lab: Lab,
    /// The launcher, where both accounts of the launch node can run it.
    pub rlaunch: PathBuf,
}

impl UnderTest {
    /// What `cargo lab test` prepared for the calling test program.
    pub fn from_env() -> Result<UnderTest, LabError> {
        match (env::var(LAB_VARIABLE), env::var_os(LAUNCHER_VARIABLE)) {
            (Ok(name), Some(rlaunch)) => {
                Ok(UnderTest { lab: Lab::attach(&name)?, rlaunch: rlaunch.into() })
            }
            _ => Err(not_set(netns::NAME)),
        }
    }
}

/// What a test of rlaunch among guests runs with.
#[derive(Debug)]
pub struct VmUnderTest {
    /// Guests n1 to n3, a triangle.
    pub lab: VmLab,
    /// The launcher, as n1 sees it.
    pub rlaunch: String,
}

impl VmUnderTest {
    /// What `cargo lab test` prepared for the calling test program.
    pub fn from_env() -> Result<VmUnderTest, LabError> {
        match (env::var(LAB_VARIABLE), env::var(LAUNCHER_VARIABLE)) {
            (Ok(name), Ok(rlaunch)) => Ok(VmUnderTest { lab: VmLab::find(&name)?, rlaunch }),
            _ => Err(not_set(vm::NAME)),
        }
    }
}

fn not_set(stage: &str) -> LabError {
    LabError::Usage(format!(
        "{LAB_VARIABLE} and {LAUNCHER_VARIABLE} are not set: these tests are run by \
         `cargo lab test --stage {stage}`"
    ))
}

/// The names of all stages.
pub fn names() -> Vec<&'static str> {
    STAGES.iter().map(|stage| stage.name).collect()
}

/// Runs the stages and prints the ledger; true if nothing failed.
pub fn test(plan: &TestPlan) -> bool {
    let (mut ledger, begun) = (Ledger::default(), reach::head());
    let wanted = |stage: &&Stage| {
        plan.stage.as_ref().is_none_or(|name| name == stage.name) && plan.wants(stage.name)
    };
    let stages: Vec<&Stage> = STAGES.iter().filter(wanted).collect();
    let has = |name| stages.iter().any(|stage| stage.name == name);
    let (with_guests, with_torch) = (has(vm::NAME), has(netns::NAME) && plan.wants_torch());
    // They end with this run at the latest.
    let (mut image, mut python) = (None, None);
    for stage in stages {
        // The first stage installs packages, of which these need some as well.
        let is_set_up = stage.name != STAGES[0].name;
        if with_guests && image.is_none() && is_set_up {
            image = vm::start_image();
        }
        if with_torch && python.is_none() && is_set_up {
            python = python::build_beside();
        }
        let budget = Duration::from_secs(stage.seconds);
        println!("\n== {} (budget {} s)", stage.name, stage.seconds);
        let start = Instant::now();
        let tally = (stage.run)(plan, &ledger).unwrap_or_else(|error| {
            run::report(stage.name, &error);
            Tally::check(false)
        });
        ledger.record(stage.name, start.elapsed(), budget, tally);
    }
    println!("\n{ledger}");
    let passed = ledger.total().failed == 0;
    // A commit that came meanwhile was not tested, nor one of which a stage was skipped.
    if passed && plan.is_whole() && ledger.ran_all() && reach::head() == begun {
        // Without it a change is compared with an older commit, which tests more.
        let _ = last_passed().and_then(|file| note_passed(&file));
    }
    passed
}
