//! Nodes, agents and connections that are lost.

use super::{
    EIGHT, EIGHT_BY_DEFAULT, HELPER, HOSTS, MEEK, PROMPT, SHELL, SOON, as_each, nothing_left,
    started_on, up,
};
use crate::support::{Field, Undo, kill_at_once};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rlaunch_lab::command::wait_until;
use rlaunch_lab::{Cut, LabError, Process, Stopwatch};
use std::time::Duration;

/// Time limit for the node timeout, the ranks' grace period, and ending everything after that.
const BEATS: Duration = Duration::from_secs(30);

/// Returns the guardian on `host`, and its child, the agent.
pub(super) fn agents(field: &Field, host: &str) -> [Pid; 2] {
    let mut found = started_on(field, host);
    found.retain(|process| process.args[0].ends_with("rlaunch-worker"));
    let is_child = |process: &&Process| found.iter().any(|other| other.pid == process.parent);
    let agent = found.iter().find(is_child).unwrap();
    [Pid::from_raw(agent.parent), Pid::from_raw(agent.pid)]
}

/// Reconnects a host. Its sshd is killed first, since it would keep trying to send to rlaunch for
/// minutes.
fn restore(field: &Field, host: &str) -> Result<(), LabError> {
    field.lab.sshd(host)?.kill_sessions()?;
    field.lab.heal(host)
}

/// Neither side can tell the other, so each must notice by itself, in the same time.
fn cut(kind: Cut) {
    as_each(|field, account| {
        let run = field.rlaunch("--kill-after 1").args(EIGHT_BY_DEFAULT.split(' '));
        let mut running = up(run.account(account), &format!("{HELPER} {MEEK}"));
        let heal = Undo(|| restore(field, "c"));
        let lost = Stopwatch::start();
        field.lab.cut("c", kind).unwrap();
        let both = wait_until(BEATS, "both sides to end", || {
            Ok(running.has_ended() && started_on(field, "c").is_empty())
        });
        let took = lost.elapsed();
        let ran = running.finish_first();
        assert!(both.is_ok(), "after {took:?} on c: {:#?}\n{ran}", started_on(field, "c"));
        ran.ended_with(206).says(&["error: node c is lost: ", "all processes ended on a, b, d"]);
        ran.says(&["c: lost; its ranks end there by themselves, which was not verified"]);
        ran.says(&[" -H c` ends what may be left there"]);
        drop(heal);
        nothing_left(field, SOON, &ran);
    });
}

#[test]
fn a_cable_is_pulled() {
    cut(Cut::Carrier);
}

#[test]
fn a_host_falls_silent() {
    cut(Cut::Silent);
}

/// The guardian of the killed agent ends the ranks and the processes that they have started.
#[test]
fn an_agent_is_killed() {
    as_each(|field, account| {
        for script in [SHELL.to_owned(), format!("{HELPER} {MEEK}")] {
            let run = field.rlaunch("--kill-after 1").args(EIGHT.split(' ')).account(account);
            let running = up(run, &script);
            let [_, agent] = agents(field, "c");
            let killed = Stopwatch::start();
            kill(agent, Signal::SIGKILL).unwrap();
            let ran = super::ends(field, running, killed, Duration::from_secs(1) + PROMPT);
            ran.ended_with(206).says(&["error: node c is lost: "]);
            ran.says(&["c: agent lost, nothing more found"]);
        }
    });
}

/// On c the guardian gives ranks and their children the grace period. On b, where the guardian is
/// killed too, the launcher does so over a second channel. Only guardians read output then: more than a pipe holds.
#[test]
fn ranks_of_an_agent_that_is_killed_save_their_work() {
    const SAVED: &str = "/tmp/teardown/saved";
    as_each(|field, account| {
        let works = format!(
            "trap 'sleep 0.3; head -c 200000 /dev/zero && echo saved >>{SAVED}; exit 0' TERM
            echo up; [ $RANK = 1 ] || exec >/dev/null 2>&1; while :; do sleep 0.1; done"
        );
        let script = format!("sh -c \"{works}\" & {works}");
        // Written by root, in root's directory; every account may write to it.
        let _files = field.files(&["b", "c"], SAVED, "", 0o666);
        let running = field.rlaunch("-H b,c -np 2").account(account).sh(&script);
        let mut running = running.spawn();
        running.wait_for_text("up\n", 4);
        kill_at_once(&[agents(field, "b").as_slice(), &agents(field, "c")[1..]].concat());
        let ran = running.finish_first();
        ran.ended_with(206).says(&["agent lost, nothing more found"]);
        for host in ["b", "c"] {
            let saved = field.on(host, &format!("cat {SAVED}"));
            assert_eq!(saved, "saved\n".repeat(2), "on {host}: {ran}");
        }
    });
}

/// No process of rlaunch on the host is left to clean up, so the launcher does it over a second
/// channel.
#[test]
fn agent_and_guardian_are_killed() {
    as_each(|field, account| {
        for script in [SHELL.to_owned(), format!("{HELPER} {MEEK}")] {
            let run = field.rlaunch("--kill-after 1").args(EIGHT.split(' ')).account(account);
            let running = up(run, &script);
            let killed = Stopwatch::start();
            kill_at_once(&agents(field, "c"));
            let ran = super::ends(field, running, killed, Duration::from_secs(1) + PROMPT);
            ran.ended_with(206).says(&["error: node c is lost: "]);
            ran.says(&["c: agent lost, nothing more found"]);
        }
    });
}

#[test]
fn an_ssh_session_is_killed() {
    as_each(|field, account| {
        let running = up(field.rlaunch(EIGHT).account(account), SHELL);
        let killed = Stopwatch::start();
        field.lab.sshd("c").unwrap().kill_sessions().unwrap();
        let ran = running.finish_first();
        assert!(killed.elapsed() < PROMPT, "{ran}");
        ran.ended_with(206).says(&["error: node c is lost: "]);
        nothing_left(field, SOON, &ran);
    });
}

#[test]
fn every_agent_is_killed() {
    as_each(|field, account| {
        let running = up(field.rlaunch(EIGHT).account(account), SHELL);
        let killed = Stopwatch::start();
        kill_at_once(&HOSTS.map(|host| agents(field, host)[1]));
        let ran = super::ends(field, running, killed, PROMPT);
        ran.ended_with(206).says(&["error: node ", " is lost: "]);
    });
}
