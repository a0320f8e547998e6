//! The guides for machines that the guests can represent are followed here.

use crate::guide;
use crate::support::{Field, ORDINARY, PATIENT, SILENCE, soft_iwarp};

#[test]
fn triangle() {
    follow(&Field::new(), "triangle");
}

/// Soft-iWARP supports RDMA_CM only, as eRDMA does in standard mode.
#[test]
fn erdma() {
    let field = Field::new();
    let _alone = soft_iwarp(&field, "n1,n2");
    follow(&field, "erdma");
}

/// Follows a guide. Command lines that start a job, which begin with an option, get additional
/// options with the time limits that emulated computers need.
fn follow(field: &Field, name: &str) {
    let jobs = format!("set -- {SILENCE} {PATIENT} {ORDINARY} \"$@\"");
    let patiently =
        format!("patiently() {{ case $1 in -*) {jobs} ;; esac; command rlaunch \"$@\"; }}");
    guide::follow(name, "patiently", |line| {
        let printed = field.shell(&format!("{patiently}\n{line}"));
        let lines = printed.lines().filter(|line| !is_progress(line));
        lines.map(|line| format!("{line}\n")).collect()
    });
}

/// Tells whether a line is printed only because guests are slow.
fn is_progress(line: &str) -> bool {
    let said = line.strip_prefix("rlaunch: ");
    said.is_some_and(|said| said.starts_with("waiting "))
}
