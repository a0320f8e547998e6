//! `cargo lab bench rendezvous`: time that ranks take to find each other, under rlaunch and under
//! the services that MPI libraries use for this: PMI-1 of Hydra, PMIx of Open MPI.
//!
//! `ready` is, for rlaunch, the time from the last agent's hello until every agent has the rank
//! table. For its peers it is the time of the slowest rank in MPI_Init, which includes that
//! exchange and more. The other rows are the same operation for all: the time that a rank spends in
//! a barrier, and in an all-gather of N bytes from each rank.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use super::contender::{Contender, Launcher, ON_HOST, Ran, Scratch, Testbed, compile};
use super::table::{Bar, Rounds, Row, Table};
use crate::LabError;
use crate::command::{printed, show};
use crate::dist::{self, Profile};
use crate::setup::{self, PackageSet};

const PER_HOST: usize = 2;
/// Number of repetitions of each operation in a job.
const REPEATED: &str = "10";
/// Maximum milliseconds until every agent has the rank table.
const READY_BAR: f64 = 250.0;
/// Rows of which ranks print the times; before them comes `ready`.
const MEETINGS: [&str; 3] = ["barrier", "gather-64", "gather-4096"];
const PMI1: (&str, &str) = ("pmi1.c", include_str!("rendezvous/pmi1.c"));
const PMIX: (&str, &str) = ("pmix.c", include_str!("rendezvous/pmix.c"));
const MEET: (&str, &str) = ("meet.h", include_str!("rendezvous/meet.h"));
/// Source of a program that prints its time in MPI_Init.
pub(super) const INIT: (&str, &str) = ("init.c", include_str!("rendezvous/init.c"));

/// Measures and prints; returns whether the bar is met.
pub(super) fn run(hosts: usize, rounds: usize) -> Result<bool, LabError> {
    setup::install(PackageSet::Headers)?;
    let rlaunch = dist::build(Profile::Release)?;
    let scratch = Scratch::make(std::env::temp_dir())?;
    let programs = programs(&scratch)?;
    let contenders = Contender::with_services(&rlaunch);
    let rows = MEETINGS.map(|name| Row::new(name, "ms", &[]));
    let rows = [Row::new("ready", "ms", &[Bar::Median(READY_BAR)])].into_iter().chain(rows);
    let mut table = Table::new(contenders.iter().map(|one| one.name), rows);
    Testbed::with_fresh(hosts, |testbed| {
        programs.iter().try_for_each(|program| testbed.place(program))?;
        table.measure(Rounds::new(rounds), |turn| {
            let times = measure(testbed, &contenders[turn.contender])?;
            Ok(times.into_iter().map(|seconds| Some(seconds * 1e3)).collect())
        })
    })?;
    let ranks = hosts * PER_HOST;
    Ok(table.print(&format!("{rounds} jobs of {ranks} ranks on {hosts} hosts")))
}

/// Builds every program that ranks run.
fn programs(scratch: &Scratch) -> Result<Vec<PathBuf>, LabError> {
    let pkg_config = ["--cflags", "--libs", "pmix"];
    let flags = printed("ask for PMIx", Command::new("pkg-config").args(pkg_config))?;
    let pmix: Vec<&str> = flags.split_whitespace().collect();
    scratch.write(MEET)?;
    let mut services = dist::cargo();
    services.args(["build", "--release", "-p", "rlaunch-client", "--example", "services"]);
    show("build the example services", &mut services)?;
    Ok(vec![
        compile("cc", scratch, PMI1, "pmi1", &[])?,
        compile("cc", scratch, PMIX, "pmix", &pmix)?,
        compile("mpicc.mpich", scratch, INIT, "init-hydra", &[])?,
        compile("mpicc.openmpi", scratch, INIT, "init-mpirun", &[])?,
        dist::target_directory()?.join("release/examples/services"),
    ])
}

/// Measures one launcher once; returns the seconds of each row.
fn measure(testbed: &Testbed, contender: &Contender) -> Result<Vec<f64>, LabError> {
    let run = |options: &[&str], name: &str, words: &[&str]| -> Result<Ran, LabError> {
        let program = format!("{ON_HOST}/{name}");
        let program = [&[&*program], words].concat();
        let command = contender.command(testbed.all(PER_HOST), options, &program);
        testbed.run(&format!("run {name} under {}", contender.name), command)
    };
    if contender.launcher == Launcher::Rlaunch {
        let ran = run(&["--events", "/dev/stderr"], "services", &[REPEATED])?;
        let ready = phases(&ran.stderr).ok_or_else(|| {
            LabError::Unexpected(format!("no phases in the events of the job:\n{}", ran.stderr))
        })?;
        return Ok([vec![ready], times(&ran.stdout, &MEETINGS)?].concat());
    }
    let init = run(&[], &format!("init-{}", contender.name), &[])?;
    let meet = if contender.launcher == Launcher::Hydra { "pmi1" } else { "pmix" };
    let met = run(&[], meet, &[REPEATED])?;
    Ok([times(&init.stdout, &["ready"])?, times(&met.stdout, &MEETINGS)?].concat())
}

/// Reads the times of `rows` from lines `NAME MICROSECONDS …`, in seconds. If a row has several
/// lines the maximum counts.
pub(super) fn times(stdout: &str, rows: &[&str]) -> Result<Vec<f64>, LabError> {
    let value = |line: &str, row: &str| {
        let mut words = line.split_whitespace();
        let time: f64 = words.next().filter(|word| *word == row).and(words.next())?.parse().ok()?;
        Some(time / 1e6)
    };
    let time = |row: &&str| {
        let times = stdout.lines().filter_map(|line| value(line, row));
        let missing =
            || LabError::Unexpected(format!("no time of {row} in what was printed:\n{stdout}"));
        times.reduce(f64::max).ok_or_else(missing)
    };
    rows.iter().map(time).collect()
}

/// Returns the seconds from the last agent's hello until every agent had the rank table, from the
/// events of a job.
fn phases(events: &str) -> Option<f64> {
    let events = events.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let wanted = events.filter(|event| event["name"] == "prepare" || event["name"] == "join");
    wanted.filter_map(|phase| phase["seconds"].as_f64()).reduce(|sum, seconds| sum + seconds)
}
