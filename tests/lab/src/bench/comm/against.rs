//! The communicator beside that of an earlier build.
//!
//! The communicator is linked into the programs of ranks, so each build has its own programs,
//! started by its own launcher. Settings with more ranks than processors are not measured: there
//! the kernel's scheduling varies more from run to run than builds differ.

use std::path::Path;

use super::row::{CommRow, RowTime};
use super::setting::{RLAUNCH, Setting};
use super::{CommOptions, MeasureRequest, SECONDS, in_words, init, measure_one, on_host, selected};
use crate::LabError;
use crate::bench::against::{self, Builds, ComparisonRow, EarlierBuild, Testbeds, Turn};
use crate::dist::{self, Profile};

/// Program of a distribution that measures operations.
const MEASURE: &str = "measure";
/// Minimum duration in seconds of a batch with a given number of operations; so short that only the
/// number of operations counts.
const NO_SECONDS: &str = "0.000001";

/// Compares this build with an earlier one and prints; returns whether it is slower in no row.
pub fn run_against(options: &CommOptions, earlier: &EarlierBuild) -> Result<bool, LabError> {
    let (rows, mut settings) = selected(options)?;
    settings.retain(|setting| setting.has_bar);
    let mut programs = Vec::new();
    if !settings.is_empty() {
        programs.push(MEASURE);
    }
    if options.wants_init() {
        programs.push(init::NAME);
    }
    for program in &programs {
        earlier.program(program)?;
    }
    let builds = Builds::make(earlier, options.rounds)?;
    dist::build_measure(Profile::Release)?;
    let hosts = settings.iter().map(|setting| setting.hosts);
    let hosts = hosts.chain(options.wants_init().then_some(init::HOSTS)).max().unwrap_or(1);
    let compared = against::on_hosts(hosts, builds, |testbeds| {
        let mut compared = Vec::new();
        for setting in &settings {
            compared.extend(compare(testbeds, setting, &rows, options.rounds)?);
        }
        if options.wants_init() {
            compared.extend(compare_init(testbeds, options.rounds)?);
        }
        Ok(compared)
    })?;
    println!("\nmedian (min–max) of {} rounds; CPU is that of a whole run", options.rounds);
    Ok(against::print(&compared))
}

/// Copies the program of the current build to hosts and returns its path there. The path is the
/// same for both builds, and the file is written again each time: the place of its pages in memory
/// changes the speed by some percent, and must not favour one build in all rounds.
fn place_program(turn: &Turn<'_>, name: &str) -> Result<String, LabError> {
    let path = on_host(name);
    let program = turn.testbed.rlaunch.with_file_name(name);
    turn.testbed.copy(&program, Path::new(&path), 0o755)?;
    Ok(path)
}

/// Measures operations in a setting. In the warm-up round both programs find how many operations a
/// batch of their own needs. From then on both use the larger number, so that runs do the same work
/// and their CPU times can be compared.
fn compare(
    testbeds: &Testbeds,
    setting: &Setting,
    rows: &[CommRow],
    rounds: usize,
) -> Result<Vec<ComparisonRow>, LabError> {
    println!("\n{}", setting.describe());
    let transport = setting.transport.name();
    let new = |row: &CommRow| ComparisonRow::new(format!("{transport} {row} wall"), "µs");
    let mut walls: Vec<ComparisonRow> = rows.iter().map(new).collect();
    let mut cpu = ComparisonRow::new(format!("{transport} CPU"), "s");
    let mut counts = vec![0; rows.len()];
    testbeds.for_each_turn(rounds, |turn| {
        let seconds = if turn.counts() { NO_SECONDS } else { SECONDS };
        let (measured, used) = measure_turn(turn, setting, rows, (&counts, seconds))?;
        if !turn.counts() {
            let found = counts.iter_mut().zip(&measured);
            found.for_each(|(count, one)| *count = one.count.max(*count));
        }
        let noted = walls.iter_mut().zip(&measured);
        noted.for_each(|(wall, one)| wall.note(turn, one.seconds * 1e6));
        cpu.note(turn, used);
        Ok(())
    })?;
    walls.push(cpu);
    Ok(walls)
}

/// Runs the program once; returns its measurements and CPU time in seconds.
fn measure_turn(
    turn: &Turn<'_>,
    setting: &Setting,
    rows: &[CommRow],
    (counts, seconds): (&[u64], &str),
) -> Result<(Vec<RowTime>, f64), LabError> {
    let program = place_program(turn, MEASURE)?;
    let asked = MeasureRequest { program: &program, rows, counts, seconds };
    let act = || measure_one(turn.testbed, setting, &RLAUNCH, &asked);
    let (measured, cpu) = turn.testbed.with_cpu(act)?;
    let cpu = against::required(cpu)?;
    println!("{turn} {}  {cpu:.2} s of CPU", in_words(rows, &measured));
    Ok((measured, cpu))
}

/// Measures the time until ranks can communicate.
fn compare_init(testbeds: &Testbeds, rounds: usize) -> Result<Vec<ComparisonRow>, LabError> {
    println!("\n{}", init::describe());
    let named = |what| format!("{} {what}", init::NAME);
    let (mut wall, mut cpu) =
        (ComparisonRow::new(named("wall"), "ms"), ComparisonRow::new(named("CPU"), "s"));
    testbeds.for_each_turn(rounds, |turn| {
        let program = place_program(turn, init::NAME)?;
        let act = || init::once(turn.testbed, &RLAUNCH, &program);
        let (milliseconds, used) = turn.testbed.with_cpu(act)?;
        let used = against::required(used)?;
        println!("{turn} {milliseconds:.2} ms, {used:.2} s of CPU");
        wall.note(turn, milliseconds);
        cpu.note(turn, used);
        Ok(())
    })?;
    Ok(vec![wall, cpu])
}
