//! Jobs on the guests, to which rlaunch sends its agent.

use crate::support::{ALL, Field, ORDINARY, PATIENT};
use std::collections::BTreeSet;

/// Splits the lines of a table that `--show` prints into words.
fn rows(out: &str) -> Vec<Vec<&str>> {
    let rows = out.lines().skip_while(|line| !line.starts_with("rank ")).skip(1);
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
    let rows = rows(&ran.succeeded().out);
    let shown: BTreeSet<String> =
        rows.iter().map(|row| format!("of {} {}", row[0], row[2])).collect();
    let seen: BTreeSet<String> =
        ran.out.lines().filter(|line| line.starts_with("of ")).map(str::to_owned).collect();
    assert_eq!(shown.len(), 3, "{ran}");
    assert_eq!(shown, seen, "{ran}");
}

/// Tells whether a rank has printed the variable in `row`, or, for `NAME+=:VALUE`, a variable that
/// ends with the value, or, for `NAME_*`, a variable whose name begins so.
fn is_told(seen: &str, row: &[&str]) -> bool {
    if let Some(family) = row[2].strip_suffix('*') {
        return seen.starts_with(&format!("of {} {family}", row[0]));
    }
    let Some((name, added)) = row[2].split_once("+=:") else {
        return seen == format!("of {} {}", row[0], row[2]);
    };
    let value = seen.strip_prefix(&format!("of {} {name}=", row[0]));
    value.is_some_and(|value| value.rsplit(':').next() == Some(added))
}

#[test]
fn ranks_are_told_what_was_shown_and_by_which_ports_to_meet() {
    let field = Field::new();
    let words = format!("-H {ALL} {PATIENT} {ORDINARY} --show env -np 3 sh -c");
    let ran = field.rlaunch(&words, &[ENVIRONMENT]);
    let rows = rows(&ran.succeeded().out);
    for row in &rows {
        assert!(ran.out.lines().any(|seen| is_told(seen, row)), "{row:?}: {ran}");
    }
    // Soft-iWARP supports RDMA_CM only, which NCCL does not use.
    for wanted in ["NCCL_IB_HCA==rxe0:1,rxe1:1", "NCCL_SOCKET_IFNAME==eth0"] {
        assert_eq!(rows.iter().filter(|row| row[2] == wanted).count(), 3, "{wanted}: {ran}");
    }
    assert!(!ran.out.contains("NCCL_IB_DISABLE"), "{ran}");
}
