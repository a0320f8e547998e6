//! Records that a job leaves, and what is printed about it afterwards: `rlaunch report`, `rlaunch
//! bench train`.

use crate::mpi::PATIENCE;
use crate::mpi::stand_in::StandIn;
use crate::output::flood;
use crate::support::{Field, State};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Script of a rank that prints the results of a benchmark: `$RATE` images/sec per rank, and the
/// total.
const BENCHMARK: &str = "for step in 10 20 30; do \
    echo \"$step images/sec: $RATE +/- 0.1 (jitter = 0.1) 7.5\"; done; \
    echo \"total images/sec: $((RATE * WORLD_SIZE))\"";

impl State {
    /// Lists the records, oldest first.
    fn records(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.jobs()).map(|entries| entries.flatten().collect());
        let entries: Vec<fs::DirEntry> = entries.unwrap_or_default();
        let mut paths: Vec<PathBuf> = entries.iter().map(fs::DirEntry::path).collect();
        paths.sort();
        paths
    }

    fn last(&self) -> Value {
        let text = fs::read(self.records().last().unwrap()).unwrap();
        serde_json::from_slice(&text).unwrap()
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn a_job_leaves_a_record_for_its_user_alone() {
    let (field, state) = (Field::new(), State::new());
    let secrets = "-H a:2,b -x HF_TOKEN=hunter2 -x NCCL_KEY=hunter2";
    let ran = state.rlaunch(&field, secrets).sh("echo line of $RANK; exit $((RANK == 0))").run();
    assert_ne!(ran.code, 0, "{ran}");
    let [path] = &state.records()[..] else { panic!("{:?}", state.records()) };
    assert_eq!((mode(path), mode(&state.jobs())), (0o600, 0o700));
    let text = fs::read_to_string(path).unwrap();
    assert!(!text.contains("hunter2"), "{text}");
    let record = state.last();
    assert_eq!(record["hosts"][1], serde_json::json!({ "host": "b", "ranks": [2] }), "{text}");
    let argv = record["argv"].as_array().unwrap();
    assert!(argv.contains(&"HF_TOKEN=(set, 7 chars)".into()), "{text}");
    assert_eq!(record["program"][0], "sh");
    assert_eq!(record["placement"].as_array().unwrap().len(), 3, "{text}");
    let environment = record["environment"].as_array().unwrap();
    let told = environment.iter().find(|told| told["variable"] == "NCCL_IB_DISABLE=1").unwrap();
    assert_eq!(told["ranks"], serde_json::json!([0, 1, 2]));
    assert!(told["why"].as_str().unwrap().contains("no RDMA device"), "{told}");
    assert_eq!(
        (&record["end"]["exit_code"], &record["end"]["spoke"]),
        (&ran.code.into(), &"rank".into())
    );
    let pieces = record["output"]["first"].as_array().unwrap();
    let of_rank_0 = pieces.iter().any(|p| p["rank"] == 0 && p["text"] == "line of 0\n");
    assert!(of_rank_0, "{text}");
    assert!(record["seconds"].as_f64().unwrap() > 0.0);
}

#[test]
fn a_job_that_did_not_come_about_leaves_one_as_well() {
    let (field, state) = (Field::new(), State::new());
    let ran = state.rlaunch(&field, "-H a,b no-such-program").run();
    ran.refused(127, &["no-such-program is not on a, b"]);
    let record = state.last();
    assert_eq!(
        (&record["end"]["exit_code"], &record["end"]["spoke"]),
        (&127.into(), &"launcher".into())
    );
    assert_eq!(record["placement"], serde_json::json!([]));
}

#[test]
fn a_record_is_bounded() {
    let (field, state) = (Field::new(), State::new());
    let ran = state.rlaunch(&field, "-H a,b,c").sh(&flood(50_000)).run();
    ran.succeeded();
    let size = fs::metadata(&state.records()[0]).unwrap().len();
    assert!((1 << 19..3 << 20).contains(&size), "{size}");
    let output = &state.last()["output"];
    assert!(output["left_out_bytes"].as_u64().unwrap() > 10 << 20);
    let last = output["last"].as_array().unwrap().last().unwrap();
    assert!(last["text"].as_str().unwrap().contains(" 00050000 "), "{last}");
}

#[test]
fn the_newest_thousand_are_kept_and_no_record_is_none() {
    let (field, state) = (Field::new(), State::new());
    state.rlaunch(&field, "-H a --no-record true").run().succeeded();
    // Not even the socket is left, at which the job could be asked.
    assert!(state.records().is_empty(), "{:?}", state.records());
    state.rlaunch(&field, "-H a true").run().succeeded();
    let job = state.records()[0].clone();
    // Older ones go when they are a twentieth more.
    for old in 0..1060 {
        fs::copy(&job, state.jobs().join(format!("{old:032x}.json"))).unwrap();
    }
    state.rlaunch(&field, "-H a true").run().succeeded();
    let records = state.records();
    assert_eq!(records.len(), 1000);
    // The copies were written after it.
    assert!(!records.contains(&job) && records[0].ends_with(format!("{:032x}.json", 61)));
}

#[test]
fn a_record_that_cannot_be_written_is_a_warning() {
    let field = Field::new();
    let ran = field.rlaunch("-H a hostname").env("XDG_STATE_HOME", "/proc/none").run();
    assert_eq!(ran.succeeded().out(), "a\n", "{ran}");
    let err = ran.err();
    assert!(
        err.contains("warning: cannot write the job's record to /proc/none/rlaunch/jobs/"),
        "{ran}"
    );
    assert!(err.contains("--no-record"), "{ran}");
}

#[test]
fn the_last_job_is_reported() {
    let (field, state) = (Field::new(), State::new());
    let run = |words: &str, script: &str| {
        state.rlaunch(&field, words).env("RATE", "100").sh(script).run().succeeded();
    };
    run("-H a:2,b", BENCHMARK);
    let said = state.rlaunch(&field, "report last").run();
    let out = said.succeeded().out();
    for line in ["2     b     30    100.0", "ranks sum to 300.0; total printed: 300 (3 times"] {
        assert!(out.contains(line), "{said}");
    }
    assert!(out.contains("scaling: no smaller run"), "{said}");
    // A smaller run of the same program is recorded from now on; the job is named by its id.
    let job = state.last()["job"].as_str().unwrap().to_owned();
    run("-H a", BENCHMARK);
    let said = state.rlaunch(&field, "report").args([&job]).run();
    assert!(said.succeeded().out().contains("3      300.0       100.0     100.0 %"), "{said}");
    // The record has NCCL's lines although they were not shown.
    run("-H a --nccl-verify", "echo a:1:2 [0] NCCL INFO Using network Socket");
    let said = state.rlaunch(&field, "report last --json").run();
    let said: Value = serde_json::from_str(&said.succeeded().out()).unwrap();
    assert_eq!(said["reports"][0]["networks"][0]["rdma"], false, "{said}");
}

#[test]
fn nccl_tests_by_mpi_are_one_table() {
    const HOSTS: [&str; 2] = ["a", "b"];
    let (field, state) = (Field::new(), State::new());
    let (directory, program) = ("/tmp/nccl-tests", "/tmp/nccl-tests/all_reduce_perf");
    let _program = field.scratch(&HOSTS, directory);
    let source = include_str!("mpi/nccl_tests.c");
    let stand_in = StandIn { source, library: "open-mpi-5", options: "" };
    stand_in.compile(&field, &HOSTS, program);
    let reported = |words: &str| {
        let run = state.rlaunch(&field, words).args([program, "-b", "8", "-e", "8K", "-f", "4"]);
        run.within(PATIENCE).run().succeeded();
        state.rlaunch(&field, "report last").run()
    };
    let said = reported("-H a:8,b:8 -np 16");
    let out = said.succeeded().out();
    assert!(out.contains("all_reduce_perf, 16 ranks on 2 hosts; out of place"), "{said}");
    let sizes = ["8 ", "32 ", "128 ", "512 ", "2048 ", "8192 "];
    let is_of = |line: &str, size: &str| line.trim_start().starts_with(size);
    for size in sizes {
        assert_eq!(out.lines().filter(|line| is_of(line, size)).count(), 1, "{said}");
    }
    assert!(out.contains("average busbw ") && !out.contains("warning"), "{said}");
    // Without a process manager, as if it had been built without MPI, each rank is rank 0 of 1.
    let said = reported("-H a:2,b --mpi none --singleton ignore");
    let alone = "3 ranks printed a table of their own: each ran alone";
    assert!(said.succeeded().out().contains(alone), "{said}");
}

#[test]
fn a_job_without_figures_has_its_start_and_its_last_lines() {
    let (field, state) = (Field::new(), State::new());
    state.rlaunch(&field, "-H a:2,b").sh("echo line of $RANK").run().succeeded();
    let said = state.rlaunch(&field, "report last").run();
    let out = said.succeeded().out();
    for text in ["rlaunch -H a:2,b sh -c", "a 0-1, b 2", "exit code  0", ": reach ", ", join "] {
        assert!(out.contains(text), "no {text}: {said}");
    }
    for rank in 0..3 {
        assert!(out.contains(&format!("    [{rank}] line of {rank}\n")), "{said}");
    }
    let said = state.rlaunch(&field, "report last --json").run();
    let said: Value = serde_json::from_str(&said.succeeded().out()).unwrap();
    assert_eq!(said["reports"][0]["job"]["phases"][0]["name"], "reach", "{said}");
}

#[test]
fn a_job_that_still_runs_is_no_unknown_one() {
    let (field, state) = (Field::new(), State::new());
    let mut running =
        state.rlaunch(&field, "-H a --job-name night").sh("echo up; sleep 60").spawn();
    running.wait_for_text("up\n", 1);
    let report = |word: &str| state.rlaunch(&field, "report").args([word]).spawn().finish_first();
    for word in ["night", "nig", "last"] {
        let said = report(word);
        said.refused(203, &["job night is still running"]).hints("`rlaunch logs night`");
    }
    state.rlaunch(&field, "-H a --job-name day true").spawn().finish_first().succeeded();
    // The newest job is the one that has ended.
    report("last").succeeded().keeps_quiet_about(&["night"]);
    let mut newer = state.rlaunch(&field, "-H a --job-name noon").sh("echo up; sleep 60").spawn();
    newer.wait_for_text("up\n", 1);
    let said = report("last");
    said.succeeded().says(&["job noon is still running; this is an earlier one"]);
    for job in [running, newer] {
        job.signal(Signal::SIGTERM);
        job.finish_first().ended_with(143);
    }
    let said = report("last");
    let stopped = "the job was ended by SIGTERM, as by `rlaunch stop`: exit code 143";
    assert!(said.succeeded().out().contains(stopped), "{said}");
}

#[test]
fn what_has_no_figures_is_refused() {
    let (field, state) = (Field::new(), State::new());
    state
        .rlaunch(&field, "report last")
        .run()
        .refused(203, &["no job of yours has left a record in /"]);
    state.rlaunch(&field, "-H a true").run().succeeded();
    let refused = [
        ("none.log", "cannot read none.log"),
        ("aaaaaaaa", "no record of a job whose name or id begins with aaaaaaaa"),
    ];
    for (given, sentence) in refused {
        state.rlaunch(&field, &format!("report {given}")).run().refused(203, &[sentence]);
    }
    // Without a word it is the last job, by its name.
    let said = state.rlaunch(&field, "report").run();
    let last = state.last();
    let heading =
        format!("job {} ({}), 20", last["name"].as_str().unwrap(), last["job"].as_str().unwrap());
    assert!(said.succeeded().out().starts_with(&heading), "{said}");
}

#[test]
fn a_program_is_measured_with_several_numbers_of_ranks() {
    let (field, state) = (Field::new(), State::new());
    // With more ranks each rank is slower.
    let script = format!("RATE=$((104 - WORLD_SIZE * 4)); {BENCHMARK}");
    let train = |options: &str| {
        let run = state.rlaunch(&field, &format!("bench train -H a:2,b,c {options}"));
        run.within(Duration::from_secs(90)).sh(&script).run()
    };
    let ran = train("-np 4,1,2");
    let out = ran.succeeded().out();
    for row in ["1      100.0       100.0     100.0 %", "2      192.0       96.0      96.0 %"] {
        assert!(out.contains(row), "{ran}");
    }
    assert!(out.contains("4      352.0       88.0      88.0 %"), "{ran}");
    assert!(out.contains("rlaunch -H a:2,b,c --np 4 sh -c 'RATE="), "{ran}");
    assert_eq!(state.records().len(), 3);
    let directory = tempfile::tempdir().unwrap();
    let picture = directory.path().join("scaling.svg");
    let ran = train(&format!("--np 1,2 --json --plot {}", picture.display()));
    assert!(std::fs::read_to_string(&picture).unwrap().contains("perfect scaling"), "{ran}");
    let said: Value = serde_json::from_str(&ran.succeeded().out()).unwrap();
    assert_eq!(said["scaling"]["runs"][1]["efficiency"], 0.96, "{said}");
    assert!(ran.err().contains("30 images/sec: 96"), "{ran}");
}

#[test]
fn a_measurement_without_figures_or_with_a_failed_job_ends() {
    let (field, state) = (Field::new(), State::new());
    let train = |script: &str| {
        let run = state.rlaunch(&field, "bench train -H a,b --np 1,2");
        run.within(Duration::from_secs(90)).sh(script).run()
    };
    train("true")
        .ended_with(203)
        .says(&["no speed in the output of rlaunch -H a,b --np 1 sh -c true"]);
    let ran = train(&format!("RATE=1; {BENCHMARK}; test $WORLD_SIZE = 1 || exit 7"));
    ran.ended_with(7);
    assert!(ran.out().contains("1      1.0         1.0       100.0 %"), "{ran}");
}
