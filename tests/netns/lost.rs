//! A node that is lost during a job is named, and the other nodes are ended.

use crate::support::{Field, Undo, kill_at_once, launch_directory, state};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rlaunch_lab::{Account, Cut, Process, Stopwatch};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

/// Options of the jobs. Helpers that ignore SIGTERM run on all hosts, so ending them takes the
/// grace period.
const JOB: &str = "-H a,b,c --kill-after 1";
/// The same for losses that are noticed at once. Silence alone would tell of them only after far longer.
const PATIENT: &str = "-H a,b,c --kill-after 1 --node-timeout 60";
const MEEK: &str = "echo up; exec sleep 1000";
const WITH_HELPER: &str =
    "setsid sh -c 'trap \"\" TERM HUP; while :; do sleep 1; done' >/dev/null 2>&1 &
    echo up; exec sleep 1000";

fn is_agent(process: &Process) -> bool {
    process.args[0].ends_with("rlaunch-worker")
}

/// Returns the guardian on `host`, and its child, the agent.
pub(crate) fn agents(field: &Field, host: &str) -> (Pid, Pid) {
    let mut found = field.lab.processes(host).unwrap();
    found.retain(is_agent);
    let is_child = |process: &&Process| found.iter().any(|other| other.pid == process.parent);
    let agent = found.iter().find(is_child).unwrap();
    (Pid::from_raw(agent.parent), Pid::from_raw(agent.pid))
}

#[test]
fn an_agent_that_is_killed() {
    let field = Field::new();
    for account in Account::ALL {
        let mut running = field.rlaunch(PATIENT).account(account).sh(WITH_HELPER).spawn();
        running.wait_for_lines(3);
        let (_, agent) = agents(&field, "b");
        let killed = Stopwatch::start();
        kill(agent, Signal::SIGKILL).unwrap();
        running.finish_in(5, killed).ended_with(206).says(&["error: node b is lost"]);
    }
}

#[test]
fn a_guardian_that_is_killed() {
    let field = Field::new();
    let mut running = field.rlaunch(JOB).sh(WITH_HELPER).spawn();
    running.wait_for_lines(3);
    let (guardian, _) = agents(&field, "b");
    kill(guardian, Signal::SIGKILL).unwrap();
    running.finish().ended_with(206).says(&["error: node b is lost"]);
}

/// Ranks that end in order when they are told to, as a host's shutdown tells them, have not done
/// their work: the job has lost the node.
#[test]
fn an_agent_that_is_told_to_end() {
    let field = Field::new();
    let meek = "trap 'exit 0' TERM; echo up; while :; do sleep 0.1; done";
    for (signal, name) in [(Signal::SIGTERM, "15 (SIGTERM)"), (Signal::SIGINT, "2 (SIGINT)")] {
        for is_guardian in [false, true] {
            let mut running = field.rlaunch(JOB).sh(meek).spawn();
            running.wait_for_lines(3);
            let (guardian, agent) = agents(&field, "b");
            kill(if is_guardian { guardian } else { agent }, signal).unwrap();
            let how = format!("error: node b is lost: its agent got signal {name}");
            running.finish().ended_with(206).says(&[&how, "all processes ended on a, b, c"]);
        }
    }
}

#[test]
fn an_agent_that_is_told_to_end_before_its_ranks_start() {
    let field = Field::new();
    let directory = launch_directory();
    let (slow, go) = (directory.path().join("slow.sh"), directory.path().join("go"));
    let waits = format!("[ $1 = a ] || until [ -e {} ]; do sleep 0.1; done", go.display());
    fs::write(&slow, format!("#!/bin/sh\n{waits}\nexec ssh \"$@\"\n")).unwrap();
    fs::set_permissions(&slow, fs::Permissions::from_mode(0o755)).unwrap();
    field.rlaunch("-H a,b true").run().succeeded();
    let run = field.rlaunch("-H a,b --rsh").args([slow.to_str().unwrap(), "hostname"]);
    let running = run.spawn();
    let is_up = || field.lab.processes("a").unwrap().iter().filter(|p| is_agent(p)).count() == 2;
    field.wait_for("the agent on a", is_up);
    let (_, agent) = agents(&field, "a");
    kill(agent, Signal::SIGTERM).unwrap();
    field.wait_for("the agent to end", || !is_up());
    fs::write(&go, "").unwrap();
    let how = "error: node a is lost: its agent got signal 15 (SIGTERM)";
    running.finish().ended_with(206).says(&[how]);
}

/// Kills agent and guardian at the same moment, so that neither can clean up after the other.
fn kill_both(field: &Field, host: &str) {
    let (guardian, agent) = agents(field, host);
    kill_at_once(&[guardian, agent]);
}

#[test]
fn agent_and_guardian_killed_together() {
    let field = Field::new();
    for script in [MEEK, WITH_HELPER] {
        let mut running = field.rlaunch(PATIENT).sh(script).spawn();
        running.wait_for_lines(3);
        kill_both(&field, "b");
        let ran = running.finish_first();
        ran.ended_with(206).says(&["error: node b is lost"]).took_less_than(10);
        let left = field.ranks();
        assert!(left.is_empty(), "left when rlaunch returned: {left:#?}\n{ran}");
    }
    field.clear_job_directories();
}

#[test]
fn agent_and_guardian_killed_together_leave_no_files() {
    let field = Field::new();
    let directory = launch_directory();
    std::fs::write(directory.path().join("data.txt"), "the data\n").unwrap();
    let run = field.rlaunch(JOB).args(["--preload", "data.txt"]).in_directory(directory.path());
    let mut running = run.sh(MEEK).spawn();
    running.wait_for_lines(3);
    kill_both(&field, "b");
    running.finish().ended_with(206);
}

#[test]
fn an_ssh_session_that_is_killed() {
    let field = Field::new();
    let mut running = field.rlaunch(PATIENT).sh(MEEK).spawn();
    running.wait_for_lines(3);
    field.lab.sshd("b").unwrap().kill_sessions().unwrap();
    running.finish_first().ended_with(206).says(&["error: node b is lost"]).took_less_than(10);
    field.wait_for("the ranks of b to end", || field.started().is_empty());
}

#[test]
fn a_host_that_loses_power() {
    let field = Field::new();
    let _restore = Undo(|| field.lab.boot("b"));
    let mut running = field.rlaunch(JOB).sh(MEEK).spawn();
    running.wait_for_lines(3);
    let lost = Stopwatch::start();
    field.lab.crash("b").unwrap();
    running.finish_in(15, lost).ended_with(206).says(&["error: node b is lost"]);
}

/// Neither side can reach the other, so each must notice by itself.
#[test]
fn a_host_that_falls_silent() {
    let field = Field::new();
    let _restore = Undo(|| field.lab.heal("b"));
    let mut running = field.rlaunch(JOB).sh(WITH_HELPER).spawn();
    running.wait_for_lines(3);
    let lost = Stopwatch::start();
    field.lab.cut("b", Cut::Silent).unwrap();
    let ran = running.finish_first();
    ran.ended_with(206).says(&["error: node b is lost"]);
    assert!(lost.elapsed() < Duration::from_secs(30), "{:?}", lost.elapsed());
    field.wait_for("the ranks of b to end", || field.started().is_empty());
    assert!(lost.elapsed() < Duration::from_secs(30), "{:?}", lost.elapsed());
    // Unsent data of the sshd for the lost launcher.
    field.lab.sshd("b").unwrap().kill_sessions().unwrap();
}

/// The silence is longer than the default node timeout. What is printed meanwhile comes behind it.
#[test]
fn a_host_may_be_silent_for_as_long_as_was_said() {
    let field = Field::new();
    let _restore = Undo(|| field.lab.heal("b"));
    let lines = "echo up; for line in $(seq 60); do echo line $line; sleep 0.4; done";
    let run = field.rlaunch(JOB).args(["--node-timeout", "40"]).sh(lines);
    // TCP tries again ever more rarely while b is cut off.
    let mut running = run.within(Duration::from_secs(120)).spawn();
    running.wait_for_lines(3);
    let cut = Stopwatch::start();
    field.lab.cut("b", Cut::Silent).unwrap();
    field.wait_for("a long silence", || cut.total_elapsed() > Duration::from_secs(20));
    field.lab.heal("b").unwrap();
    let ran = running.finish();
    assert_eq!(ran.succeeded().out().matches("line ").count(), 3 * 60, "{ran}");
}

/// Like a virtual machine that is migrated: time in which a process was stopped does not count as
/// silence of its peers.
#[test]
fn who_stands_still_for_a_while_has_lost_nobody() {
    let field = Field::new();
    let run = field.rlaunch("-H a,b").sh("echo up; sleep 14; echo done");
    let mut running = run.within(Duration::from_secs(120)).spawn();
    running.wait_for_lines(2);
    let agents = ["a", "b"].map(|host| agents(&field, host).1);
    let everybody = [agents[0], agents[1], running.pid()];
    let stopped = Stopwatch::start();
    everybody.iter().for_each(|pid| kill(*pid, Signal::SIGSTOP).unwrap());
    field.wait_for("a long pause", || stopped.total_elapsed() > Duration::from_secs(8));
    for pid in everybody {
        kill(pid, Signal::SIGCONT).unwrap();
        // Each of them runs alone for a moment.
        field.wait_for("it to go on", || state(pid) != 'T');
    }
    let ran = running.finish();
    assert_eq!(ran.succeeded().out().matches("done\n").count(), 2, "{ran}");
}

/// rlaunch, agent and guardian are killed at once. No process of the job can clean up, but a second
/// rlaunch can.
#[test]
fn what_nobody_could_end_is_reaped_by_hand() {
    let field = Field::new();
    let script = WITH_HELPER.replace("echo up", "echo $RLAUNCH_JOB_ID");
    let mut running = field.rlaunch("-H b").sh(&script).spawn();
    running.wait_for_lines(1);
    running.signal(Signal::SIGSTOP);
    kill_both(&field, "b");
    running.signal(Signal::SIGKILL);
    let ran = running.finish_first();
    assert!(!field.ranks().is_empty(), "nothing was left to reap");
    let other = "0".repeat(32);
    let reap = |job: &str| {
        let ran = field.rlaunch("reap").args([job, "-H", "a,b"]).spawn().finish_first();
        ran.succeeded();
        assert_eq!(ran.out().lines().count(), 2, "{ran}");
    };
    reap(&other);
    assert!(!field.ranks().is_empty(), "another job's processes were reaped");
    // The beginning of the id is enough.
    reap(&ran.out().trim()[..16]);
    assert!(field.ranks().is_empty(), "{:#?}", field.ranks());
    reap(ran.out().trim());
    field.clear_job_directories();
}
