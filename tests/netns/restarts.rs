//! `--max-restarts`: a job that fails starts again, and continues from what its ranks have saved.

use crate::running::Outcome;
use crate::support::{Field, launch_directory};
use crate::training::{ONE_THREAD, PATIENCE, TRAIN, project};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rlaunch_lab::{Process, python};
use serde_json::Value;
use std::fs;
use std::time::Duration;

/// Script that prints what a rank knows about its attempt. Rank 1 fails in the first attempt, while
/// the other ranks wait.
const ONCE: &str = r#"
    [ $RANK$RLAUNCH_RESTART_COUNT = 00 ] && exec sleep 1000
    [ $RANK$RLAUNCH_RESTART_COUNT = 20 ] && exec sleep 1000
    echo $RANK $TORCHELASTIC_RESTART_COUNT/$TORCHELASTIC_MAX_RESTARTS $MASTER_PORT $RLAUNCH_JOB_ID
    [ $RLAUNCH_RESTART_COUNT = 1 ] || exit 7"#;

#[test]
fn all_ranks_begin_again_as_another_job() {
    let field = Field::new();
    let directory = launch_directory();
    let events = directory.path().join("events");
    let run = field.rlaunch("-H a,b,c --max-restarts 2 --events").args([&events]);
    let ran = run.sh(ONCE).run();
    ran.succeeded().says(&["restart 1 of 2 after: rank 1 on b ", "exited with code 7"]);
    ran.says(&["all processes ended on a, b, c"]).keeps_quiet_about(&["restart 2", "error: "]);
    let out = ran.out();
    let lines: Vec<Vec<&str>> = out.lines().map(|line| line.split(' ').collect()).collect();
    let [first, again @ ..] = &lines[..] else { panic!("{ran}") };
    assert_eq!(first[..2], ["1", "0/2"], "{ran}");
    assert_eq!(again.len(), 3, "{ran}");
    let mut ranks: Vec<&str> = again.iter().map(|line| line[0]).collect();
    ranks.sort_unstable();
    assert_eq!(ranks, ["0", "1", "2"], "{ran}");
    for line in again {
        assert_eq!((line[1], line[2..].to_vec()), ("1/2", again[0][2..].to_vec()), "{ran}");
    }
    assert_ne!(first[2], again[0][2], "the same MASTER_PORT: {ran}");
    assert_ne!(first[3], again[0][3], "the same job: {ran}");

    let text = fs::read_to_string(&events).unwrap();
    let records: Vec<Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let named = |event: &str| -> Vec<&Value> {
        records.iter().filter(|record| record["event"] == event).collect()
    };
    let [restarted] = named("job_restarted")[..] else { panic!("{text}") };
    assert_eq!((&restarted["number"], &restarted["most"]), (&1.into(), &2.into()), "{text}");
    assert_eq!((&restarted["former"], &restarted["job"]), (&first[3].into(), &again[0][3].into()));
    let codes: Vec<&Value> = named("job_ended").iter().map(|record| &record["exit_code"]).collect();
    assert_eq!(codes, [7, 0], "{text}");
}

#[test]
fn the_last_attempt_decides() {
    let field = Field::new();
    let script = "exit $((7 + TORCHELASTIC_RESTART_COUNT))";
    let ran = field.rlaunch("-H a --max-restarts 1").sh(script).run();
    ran.refused(8, &["restart 1 of 1 after: ", "exited with code 8", "restarts: 1 of 1"]);
    // The count of another launcher is not passed on.
    let run = field.rlaunch("-H a").env("TORCHELASTIC_RESTART_COUNT", "5");
    let ran = run
        .sh("echo ${TORCHELASTIC_RESTART_COUNT-none} ${RLAUNCH_RESTART_COUNT-none}; exit 7")
        .run();
    assert_eq!(ran.ended_with(7).out(), "0 none\n", "{ran}");
    ran.keeps_quiet_about(&["restart"]);
}

#[test]
fn a_job_that_its_user_ends_stays_ended() {
    let field = Field::new();
    let mut running = field.rlaunch("-H a,b --max-restarts 3").sh("echo up; sleep 1000").spawn();
    running.wait_for_text("up\n", 2);
    running.signal(Signal::SIGINT);
    running.finish().ended_with(130).keeps_quiet_about(&["restart"]);
    // The user interrupts while the other ranks of a failed attempt take their time to end.
    let script = "if [ $RANK = 1 ]; then
            while [ ! -e /tmp/go ]; do sleep 0.05; done; rm /tmp/go; exit 7
        fi
        trap 'echo told' TERM; echo up; while :; do sleep 0.1; done";
    let mut running = field.rlaunch("-H a,b --max-restarts 3 --kill-after 60").sh(script).spawn();
    running.wait_for_text("up\n", 1);
    field.lab.write_file("b", "/tmp/go".as_ref(), b"", 0o644).unwrap();
    running.wait_for_text("told\n", 1);
    running.signal(Signal::SIGINT);
    running.finish().ended_with(7).keeps_quiet_about(&["restart"]);
    let ran = field.rlaunch("-H a,b --max-restarts 3 --timeout 1.5").sh("exec sleep 1000").run();
    ran.ended_with(124).keeps_quiet_about(&["restart"]);
    let ran = field.rlaunch("-H a,b --max-restarts 3 no-such-program").run();
    ran.refused(127, &["no-such-program"]).keeps_quiet_about(&["restart 1 of 3", "restarts: "]);
}

/// Kills the processes on a host for which `is_it` returns true.
fn kill_on(field: &Field, host: &str, is_it: impl Fn(&Process) -> bool) {
    let found = field.lab.processes(host).unwrap();
    let found: Vec<&Process> = found.iter().filter(|process| is_it(process)).collect();
    assert!(!found.is_empty(), "nothing to kill on {host}");
    for process in found {
        kill(Pid::from_raw(process.pid), Signal::SIGKILL).unwrap();
    }
}

#[test]
fn a_job_that_has_lost_a_node_begins_again() {
    let field = Field::new();
    let script = "echo up $RLAUNCH_RESTART_COUNT; [ $RLAUNCH_RESTART_COUNT = 1 ] || sleep 1000";
    let run = field.rlaunch("-H a,b --kill-after 1 --max-restarts 1").sh(script);
    let mut running = run.spawn();
    running.wait_for_text("up 0\n", 2);
    let agents = field.lab.processes("b").unwrap();
    let is_agent = |process: &Process| process.args[0].ends_with("rlaunch-worker");
    // The guardian ends the processes that the agent leaves.
    let is_guarded = |process: &Process| {
        is_agent(process)
            && agents.iter().any(|other| is_agent(other) && other.pid == process.parent)
    };
    kill_on(&field, "b", is_guarded);
    let ran = running.finish();
    ran.succeeded().says(&["restart 1 of 1 after: node b is lost"]);
    assert_eq!(ran.out().matches("up 1\n").count(), 2, "{ran}");
}

/// Runs a script twice on `hosts`: once undisturbed, and once killing its rank on b as soon as a rank has
/// printed `step`. Returns both outcomes, the disturbed one last.
fn killed_in_the_middle(
    field: &Field,
    files: &[(&str, &str)],
    (hosts, script): (&str, &str),
    step: &str,
    bound: Duration,
) -> [Outcome; 2] {
    let (directory, preload) = project(files);
    let _kept = field.scratch(&["a"], "/tmp/kept");
    field.on("a", "mkdir /tmp/kept");
    let start = |options: &str, words: &str| {
        let line = format!("-H {hosts} {ONE_THREAD}{preload}{options} {script}{words}");
        let run = field.rlaunch(&line);
        run.in_directory(directory.path()).within(bound).spawn()
    };
    let whole = start("", "").finish();
    let mut running = start(" --max-restarts 1", " --checkpoint /tmp/kept/state");
    running.wait_for_text(step, 1);
    kill_on(field, "b", |process| process.args.iter().any(|arg| arg.ends_with("train.py")));
    let killed = running.finish();
    killed.succeeded().says(&["restart 1 of 1 after: ", "was killed by signal 9 (SIGKILL)"]);
    assert!(killed.out().contains("going on after step "), "{killed}");
    [whole, killed]
}

/// Returns the last line that begins with `beginning`.
fn last<'a>(out: &'a str, beginning: &str) -> Option<&'a str> {
    out.lines().rfind(|line| line.starts_with(beginning))
}

#[test]
fn a_rank_killed_in_the_middle_costs_nothing_but_time() {
    let field = Field::new();
    let files = [("train.py", include_str!("../../examples/train/train.py"))];
    let job = ("a,b,c", "python3 train.py --steps 400");
    let [whole, killed] =
        killed_in_the_middle(&field, &files, job, "step 20 loss", Duration::from_secs(60));
    let (whole_out, killed_out) = (whole.succeeded().out(), killed.out());
    // The loss depends on all weights.
    let end = last(&whole_out, "final loss ");
    assert!(end.is_some() && end == last(&killed_out, "final loss "), "{whole}\n{killed}");
}

#[test]
fn torch_killed_in_the_middle_ends_at_the_loss_of_an_undisturbed_run() {
    let field = Field::new();
    let steps = "--steps 12 --loss-every 2 --save-every 2 --batch-size 4 --dtype float64";
    let script = format!("{} train.py --backend rlaunch {steps}", python::PROGRAM);
    let job = ("a,b", script.as_str());
    let [whole, killed] = killed_in_the_middle(&field, &TRAIN, job, "step 2 loss", PATIENCE);
    let (whole_out, killed_out) = (whole.succeeded().out(), killed.out());
    let end = last(&whole_out, "step 12 loss ");
    assert!(end.is_some() && end == last(&killed_out, "step 12 loss "), "{whole}\n{killed}");
}
