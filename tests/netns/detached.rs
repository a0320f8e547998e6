//! Jobs that outlive their terminal (`-d`), and what is kept of them.

use crate::running::Outcome;
use crate::support::{Field, Run, launch_directory};
use crate::terminal::Terminal;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rlaunch_lab::Account;
use serde_json::Value;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tempfile::TempDir;

/// Program that prints numbered lines until it is ended.
const LINES: &str = "i=0; while :; do i=$((i + 1)); echo $RANK $i; sleep 0.01; done";

/// A busctl of a machine whose logind ends what users leave. It notes in the file ASKED what it is asked for, refuses lingering
/// where that names a file `refused`, and moves a process as systemd does: after the answer.
const BUSCTL: &str = r#"#!/bin/sh
all=$*
echo "$all" >>"$ASKED"
case $all in
*KillUserProcesses*) printf 'b true\nas 0\nas 1 "root"\n' ;;
*" Linger") echo 'b false' ;;
*SetUserLinger*) [ ! -e "${ASKED%/*}/refused" ] || { echo 'Call failed: Access denied' >&2; exit 1; } ;;
*StartTransientUnit*)
    unit=${all#*"a(sa(sv)) "} pid=${all##*" au 1 "}
    unit=/sys/fs/cgroup/user.slice/${unit%% *}
    mkdir "$unit"
    { sleep 0.2; echo "${pid% 0}" >"$unit/cgroup.procs"; } >/dev/null 2>&1 &
    ;;
esac
"#;

/// Directory in which the launching machine keeps records.
struct State(TempDir);

impl State {
    fn new() -> State {
        State(launch_directory())
    }

    fn rlaunch<'a>(&self, field: &'a Field, words: &str) -> Run<'a> {
        field.rlaunch(words).env("XDG_STATE_HOME", self.0.path().to_str().unwrap())
    }

    /// Starts a job, and returns its name.
    fn start(&self, field: &Field, words: &str, script: &str) -> String {
        let started = self.rlaunch(field, &format!("-d {words}")).sh(script).spawn();
        let started = started.finish_first();
        let name = started.succeeded().out().trim().to_owned();
        assert_eq!(name.split('-').count(), 2, "{started}");
        started.says(&[&format!("rlaunch logs -f {name}"), &format!("rlaunch stop {name}")]);
        name
    }

    /// Asks about jobs, which may run meanwhile.
    fn ask(&self, field: &Field, words: &str) -> Outcome {
        let outcome = self.rlaunch(field, words).spawn().finish_first();
        outcome.ended_with(0);
        outcome
    }

    fn list(&self, field: &Field, verb: &str) -> Vec<Value> {
        let listed = self.ask(field, &format!("{verb} --json"));
        serde_json::from_slice(&listed.stdout).unwrap_or_else(|_| panic!("{listed}"))
    }

    /// Sends a signal to the launcher of the only running job.
    fn signal(&self, field: &Field, signal: &str) {
        let [job] = &self.list(field, "jobs")[..] else { panic!("not one job") };
        field.shell(&format!("kill -{signal} {}", job["pid"]), Path::new("/"));
    }

    /// Waits until the job has ended, and returns its exit code and all of its output.
    fn end(&self, field: &Field, name: &str) -> (Value, Outcome) {
        let logs = self.rlaunch(field, &format!("logs -f {name}")).run();
        logs.succeeded();
        let jobs = self.list(field, "history");
        let job = jobs.iter().rfind(|job| job["name"] == name);
        (job.unwrap_or_else(|| panic!("{jobs:?}"))["exit_code"].clone(), logs)
    }
}

#[test]
fn a_job_outlives_its_terminal() {
    let (field, state) = (Field::new(), State::new());
    let (terminal, end) = Terminal::open();
    let run = state.rlaunch(&field, "-d -H a:2,b").sh("echo up $RANK; sleep 2; echo on $RANK");
    let mut command = run.at_terminal().command();
    command.stdin(end.try_clone().unwrap()).stdout(end.try_clone().unwrap()).stderr(end);
    let status = command.spawn().unwrap().wait().unwrap();
    drop(command);
    assert!(status.success(), "{}", terminal.text());
    // Nobody has the terminal any more, although the job runs.
    let shown = terminal.finish();
    let before = shown.lines().take_while(|line| !line.contains("the job goes on"));
    // A transient line, as of the first contact, may have stood in its place.
    let name = before.last().unwrap().trim_end().rsplit('\r').next().unwrap();
    let running = state.list(&field, "jobs");
    assert_eq!((&running[0]["name"], running.len()), (&name.into(), 1), "{shown}");
    let (code, logs) = state.end(&field, name);
    assert_eq!(code, 0);
    assert_eq!(logs.sorted(), ["on 0", "on 1", "on 2", "up 0", "up 1", "up 2"], "{logs}");
    let last = state.ask(&field, &format!("logs -n 1 --rank 2 {name}"));
    assert_eq!(last.out(), "on 2\n", "{last}");
    let recent = state.ask(&field, &format!("logs --since 1d {name}"));
    assert_eq!(recent.sorted(), logs.sorted());
}

#[test]
fn a_job_that_cannot_start_says_why() {
    let (field, state) = (Field::new(), State::new());
    let ran = state.rlaunch(&field, "-d -H a no-such-program").run();
    ran.ended_with(127).says(&["no-such-program"]);
    assert_eq!(ran.out(), "");
    state.rlaunch(&field, "-d -H a,nowhere.invalid true").run().ended_with(201);
    // One that ends at once has started.
    let name = state.start(&field, "-H a", "echo short; exit 3");
    let (code, logs) = state.end(&field, &name);
    assert_eq!((code, &*logs.out()), (3.into(), "short\n"), "{logs}");
    logs.says(&["exited with code 3"]);
}

#[test]
fn a_job_whose_name_cannot_be_written_is_named_by_the_error() {
    let (field, state) = (Field::new(), State::new());
    let mut command = state.rlaunch(&field, "-d -H a").sh("exec sleep 1000").command();
    let full = File::options().write(true).open("/dev/full").unwrap();
    let started =
        command.stdin(Stdio::null()).stdout(full).stderr(Stdio::piped()).output().unwrap();
    let said = String::from_utf8(started.stderr).unwrap();
    assert_eq!(started.status.code(), Some(203), "{said}");
    let name = state.list(&field, "jobs")[0]["name"].as_str().unwrap().to_owned();
    assert!(said.contains(&format!("the job runs as {name}")), "{said}");
    assert!(said.contains(&format!("`rlaunch stop {name}`")), "{said}");
    state.signal(&field, "TERM");
    state.end(&field, &name);
}

#[test]
fn a_launcher_that_is_told_to_end_says_so_in_the_logs() {
    let (field, state) = (Field::new(), State::new());
    let name = state.start(&field, "-H a,b", "echo up; exec sleep 1000");
    // It has no terminal that could hang up.
    state.signal(&field, "HUP");
    assert_eq!(state.list(&field, "jobs")[0]["phase"], "running");
    let following = state.rlaunch(&field, "logs -f last").spawn();
    state.signal(&field, "TERM");
    following.finish().succeeded();
    let (code, logs) = state.end(&field, &name);
    assert_eq!((code, &*logs.out()), (143.into(), "up\nup\n"), "{logs}");
}

#[test]
fn what_a_killed_launcher_has_taken_is_kept() {
    let (field, state) = (Field::new(), State::new());
    let name = state.start(&field, "-H a,b", LINES);
    let logs = format!("logs {name}");
    field.wait_for("lines", || {
        let shown = state.ask(&field, &logs);
        ["\n0 20\n", "\n1 20\n"].iter().all(|line| shown.out().contains(line))
    });
    let before = state.ask(&field, &logs);
    state.signal(&field, "KILL");
    field.wait_for("the ranks to end", || field.started().is_empty());
    let (code, kept) = state.end(&field, &name);
    assert_eq!(code, 137);
    assert!(kept.out().starts_with(&*before.out()), "{before}\n{kept}");
    for rank in ["0 ", "1 "] {
        let out = kept.out();
        let numbers = out.lines().filter_map(|line| line.strip_prefix(rank));
        let gap = numbers.zip(1_u32..).find(|(number, at)| *number != at.to_string());
        assert_eq!(gap, None, "{kept}");
    }
}

#[test]
fn a_lost_host_is_in_the_logs() {
    let (field, state) = (Field::new(), State::new());
    let name = state.start(&field, "-H a,b", "echo up; exec sleep 1000");
    let agents = field.lab.processes("b").unwrap().into_iter();
    for agent in agents.filter(|process| process.args[0].ends_with("rlaunch-worker")) {
        // The guardian may have ended with its agent.
        let _ = kill(Pid::from_raw(agent.pid), Signal::SIGKILL);
    }
    let (code, logs) = state.end(&field, &name);
    assert_eq!(code, 206, "{logs}");
    logs.says(&["error: node b is lost"]);
}

#[test]
fn restarts_are_one_job() {
    let (field, state) = (Field::new(), State::new());
    let script = "echo try ${RLAUNCH_RESTART_COUNT:-0}; sleep 0.2; exit 3";
    let name = state.start(&field, "-H a --max-restarts 1", script);
    let (code, logs) = state.end(&field, &name);
    assert_eq!((code, &*logs.out()), (3.into(), "try 0\ntry 1\n"), "{logs}");
    logs.says(&["restart 1 of 1"]);
    let jobs = state.list(&field, "history");
    assert!(jobs.len() == 2 && jobs.iter().all(|job| job["name"] == name.as_str()), "{jobs:?}");
}

#[test]
fn a_full_disk_stops_no_job() {
    let (field, state) = (Field::new(), State::new());
    let place = state.0.path();
    let mounted = "mount -t tmpfs -o size=4m none . && cd \"$PWD\" && \
                   dd if=/dev/zero of=filler bs=1k count=3900 2>/dev/null && echo full";
    assert_eq!(field.shell(mounted, place), "full\n");
    let _marks = field.scratch(&["a"], "/tmp/detached-printed");
    let script = "seq 40000; mkdir /tmp/detached-printed; \
                  until [ -e /tmp/detached/go ]; do sleep 0.1; done; echo after";
    let name = state.start(&field, "-H a", script);
    let printed = "test -d /tmp/detached-printed && echo yes || true";
    field.wait_for("the numbers", || field.on("a", printed) == "yes\n");
    // What the rank has printed last is still under way.
    std::thread::sleep(Duration::from_secs(1));
    field.shell("rm filler", place);
    let go = field.files(&["a"], "/tmp/detached/go", "", 0o644);
    let (code, logs) = state.end(&field, &name);
    drop(go);
    field.shell("umount .", place);
    assert_eq!(code, 0, "{logs}");
    assert!(logs.out().starts_with("1\n2\n3\n") && logs.out().ends_with("after\n"), "{logs}");
    // A small part may have found room behind a large one that did not.
    assert!(logs.out().lines().count() < 40_000, "{logs}");
    logs.says(&["could not be kept here"]);
}

/// Starts a job as `account` in a session of the lab's user, with the busctl that is in `place`. Returns all that rlaunch prints.
fn start_in_session(field: &Field, place: &Path, account: Account) -> String {
    let (id, home, name) = (account.id(), account.home(), account.name());
    let session =
        format!("/sys/fs/cgroup/user.slice/user-{}.slice/session-9.scope", Account::User.id());
    let line = format!(
        "mkdir -p {session} && chown -R {id} /sys/fs/cgroup/user.slice . && \
         echo $$ >{session}/cgroup.procs && exec setpriv --reuid {id} --regid {id} --clear-groups \
         env HOME={} USER={name} LOGNAME={name} XDG_STATE_HOME=$PWD ASKED=$PWD/asked PATH=$PWD:$PATH \
         {} -d -H a sh -c 'exec sleep 1000' 2>&1",
        home.display(),
        field.rlaunch.display()
    );
    field.shell(&line, place)
}

#[test]
fn a_job_leaves_a_session_that_logind_ends_with_what_is_in_it() {
    let field = Field::new();
    if field.lab.status().cgroup.is_none() {
        return;
    }
    for (account, is_refused) in
        [(Account::User, false), (Account::User, true), (Account::Root, false)]
    {
        let state = State::new();
        let place = state.0.path();
        fs::write(place.join("busctl"), BUSCTL).unwrap();
        fs::set_permissions(place.join("busctl"), fs::Permissions::from_mode(0o755)).unwrap();
        if is_refused {
            fs::write(place.join("refused"), "").unwrap();
        }
        let said = start_in_session(&field, place, account);
        let asked = fs::read_to_string(place.join("asked")).unwrap_or_default();
        let listed = state.rlaunch(&field, "jobs --json").account(account).spawn().finish_first();
        let jobs: Vec<Value> = serde_json::from_slice(&listed.stdout).unwrap();
        let [job] = &jobs[..] else { panic!("{said}\n{listed}") };
        let cgroup = fs::read_to_string(format!("/proc/{}/cgroup", job["pid"])).unwrap();
        let unit = format!("/rlaunch-{}-{}.scope", job["name"].as_str().unwrap(), job["pid"]);
        assert_eq!(cgroup.contains(&unit), !is_refused, "{cgroup}{said}");
        assert_eq!(cgroup.contains("/session-9.scope"), is_refused, "{cgroup}{said}");
        let until = if is_refused { " until you log out" } else { "" };
        assert!(said.contains(&format!("the job goes on without this terminal{until}:")), "{said}");
        let ends = "the job ends when you log out, as systemd here ends what users leave behind: \
                    lingering is refused: Call failed: Access denied";
        assert_eq!(said.contains(ends), is_refused, "{said}");
        // A unit of the machine's systemd needs no lingering.
        let is_user = account == Account::User;
        assert_eq!(said.contains("lingering is enabled for you"), is_user, "{said}");
        assert_eq!(asked.contains("SetUserLinger ubb 4242 true false"), is_user, "{asked}");
        let bus = if is_user { "--user" } else { "--system" };
        let moves = asked.lines().find(|line| line.contains("StartTransientUnit"));
        assert_eq!(moves.is_some_and(|line| line.starts_with(bus)), !is_refused, "{asked}");
        let stopped = state.rlaunch(&field, "stop").account(account).spawn().finish_first();
        stopped.succeeded();
        let removed =
            "find /sys/fs/cgroup/user.slice -depth -type d -exec rmdir {} +; ls /sys/fs/cgroup";
        field.wait_for("the units to be empty", || {
            !field.shell(removed, Path::new("/")).contains("user.slice")
        });
    }
}

#[test]
fn a_forwarded_agent_is_said_to_end_with_the_login() {
    let (field, state) = (Field::new(), State::new());
    let start = |words: &str, agent: &str| {
        let run = state.rlaunch(&field, &format!("-d -H a {words}")).env("SSH_AUTH_SOCK", agent);
        let started = run.sh("exec sleep 1000").spawn().finish_first();
        started.succeeded();
        state.signal(&field, "TERM");
        state.end(&field, started.out().trim());
        started
    };
    let (forwarded, own) = ("/nowhere/s.aBcDeFgHiJ.sshd.kLmNoPqRsT", "/nowhere/agent");
    let sentence = "the SSH agent here is forwarded and ends with this login";
    start("--max-restarts 1", forwarded).says(&[sentence]);
    start("--max-restarts 1", own).keeps_quiet_about(&[sentence]);
    start("", forwarded).keeps_quiet_about(&[sentence]);
}
