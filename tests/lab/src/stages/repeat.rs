//! `cargo lab test --repeat N --filter NAME`: the same tests many times over, which is how a fragile
//! one is found, and how it is seen to be mended.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::run::{Outcome, Program};
use super::{Plan, build, netns, vm};
use crate::{LabError, dist, setup};

/// How often each test failed.
#[derive(Debug, Default)]
struct Count {
    runs: usize,
    failed: usize,
    /// The output of the first run in which it failed.
    first: Option<PathBuf>,
}

/// Failures by test.
#[derive(Debug, Default)]
struct Counts(BTreeMap<String, Count>);

impl Counts {
    /// Counts a run of the tests called `names`. A program that crashed has failed all of them, since
    /// which one it was is not known.
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

/// Runs the tests of a plan so many times, those that need hosts on the same ones; true if none
/// failed.
pub fn repeat(plan: &Plan, times: usize) -> Result<bool, LabError> {
    let is_wanted = |stage: &str| plan.stage.as_ref().is_none_or(|name| name == stage);
    let built = dist::build_everything()?;
    let mut counts = Counts::default();
    if is_wanted(build::UNIT) {
        for (name, program) in build::programs(&built, plan) {
            run(&mut counts, &program, &name, times)?;
        }
    }
    let program = |stage| -> Result<Option<Program>, LabError> {
        let program = Program::new(&built.test(stage)?, plan.filter.as_ref());
        if !is_wanted(stage) || program.names()?.is_empty() {
            return Ok(None);
        }
        setup::require_root()?;
        Ok(Some(program))
    };
    if let Some(program) = program(netns::NAME)? {
        netns::on_hosts(&program, |program| run(&mut counts, program, netns::NAME, times))?;
    }
    if let Some(program) = program(vm::NAME)? {
        vm::on_guests(&program, |program| run(&mut counts, program, vm::NAME, times))?;
    }
    println!();
    counts.print();
    match counts.0.is_empty() {
        true => Err(LabError::Usage("no test has such a name".into())),
        false => Ok(counts.failures() == 0),
    }
}

fn run(counts: &mut Counts, program: &Program, what: &str, times: usize) -> Result<(), LabError> {
    let names = program.names()?;
    if names.is_empty() {
        return Ok(());
    }
    println!("{what}: {} tests, {times} times", names.len());
    for time in 1..=times {
        let outcome = program.run_quietly(&format!("repeat-{what}-{time}"))?;
        println!(
            "{what} {time} of {times}: {} passed, {} failed",
            outcome.tally.passed, outcome.tally.failed
        );
        counts.add(&names, &outcome);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::Tally;

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
        // Which one it was is not known.
        counts.add(&names, &outcome(&[], 1, "/4"));
        assert_eq!(counts.failures(), 4);
    }
}
