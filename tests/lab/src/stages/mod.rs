//! `cargo lab test`: every test of the project, from cheap to dear, each stage with a budget on
//! two cores.

mod again;
mod build;
mod deny;
mod netns;
mod repeat;
mod run;
mod vm;

use std::collections::BTreeSet;
use std::env;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::ledger::{Ledger, Tally};
use crate::vm::VmLab;
use crate::{Lab, LabError, python};

pub use repeat::repeat;

/// How `cargo lab test` tells the tests of rlaunch which lab is theirs.
const LAB_VARIABLE: &str = "RLAUNCH_LAB";
/// How it tells them where the launcher is.
const LAUNCHER_VARIABLE: &str = "RLAUNCH_LAB_LAUNCHER";

/// A part of the test run.
struct Stage {
    name: &'static str,
    seconds: u64,
    run: fn(&Plan, &Ledger) -> Result<Tally, LabError>,
}

const BUILD: &str = "build";

/// All stages, in order.
const STAGES: &[Stage] = &[
    Stage { name: "setup", seconds: 60, run: build::set_up },
    Stage { name: BUILD, seconds: 6 * 60, run: build::build },
    Stage { name: build::UNIT, seconds: 2 * 60, run: build::unit },
    Stage { name: "sim", seconds: 30, run: build::simulate },
    Stage { name: "fuzz", seconds: 2 * 60, run: build::fuzz },
    Stage { name: netns::NAME, seconds: 9 * 60, run: netns::test },
    Stage { name: vm::NAME, seconds: 10 * 60, run: vm::test },
];

/// What to run.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// Only this stage.
    pub stage: Option<String>,
    /// Only tests whose names contain this.
    pub filter: Option<String>,
}

impl Plan {
    /// Packages whose lints and tests run; none for all.
    fn packages(&self) -> Option<&BTreeSet<String>> {
        None
    }

    /// Whether the tests of the lab itself run.
    fn wants_lab(&self) -> bool {
        true
    }

    /// Whether a test of stage netns runs, as far as the filter leaves it.
    fn wants_netns(&self, _name: &str) -> bool {
        true
    }

    /// Whether the short soak of stage netns runs, likewise.
    fn wants_soak(&self) -> bool {
        true
    }

    /// Whether a test of stage vm runs, likewise.
    fn wants_vm(&self, _name: &str) -> bool {
        true
    }

    /// Targets of the fuzzer whose sources have changed; none if all are taken to have.
    fn changed_targets(&self) -> Result<Option<Vec<String>>, LabError> {
        Ok(Some(Vec::new()))
    }

    /// Whether a Python with torch is worth being built before it is known that a test needs it.
    fn wants_torch(&self) -> bool {
        let about =
            |filter: &String| ["torch", "training"].iter().any(|name| filter.contains(name));
        self.filter.as_ref().is_none_or(about)
    }

    /// Whether what hosts of aarch64 are sent is worth being built.
    fn wants_aarch64(&self) -> bool {
        self.filter.as_ref().is_none_or(|filter| filter.contains("aarch64"))
    }
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
pub fn test(plan: &Plan) -> bool {
    let mut ledger = Ledger::default();
    let wanted = |stage: &&Stage| plan.stage.as_ref().is_none_or(|name| name == stage.name);
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
    ledger.total().failed == 0
}
