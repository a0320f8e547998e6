//! Jobs from another terminal than their own, and after their end: `rlaunch stop`, `wait`, `jobs -a`, `rerun`.

use crate::running::{Outcome, Running};
use crate::support::{Field, State, launch_directory, state as stat};
use nix::sys::signal::Signal;
use rlaunch_lab::Account;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::thread::sleep;
use std::time::Duration;

/// Number of digits of an id that tables show.
const SHORT: usize = 13;

fn start<'a>(field: &'a Field, state: &State, words: &str) -> Running<'a> {
    field.rlaunch(words).env("XDG_STATE_HOME", state.path()).spawn()
}

/// Runs a verb while jobs go on, whatever its exit code.
fn run(field: &Field, state: &State, words: &str) -> Outcome {
    start(field, state, words).finish_first()
}

/// Returns the id of the only running job.
fn id(field: &Field, state: &State) -> String {
    let [job] = &state.list(field, "jobs")[..] else { panic!("not one job") };
    job["job"].as_str().unwrap().to_owned()
}

#[test]
fn a_job_is_stopped_and_waited_for() {
    let (field, state) = (Field::new(), State::new());
    let running = state.job(&field);
    let id = id(&field, &state);
    let short = &id[..SHORT];
    let name = state.list(&field, "jobs")[0]["name"].as_str().unwrap().to_owned();
    let waiting = start(&field, &state, &format!("wait {short}"));
    let stopped = state.ask(&field, "stop");
    assert_eq!(stopped.out(), format!("{name} ended: code 143\n"), "{stopped}");
    running.finish().ended_with(143);
    let waited = waiting.finish_first();
    waited.ended_with(143).says(&[&format!("job {name} ended with code 143: ")]);

    run(&field, &state, "wait last").ended_with(143);
    let again = state.ask(&field, &format!("stop {short}"));
    assert_eq!(again.out(), format!("{name} had already ended: code 143\n"), "{again}");
    for verb in ["stop", "wait"] {
        run(&field, &state, verb).refused(200, &["no job of yours runs from this machine"]);
    }
    start(&field, &state, "-H a true").finish().succeeded();
    state.ask(&field, "wait last").says_nothing();
}

#[test]
fn jobs_that_have_ended_are_listed_beside_those_that_run() {
    let (field, state) = (Field::new(), State::new());
    let failing = field.rlaunch("-H a").env("XDG_STATE_HOME", state.path());
    failing.sh("exit 7").run().ended_with(7);
    let running = state.job(&field);
    let listed = state.ask(&field, "jobs -a");
    let out = listed.out();
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines.len(), 3, "{listed}");
    assert!(
        lines[1].contains("  7  ") && lines[1].trim_end().ends_with("sh -c exit 7"),
        "{listed}"
    );
    assert!(lines[2].contains("  running  ") && lines[2].contains("  a,b  "), "{listed}");
    let last = state.ask(&field, "jobs -a -n 1 --json");
    let jobs: Vec<Value> = serde_json::from_slice(&last.stdout).unwrap();
    assert_eq!((&jobs[0]["state"], &jobs[0]["exit_code"]), (&"running".into(), &Value::Null));
    assert_eq!(jobs.len(), 1, "{last}");
    state.ask(&field, "stop");
    running.finish().ended_with(143);
}

#[test]
fn a_job_that_rlaunch_starts_itself_is_not_the_last_one() {
    let (field, state) = (Field::new(), State::new());
    start(&field, &state, "-H a echo mine").finish().succeeded();
    run(&field, &state, "bench -H a,b").succeeded();
    for words in ["logs", "logs last"] {
        assert_eq!(state.ask(&field, words).out(), "mine\n");
    }
    let own = state.ask(&field, "logs rlaunch-bench");
    assert!(own.out().contains("\"matrix\""), "{own}");
    let listed = state.ask(&field, "jobs -a");
    let out = listed.out();
    let last = out.lines().last().unwrap_or_default().trim_end();
    assert!(last.starts_with("rlaunch-bench  ") && last.ends_with("  rlaunch bench"), "{listed}");
    let taken = run(&field, &state, "--job-name rlaunch-bench -H a true");
    taken.ended_with(200).says(&["another name: rlaunch-… are jobs that rlaunch starts itself"]);
}

#[test]
fn the_job_to_stop_is_named_where_several_run() {
    let (field, state) = (Field::new(), State::new());
    let jobs = [state.job(&field), state.job(&field)];
    for verb in ["stop", "wait"] {
        let refused = run(&field, &state, verb);
        refused.refused(200, &["2 jobs of yours run from this machine: "]);
    }
    for job in state.list(&field, "jobs") {
        state.ask(&field, &format!("stop {}", job["job"].as_str().unwrap()));
    }
    for job in jobs {
        job.finish_first().ended_with(143);
    }
}

#[test]
fn whoever_waits_is_told_of_a_launcher_that_was_killed() {
    let (field, state) = (Field::new(), State::new());
    let running = state.job(&field);
    let id = id(&field, &state);
    let mut waiting = start(&field, &state, &format!("wait {id}"));
    sleep(Duration::from_millis(500));
    assert!(!waiting.has_ended());
    running.signal(Signal::SIGKILL);
    drop(running.finish_first());
    let sentence = "ended with code 137: the launcher was killed before the job was over";
    waiting.finish_first().ended_with(137).says(&[sentence]);
    field.wait_for("the ranks to end", || field.started().is_empty());
}

#[test]
fn a_job_that_starts_again_is_waited_for_to_its_last_end() {
    let (field, state) = (Field::new(), State::new());
    let job = field.rlaunch("-H a --max-restarts 1").env("XDG_STATE_HOME", state.path());
    let mut running = job.sh("echo up; sleep 2; exit $((3 + RLAUNCH_RESTART_COUNT))").spawn();
    running.wait_for_text("up\n", 1);
    let first = id(&field, &state);
    let waiting = start(&field, &state, &format!("wait {first}"));
    running.finish().ended_with(4);
    waiting.finish_first().ended_with(4);
    let late = run(&field, &state, &format!("wait {first}"));
    late.ended_with(4);
}

#[test]
fn a_job_that_was_suspended_is_stopped_too() {
    let (field, state) = (Field::new(), State::new());
    let running = state.job(&field);
    running.signal(Signal::SIGTSTP);
    field.wait_for("the launcher to stop", || stat(running.pid()) == 'T');
    let stopped = state.ask(&field, "stop");
    assert!(stopped.out().ends_with(" ended: code 143\n"), "{stopped}");
    running.finish().ended_with(143);
}

#[test]
fn a_launcher_that_does_not_end_its_job_is_killed() {
    let (field, state) = (Field::new(), State::new());
    let running = state.job(&field);
    running.signal(Signal::SIGSTOP);
    let stopped = state.ask(&field, "stop --force");
    let out = stopped.out();
    let hosts: Vec<&str> = out.lines().filter_map(|line| Some(line.split_once(": ")?.0)).collect();
    assert_eq!(hosts, ["a", "b"], "{stopped}");
    running.finish_first().ended_with(-9);
    assert!(field.ranks().is_empty(), "{:#?}", field.ranks());
    field.clear_job_directories();
}

#[test]
fn a_job_runs_again_where_it_ran() {
    let (field, state) = (Field::new(), State::new());
    let directory = launch_directory();
    let first = |words: &str| {
        let run = field.rlaunch(words).env("XDG_STATE_HOME", state.path());
        run.in_directory(directory.path())
    };
    let ran = first("-np 2").sh("pwd").run();
    let path = directory.path().to_str().unwrap().to_owned();
    assert_eq!(ran.succeeded().out(), format!("{path}\n{path}\n"), "{ran}");
    let again = start(&field, &state, "rerun").finish();
    assert_eq!(again.succeeded().out(), ran.out(), "{again}");
    again.says(&[&format!("cd {path} && rlaunch -np 2 sh -c pwd")]);
    first("-np 1 -x HF_TOKEN=hunter2 true").run().succeeded();
    let secret = run(&field, &state, "rerun");
    secret.refused(203, &["keeps no secrets, here HF_TOKEN=(set, 7 chars)"]);
    secret.hints("rlaunch -np 1 -x");
    first("-np 1 true").run().succeeded();
    drop(directory);
    run(&field, &state, "rerun").refused(203, &[&format!("its directory {path} is gone")]);
}

#[test]
fn a_command_is_told_how_a_job_ended() {
    let (field, directory) = (Field::new(), launch_directory());
    let file = directory.path().join("told");
    let notify = format!("echo $RLAUNCH_EXIT_CODE $RLAUNCH_MESSAGE > {}", file.display());
    let job = |words: &str| field.rlaunch(words).args(["--notify", &notify]);
    let told = || {
        let text = fs::read_to_string(&file).unwrap_or_default();
        let _ = fs::remove_file(&file);
        text
    };
    job("--dry-run -H a").sh("true").run().succeeded();
    assert_eq!(told(), "");
    job("-H a,b").sh("true").run().succeeded();
    assert_eq!(told(), "0\n");
    // Told once, of the last attempt.
    job("-H a --max-restarts 1").sh("exit $((3 + RLAUNCH_RESTART_COUNT))").run().ended_with(4);
    let text = told();
    assert!(text.starts_with("4 rank 0 on a ") && text.lines().count() == 1, "{text}");
    let mut running = job("-H a,b").sh("echo up; exec sleep 1000").spawn();
    running.wait_for_lines(2);
    running.signal(Signal::SIGTERM);
    running.finish().ended_with(143);
    assert!(told().starts_with("143 "));
    let failing = field.rlaunch("-H a --notify").args(["exit 5", "true"]).run();
    failing.succeeded().says(&["warning: the command of --notify exited with code 5"]);
}

#[test]
fn a_command_can_ask_for_the_error_of_a_job_without_a_terminal() {
    let (field, state, directory) = (Field::new(), State::new(), launch_directory());
    let file = directory.path().join("told");
    let notify = format!(
        "{} logs $RLAUNCH_JOB >{}.new 2>&1; mv {1}.new {1}",
        field.rlaunch.display(),
        file.display()
    );
    let job = field.rlaunch("-d -H a --notify").args([&notify, "sh", "-c", "echo up; exit 7"]);
    job.env("XDG_STATE_HOME", state.path()).spawn().finish_first().succeeded();
    field.wait_for("the command", || file.exists());
    let told = fs::read_to_string(&file).unwrap();
    assert!(told.contains("up\n"), "{told}");
    assert_eq!(told.matches("exited with code 7").count(), 1, "{told}");
    run(&field, &state, "wait last").ended_with(7);
    let logs = state.ask(&field, "logs last");
    assert_eq!(logs.err().matches("exited with code 7").count(), 1, "{logs}");
}

#[test]
fn a_name_that_a_running_job_has_is_refused() {
    let (field, state) = (Field::new(), State::new());
    let job = |words: &str| start(&field, &state, &format!("--job-name night -H a {words}"));
    job("true").finish().succeeded();
    let run = field.rlaunch("--job-name night -H a").env("XDG_STATE_HOME", state.path());
    let mut running = run.sh("echo up; exec sleep 1000").spawn();
    running.wait_for_text("up\n", 1);
    let id = id(&field, &state);
    let taken = job("true").finish_first();
    taken.refused(200, &[&format!("--job-name night: job {id} of yours has that name and runs")]);
    taken.hints("rlaunch stop night");
    start(&field, &state, "--job-name night --dry-run -H a true").finish_first().succeeded();
    assert!(!running.has_ended());
    running.signal(Signal::SIGTERM);
    running.finish().ended_with(143);
    job("true").finish().succeeded();
}

#[test]
fn of_jobs_that_start_at_once_one_has_the_name() {
    let (field, state) = (Field::new(), State::new());
    let job = || {
        let run = field.rlaunch("--job-name night -H a").env("XDG_STATE_HOME", state.path());
        run.sh("echo up; exec sleep 1000").spawn()
    };
    let mut jobs: Vec<Running<'_>> = (0..4).map(|_| job()).collect();
    field.wait_for("all but one to end", || {
        jobs.iter_mut().filter_map(|job| (!job.has_ended()).then_some(())).count() == 1
    });
    let at = jobs.iter_mut().position(|job| !job.has_ended()).unwrap();
    let mut running = jobs.swap_remove(at);
    running.wait_for_text("up\n", 1);
    let id = id(&field, &state);
    for taken in jobs {
        let taken = taken.finish_first();
        taken.refused(200, &[&format!("job {id} of yours has that name and runs")]);
    }
    running.signal(Signal::SIGTERM);
    running.finish().ended_with(143);
}

/// The directory of jobs is closed to others; these are the checks behind its door.
#[test]
fn another_user_neither_stops_nor_waits_for_a_job() {
    let (field, state) = (Field::new(), State::new());
    let running = state.job(&field);
    let id = id(&field, &state);
    let jobs = format!("{}/rlaunch/jobs", state.path());
    for path in [state.path(), &format!("{}/rlaunch", state.path()), &jobs] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    for socket in state.sockets() {
        fs::set_permissions(socket.path(), fs::Permissions::from_mode(0o777)).unwrap();
    }
    for verb in ["stop", "stop --force", "wait", "logs", "rerun"] {
        let run = field.rlaunch(verb).args([&id]).account(Account::User);
        let refused = run.env("XDG_STATE_HOME", state.path()).spawn().finish_first();
        assert_ne!(refused.code, 0, "{verb}: {refused}");
    }
    assert_eq!(state.list(&field, "jobs")[0]["phase"], "running");
    state.ask(&field, &format!("stop {id}"));
    running.finish().ended_with(143);
}

/// Words of other tools that hosts have as programs, which know neither jobs nor hosts.
#[test]
fn a_habit_runs_nowhere_if_a_verb_is_meant() {
    let (field, state) = (Field::new(), State::new());
    let rlaunch = |words: &str| {
        let run = field.rlaunch(words).env("XDG_STATE_HOME", state.path());
        run.env("RLAUNCH_HOSTS", "a,b").run()
    };
    rlaunch("--job-name night -np 1 true").succeeded();
    let ran = rlaunch("kill night");
    ran.refused(200, &["nothing was run: `kill` would run as a program, and night is a job"]);
    ran.hints("rlaunch stop night").hints("rlaunch -- kill night");
    let ran = rlaunch("cp no-such.py a:/tmp");
    ran.refused(200, &["nothing was run: `cp` would run as a program"]);
    ran.hints("rlaunch push -H a no-such.py:/tmp");
    // Without a job of that name it is a program.
    let ran = rlaunch("kill -0 nights");
    assert!(!ran.err().contains("nothing was run"), "{ran}");
}

/// Of several jobs, one whose launcher is stopped may be the one that is meant.
#[test]
fn a_job_that_cannot_be_asked_is_not_passed_over() {
    let (field, state) = (Field::new(), State::new());
    let rlaunch = |words: &str| field.rlaunch(words).env("XDG_STATE_HOME", state.path());
    // Nor is an ended one of the same name meant.
    rlaunch("--job-name fg -np 1 true").spawn().finish_first().succeeded();
    let asked = state.job(&field);
    let mut stopped = rlaunch("--job-name fg -H b").sh("echo up; sleep 60").spawn();
    stopped.wait_for_text("up\n", 1);
    stopped.signal(Signal::SIGSTOP);
    for verb in ["stop", "wait"] {
        run(&field, &state, verb).refused(200, &["2 jobs of yours run from this machine", "fg"]);
    }
    run(&field, &state, "wait fg")
        .refused(200, &["job fg does not answer, its launcher is stopped"]);
    let phase = |name: &str| {
        let jobs = state.list(&field, "jobs");
        jobs.iter().find(|job| job["name"] == name).unwrap_or_else(|| panic!("{jobs:?}"))["phase"]
            .clone()
    };
    assert_eq!(phase("fg"), "stopped");
    let listed = state.ask(&field, "jobs");
    assert!(
        listed.out().lines().any(|line| line.starts_with("fg ") && line.contains(" stopped ")),
        "{listed}"
    );
    listed.hints("kill -CONT");
    state.ask(&field, "stop fg");
    stopped.finish_first().ended_with(143);
    state.ask(&field, "stop");
    asked.finish().ended_with(143);
}
