//! `cargo lab test --repeat N --filter NAME`: the same tests many times, to find a flaky test or to
//! see that it is fixed.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::hosts::Labs;
use super::nextest::{Outcome, TestPrograms};
use super::{TestPlan, build, netns, vm};
use crate::{LabError, dist, setup};

/// Runs and failures of one test.
#[derive(Debug, Default)]
struct Count {
    runs: usize,
    failed: usize,
    /// Output of the last run in which the test failed.
    log: Option<PathBuf>,
}

/// Runs the tests of a plan `times` times, always on the same hosts, and prints how often each
/// failed. Returns whether none failed. Tests that this machine cannot run are listed.
pub fn repeat(plan: &TestPlan, times: u32) -> Result<bool, LabError> {
    const STAGES: [&str; 3] = [build::UNIT, netns::NAME, vm::NAME];
    let is_wanted = |stage: &str| plan.stage.as_ref().is_none_or(|name| name == stage);
    if !STAGES.into_iter().any(is_wanted) {
        let stages = STAGES.join(", ");
        return Err(LabError::Usage(format!("only tests of stages {stages} can be repeated")));
    }
    dist::build_everything()?;
    let programs = TestPrograms::build()?;
    let (mut all, mut skipped) = (Vec::new(), Vec::new());
    if is_wanted(build::UNIT) {
        all.push(build::selected(plan, &programs));
    }
    if is_wanted(netns::NAME) {
        let (tests, why) = netns::selected(plan, &programs)?;
        all.push(tests);
        skipped = why;
    }
    if is_wanted(vm::NAME) {
        all.push(vm::selected(plan, &programs));
    }
    let mut counts = BTreeMap::new();
    for tests in all {
        if tests.names()?.is_empty() {
            continue;
        }
        let _labs = match tests.is_of_caller {
            true => None,
            false => Some(setup::require_root().and_then(|()| Labs::up(&tests))?),
        };
        let outcome = tests.run(times)?;
        if outcome.is_broken {
            return Ok(false);
        }
        count(&mut counts, outcome);
    }
    println!();
    for (name, Count { runs, failed, log }) in &counts {
        let log = log.as_ref().map_or(String::new(), |log| format!("  {}", log.display()));
        println!("{failed:>3} of {runs} failed  {name}{log}");
    }
    for (tests, why) in &skipped {
        println!("skipped: {tests}…: {why}");
    }
    match counts.is_empty() && skipped.is_empty() {
        true => Err(LabError::Usage("no test has a name that contains this".into())),
        false => Ok(counts.values().all(|count| count.failed == 0)),
    }
}

fn count(counts: &mut BTreeMap<String, Count>, outcome: Outcome) {
    for test in outcome.tests {
        let count = counts.entry(test.name).or_default();
        count.runs += 1;
        if let Some(log) = test.log {
            count.failed += 1;
            count.log = Some(log);
        }
    }
}
