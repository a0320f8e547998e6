//! Stacks of ranks where the kernel lets a process look at its descendants alone: Yama, a security module, with
//! `kernel.yama.ptrace_scope` at 1, which is the default of Ubuntu.

use crate::background::until;
use crate::support::{Field, Ran, Undo};
use std::cell::RefCell;

/// Program of ranks: a function that sleeps, called by another one.
const PROGRAM: &str =
    "import time\ndef waits_here():\n    time.sleep(1000)\ndef main():\n    waits_here()\nmain()\n";
/// Path of [`PROGRAM`] on the guests.
const PATH: &str = "/run/sleeps.py";

/// Sets Yama's mode on a guest, and restores it when the guard is dropped.
fn restrict<'a>(field: &'a Field, guest: &'a str) -> impl Drop + 'a {
    let set = move |scope: u32| {
        let line = format!("echo {scope} > /proc/sys/kernel/yama/ptrace_scope");
        field.restore(guest, &line)
    };
    set(1).unwrap();
    Undo(move || set(0))
}

/// Asserts that what `rlaunch stack` prints shows where the ranks are.
fn shows_the_functions(stacks: impl Fn() -> Ran) {
    let last = RefCell::new(None);
    // Ranks may not have come to the function yet, and a busy guest may not answer in time.
    until(
        || {
            let shown = stacks();
            let is_there = |text| shown.out.contains(text);
            let is_whole = ["waits_here", "main", "sleeps.py:3"].into_iter().all(is_there);
            *last.borrow_mut() = Some(shown.to_string());
            is_whole
        },
        || format!("{:?}", last.borrow()),
    );
    let shown = last.take().unwrap();
    assert!(!shown.contains("ptrace_scope"), "{shown}");
}

#[test]
fn an_ordinary_user_sees_stacks_although_yama_is_strict() {
    let field = Field::new();
    let _strict = restrict(&field, "n1");
    let program = PROGRAM.replace('\n', "\\n");
    field.on("n1", &format!("printf '{program}' > {PATH} && chmod 644 {PATH}"));
    field.on("n1", "id ordinary >/dev/null 2>&1 || useradd --create-home ordinary");
    let _account = Undo(|| {
        field.restore("n1", "pkill -u ordinary; userdel --remove ordinary 2>/dev/null || true")
    });
    let user = "cd /home/ordinary && runuser -u ordinary -- env HOME=/home/ordinary";
    // Another process of the same user may not look: the mode is in force.
    field.on("n1", &format!("{user} setsid sleep 4141 >/dev/null 2>&1 </dev/null &"));
    let sleeps = "pgrep -x -f 'sleep 4141'";
    field.on("n1", &format!("timeout 60 sh -c \"until {sleeps}; do sleep 0.1; done\""));
    let denied = field.tries("n1", &format!("{user} cat /proc/$({sleeps})/syscall"));
    denied.does_not_say("No such file");
    assert_ne!(denied.code, Some(0), "{denied}");
    // A user's own job on her own machine.
    let rlaunch = "/share/rlaunch";
    let job = format!("{rlaunch} -H localhost:2 --transport tcp python3 {PATH}");
    field.on("n1", &format!("{user} setsid {job} >/run/job.out 2>&1 </dev/null &"));
    for options in ["", "--native"] {
        let line = format!("{user} {rlaunch} stack {options}");
        shows_the_functions(|| field.tries("n1", &line));
    }
}
