//! `cargo lab bench comm`: messages and collectives of rlaunch's communicator beside those of MPICH
//! and Open MPI, on the same hosts in the same run.
//!
//! In each round each of the three libraries is started once and measures every row; the order
//! rotates. A row meets its bar if rlaunch's time, divided by that of the better peer in the same
//! round, has a median of at most 1.10, and the 90 % interval of that median, by order statistics,
//! begins at 1.0 or below. The time until ranks can communicate is measured beside `MPI_Init`, with
//! a bar in milliseconds.

mod against;
mod init;
mod row;
mod setting;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::launchers::Launcher;
use super::rounds::Rounds;
use super::testbed::{Scratch, Testbed, bench_lab};
use crate::LabError;
use crate::command::run as run_command;
use crate::dist::{self, Profile};
use crate::setup::{self, PackageSet};
pub use against::run_against;
use row::{CommRow, RowTime};
pub use setting::Transport;
use setting::{Contender, Setting};

/// Directory of the programs on hosts.
const ON_HOST: &str = "/tmp/bench";
const PEER: (&str, &str) = ("peer.c", include_str!("comm/peer.c"));
/// Minimum duration of a batch of operations in seconds.
const SECONDS: &str = "0.02";
/// Number of batches of a row that a program times at each start; it reports their median.
const BATCHES: &str = "3";

/// Command that starts a rank with high priority. The kernel compares sessions first, then
/// processes.
const HIGH_PRIORITY: [&str; 4] =
    ["sh", "-c", r#"echo -20 2>/dev/null >/proc/self/autogroup; exec nice -n -20 "$@""#, "sh"];

/// Options of the bench.
#[derive(Debug, Clone)]
pub struct CommOptions {
    /// Number of timed rounds, after a warm-up round.
    pub rounds: usize,
    /// Measure only rows whose names contain this.
    pub row: Option<String>,
    /// Measure only over this transport.
    pub only: Option<Transport>,
    /// Whether peers are measured in less usual configurations as well.
    pub variants: bool,
}

impl CommOptions {
    /// Returns whether the time until ranks are ready is measured.
    fn wants_init(&self) -> bool {
        self.row.as_ref().map_or(self.only.is_none(), |row| init::NAME.contains(row.as_str()))
    }
}

/// Selects the rows and settings that the options ask for.
fn selected(options: &CommOptions) -> Result<(Vec<CommRow>, Vec<Setting>), LabError> {
    let rows = CommRow::with_name(options.row.as_deref().unwrap_or(""));
    if rows.is_empty() && !options.wants_init() {
        let all = CommRow::ALL.map(|row| row.to_string()).join(" ");
        return Err(LabError::Usage(format!("no such row; there are {all} {}", init::NAME)));
    }
    let settings = Setting::ALL.into_iter().filter(|_| !rows.is_empty());
    let settings = settings
        .filter(|one| options.only.is_none_or(|transport| transport == one.transport))
        .collect();
    Ok((rows, settings))
}

/// Measures and prints; returns whether every row with a bar meets it.
pub fn run(options: &CommOptions) -> Result<bool, LabError> {
    let (rows, settings) = selected(options)?;
    setup::install(PackageSet::Headers)?;
    let rlaunch = dist::build(Profile::Release)?;
    let scratch = Scratch::make()?;
    let programs = compile(scratch.path())?;
    let met = with_lab(options, &settings, &rows, rlaunch, &programs)?;
    let count = met.iter().filter(|met| **met).count();
    println!("\nrows that meet their bar: {count} of {}", met.len());
    Ok(count == met.len())
}

/// Builds the programs of ranks for each launcher.
fn compile(scratch: &Path) -> Result<Vec<PathBuf>, LabError> {
    dist::build_measure(Profile::Release)?;
    let examples = dist::directory(Profile::Release)?;
    let mut programs = Vec::new();
    let named: [(&str, (&str, &str), Name); 2] =
        [("measure", PEER, program), (init::NAME, init::PEER, init::program)];
    for (example, (source, text), name) in named {
        fs::write(scratch.join(source), text).map_err(LabError::io(format!("write {source}")))?;
        let (built, own) = (examples.join(example), scratch.join(name(Launcher::Rlaunch)));
        fs::copy(&built, &own).map_err(LabError::io(format!("copy {}", built.display())))?;
        programs.push(own);
        for (launcher, compiler) in
            [(Launcher::Hydra, "mpicc.mpich"), (Launcher::OpenMpi, "mpicc.openmpi")]
        {
            let mut compile = Command::new(compiler);
            compile.current_dir(scratch).args(["-O2", "-o", &name(launcher), source]);
            run_command(&format!("compile {source} by {compiler}"), &mut compile)?;
            programs.push(scratch.join(name(launcher)));
        }
    }
    Ok(programs)
}

/// Function that returns the name of a launcher's program.
type Name = fn(Launcher) -> String;

/// Returns the name of the program that measures under a launcher.
fn program(launcher: Launcher) -> String {
    format!("measure-{}", launcher.name())
}

/// Starts hosts and measures; returns for each row that has a bar whether the row meets it.
fn with_lab(
    options: &CommOptions,
    settings: &[Setting],
    rows: &[CommRow],
    rlaunch: PathBuf,
    programs: &[PathBuf],
) -> Result<Vec<bool>, LabError> {
    let hosts = settings.iter().map(|setting| setting.hosts).max().unwrap_or(1).max(init::HOSTS);
    Testbed::with_fresh(&bench_lab(hosts), rlaunch, |testbed| {
        for program in programs {
            testbed.copy_into(program, ON_HOST, 0o755)?;
        }
        let mut met = Vec::new();
        for setting in settings {
            println!("\n{}", setting.describe());
            let contenders = setting.contenders(options.variants);
            let rounds = setting.rounds(options.rounds);
            let rounds = measure(testbed, setting, &contenders, rows, rounds)?;
            met.extend(print(setting, &contenders, rows, &rounds));
        }
        if options.wants_init() {
            met.push(init::run(testbed, options.rounds)?);
        }
        Ok(met)
    })
}

/// Returns the path of a program on hosts.
fn on_host(name: &str) -> String {
    format!("{ON_HOST}/{name}")
}

/// Runs a warm-up round, in which programs find how many operations a batch needs, then the timed
/// rounds.
fn measure(
    testbed: &Testbed,
    setting: &Setting,
    contenders: &[Contender],
    rows: &[CommRow],
    rounds: usize,
) -> Result<Vec<Rounds>, LabError> {
    let mut results = vec![Rounds::new(contenders.len()); rows.len()];
    let mut counts = vec![vec![0; rows.len()]; contenders.len()];
    for round in 0..=rounds {
        for turn in 0..contenders.len() {
            let index = (round + turn) % contenders.len();
            let contender = &contenders[index];
            let program = on_host(&program(contender.launcher));
            let asked = MeasureRequest {
                program: &program,
                rows,
                counts: &counts[index],
                seconds: SECONDS,
            };
            let measured = match measure_one(testbed, setting, contender, &asked) {
                Ok(measured) => measured,
                Err(error) if setting.has_bar => return Err(error),
                Err(error) => {
                    println!("round {round}: {:<11} {error}", contender.name);
                    testbed.lab.clear()?;
                    continue;
                }
            };
            println!("round {round}: {:<11} {}", contender.name, in_words(rows, &measured));
            if setting.has_bar {
                counts[index] = measured.iter().map(|of_row| of_row.count).collect();
            }
            if round > 0 {
                let results = results.iter_mut().zip(&measured);
                results.for_each(|(of_row, one)| of_row.0[index].push(one.seconds));
            }
        }
    }
    Ok(results)
}

/// Measurements that a program is asked for.
struct MeasureRequest<'a> {
    /// Path of the program on hosts.
    program: &'a str,
    rows: &'a [CommRow],
    /// Minimum number of operations in a batch of each row.
    counts: &'a [u64],
    /// Minimum duration of a batch in seconds.
    seconds: &'a str,
}

/// Starts a program once and reads what it measured.
fn measure_one(
    testbed: &Testbed,
    setting: &Setting,
    contender: &Contender,
    asked: &MeasureRequest<'_>,
) -> Result<Vec<RowTime>, LabError> {
    let launcher = contender.launcher;
    let rows = asked.rows.iter().zip(asked.counts);
    let rows: Vec<String> = rows.map(|(row, count)| format!("{row}/{count}")).collect();
    let mut words = [HIGH_PRIORITY.as_slice(), &[asked.program, asked.seconds, BATCHES]].concat();
    words.extend(rows.iter().map(String::as_str));
    let hosts = &testbed.hosts[..setting.hosts];
    let limit = ["--timeout", setting.limit()];
    let limit = if launcher == Launcher::Hydra { [].as_slice() } else { &limit };
    let options: Vec<&str> = limit.iter().copied().chain(contender.options()).collect();
    let mut command = launcher.command_on(hosts, &options, testbed, setting.per_host, &words);
    command.env("MPIEXEC_TIMEOUT", setting.limit());
    let operation = format!("measure the communicator of {}", contender.name);
    let output = run_command(&operation, &mut command)?;
    testbed.wait_until_idle()?;
    row::read(&String::from_utf8_lossy(&output.stdout), asked.rows)
}

fn in_words(rows: &[CommRow], measured: &[RowTime]) -> String {
    let word = |(row, of): (&CommRow, &RowTime)| format!("{row} {:.3}", row.shown(of.seconds));
    rows.iter().zip(measured).map(word).collect::<Vec<_>>().join("  ")
}

/// Prints the table of a setting; returns for each row that has a bar whether the row meets it.
fn print(
    setting: &Setting,
    contenders: &[Contender],
    rows: &[CommRow],
    rounds: &[Rounds],
) -> Vec<bool> {
    let names: Vec<&str> = contenders.iter().map(|one| one.name).collect();
    println!("\n{}: median (min–max)", setting.describe());
    print!("{:<25}", "");
    names.iter().for_each(|name| print!("{name:>28}"));
    println!("  ratio of times, its 90 % interval");
    for (row, of_row) in rows.iter().zip(rounds) {
        let name = (&*row.to_string(), row.unit());
        of_row.print(name, |seconds| row.shown(seconds), &names, setting.has_bar);
    }
    let held = rounds.iter().map(|of_row| of_row.comparison().is_some_and(|of| of.meets_bar()));
    if setting.has_bar { held.collect() } else { Vec::new() }
}
