//! What people see at a terminal beside and after a job.

use crate::running::Running;
use crate::support::{Field, Run, launch_directory};
use nix::sys::signal::Signal;
use tempfile::TempDir;

/// A job beside which verbs are run, with a state directory of its own.
struct Beside(Field, TempDir);

impl Beside {
    fn new() -> Beside {
        Beside(Field::new(), launch_directory())
    }

    fn rlaunch(&self, words: &str) -> Run<'_> {
        self.0.rlaunch(words).env("XDG_STATE_HOME", self.1.path().to_str().unwrap())
    }

    fn job(&self) -> Running<'_> {
        let mut running = self.rlaunch("-H a").sh("echo up; exec sleep 1000").spawn();
        running.wait_for_text("up\n", 1);
        running
    }
}

#[test]
fn a_stopped_launcher_is_named_soon() {
    let beside = Beside::new();
    let running = beside.job();
    running.signal(Signal::SIGSTOP);
    let asked = ["jobs", "stack"].map(|verb| beside.rlaunch(verb).spawn().finish_first());
    running.signal(Signal::SIGCONT);
    let pid = running.pid();
    let [listed, looked] = &asked;
    listed.succeeded().took_less_than(3);
    assert!(listed.out().contains("stopped"), "{listed}");
    looked.refused(200, &[]);
    for asked in &asked {
        asked.says(&[&format!("its launcher is stopped (pid {pid}: "), "-H a sh -c"]);
        asked.hints(&format!("kill -CONT {pid}"));
    }
    running.signal(Signal::SIGTERM);
    running.finish().ended_with(143);
}

#[test]
fn a_launcher_that_was_killed_leaves_a_record() {
    let beside = Beside::new();
    beside.rlaunch("-H a true").run().succeeded();
    let running = beside.job();
    let while_it_runs = beside.rlaunch("report last").spawn().finish_first();
    assert!(!while_it_runs.out().contains("killed"), "{while_it_runs}");
    running.signal(Signal::SIGKILL);
    drop(running.finish_first());
    let ran = beside.rlaunch("report last").spawn().finish_first();
    ran.succeeded();
    let said = ran.out();
    let expected = ["sh -c echo up; exec sleep 1000", "137: the launcher was killed"];
    assert!(expected.iter().all(|text| said.contains(text)), "{ran}");
    beside.0.wait_for("the ranks to end", || beside.0.started().is_empty());
}
