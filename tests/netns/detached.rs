//! Jobs that outlive their terminal (`-d`), and what is kept of them.

mod logout;
mod trouble;

use crate::running::Outcome;
use crate::support::{Field, State, Undo};
use crate::terminal::Terminal;
use rlaunch_lab::Account;
use serde_json::Value;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;

/// Program that prints numbered lines, one of them very long, and takes two seconds.
const LINES: &str = "i=0; while [ $i -lt 200 ]; do i=$((i + 1)); echo $RANK $i; sleep 0.01; done; \
    echo $RANK $(seq 20000); printf '%s end' $RANK; echo";
/// Program that prints many numbered lines as fast as it can, each behind a copy in a file of its host.
const COPIED: &str = "i=0; mkdir -p /tmp/detached-copy; exec 3>/tmp/detached-copy/$RANK; \
    while [ $i -lt 400000 ]; do i=$((i + 1)); echo $RANK $i >&3; echo $RANK $i; done; \
    exec sleep 1000";
/// Maximum number of bytes that four ranks of a host have printed and rlaunch has not taken: its credit, and what pipes and
/// the agent hold.
const UNDER_WAY: u64 = (256 << 10) + 4 * ((64 << 10) + (64 << 10));

impl State {
    /// Starts a job, and returns its name.
    fn start(&self, field: &Field, words: &str, script: &str) -> String {
        let started = self.rlaunch(field, &format!("-d {words}")).sh(script).spawn();
        let started = started.finish_first();
        let name = started.succeeded().out().trim().to_owned();
        assert_eq!(name.split('-').count(), 2, "{started}");
        started.says(&[&format!("rlaunch logs -f {name}"), &format!("rlaunch stop {name}")]);
        name
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
    let _places = field.scratch(&["a", "b"], "/tmp/detached-on");
    let (terminal, end) = Terminal::open();
    let script = "echo up $RANK; until [ -e /tmp/detached-on ]; do sleep 0.05; done; echo on $RANK";
    let run = state.rlaunch(&field, "-d -H a:2,b").sh(script);
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
    for host in ["a", "b"] {
        field.on(host, "mkdir /tmp/detached-on");
    }
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
fn the_last_lines_of_a_job_that_restarts_are_counted_once() {
    let (field, state) = (Field::new(), State::new());
    let name = state.start(&field, "-H a --max-restarts 2", "echo a; echo b; exit 3");
    let (_, logs) = state.end(&field, &name);
    let lines = |ran: &Outcome| ran.out().lines().count() + ran.err().lines().count();
    let all = lines(&logs);
    assert_eq!(logs.sorted(), ["a", "a", "a", "b", "b", "b"], "{logs}");
    for most in [1, 3, all - 1, all + 100] {
        let last = state.ask(&field, &format!("logs -n {most} {name}"));
        assert_eq!(lines(&last), most.min(all), "{last}");
    }
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

/// Returns the lines of a rank, which begin with its number.
fn lines_of(printed: &Outcome, rank: u32) -> String {
    let begin = format!("{rank} ");
    let out = printed.out();
    out.split_inclusive('\n').filter(|line| line.starts_with(&begin)).collect()
}

/// Returns what was printed without the end of its last line, which is there although the line may not be whole.
fn without_last_end(printed: &Outcome) -> &[u8] {
    printed.stdout.strip_suffix(b"\n").unwrap_or(&printed.stdout)
}

#[test]
fn the_log_of_eight_ranks_is_what_a_run_in_front_prints() {
    let (field, state) = (Field::new(), State::new());
    let name = state.start(&field, "-H a:4,b:4", LINES);
    let in_front = field.rlaunch("-H a:4,b:4").sh(LINES).spawn().finish_first();
    in_front.succeeded();
    let (code, logs) = state.end(&field, &name);
    assert_eq!((code, logs.stdout.len()), (0.into(), in_front.stdout.len()), "{logs}");
    for rank in 0..8 {
        let printed = lines_of(&in_front, rank);
        assert!(printed.lines().count() == 202 && printed.len() > 100_000, "{in_front}");
        assert!(lines_of(&logs, rank) == printed, "rank {rank}: {logs}\n{in_front}");
        let alone = state.ask(&field, &format!("logs --rank {rank} {name}"));
        assert!(alone.out() == printed.as_str(), "rank {rank}: {alone}\n{in_front}");
    }
}

#[test]
fn what_a_killed_launcher_has_taken_is_kept() {
    let (field, state) = (Field::new(), State::new());
    let _copies = field.scratch(&["a", "b"], "/tmp/detached-copy");
    let name = state.start(&field, "-H a:4,b:4", COPIED);
    let logs = |rank: u32| state.ask(&field, &format!("logs --rank {rank} {name}"));
    field.wait_for("output", || (0..8).all(|rank| logs(rank).stdout.len() > 10_000));
    let before: Vec<Outcome> = (0..8).map(logs).collect();
    state.signal(&field, "KILL");
    field.wait_for("the ranks to end", || field.started().is_empty());
    let (code, followed) = state.end(&field, &name);
    assert_eq!(code, 137);
    followed.says(&["the launcher was killed before the job was over"]);
    for (host, ranks) in [("a", 0..4), ("b", 4..8)] {
        let mut under_way = 0;
        for rank in ranks {
            let path = format!("/tmp/detached-copy/{rank}");
            let copy = fs::read(field.lab.path(host, Path::new(&path)).unwrap()).unwrap();
            let kept = logs(rank);
            let taken = without_last_end(&kept);
            assert!(copy.starts_with(taken), "rank {rank}: {kept}");
            let shown = without_last_end(&before[rank as usize]);
            assert!(taken.starts_with(shown), "rank {rank}: {kept}");
            under_way += (copy.len() - taken.len()) as u64;
        }
        assert!(under_way <= UNDER_WAY, "{under_way} bytes of {host} are lost");
    }
}

/// The directory of jobs is closed to others; these are the checks behind its door.
#[test]
fn another_user_reads_nothing_of_a_job() {
    let (field, state) = (Field::new(), State::new());
    let name = state.start(&field, "-H a", "echo secret; exec sleep 1000");
    let shows = || state.ask(&field, &format!("logs {name}")).out() == "secret\n";
    field.wait_for("the output", shows);
    let jobs = state.jobs();
    let mode = |path: &Path| fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&jobs), 0o700);
    for path in [jobs.parent().unwrap(), &jobs] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let check = || {
        for verb in ["logs", "logs -f", "wait", "stop", "stop --force", "report"] {
            let run = state.rlaunch(&field, &format!("{verb} {name}")).account(Account::User);
            let refused = run.spawn().finish_first();
            assert_ne!(refused.code, 0, "{verb}: {refused}");
            assert!(!refused.out().contains("secret"), "{verb}: {refused}");
        }
        for entry in fs::read_dir(&jobs).unwrap().flatten() {
            assert_eq!(mode(&entry.path()), 0o600, "{entry:?}");
        }
    };
    check();
    assert_eq!(state.list(&field, "jobs")[0]["phase"], "running");
    state.ask(&field, "stop");
    assert!(shows());
    check();
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

/// Until its end, the disk has room for no more than a short record, and for how much is missing.
#[test]
fn a_job_that_ends_on_a_full_disk_is_known() {
    let (field, state) = (Field::new(), State::new());
    let _places = field.scratch(&["a"], "/tmp/detached-full");
    let disk = state.path();
    let shell = |line: &str| field.shell(line, Path::new("/"));
    shell(&format!("mount -t tmpfs -o size=4m none {disk}"));
    let _mounted = Undo(|| {
        shell(&format!("umount -l {disk}"));
        Ok::<(), std::io::Error>(())
    });
    let script =
        "echo up; until [ -e /tmp/detached-full ]; do sleep 0.05; done; seq 200000; exit 3";
    let name = state.start(&field, "-H a", script);
    let up = || state.ask(&field, &format!("logs {name}")).out() == "up\n";
    field.wait_for("the first line", up);
    shell(&format!("cat /dev/zero >{disk}/filler 2>/dev/null"));
    field.on("a", "mkdir /tmp/detached-full");
    let (code, logs) = state.end(&field, &name);
    assert_eq!(code, 3, "{logs}");
    logs.says(&["could not be kept here"]);
}
