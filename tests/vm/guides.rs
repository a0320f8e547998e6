//! The guides for machines that the guests can represent are followed here.

use crate::guide;
use crate::support::{ALL, Field, ORDINARY, PATIENT, SILENCE, Undo, soft_iwarp, without_addresses};

#[test]
fn triangle() {
    let field = Field::new();
    let _addresses = without_addresses(&field);
    let _files = with_ifupdown(&field, ALL);
    follow(&field, "triangle", ALL);
}

/// Soft-iWARP supports RDMA_CM only, as eRDMA does in standard mode.
#[test]
fn erdma() {
    let field = Field::new();
    let _alone = soft_iwarp(&field, "n1,n2");
    let _files = with_ifupdown(&field, "n1,n2");
    follow(&field, "erdma", "n1,n2");
}

/// Gives guests an empty configuration of ifupdown, by which addresses are kept. When the guard is dropped after a failure,
/// it undoes what `rlaunch up` has done.
fn with_ifupdown<'a>(field: &'a Field, guests: &'static str) -> impl Drop + use<'a> {
    let guard = Undo(move || {
        if std::thread::panicking() {
            field.verb(&format!("down -H {guests}"), &[]);
        }
        let remove = "rm /etc/network/interfaces";
        guests.split(',').try_for_each(|guest| field.restore(guest, remove))
    });
    for guest in guests.split(',') {
        field.on(guest, "echo 'source /etc/network/interfaces.d/*' > /etc/network/interfaces");
    }
    guard
}

/// Follows a guide. Command lines that start a job, which begin with an option, get additional
/// options with the time limits that emulated computers need; `rlaunch up` has them by variables. What it leaves here stays
/// in a directory of its own, and `rlaunch down` undoes it on the guests, as guides promise.
fn follow(field: &Field, name: &str, guests: &str) {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().display();
    let place = format!(
        "export XDG_STATE_HOME={place}/state RLAUNCH_NODE_TIMEOUT=60 RLAUNCH_OOB_IF=eth0; cd {place}"
    );
    let jobs = format!("set -- {SILENCE} {PATIENT} {ORDINARY} \"$@\"");
    let patiently =
        format!("patiently() {{ case $1 in -*) {jobs} ;; esac; command rlaunch \"$@\"; }}");
    guide::follow(name, "patiently", |line| {
        let printed = field.shell(&format!("{place}\n{patiently}\n{line}"));
        let lines = printed.lines().filter(|line| !is_progress(line));
        lines.map(|line| format!("{line}\n")).collect()
    });
    field.verb(&format!("down -H {guests}"), &[]).succeeded();
}

/// Tells whether a line is printed only because guests are slow.
fn is_progress(line: &str) -> bool {
    let said = line.strip_prefix("rlaunch: ");
    said.is_some_and(|said| said.starts_with("waiting "))
}
