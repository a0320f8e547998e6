//! Stage vm: tests of rlaunch on QEMU guests with real verbs.

use super::ledger::Tally;
use super::nextest::{TestPrograms, Tests};
use super::{TestPlan, hosts};
use crate::command::background::Background;
use crate::{LabError, dist, setup, vm};

pub(super) const NAME: &str = "vm";

/// Starts building the guests' image in the background; the stage then waits for it. Returns
/// nothing if there can be no guests.
pub(super) fn start_image() -> Option<Background> {
    // A failure is reported by the stage itself.
    obstacle().is_none().then(|| vm::build_beside().ok()).flatten()
}

/// Returns why this machine cannot run guests, if that is so.
fn obstacle() -> Option<String> {
    let not_root = setup::require_root().err().map(|error| error.to_string());
    not_root.or_else(vm::obstacle)
}

/// Builds what is missing, starts the guests and runs the tests on them.
pub(super) fn test(plan: &TestPlan) -> Result<Tally, LabError> {
    if let Some(reason) = obstacle() {
        return Ok(Tally::skip(reason));
    }
    dist::build_everything()?;
    hosts::run(&selected(plan, &TestPrograms::build()?))
}

/// Selects the tests of this stage.
pub(super) fn selected(plan: &TestPlan, programs: &TestPrograms) -> Tests {
    programs.select(NAME, plan.reach.vm.filterset(), plan)
}
