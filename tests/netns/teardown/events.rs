//! `--events`: how the log for programs describes the end of a job.

use super::{EIGHT, MEEK, PROMPT, as_each, ends, go, lost, nothing_left, one_of_eight, up};
use crate::running::{Outcome, Running};
use crate::support::{Field, launch_directory};
use nix::sys::signal::{Signal, kill};
use rlaunch_lab::{Account, Stopwatch};
use serde_json::Value;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use tempfile::TempDir;

/// Directory with the log of events of a job.
struct Log(TempDir);

impl Log {
    fn new() -> Log {
        let directory = launch_directory();
        // rlaunch may run as another user than the test.
        fs::set_permissions(directory.path(), Permissions::from_mode(0o777)).unwrap();
        Log(directory)
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("events")
    }

    fn up<'a>(&self, field: &'a Field, account: Account, script: &str) -> Running<'a> {
        let run = field.rlaunch("--events").args([self.path()]).args(EIGHT.split(' '));
        up(run.account(account), script)
    }

    /// Returns all records. Asserts that each line is an object with the job's id, a time, and the
    /// version of the schema.
    fn records(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.path()).unwrap();
        assert!(text.ends_with('\n'), "cut off: {text}");
        let records: Vec<Value> =
            text.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
        for record in &records {
            assert_eq!(record["v"], 1, "{record}");
            assert_eq!(record["job"], records[0]["job"], "{record}");
            assert!(record["t"].is_f64() && record["event"].is_string(), "{record}");
        }
        assert_eq!(records[0]["job"].as_str().unwrap().len(), 32);
        records
    }
}

fn named<'a>(records: &'a [Value], event: &str) -> Vec<&'a Value> {
    records.iter().filter(|record| record["event"] == event).collect()
}

/// Checks what all jobs whose ranks have started have in common, and returns the last record.
fn check(records: &[Value], clean: usize) -> &Value {
    let first = &records[0];
    assert_eq!(
        (&first["event"], &first["ranks"], &first["nodes"]),
        (&"job_started".into(), &8.into(), &4.into())
    );
    let phases: Vec<&Value> = named(records, "phase").iter().map(|phase| &phase["name"]).collect();
    assert_eq!(phases, ["reach", "prepare", "join", "run"]);
    let count = |event| named(records, event).len();
    assert_eq!((count("host_reached"), count("agent_started"), count("rank_started")), (4, 4, 8));
    assert_eq!((count("node_clean"), count("job_ended")), (clean, 1));
    let last = records.last().unwrap();
    assert_eq!(last["event"], "job_ended");
    last
}

/// Checks that the last record has the exit code and the error that rlaunch ended with.
fn check_end(last: &Value, ran: &Outcome, spoke: &str, message: &str) {
    assert_eq!(last["exit_code"], ran.code, "{last}");
    assert_eq!(last["spoke"], spoke, "{last}");
    let said = last["message"].as_str().unwrap();
    assert!(said.contains(message), "{last}");
    assert!(said.is_empty() || ran.err().contains(&format!("{said}\n")), "{last}: {ran}");
}

#[test]
fn of_ranks_that_succeed() {
    as_each(|field, account| {
        let log = Log::new();
        let running = log.up(field, account, "echo up");
        let ran = ends(field, running, Stopwatch::start(), PROMPT);
        let records = log.records();
        check_end(check(&records, 4), ran.succeeded(), "rank", "");
        let codes: Vec<&Value> =
            named(&records, "rank_exited").iter().map(|r| &r["code"]).collect();
        assert_eq!(codes, [0; 8]);
    });
}

#[test]
fn of_a_rank_that_fails() {
    as_each(|field, account| {
        let log = Log::new();
        let running = log.up(field, account, &one_of_eight("kill -SEGV $$", MEEK));
        let failed = Stopwatch::start();
        let _go = go(field, &["c"]);
        let ran = ends(field, running, failed, PROMPT);
        let records = log.records();
        check_end(check(&records, 4), ran.ended_with(139), "rank", "rank 5 on c ");
        let exited = named(&records, "rank_exited");
        let culprit = exited.iter().find(|record| record["rank"] == 5).unwrap();
        assert_eq!((&culprit["signal"], &culprit["host"]), (&11.into(), &"c".into()), "{culprit}");
        assert_eq!(exited.len(), 8);
    });
}

#[test]
fn of_a_user_who_has_enough() {
    as_each(|field, account| {
        let log = Log::new();
        let running = log.up(field, account, MEEK);
        let asked = Stopwatch::start();
        running.signal(Signal::SIGINT);
        let ran = ends(field, running, asked, PROMPT);
        check_end(
            check(&log.records(), 4),
            ran.ended_with(130),
            "launcher",
            "interrupted: 8 ranks",
        );
    });
}

#[test]
fn of_an_agent_that_is_lost() {
    as_each(|field, account| {
        let log = Log::new();
        let running = log.up(field, account, MEEK);
        let killed = Stopwatch::start();
        kill(lost::agents(field, "c")[1], Signal::SIGKILL).unwrap();
        let ran = ends(field, running, killed, PROMPT);
        let records = log.records();
        let last = check(&records, 3);
        check_end(last, ran.ended_with(206), "launcher", "node c is lost");
        let lost = named(&records, "node_lost");
        assert!(lost.len() == 1 && lost[0]["host"] == "c", "{lost:?}");
    });
}

/// A job whose ranks were not started has an end in the log as well.
#[test]
fn of_a_program_that_is_missing() {
    as_each(|field, account| {
        let log = Log::new();
        let run = field.rlaunch("--events").args([log.path()]).args(EIGHT.split(' '));
        let ran = run.args(["no-such-program"]).account(account).run();
        let records = log.records();
        let last = records.last().unwrap();
        check_end(last, ran.ended_with(127), "launcher", "no-such-program");
        assert!(named(&records, "rank_started").is_empty());
        nothing_left(field, std::time::Duration::ZERO, &ran);
    });
}
