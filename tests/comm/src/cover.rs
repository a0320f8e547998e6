//! Few cases that still have every two choices together in one of them.

use crate::case::{COUNTS, Case, Collective};
use rlaunch_comm::{ElementType, Op};
use std::collections::HashSet;

/// How many choices there are of each kind.
const CHOICES: [usize; 6] =
    [Collective::ALL.len(), ElementType::ALL.len(), Op::ALL.len(), COUNTS.len(), 2, 2];

type Row = [usize; 6];

/// Cases of which one has each pair of choices: in place or not, waited for at once or later, and
/// whatever [`all`](crate::all) has.
pub fn cover() -> Vec<Case> {
    let mut missing: HashSet<(usize, usize, usize, usize)> = HashSet::new();
    for row in rows() {
        missing.extend(pairs(row));
    }
    let mut cases = Vec::new();
    while !missing.is_empty() {
        // Greedy: the row that has most of what is missing, the first of equals.
        let gain = |row: &Row| pairs(*row).filter(|pair| missing.contains(pair)).count();
        let Some(best) = rows().rev().max_by_key(gain) else { break };
        for pair in pairs(best) {
            missing.remove(&pair);
        }
        cases.push(case(best));
    }
    cases
}

fn rows() -> impl DoubleEndedIterator<Item = Row> {
    let all: usize = CHOICES.iter().product();
    (0..all).map(|mut number| {
        CHOICES.map(|choices| {
            let choice = number % choices;
            number /= choices;
            choice
        })
    })
}

fn pairs(row: Row) -> impl Iterator<Item = (usize, usize, usize, usize)> {
    (0..row.len()).flat_map(move |a| (0..a).map(move |b| (a, row[a], b, row[b])))
}

fn case([collective, element, op, count, in_place, later]: Row) -> Case {
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
        let cases = cover();
        assert!(cases.len() <= 80, "{}", cases.len());
        for collective in Collective::ALL {
            for element in ElementType::ALL {
                let has = |case: &&Case| case.collective == collective && case.element == element;
                assert!(cases.iter().any(|case| has(&case)), "{collective:?} {element}");
            }
            assert!(cases.iter().any(|case| case.collective == collective && case.later));
        }
    }
}
