//! Records of ranks: which tests they began, and how these ended.

use std::collections::BTreeMap;
use std::fmt;

use clap::ValueEnum;
use clap::builder::PossibleValue;

use super::TestEnds;

/// End of a test, from the best to the worst, by the word that the script writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(super) enum TestEnd {
    Passed,
    Skipped,
    Failed,
    /// It ended by an exception.
    Raised,
    /// The job ended in it.
    Crashed,
    /// It did not end.
    Hung,
}

impl fmt::Display for TestEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value();
        f.write_str(value.as_ref().map_or("", PossibleValue::get_name))
    }
}

/// Record of one rank.
#[derive(Debug, Default)]
pub(super) struct Record {
    begun: Vec<String>,
    ended: TestEnds,
    is_done: bool,
}

impl Record {
    /// Reads a record; its last line may be incomplete.
    pub(super) fn parse(text: &str) -> Record {
        let mut record = Record::default();
        for line in text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
            match line.split_once(' ') {
                None => record.is_done |= line == "done",
                Some(("begin", test)) => record.begun.push(test.into()),
                Some((word, test)) => {
                    if let Ok(outcome) = TestEnd::from_str(word, false) {
                        record.ended.insert(test.into(), outcome);
                    }
                }
            }
        }
        record
    }
}

/// Records of all ranks together.
#[derive(Debug)]
pub(super) struct Merged {
    /// Worst outcomes of tests that no rank is in any more.
    pub(super) outcomes: TestEnds,
    /// First test that some rank has begun and some rank has not ended.
    pub(super) unfinished: Option<String>,
    /// Whether all ranks have run all tests.
    pub(super) is_done: bool,
}

/// Merges records. The ranks run the same tests in the same order.
pub(super) fn merge(records: &[Record]) -> Merged {
    let longest = records.iter().max_by_key(|record| record.begun.len());
    let begun = longest.map_or(&[][..], |record| &record.begun);
    let all_ended = |test: &String| records.iter().all(|record| record.ended.contains_key(test));
    let unfinished = begun.iter().find(|test| !all_ended(test)).cloned();
    let mut outcomes = TestEnds::new();
    for (test, outcome) in records.iter().flat_map(|record| &record.ended) {
        // Failures outside of tests may be those of some ranks only.
        if all_ended(test) || !begun.contains(test) {
            let worst = outcomes.entry(test.clone()).or_insert(*outcome);
            *worst = (*worst).max(*outcome);
        }
    }
    Merged { outcomes, unfinished, is_done: records.iter().all(|record| record.is_done) }
}

/// Formats `2127 tests: 1800 passed, 327 skipped`.
pub(super) fn summary(outcomes: &TestEnds) -> String {
    let mut counts = BTreeMap::new();
    for outcome in outcomes.values() {
        *counts.entry(outcome).or_insert(0) += 1;
    }
    let counts: Vec<_> = counts.iter().map(|(end, count)| format!("{count} {end}")).collect();
    format!("{} tests: {}", outcomes.len(), counts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merged(records: &[&str]) -> Merged {
        merge(&records.iter().map(|text| Record::parse(text)).collect::<Vec<_>>())
    }

    #[test]
    fn the_worst_outcome_of_all_ranks_counts() {
        let all = merged(&[
            "begin a\npassed a\nbegin b\nskipped b\ndone\n",
            "begin a\nfailed a\nbegin b\nskipped b\ndone\n",
        ]);
        assert!(all.is_done && all.unfinished.is_none());
        assert_eq!(all.outcomes["a"], TestEnd::Failed);
        assert_eq!(summary(&all.outcomes), "2 tests: 1 skipped, 1 failed");
    }

    #[test]
    fn the_first_test_that_a_rank_is_in_is_unfinished() {
        // Rank 0 is ahead of the rank that hangs.
        let hung = merged(&[
            "begin a\npassed a\nbegin b\npassed b\nbegin c\n",
            "begin a\npassed a\nbegin b\npass",
        ]);
        assert_eq!(hung.unfinished.as_deref(), Some("b"));
        assert_eq!(hung.outcomes.keys().collect::<Vec<_>>(), ["a"]);
        // One rank has not begun.
        let dead = merged(&["begin a\npassed a\n", ""]);
        assert_eq!(dead.unfinished.as_deref(), Some("a"));
        assert!(dead.outcomes.is_empty());
        assert!(!merged(&["", ""]).is_done);
    }
}
