//! The stage of real verbs: rlaunch in guests of QEMU.

use std::path::PathBuf;

use super::again::second_look;
use super::run::{Program, report};
use super::{BUILD, LAB_VARIABLE, LAUNCHER_VARIABLE, Plan};
use crate::background::Background;
use crate::dist::{self, Profile};
use crate::ledger::{Ledger, Tally};
use crate::vm::{self, Topology, VmLab, VmOptions};
use crate::{LabError, setup};

pub(super) const NAME: &str = "vm";

/// A lab of these tests, and how its guests are cabled.
#[derive(Debug)]
struct Cabled {
    name: &'static str,
    topology: Topology,
}

/// Tests whose names begin with `star::` have a switch for all, the others a cable for each two.
const LABS: [Cabled; 2] = [
    Cabled { name: "test", topology: Topology::Triangle },
    Cabled { name: "teststar", topology: Topology::Star },
];
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
    if ledger.has_failed(BUILD) && dist::build_everything().is_err() {
        return Ok(Tally::skip("the build failed"));
    }
    let program = Program::new(&dist::build_everything()?.test(NAME)?, plan.filter.as_ref());
    let mut names = program.names()?;
    names.retain(|name| plan.wants_vm(name));
    let mut tally = Tally::default();
    for (lab, names) in by_lab(&names) {
        let run = |program: &Program, log: &str| {
            let (_up, program) = guests(program, lab)?;
            program.run(&format!("{NAME}-{log}"))
        };
        let first = run(&program.only(&names), lab.name)?;
        let again = |test: &str| run(&program.only(&[test.to_owned()]), &format!("again-{test}"));
        tally.add(second_look(first, again)?);
    }
    Ok(tally)
}

/// Has a program of this stage run on fresh guests, in each lab that has tests of it.
pub(super) fn on_guests(
    program: &Program,
    mut run: impl FnMut(&Program) -> Result<(), LabError>,
) -> Result<(), LabError> {
    for (lab, names) in by_lab(&program.names()?) {
        let (_up, program) = guests(&program.only(&names), lab)?;
        run(&program)?;
    }
    Ok(())
}

/// The names of tests by the lab in which they run.
fn by_lab(names: &[String]) -> Vec<(&'static Cabled, Vec<String>)> {
    let of = |lab: &'static Cabled| {
        let is_of = |name: &&String| name.starts_with(STAR) == (lab.topology == Topology::Star);
        (lab, names.iter().filter(is_of).cloned().collect())
    };
    let labs = LABS.iter().map(of);
    labs.filter(|(_, names): &(_, Vec<String>)| !names.is_empty()).collect()
}

/// Guests that go down with their handle.
struct Up(&'static str);

impl Drop for Up {
    fn drop(&mut self) {
        if let Err(error) = VmLab::down(self.0) {
            report("taking the guests down", &error);
        }
    }
}

/// Starts fresh guests in a lab, and tells the program of them.
fn guests(program: &Program, lab: &'static Cabled) -> Result<(Up, Program), LabError> {
    vm::build()?;
    // An interrupted run leaves its guests behind.
    VmLab::down(lab.name)?;
    let share = Some(dist::directory(Profile::Lab)?);
    let new = VmOptions::new(lab.name, GUESTS, lab.topology);
    VmLab::up(&VmOptions { share, is_share_fixed: true, ..new })?;
    let environment =
        vec![(LAB_VARIABLE, PathBuf::from(lab.name)), (LAUNCHER_VARIABLE, PathBuf::from(LAUNCHER))];
    Ok((Up(lab.name), Program { environment, ..program.clone() }))
}
