//! A second look at tests that failed: on a machine that stands still for a moment, one of a thousand
//! is unlucky. What is wrong fails again.

use super::ledger::{FLAKY_LIMIT, Tally};
use crate::LabError;

use super::run::Outcome;

/// Runs each test that failed once more, by `again`, which gives each fresh hosts and nothing beside it.
/// More failures in all programs than luck may explain are left as they are, since the run has failed
/// either way.
pub(super) fn retry_failures(
    outcomes: Vec<Outcome>,
    mut again: impl FnMut(&str) -> Result<Outcome, LabError>,
) -> Result<Tally, LabError> {
    let all: usize = outcomes.iter().map(|outcome| outcome.tally.failed).sum();
    let mut tally = Tally::default();
    for outcome in outcomes {
        tally.add(match all {
            0 => outcome.tally,
            1..FLAKY_LIMIT => retry_program(outcome, &mut again)?,
            _ => outcome.tally,
        });
    }
    if all >= FLAKY_LIMIT {
        println!("no second attempt: {all} tests failed");
    }
    Ok(tally)
}

/// Does so for one program. One that crashed is not run again: which test it was is not known.
fn retry_program(
    outcome: Outcome,
    mut again: impl FnMut(&str) -> Result<Outcome, LabError>,
) -> Result<Tally, LabError> {
    let Outcome { mut tally, failed, log } = outcome;
    if failed.len() != tally.failed {
        return Ok(tally);
    }
    for test in failed {
        println!("\nsecond attempt, alone on fresh hosts: {test}");
        let second = again(&test)?.tally;
        if (second.passed, second.failed) == (1, 0) {
            tally.passed_on_retry(test, log.clone());
        }
    }
    Ok(tally)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(failed: &[&str]) -> Outcome {
        let tally = Tally { passed: 4, failed: failed.len(), ..Tally::default() };
        let failed = failed.iter().map(|test| (*test).to_owned()).collect();
        Outcome { tally, failed, log: "/first.log".into() }
    }

    /// A second look at tests that failed, of which those that begin with `u` were unlucky.
    fn looked_at(first: Outcome) -> (Tally, Vec<String>) {
        let mut asked = Vec::new();
        let tally = retry_failures(vec![first], |test| {
            asked.push(test.to_owned());
            let tally = Tally::check(test.starts_with('u'));
            Ok(Outcome { tally, ..Outcome::default() })
        });
        (tally.unwrap(), asked)
    }

    #[test]
    fn what_is_wrong_stays_failed() {
        let (tally, asked) = looked_at(outcome(&["unlucky", "wrong"]));
        assert_eq!(asked, ["unlucky", "wrong"]);
        assert_eq!((tally.passed, tally.failed), (5, 1));
        assert_eq!(tally.flaky, [("unlucky".to_owned(), "/first.log".into())]);
    }

    #[test]
    fn many_failures_are_no_bad_luck() {
        let (tally, asked) = looked_at(outcome(&["u1", "u2", "u3"]));
        assert!(asked.is_empty());
        assert_eq!((tally.passed, tally.failed), (4, 3));
    }

    #[test]
    fn a_program_that_crashed_is_not_run_again() {
        let mut first = outcome(&[]);
        first.tally.failed = 1;
        let (tally, asked) = looked_at(first);
        assert!(asked.is_empty());
        assert_eq!(tally.failed, 1);
    }
}
