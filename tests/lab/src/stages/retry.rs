//! Second attempts of failed tests. If the machine stalls for a moment, one test in a thousand
//! fails without a reason; a test that is really broken fails again.

use super::ledger::{FLAKY_LIMIT, Tally};
use crate::LabError;

use super::run::Outcome;

/// Runs each failed test again by `again`, which runs it alone on fresh hosts. If more tests failed
/// than bad luck can explain, none is run again, since the run has failed either way.
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

/// Runs the failed tests of one program again. If the program crashed it is not known which test
/// failed, so none is run.
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

    /// Retries failed tests, of which those that begin with `u` pass.
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
