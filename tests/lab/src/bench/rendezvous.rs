//! `cargo lab bench rendezvous`: time that ranks take to find each other, under rlaunch and under
//! the services that MPI libraries use for this: PMI-1 of Hydra, PMIx of Open MPI.
//!
//! `ready` is, for rlaunch, the time from the last agent's hello until every agent has the rank
//! table. For its peers it is the time of the slowest rank in MPI_Init, which includes that
//! exchange and more. The other rows are the same operation for all: the time that a rank spends in
//! a barrier, and in an all-gather of N bytes from each rank.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde::Deserialize;

use super::Series;
use super::launchers::Launcher;
use super::testbed::{Scratch, Testbed, bench_lab};
use crate::LabError;
use crate::command::{run as run_command, show};
use crate::dist::{self, Profile};
use crate::setup::{self, PackageSet};

const PER_HOST: usize = 2;
/// Number of repetitions of each operation in a job.
const REPEATED: &str = "10";
/// Directory of the programs on hosts.
const ON_HOST: &str = "/tmp/bench";
/// Maximum seconds until every agent has the rank table.
const READY_BAR: f64 = 0.25;
const ROWS: [&str; 4] = ["ready", "barrier", "gather-64", "gather-4096"];
const PMI1: (&str, &str) = ("pmi1.c", include_str!("rendezvous/pmi1.c"));
const PMIX: (&str, &str) = ("pmix.c", include_str!("rendezvous/pmix.c"));
const INIT: (&str, &str) = ("init.c", include_str!("rendezvous/init.c"));
const MEET: (&str, &str) = ("meet.h", include_str!("rendezvous/meet.h"));

/// Options of the bench.
#[derive(Debug, Clone)]
pub struct RendezvousOptions {
    /// Number of hosts, with two ranks each.
    pub hosts: usize,
    /// Number of timed jobs of each launcher.
    pub rounds: usize,
}

/// Measured seconds by row, then by launcher.
type RowTimes = BTreeMap<&'static str, [Series; 3]>;

/// Measures and prints; returns whether the bar is met.
pub fn run(options: &RendezvousOptions) -> Result<bool, LabError> {
    setup::install(PackageSet::Headers)?;
    let rlaunch = dist::build(Profile::Release)?;
    let scratch = Scratch::make()?;
    let programs = compile(scratch.path())?;
    let results = Testbed::with_fresh(&bench_lab(options.hosts), rlaunch, |testbed| {
        for program in &programs {
            testbed.copy_into(program, ON_HOST, 0o755)?;
        }
        measure(testbed, options.rounds)
    })?;
    println!(
        "\nmilliseconds, median (min–max) of {} jobs with {} ranks on {} hosts",
        options.rounds,
        options.hosts * PER_HOST,
        options.hosts
    );
    Ok(print(&results))
}

/// Builds every program that ranks run.
fn compile(scratch: &Path) -> Result<Vec<PathBuf>, LabError> {
    for (name, text) in [PMI1, PMIX, INIT, MEET] {
        fs::write(scratch.join(name), text).map_err(LabError::io(format!("write {name}")))?;
    }
    let pkg_config = ["--cflags", "--libs", "pmix"];
    let flags = run_command("ask for PMIx", Command::new("pkg-config").args(pkg_config))?;
    let flags = String::from_utf8_lossy(&flags.stdout).into_owned();
    let pmix: Vec<&str> = flags.split_whitespace().collect();
    let all: [(&str, &str, &str, &[&str]); 4] = [
        ("cc", PMI1.0, "pmi1", &[]),
        ("cc", PMIX.0, "pmix", &pmix),
        ("mpicc.mpich", INIT.0, "init-hydra", &[]),
        ("mpicc.openmpi", INIT.0, "init-mpirun", &[]),
    ];
    let mut programs = Vec::new();
    for (compiler, source, program, flags) in all {
        let mut compile = Command::new(compiler);
        compile.current_dir(scratch).args(["-O2", "-o", program, source]).args(flags);
        run_command(&format!("compile {source}"), &mut compile)?;
        programs.push(scratch.join(program));
    }
    let mut services = dist::cargo();
    services.args(["build", "--release", "-p", "rlaunch-client", "--example", "services"]);
    show("build the example services", &mut services)?;
    programs.push(dist::target_directory()?.join("release/examples/services"));
    Ok(programs)
}

/// Runs a warm-up round, then the timed rounds; launchers take turns.
fn measure(testbed: &Testbed, rounds: usize) -> Result<RowTimes, LabError> {
    let mut results = RowTimes::new();
    for round in 0..=rounds {
        for (index, launcher) in Launcher::WITH_SERVICES.into_iter().enumerate() {
            let measured = measure_one(testbed, launcher)?;
            let words: Vec<_> = ROWS.iter().zip(&measured).collect();
            let words: Vec<_> =
                words.iter().map(|(row, time)| format!("{row} {:.2}", *time * 1e3)).collect();
            println!("round {round}: {:<8} {} ms", launcher.name(), words.join(", "));
            if round > 0 {
                for (row, time) in ROWS.into_iter().zip(measured) {
                    results.entry(row).or_default()[index].push(time);
                }
            }
        }
    }
    Ok(results)
}

/// Measures one launcher once; returns seconds in the order of [`ROWS`].
fn measure_one(testbed: &Testbed, launcher: Launcher) -> Result<Vec<f64>, LabError> {
    let program = |name: &str| format!("{ON_HOST}/{name}");
    let (mut measured, meet, options) = match launcher {
        Launcher::Rlaunch => (Vec::new(), "services", ["--events", "/dev/stderr"].as_slice()),
        _ => {
            let init = program(&format!("init-{}", launcher.name()));
            let output = complete(testbed, launcher, &[], &[&init])?;
            let meet = if launcher == Launcher::Hydra { "pmi1" } else { "pmix" };
            (times(&output.stdout, &ROWS[..1])?, meet, [].as_slice())
        }
    };
    let output = complete(testbed, launcher, options, &[&program(meet), REPEATED])?;
    if launcher == Launcher::Rlaunch {
        measured.push(phases(&output.stderr));
    }
    measured.extend(times(&output.stdout, &ROWS[1..])?);
    Ok(measured)
}

fn complete(
    testbed: &Testbed,
    launcher: Launcher,
    options: &[&str],
    program: &[&str],
) -> Result<Output, LabError> {
    let mut command = launcher.command_with(options, testbed, PER_HOST, program);
    let operation = format!("run {} under {}", program.join(" "), launcher.name());
    let output = run_command(&operation, &mut command)?;
    testbed.wait_until_idle()?;
    Ok(output)
}

/// Reads the times of `rows` from lines `NAME MICROSECONDS …`, in seconds. If a row has several
/// lines the maximum counts.
fn times(stdout: &[u8], rows: &[&str]) -> Result<Vec<f64>, LabError> {
    let stdout = String::from_utf8_lossy(stdout);
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
fn phases(events: &[u8]) -> f64 {
    #[derive(Deserialize)]
    struct Phase {
        name: String,
        seconds: f64,
    }
    let events = String::from_utf8_lossy(events);
    let phases = events.lines().filter_map(|line| serde_json::from_str::<Phase>(line).ok());
    phases.filter(|phase| ["prepare", "join"].contains(&&*phase.name)).map(|p| p.seconds).sum()
}

/// Prints the table; returns whether rlaunch meets its bar.
fn print(results: &RowTimes) -> bool {
    let names = Launcher::WITH_SERVICES.map(Launcher::name);
    println!("{:<12}{:>26}{:>26}{:>26}", "", names[0], names[1], names[2]);
    for row in ROWS {
        let Some(of_row) = results.get(row) else { continue };
        let [own, hydra, mpirun] = of_row.each_ref().map(|times| times.scaled(1e3).summary());
        println!("{row:<12}{own:>26}{hydra:>26}{mpirun:>26}");
    }
    for row in ROWS {
        let Some([own, peers @ ..]) = results.get(row) else { continue };
        for (name, peer) in names[1..].iter().zip(peers) {
            let Some(ratio) = own.ratio_to(peer) else { continue };
            println!("rlaunch/{name:<7} {row:<12} {ratio:.3}");
        }
    }
    let ready = results.get("ready").and_then(|[own, ..]| own.median());
    let met = ready.is_some_and(|ready| ready > 0.0 && ready <= READY_BAR);
    let verdict = if met { "met" } else { "MISSED" };
    println!("rank table on every agent (bar {:.0} ms: {verdict})", READY_BAR * 1e3);
    met
}
