//! The stage of real verbs: rlaunch in guests of QEMU.

use super::{LAB_VARIABLE, LAUNCHER_VARIABLE, Plan, run};
use crate::background::Background;
use crate::dist::{self, Profile};
use crate::ledger::{Ledger, Tally};
use crate::vm::{self, Topology, VmLab, VmOptions};
use crate::{LabError, setup};
use std::path::{Path, PathBuf};

pub(super) const NAME: &str = "vm";

/// The labs of these tests, and how their guests are cabled: tests whose names begin with `star::`
/// have a switch for all, the others a cable for each two.
const LABS: [(&str, Topology); 2] = [("test", Topology::Triangle), ("teststar", Topology::Star)];
const GUESTS: usize = 3;
/// What tests on a star are called.
const STAR: &str = "star::";

/// The launcher as the first guest sees it.
const LAUNCHER: &str = "/share/rlaunch";

/// Starts building the guests' image beside other stages; the stage itself waits for it. Nothing
/// where there can be no guests.
pub(super) fn start_image() -> Option<Background> {
    // That it fails is found out, and shown, by the stage itself.
    obstacle().is_none().then(|| vm::build_beside().ok()).flatten()
}

/// Why this machine can have no guests.
fn obstacle() -> Option<String> {
    let not_root = setup::require_root().err().map(|error| error.to_string());
    not_root.or_else(vm::obstacle)
}

/// Builds what is missing, starts the guests and runs the tests among them.
pub(super) fn test(plan: &Plan, ledger: &Ledger) -> Result<Tally, LabError> {
    if let Some(reason) = obstacle() {
        return Ok(Tally::skip(reason));
    }
    if ledger.has_failed("build") && dist::build(Profile::Lab).is_err() {
        return Ok(Tally::skip("the build failed"));
    }
    let (launcher, program) = build_programs()?;
    vm::build()?;
    let mut tally = Tally::default();
    for (lab, topology) in LABS {
        let filter = plan.filter.as_deref().unwrap_or(STAR);
        if topology == Topology::Star && !filter.starts_with(STAR.trim_end_matches(':')) {
            continue;
        }
        tally.add(among_guests(&program, plan, &launcher, (lab, topology))?);
    }
    Ok(tally)
}

/// Builds what the guests run in a stage that has the time; the stage itself finds it built.
pub(super) fn build_ahead() -> Result<(), LabError> {
    if obstacle().is_none() { build_programs().map(drop) } else { Ok(()) }
}

/// The launcher, and the program of tests.
fn build_programs() -> Result<(PathBuf, PathBuf), LabError> {
    let launcher = dist::build(Profile::Lab)?;
    dist::build_prover(Profile::Lab)?;
    dist::build_examples(Profile::Lab)?;
    dist::build_suite(Profile::Lab)?;
    // Tests of the prover that need devices.
    let of_prover = run::test_program("rlaunch-prover", "two_provers")?;
    dist::place_beside(Profile::Lab, &of_prover, "two_provers")?;
    Ok((launcher, run::test_program("rlaunch-tests", NAME)?))
}

/// Starts the guests of a lab and runs its tests among them.
fn among_guests(
    program: &Path,
    plan: &Plan,
    launcher: &Path,
    (lab, topology): (&str, Topology),
) -> Result<Tally, LabError> {
    // An interrupted run leaves its guests behind.
    VmLab::down(lab)?;
    let share = launcher.parent().map(Into::into);
    VmLab::up(&VmOptions { share, ..VmOptions::new(lab, GUESTS, topology) })?;
    let environment = [(LAB_VARIABLE, lab.into()), (LAUNCHER_VARIABLE, LAUNCHER.into())];
    let (filter, left_out) = match topology {
        Topology::Star => {
            (Some(plan.filter.clone().unwrap_or_else(|| STAR.to_owned())), [].as_slice())
        }
        _ => (plan.filter.clone(), [STAR].as_slice()),
    };
    let plan = Plan { filter, ..plan.clone() };
    let tests = run::program_without(program, &plan, left_out, &environment);
    let down = VmLab::down(lab);
    let tally = tests?;
    down?;
    Ok(tally)
}
