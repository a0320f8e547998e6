//! The stage of real verbs: rlaunch in guests of QEMU.

use super::{LAB_VARIABLE, LAUNCHER_VARIABLE, Plan, run};
use crate::background::Background;
use crate::dist::{self, Profile};
use crate::ledger::{Ledger, Tally};
use crate::vm::{self, Topology, VmLab, VmOptions};
use crate::{LabError, setup};

pub(super) const NAME: &str = "vm";

/// The lab of these tests.
const LAB: &str = "test";
const GUESTS: usize = 3;

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
    // The program is built while the image is.
    let launcher = dist::build(Profile::Lab)?;
    dist::build_loopback(Profile::Lab)?;
    let program = run::test_program("rlaunch-tests", NAME)?;
    vm::build()?;
    // An interrupted run leaves its guests behind.
    VmLab::down(LAB)?;
    let options = VmOptions {
        share: launcher.parent().map(Into::into),
        ..VmOptions::new(LAB, GUESTS, Topology::Triangle)
    };
    VmLab::up(&options)?;
    let environment = [(LAB_VARIABLE, LAB.into()), (LAUNCHER_VARIABLE, LAUNCHER.into())];
    let tests = run::program(&program, plan, &environment);
    let down = VmLab::down(LAB);
    let tally = tests?;
    down?;
    Ok(tally)
}
