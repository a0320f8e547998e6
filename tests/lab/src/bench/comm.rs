//! `cargo lab bench comm`: messages and collectives of rlaunch's communicator beside those of MPICH
//! and Open MPI, on the same hosts in the same run.
//!
//! In each round each of the three is started once and measures every row; who begins changes from
//! round to round. A row holds if rlaunch's time, divided by that of the better peer in the same
//! round, has a median of at most 1.10, and that median's 90 % interval, by order statistics, begins
//! at 1.0 or below. How long ranks take until they can speak is measured beside `MPI_Init`, with a
//! bar in milliseconds.

mod against;
mod init;
mod row;
mod setting;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::launchers::{Launcher, Testbed};
use super::rounds::Rounds;
use crate::command::run as run_command;
use crate::dist::{self, Profile};
use crate::setup::{self, PackageSet};
use crate::{Lab, LabError, Options};
pub use against::run_against;
use row::{CommRow, RowTime};
pub use setting::Transport;
use setting::{Contender, Setting};

const NAME: &str = "bench";
const NET: [u8; 2] = [10, 97];
/// Where hosts find the programs.
const ON_HOST: &str = "/tmp/bench";
const IDLE: Duration = Duration::from_secs(30);
const PEER: (&str, &str) = ("peer.c", include_str!("comm/peer.c"));
/// The least seconds of one batch of acts.
const SECONDS: &str = "0.02";
/// How many batches of a row a program times each time it is started; it reports their median.
const BATCHES: &str = "3";

/// Starts a rank so that whatever else runs on this machine gets out of its way: priorities are
/// first those of sessions.
const HIGH_PRIORITY: [&str; 4] =
    ["sh", "-c", r#"echo -20 2>/dev/null >/proc/self/autogroup; exec nice -n -20 "$@""#, "sh"];

/// How to measure.
#[derive(Debug, Clone)]
pub struct CommOptions {
    /// How often each program is started, after once to warm up.
    pub rounds: usize,
    /// Only rows whose names contain this.
    pub row: Option<String>,
    /// Only over this.
    pub only: Option<Transport>,
    /// Peers also in ways that few people start them in.
    pub variants: bool,
}

impl CommOptions {
    /// Whether it is measured how long ranks take to be ready.
    fn wants_init(&self) -> bool {
        self.row.as_ref().map_or(self.only.is_none(), |row| init::NAME.contains(row.as_str()))
    }
}

/// Selects what a options measures: rows, and where.
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

/// Measures and prints; true if every row with a bar holds.
pub fn run(options: &CommOptions) -> Result<bool, LabError> {
    let (rows, settings) = selected(options)?;
    setup::install(PackageSet::Headers)?;
    let rlaunch = dist::build(Profile::Release)?;
    let scratch = env::temp_dir().join(format!("rlaunch-bench-{}", std::process::id()));
    let made = fs::create_dir(&scratch).map_err(LabError::io("make a directory for programs"));
    let programs = made.and_then(|()| compile(&scratch));
    let held =
        programs.and_then(|programs| with_lab(options, &settings, &rows, rlaunch, &programs));
    let _ = fs::remove_dir_all(&scratch);
    let held = held?;
    let count = held.iter().filter(|held| **held).count();
    println!("\nrows that hold: {count} of {}", held.len());
    Ok(count == held.len())
}

/// Builds what ranks run under each launcher.
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

/// What a launcher's program is called.
type Name = fn(Launcher) -> String;

/// The name of what ranks run.
fn program(launcher: Launcher) -> String {
    format!("measure-{}", launcher.name())
}

/// Of each row with a bar, whether it holds.
fn with_lab(
    options: &CommOptions,
    settings: &[Setting],
    rows: &[CommRow],
    rlaunch: PathBuf,
    programs: &[PathBuf],
) -> Result<Vec<bool>, LabError> {
    let hosts = settings.iter().map(|setting| setting.hosts).max().unwrap_or(1).max(init::HOSTS);
    println!("starting {hosts} hosts");
    // An interrupted run leaves its lab behind, in whatever state.
    Lab::down(NAME)?;
    let lab = Lab::up(&Options { net: NET, ..Options::new(NAME, hosts) })?;
    let testbed = Testbed { hosts: lab.hosts(), lab, rlaunch };
    let placed = programs.iter().try_for_each(|program| place(&testbed, program));
    let measure = |setting: &Setting| {
        println!("\n{}", setting.describe());
        let contenders = setting.contenders(options.variants);
        let rounds = measure(&testbed, setting, &contenders, rows, setting.rounds(options.rounds))?;
        Ok(print(setting, &contenders, rows, &rounds))
    };
    let held: Result<Vec<Vec<bool>>, _> =
        placed.and_then(|()| settings.iter().map(measure).collect());
    let held = held.map(|held| held.concat()).and_then(|mut held| {
        if options.wants_init() {
            held.push(init::run(&testbed, options.rounds)?);
        }
        Ok(held)
    });
    Lab::down(NAME)?;
    held
}

fn place(testbed: &Testbed, program: &Path) -> Result<(), LabError> {
    place_as(testbed, program, &program.file_name().unwrap_or_default().to_string_lossy())
}

fn place_as(testbed: &Testbed, program: &Path, name: &str) -> Result<(), LabError> {
    let bytes = fs::read(program).map_err(LabError::io(format!("read {}", program.display())))?;
    let to = PathBuf::from(on_host(name));
    testbed.hosts.iter().try_for_each(|host| testbed.lab.write_file(host, &to, &bytes, 0o755))
}

/// Gives the path of a program on hosts.
fn on_host(name: &str) -> String {
    format!("{ON_HOST}/{name}")
}

/// A round to warm up, in which the programs find how many acts a batch needs, then the timed ones.
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
    /// Its path on hosts.
    program: &'a str,
    rows: &'a [CommRow],
    /// How many acts a batch of each row has at least.
    counts: &'a [u64],
    /// How long it takes at least.
    seconds: &'a str,
}

/// Starts a program once.
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
    testbed.lab.wait_until_idle(IDLE)?;
    row::read(&String::from_utf8_lossy(&output.stdout), asked.rows)
}

fn in_words(rows: &[CommRow], measured: &[RowTime]) -> String {
    let word = |(row, of): (&CommRow, &RowTime)| format!("{row} {:.3}", row.shown(of.seconds));
    rows.iter().zip(measured).map(word).collect::<Vec<_>>().join("  ")
}

/// Prints a setting's table; of each row with a bar, whether it holds.
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
    let held = rounds.iter().map(|of_row| of_row.comparison().is_some_and(|of| of.holds()));
    if setting.has_bar { held.collect() } else { Vec::new() }
}
