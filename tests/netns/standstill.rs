//! Processes that are stopped while a job runs or ends: nobody is lost by that, and ranks and nodes still
//! get their whole time afterwards.

use crate::callback::{forced_command, no_stdin};
use crate::support::Field;
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rlaunch_lab::{Account, Stopwatch};
use std::time::Duration;

/// Time that rlaunch waits for nodes beyond the grace period.
const SLACK: Duration = Duration::from_secs(4);
/// Options with a node timeout that is longer than every pause here.
const PATIENT: &str = "-H a,b --node-timeout 60";

/// Stops processes for this long, and continues them.
fn stop_for(field: &Field, pids: &[Pid], pause: Duration) {
    let send = |signal| {
        for pid in pids {
            // A short sleep of a rank may be over.
            let sent = kill(*pid, signal);
            assert!(matches!(sent, Ok(()) | Err(Errno::ESRCH)), "{pid}: {sent:?}");
        }
    };
    send(Signal::SIGSTOP);
    let stopped = Stopwatch::start();
    field.wait_for("a long pause", || stopped.total_elapsed() > pause);
    send(Signal::SIGCONT);
}

/// After the pause, ranks need less than the grace period, but finish later than rlaunch would wait
/// if the pause counted.
#[test]
fn ranks_of_a_node_that_stood_still_have_their_grace() {
    // More than twice what ranks need, since a busy machine takes more.
    const GRACE: Duration = Duration::from_secs(8);
    let field = Field::new();
    // Several short sleeps, since a single one could pass during the pause.
    let saving = "echo told; for i in 1 2 3 4 5 6; do sleep 0.5; done; echo saved; exit 0";
    let script = format!("trap '{saving}' TERM; echo up; sleep 1000 & wait");
    let run = field.rlaunch(PATIENT).args(["--kill-after", "8"]);
    let mut running = run.within(Duration::from_secs(120)).sh(&script).spawn();
    running.wait_for_text("up\n", 2);
    running.signal(Signal::SIGINT);
    running.wait_for_text("told\n", 2);
    let of_b = field.started().into_iter().filter(|process| process.host == "b");
    let of_b: Vec<Pid> = of_b.map(|process| Pid::from_raw(process.pid)).collect();
    assert!(of_b.len() >= 3, "guardian, agent and rank: {of_b:?}");
    stop_for(&field, &of_b, GRACE + SLACK - Duration::from_secs(1));
    let ran = running.finish();
    assert_eq!(ran.ended_with(130).out().matches("saved\n").count(), 2, "{ran}");
    ran.keeps_quiet_about(&["its end was not reported"]);
}

/// Like an rlaunch that gets no CPU: its machine acknowledges what hosts send. The pause is longer than the default
/// node timeout and a beat. The shell of b passes no stdin, so its agent has a connection of its own.
#[test]
fn a_launcher_that_stands_still_costs_no_job() {
    let field = Field::new();
    field.warm("b", Account::Root);
    let _forced = forced_command(&field, &["b"], &no_stdin());
    let run = field.rlaunch("-H a,b").within(Duration::from_secs(60));
    let mut running = run.sh("echo up; sleep 16; echo done").spawn();
    running.wait_for_text("up\n", 2);
    stop_for(&field, &[running.pid()], Duration::from_secs(12));
    let ran = running.finish();
    assert_eq!(ran.succeeded().out().matches("done\n").count(), 2, "{ran}");
}

#[test]
fn a_launcher_that_stood_still_hears_how_its_nodes_ended() {
    const GRACE: Duration = Duration::from_secs(4);
    let field = Field::new();
    // Ranks take long enough for the launcher to be stopped before the job has ended.
    let script = "trap 'echo told; sleep 3; exit 0' TERM; echo up; sleep 1000 & wait";
    let run = field.rlaunch(PATIENT).args(["--kill-after", "4"]);
    let mut running = run.within(Duration::from_secs(60)).sh(script).spawn();
    running.wait_for_text("up\n", 2);
    running.signal(Signal::SIGINT);
    running.wait_for_text("told\n", 2);
    stop_for(&field, &[running.pid()], GRACE + SLACK + Duration::from_secs(2));
    running.finish().ended_with(130).keeps_quiet_about(&["its end was not reported"]);
}
