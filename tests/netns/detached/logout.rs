//! Jobs that outlive the login of their user, and what ends with it.

use crate::support::Field;
use crate::support::State;
use crate::systemd::{BOUND, Keeper, run_in};
use rlaunch_lab::Account;
use rlaunch_lab::command::wait_until;
use rlaunch_lab::setup::roots;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// Script that becomes a machine with a real systemd.
const SYSTEMD: &str = include_str!("systemd.sh");
/// Words that make logind say whether it ends what users leave behind.
const RULE: &str = "busctl get-property org.freedesktop.login1 /org/freedesktop/login1 \
    org.freedesktop.login1.Manager KillUserProcesses";

/// A busctl of a machine whose logind ends what users leave. It notes in the file ASKED what it is asked for, refuses lingering
/// where that names a file `refused`, and moves a process as systemd does: after the answer. The first call of a systemd comes
/// before it has started.
const BUSCTL: &str = r#"#!/bin/sh
all=$*
echo "$all" >>"$ASKED"
case $all in
*KillUserProcesses*) printf 'b true\nas 0\nas 1 "root"\n' ;;
*" Linger") echo 'b false' ;;
*SetUserLinger*) [ ! -e "${ASKED%/*}/refused" ] || { echo 'Call failed: Access denied' >&2; exit 1; } ;;
*StartTransientUnit*)
    mkdir "${ASKED%/*}/starting" 2>/dev/null && { echo 'Failed to connect to bus: No such file or directory' >&2; exit 1; }
    unit=${all#*"a(sa(sv)) "} pid=${all##*" au 1 "}
    unit=/sys/fs/cgroup/user.slice/${unit%% *}
    mkdir "$unit"
    { sleep 0.2; echo "${pid% 0}" >"$unit/cgroup.procs"; } >/dev/null 2>&1 &
    ;;
esac
"#;

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

// `cargo lab test` skips the tests whose names begin with `logind_` or `systemd_` where they cannot run, and reports that.
#[test]
fn logind_ends_a_session_that_a_job_has_left() {
    let field = Field::new();
    for (account, is_refused) in
        [(Account::User, false), (Account::User, true), (Account::Root, false)]
    {
        let state = State::new();
        let place = Path::new(state.path());
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
                    lingering is refused: busctl says: Call failed: Access denied";
        assert_eq!(said.contains(ends), is_refused, "{said}");
        // A unit of the machine's systemd needs no lingering.
        let is_user = account == Account::User;
        let is_enabled = is_user && !is_refused;
        assert_eq!(said.contains("lingering is enabled for you"), is_enabled, "{said}");
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

/// Machine with a real systemd, whose account `visitor` has an rlaunch in /opt/dist.
struct Machine {
    _keeper: Keeper,
    /// Process 1.
    systemd: String,
    _directory: TempDir,
}

impl Machine {
    fn start(field: &Field) -> Machine {
        let cgroup = field.lab.status().cgroup.unwrap().join("systemd");
        fs::create_dir_all(&cgroup).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let script = directory.path().join("systemd.sh");
        fs::write(&script, SYSTEMD).unwrap();
        let mut command = Command::new("sh");
        command.args([
            script.as_path(),
            directory.path(),
            &cgroup,
            field.rlaunch.parent().unwrap(),
            &roots::SYSTEMD.make().unwrap(),
        ]);
        let outer = command.stdin(Stdio::null()).spawn().unwrap();
        let children = format!("/proc/{0}/task/{0}/children", outer.id());
        let keeper = Keeper { outer, cgroup };
        let mut systemd = String::new();
        wait_until(BOUND, "a process 1", || {
            systemd = fs::read_to_string(&children).unwrap_or_default().trim().to_owned();
            Ok(!systemd.is_empty())
        })
        .unwrap();
        let machine = Machine { _keeper: keeper, systemd, _directory: directory };
        wait_until(BOUND, "logind", || Ok(machine.run(RULE) == "b true\n")).unwrap();
        machine
    }

    fn run(&self, line: &str) -> String {
        run_in(&self.systemd, line)
    }
}

#[test]
fn systemd_lets_a_job_outlive_the_login() {
    let field = Field::new();
    let machine = Machine::start(&field);
    let left = "setsid sleep 778 </dev/null >/dev/null 2>&1 &";
    let job = "/opt/dist/rlaunch -d -np 1 sh -c \"exec sleep 777\" 2>&1";
    let said = machine.run(&format!("su -l visitor -c '{left} exec {job}'"));
    assert!(said.contains("lingering is enabled for you"), "{said}");
    assert!(said.contains("the job goes on without this terminal:"), "{said}");
    // What has not moved is ended with the session.
    let runs = |program: &str| !machine.run(&format!("pgrep -fx '{program}'")).is_empty();
    wait_until(BOUND, "the end of the session", || Ok(!runs("sleep 778"))).unwrap();
    assert!(runs("sleep 777"), "{}", machine.run("ps -eo pid,user,cgroup:100,args"));
    assert_eq!(machine.run("ls /var/lib/systemd/linger"), "visitor\n");
    let visitor = "setpriv --reuid visitor --regid visitor --init-groups env HOME=/home/visitor";
    let stopped = machine.run(&format!("{visitor} /opt/dist/rlaunch stop 2>&1"));
    assert!(stopped.ends_with(" ended: code 143\n"), "{stopped}");
    assert!(!runs("sleep 777"));
}
