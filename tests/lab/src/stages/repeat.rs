//! `cargo lab test --repeat N --filter NAME`: the same tests many times, to find a flaky test or to
//! see that it is fixed.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::run::{Outcome, TestProgram};
use super::{TestPlan, build, netns, vm};
use crate::{LabError, dist, setup};

/// Runs and failures of one test.
#[derive(Debug, Default)]
struct Count {
    runs: usize,
    failed: usize,
    /// Output of the first run in which the test failed.
    first: Option<PathBuf>,
}

/// Runs and failures by name of the test.
#[derive(Debug, Default)]
struct Counts(BTreeMap<String, Count>);

impl Counts {
    /// Counts a run of the tests called `names`. If the program crashed, all of them count as
    /// failed, since it is not known which test it was.
    fn add(&mut self, names: &[String], outcome: &Outcome) {
        let crashed = outcome.failed.is_empty() && outcome.tally.failed > 0;
        for name in names {
            let count = self.0.entry(name.clone()).or_default();
            count.runs += 1;
            if crashed || outcome.failed.contains(name) {
                count.failed += 1;
                count.first.get_or_insert_with(|| outcome.log.clone());
            }
        }
    }

    fn print(&self) {
        for (name, Count { runs, failed, first }) in &self.0 {
            let shown = first.as_ref().map_or(String::new(), |log| format!("  {}", log.display()));
            println!("{failed:>3} of {runs} failed  {name}{shown}");
        }
    }

    fn failures(&self) -> usize {
        self.0.values().map(|count| count.failed).sum()
    }
}

/// Runs the tests of a plan `times` times, always on the same hosts, and prints how often each
/// failed. Returns whether none failed. Tests that this machine cannot run are listed.
pub fn repeat(plan: &TestPlan, times: usize) -> Result<bool, LabError> {
    const STAGES: [&str; 3] = [build::UNIT, netns::NAME, vm::NAME];
    let is_wanted = |stage: &str| plan.stage.as_ref().is_none_or(|name| name == stage);
    if !STAGES.into_iter().any(is_wanted) {
        let stages = STAGES.join(", ");
        return Err(LabError::Usage(format!("only tests of stages {stages} can be repeated")));
    }
    let built = dist::build_everything()?;
    let mut repeated = Repetition { plan, times, counts: Counts::default(), skipped: Vec::new() };
    if is_wanted(build::UNIT) {
        for (name, program) in build::programs(&built, plan) {
            repeated.run(&program, &name)?;
        }
    }
    if is_wanted(netns::NAME) {
        let (program, skipped) = netns::runnable(plan, &built.test(netns::NAME)?)?;
        repeated.skipped = skipped;
        if !program.names()?.is_empty() {
            setup::require_root()?;
            netns::on_hosts(&program, |program| repeated.run(program, netns::NAME))?;
        }
    }
    if is_wanted(vm::NAME) {
        let program = TestProgram::new(&built.test(vm::NAME)?, plan.filter.as_ref());
        if !program.names()?.is_empty() {
            setup::require_root()?;
            vm::on_guests(&program, |program| repeated.run(program, vm::NAME))?;
        }
    }
    repeated.print();
    match repeated.counts.0.is_empty() && repeated.skipped.is_empty() {
        true => Err(LabError::Usage("no test has a name that contains this".into())),
        false => Ok(repeated.counts.failures() == 0),
    }
}

/// Tests that are being repeated.
struct Repetition<'a> {
    plan: &'a TestPlan,
    times: usize,
    counts: Counts,
    skipped: netns::SkippedTests,
}

impl Repetition<'_> {
    fn run(&mut self, program: &TestProgram, what: &str) -> Result<(), LabError> {
        let (names, times) = (program.names()?, self.times);
        if names.is_empty() {
            return Ok(());
        }
        println!("{what}: {} tests, {times} times", names.len());
        // The log names contain the filter, so that logs of other filters are kept.
        let filter = self.plan.filter.as_deref().unwrap_or("all").replace([':', '/'], "-");
        for time in 1..=times {
            let outcome = program.run_quietly(&format!("repeat-{what}-{filter}-{time}"))?;
            println!(
                "{what} {time} of {times}: {} passed, {} failed",
                outcome.tally.passed, outcome.tally.failed
            );
            self.counts.add(&names, &outcome);
        }
        Ok(())
    }

    fn print(&self) {
        println!();
        self.counts.print();
        for (tests, why) in &self.skipped {
            println!("skipped: {tests}…: {why}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stages::ledger::Tally;

    #[test]
    fn failures_are_counted_by_test() {
        let names = ["a".to_owned(), "b".to_owned()];
        let outcome = |failed: &[&str], count, log: &str| Outcome {
            tally: Tally { failed: count, ..Tally::default() },
            failed: failed.iter().map(|name| (*name).to_owned()).collect(),
            log: log.into(),
        };
        let mut counts = Counts::default();
        counts.add(&names, &outcome(&[], 0, "/1"));
        counts.add(&names, &outcome(&["b"], 1, "/2"));
        counts.add(&names, &outcome(&["b"], 1, "/3"));
        let count = |name: &str| (counts.0[name].runs, counts.0[name].failed);
        assert_eq!((count("a"), count("b")), ((3, 0), (3, 2)));
        assert_eq!(counts.0["b"].first, Some("/2".into()));
        // It is not known which of them crashed.
        counts.add(&names, &outcome(&[], 1, "/4"));
        assert_eq!(counts.failures(), 4);
    }
}
