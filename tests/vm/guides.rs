//! The guides whose machines the guests can stand for are followed here.

use crate::guide;
use crate::support::{Field, ORDINARY, PATIENT, SILENCE};

#[test]
fn triangle() {
    follow("triangle");
}

/// Soft-iWARP takes RDMA_CM only, as eRDMA does in standard mode.
#[test]
fn erdma() {
    follow("erdma");
}

/// Jobs, whose words begin with an option, have the patience that emulated computers need.
fn follow(name: &str) {
    let field = Field::new();
    let rlaunch = format!("{} \"$@\"", field.rlaunch);
    let jobs = format!("set -- {SILENCE} {PATIENT} {ORDINARY} \"$@\"");
    let patiently = format!("patiently() {{ case $1 in -*) {jobs} ;; esac; {rlaunch}; }}");
    guide::follow(name, "patiently", |line| {
        let printed = field.shell(&format!("{patiently}\n{line}"));
        let lines = printed.lines().filter(|line| !is_progress(line));
        lines.map(|line| format!("{line}\n")).collect()
    });
}

/// Whether a line is there only because guests are slow, or have not been sent something yet.
fn is_progress(line: &str) -> bool {
    let said = line.strip_prefix("rlaunch: ");
    said.is_some_and(|said| said.starts_with("waiting ") || said.contains(" sent to "))
}
