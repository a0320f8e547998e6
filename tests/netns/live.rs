//! Running jobs as other rlaunch processes see them: `rlaunch jobs`.

use crate::running::Running;
use crate::support::{Field, State};
use crate::terminal::Terminal;
use nix::sys::signal::Signal;
use rlaunch_lab::Account;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;

impl State {
    /// Starts a job of three ranks on two hosts, and waits until all have printed a line.
    pub(crate) fn job<'a>(&self, field: &'a Field) -> Running<'a> {
        let run = self.rlaunch(field, "-H a:2,b");
        let mut running = run.sh("echo up; exec sleep 1000").spawn();
        running.wait_for_text("up\n", 3);
        running
    }

    /// Lists the sockets.
    pub(crate) fn sockets(&self) -> Vec<fs::DirEntry> {
        let entries = fs::read_dir(self.jobs()).unwrap().flatten();
        entries.filter(|entry| entry.path().extension().is_some_and(|e| e == "sock")).collect()
    }
}

#[test]
fn a_running_job_is_listed() {
    let (field, state) = (Field::new(), State::new());
    let running = state.job(&field);
    let [socket] = &state.sockets()[..] else { panic!("{:?}", state.sockets()) };
    assert_eq!(socket.metadata().unwrap().permissions().mode() & 0o777, 0o600);

    let [job] = &state.list(&field, "jobs")[..] else { panic!() };
    assert_eq!((&job["phase"], &job["ranks"]), (&"running".into(), &3.into()), "{job}");
    assert_eq!((&job["ranks_started"], &job["ranks_ended"]), (&3.into(), &0.into()), "{job}");
    assert_eq!(job["hosts"][1], serde_json::json!({ "host": "b", "ranks": [2] }), "{job}");
    assert!(job["resident_bytes"].as_u64().unwrap() > 100_000, "{job}");
    assert!(job["last_output"]["seconds_ago"].as_f64().unwrap() < 600.0, "{job}");

    let listed = state.ask(&field, "jobs");
    for text in ["JOB", "running", "3/3", "sh -c echo up"] {
        assert!(listed.out().contains(text), "{listed}");
    }
    // Hosts of an rlaunch.toml or of a variable are those of jobs.
    let beside = state.rlaunch(&field, "jobs").env("RLAUNCH_HOSTS", "a,b").spawn().finish_first();
    assert!(beside.out().contains("sh -c echo up"), "{beside}");
    assert_eq!(beside.out().lines().count(), 2, "{beside}");

    running.signal(Signal::SIGTERM);
    running.finish().ended_with(143);
    assert!(state.list(&field, "jobs").is_empty() && state.sockets().is_empty());
}

#[test]
fn a_job_of_another_user_is_not_answered() {
    let (field, state) = (Field::new(), State::new());
    let running = state.job(&field);
    // Root's directory is closed to others, so the socket's own check is reached by opening it.
    let jobs = Path::new(state.path()).join("rlaunch");
    for path in [&jobs, &jobs.join("jobs")] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let [socket] = &state.sockets()[..] else { panic!("{:?}", state.sockets()) };
    fs::set_permissions(socket.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let script = format!(
        "import socket\ns = socket.socket(socket.AF_UNIX)\ns.connect('{}')\n\
         s.settimeout(20)\nprint('received', len(s.recv(100)))\n",
        socket.path().display()
    );
    let read = |account| {
        let mut command = field.lab.exec_in(account, "/tmp".as_ref());
        let output = command.args(["/usr/bin/python3", "-c", &script]).output().unwrap();
        format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        )
    };
    let root = read(Account::Root);
    assert!(root.contains("received ") && !root.contains("received 0"), "{root}");
    let other = read(Account::User);
    assert!(other.contains("received 0") || other.contains("ConnectionReset"), "{other}");
    running.signal(Signal::SIGTERM);
    running.finish().ended_with(143);
}

#[test]
fn a_launcher_that_was_killed_is_not_listed() {
    let (field, state) = (Field::new(), State::new());
    let running = state.job(&field);
    running.signal(Signal::SIGKILL);
    drop(running.finish_first());
    field.wait_for("the ranks to end", || field.started().is_empty());
    assert_eq!(state.sockets().len(), 1);
    assert!(state.list(&field, "jobs").is_empty() && state.sockets().is_empty());
}

#[test]
fn jobs_of_hosts() {
    let (field, state) = (Field::new(), State::new());
    let running = state.job(&field);
    let listed = state.ask(&field, "jobs -H a,b,c --json");
    let rows: Vec<Value> = serde_json::from_slice(&listed.stdout).unwrap();
    let seen: Vec<_> =
        rows.iter().map(|row| (row["host"].as_str(), row["ranks"].as_u64())).collect();
    assert_eq!(seen, [(Some("a"), Some(2)), (Some("b"), Some(1))], "{listed}");
    assert!(rows.iter().all(|row| row["left_over"] == false), "{listed}");
    assert_eq!(rows[1]["program"], serde_json::json!(["sleep", "1000"]), "{listed}");
    let name = state.list(&field, "jobs")[0]["name"].as_str().unwrap().to_owned();
    let listed = state.ask(&field, "jobs -H a,b");
    assert_eq!(listed.out().matches(&name).count(), 2, "{listed}");
    assert_eq!(listed.out().matches("sh -c echo up").count(), 2, "{listed}");
    running.signal(Signal::SIGTERM);
    running.finish().ended_with(143);
    let listed = state.ask(&field, "jobs -H a,b");
    assert!(listed.out().contains("no job of yours has processes on a,b"), "{listed}");
}

/// What people type first, after other tools: `status`, `logs`, `history`.
#[test]
fn a_job_is_found_by_the_words_of_other_tools() {
    let (field, state) = (Field::new(), State::new());
    let running = state.job(&field);
    let job = state.list(&field, "jobs").remove(0);
    let [id, name] = ["job", "name"].map(|key| job[key].as_str().unwrap().to_owned());
    assert_eq!(name.split('-').count(), 2, "{name}");
    for word in [&id[..13], &name, &name[..name.len() - 1], "last"] {
        assert!(state.ask(&field, &format!("status {word}")).out().contains("running"), "{word}");
    }
    let logs = state.ask(&field, "logs");
    assert_eq!(logs.out(), "up\nup\nup\n", "{logs}");
    assert_eq!(state.ask(&field, &format!("logs {id} --rank 1")).out(), "up\n");
    let mut following = field.rlaunch("logs -f").env("XDG_STATE_HOME", state.path()).spawn();
    following.wait_for_text("up\n", 3);

    running.signal(Signal::SIGTERM);
    running.finish_first().ended_with(143);
    let followed = following.finish();
    assert_eq!(followed.ended_with(0).out(), "up\nup\nup\n", "{followed}");
    followed.says(&["error: ended by SIGTERM"]);
    for words in ["logs", "logs last", &format!("logs {}", &id[..8]), &format!("logs {name}")] {
        let logs = state.ask(&field, words);
        assert_eq!(logs.out(), "up\nup\nup\n", "{words}: {logs}");
        logs.says(&["error: ended by SIGTERM"]);
    }
    let (terminal, end) = Terminal::open();
    let run = field.rlaunch("logs last").env("XDG_STATE_HOME", state.path());
    let mut command = run.env("NO_COLOR", "1").command();
    command.stdin(Stdio::null()).stderr(Stdio::null()).stdout(end);
    assert!(command.spawn().unwrap().wait().unwrap().success());
    drop(command);
    let shown = terminal.finish();
    let mut lines: Vec<&str> = shown.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["0 a | up", "1 a | up", "2 b | up"]);
    let listed = state.ask(&field, "history");
    for text in ["EXIT", &name, &id[..13], "143", "a,b", "sh -c echo up"] {
        assert!(listed.out().contains(text), "{listed}");
    }
    let jobs: Vec<Value> =
        serde_json::from_slice(&state.ask(&field, "history --json").stdout).unwrap();
    assert_eq!((&jobs[0]["job"], &jobs[0]["exit_code"]), (&id.into(), &143.into()), "{jobs:?}");
    assert_eq!(jobs.len(), 1);
}

/// A first word that is nearly a verb starts nothing and leaves no record; a tool's word runs where there is such a program.
#[test]
fn a_mistyped_verb_is_no_job() {
    let (field, state) = (Field::new(), State::new());
    let run = |words: &str| field.rlaunch(words).env("XDG_STATE_HOME", state.path()).run();
    let ran = run("monitr");
    ran.refused(127, &["`monitr` is neither a verb of rlaunch nor a program here"]);
    ran.hints("rlaunch monitor");
    let ran = run("latency -H a,b");
    ran.refused(127, &["`latency` is neither a verb of rlaunch nor a program here"]);
    ran.hints("rlaunch bench -H a,b");
    let none = state.ask(&field, "history --json");
    assert_eq!(none.out().trim(), "[]", "{none}");
    run("ls -d /").succeeded().keeps_quiet_about(&["hint"]);
    let ran = run("sh -H a,b");
    assert!(ran.err().contains("rlaunch -H a,b sh"), "{ran}");
    run("-H a -e X=1 true")
        .ended_with(200)
        .says(&["tip: a variable of the ranks: rlaunch -H a -x X=1 true"]);
}
