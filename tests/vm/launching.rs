//! Jobs on the guests, to which rlaunch sends its agent.

use crate::support::{ALL, Field, ORDINARY, PATIENT};
use std::collections::BTreeSet;

/// Splits the lines of a table that `--show` prints into words.
fn rows<'a>(out: &'a str, first: &str) -> Vec<Vec<&'a str>> {
    let rows = out.lines().skip_while(|line| !line.starts_with(first)).skip(1);
    let rows = rows.map(|row| row.split_whitespace().collect::<Vec<_>>());
    // Lines that ranks print begin with `of`.
    rows.take_while(|words| words[0] != "of").collect()
}

// Scripts that print a rank's environment and processors, each line marked with `of` and the rank.
const ENVIRONMENT: &str = r#"env | sed "s/^/of $RANK /""#;
const PROCESSORS: &str = "echo of $RANK $(grep Cpus_allowed_list /proc/self/status | cut -f2)";

#[test]
fn ranks_run_where_placement_says() {
    let field = Field::new();
    let words = format!("-H {ALL} --show placement -np 3 sh -c");
    let ran = field.rlaunch(&words, &[PROCESSORS]);
    let rows = rows(&ran.succeeded().out, "rank ");
    let shown: BTreeSet<String> =
        rows.iter().map(|row| format!("of {} {}", row[0], row[2])).collect();
    let seen: BTreeSet<String> =
        ran.out.lines().filter(|line| line.starts_with("of ")).map(str::to_owned).collect();
    assert_eq!(shown.len(), 3, "{ran}");
    assert_eq!(shown, seen, "{ran}");
}

/// Tells whether a rank has printed a variable, or, for `NAME+=:VALUE`, a variable that ends with the value, or, for
/// `NAME` and `NAME_*`, a variable of that name or whose name begins so.
fn is_told(seen: &str, rank: u32, variable: &str) -> bool {
    let Some(seen) = seen.strip_prefix(&format!("of {rank} ")) else { return false };
    if let Some(family) = variable.strip_suffix('*') {
        return seen.starts_with(family);
    }
    if !variable.contains('=') {
        return seen.starts_with(&format!("{variable}="));
    }
    let Some((name, added)) = variable.split_once("+=:") else { return seen == variable };
    let value = seen.strip_prefix(&format!("{name}="));
    value.is_some_and(|value| value.rsplit(':').next() == Some(added))
}

/// Lists the ranks of `0-1,3`.
fn ranks(text: &str) -> Vec<u32> {
    let number = |text: &str| text.parse::<u32>().unwrap();
    let range = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        number(first)..=number(last)
    };
    text.split(',').flat_map(range).collect()
}

#[test]
fn ranks_are_told_what_was_shown_and_by_which_ports_to_meet() {
    let field = Field::new();
    let words = format!("-H {ALL} {PATIENT} {ORDINARY} --show env -np 3 sh -c");
    let ran = field.rlaunch(&words, &[ENVIRONMENT]);
    let rows = rows(&ran.succeeded().out, "variable ");
    for row in &rows {
        for rank in ranks(row[1]) {
            let is_told = ran.out.lines().any(|seen| is_told(seen, rank, row[0]));
            assert!(is_told, "{row:?} of rank {rank}: {ran}");
        }
    }
    // Soft-iWARP supports RDMA_CM only, which NCCL does not use.
    for wanted in ["NCCL_IB_HCA==rxe0:1,rxe1:1", "NCCL_SOCKET_IFNAME==eth0"] {
        let is_of_all = rows.iter().any(|row| row[0] == wanted && ranks(row[1]) == [0, 1, 2]);
        assert!(is_of_all, "{wanted}: {ran}");
    }
    assert!(!ran.out.contains("NCCL_IB_DISABLE"), "{ran}");
}
