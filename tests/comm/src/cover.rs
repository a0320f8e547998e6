//! Small set of cases that covers every pair of choices.

use crate::case::{COUNTS, Case, Collective};
use rlaunch_comm::{ElementType, Op};

/// Number of dimensions of a case.
const KINDS: usize = 7;

/// Choice in each dimension; the last dimension is the job that runs the case.
type Row = [usize; KINDS];

/// Bit set of choices, numbered across all dimensions.
type Set = u64;

/// Returns cases that cover every pair of choices, including in place or not, and blocking or not.
pub fn cover() -> Vec<Case> {
    cover_by(1).concat()
}

/// Distributes cases like those of [`cover`] over `jobs` jobs, which may differ in their ranks.
/// Each job has every choice, and all jobs together have every pair of choices.
pub fn cover_by(jobs: usize) -> Vec<Vec<Case>> {
    let (collectives, elements) = (Collective::ALL.len(), ElementType::ALL.len());
    let choices = [collectives, elements, Op::ALL.len(), COUNTS.len(), 2, 2, jobs];
    let rows: Vec<(Row, Set)> = rows(choices).map(|row| (row, set_of(choices, row))).collect();
    // For each choice, the other choices that it has not been combined with.
    let mut missing: Vec<Set> = vec![0; choices.iter().sum()];
    for (_, set) in &rows {
        members(*set).for_each(|choice| missing[choice] |= set & !(1 << choice));
    }
    let mut cases = vec![Vec::new(); jobs];
    while missing.iter().any(|others| *others != 0) {
        let gain = |set: Set| -> u32 {
            members(set).map(|choice| (missing[choice] & set).count_ones()).sum()
        };
        // Greedy: the row that covers most missing pairs; of several such rows, the first.
        let Some((row, set)) = rows.iter().rev().max_by_key(|(_, set)| gain(*set)) else { break };
        members(*set).for_each(|choice| missing[choice] &= !set);
        cases[row[KINDS - 1]].push(case(*row));
    }
    cases
}

fn rows(choices: Row) -> impl Iterator<Item = Row> {
    let all: usize = choices.iter().product();
    (0..all).map(move |mut number| {
        choices.map(|choices| {
            let choice = number % choices;
            number /= choices;
            choice
        })
    })
}

fn set_of(choices: Row, row: Row) -> Set {
    let mut first = 0;
    let mut set = 0;
    for (choices, choice) in choices.into_iter().zip(row) {
        set |= 1 << (first + choice);
        first += choices;
    }
    set
}

fn members(mut set: Set) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lowest = (set != 0).then(|| set.trailing_zeros() as usize)?;
        set &= set - 1;
        Some(lowest)
    })
}

fn case([collective, element, op, count, in_place, later, _]: Row) -> Case {
    Case {
        collective: Collective::ALL[collective],
        element: ElementType::ALL[element],
        op: Op::ALL[op],
        count: COUNTS[count],
        in_place: in_place == 1,
        later: later == 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_cases_have_every_pair_of_choices() {
        for jobs in [1, 3, 7] {
            let by_job = cover_by(jobs);
            let cases = by_job.concat();
            assert!(cases.len() <= 80, "{}", cases.len());
            for collective in Collective::ALL {
                for element in ElementType::ALL {
                    let has =
                        |case: &&Case| case.collective == collective && case.element == element;
                    assert!(cases.iter().any(|case| has(&case)), "{collective:?} {element}");
                }
                assert!(cases.iter().any(|case| case.collective == collective && case.later));
                for cases in &by_job {
                    assert!(cases.iter().any(|case| case.collective == collective));
                }
            }
        }
    }
}
