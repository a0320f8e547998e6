//! `cargo lab bench launch`: time and resources that each launcher takes to run `hostname` on every
//! host of a lab.

use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::Series;
use super::against::{self, Build, Builds, ComparisonRow, EarlierBuild, Testbeds};
use super::launchers::Launcher;
use super::testbed::{Testbed, bench_lab};
use crate::LabError;
use crate::command::last_lines;
use crate::dist::{self, Profile};
use crate::setup::{self, PackageSet};

/// Program that every host runs; its output shows that the host has run it.
const PROGRAM: &str = "hostname";

/// Number of runs for the memory of two builds, which varies less than time.
const MEMORY_ROUNDS: usize = 5;

/// Maximum ratio of rlaunch's time and CPU time to those of a peer.
fn bar(peer: Launcher) -> Option<f64> {
    match peer {
        Launcher::Rlaunch => None,
        Launcher::Hydra => Some(0.26),
        Launcher::OpenMpi => Some(0.17),
        Launcher::PlainSsh => Some(0.75),
    }
}

/// Maximum ratio of rlaunch's memory to that of a peer.
fn memory_bar(peer: Launcher) -> Option<f64> {
    (peer == Launcher::OpenMpi).then_some(0.5)
}

/// Returns the names that `--skip` takes.
pub fn launcher_names() -> Vec<&'static str> {
    Launcher::ALL.map(Launcher::name).to_vec()
}

/// Options of the bench.
#[derive(Debug, Clone)]
pub struct LaunchOptions {
    /// Number of hosts.
    pub hosts: usize,
    /// Number of timed rounds.
    pub rounds: usize,
    /// Names of launchers to leave out.
    pub skip: Vec<String>,
}

/// Results of one launcher.
struct LauncherResults {
    launcher: Launcher,
    wall: Series,
    cpu: Series,
    /// One value, in MiB.
    memory: Series,
}

/// Measures and prints; returns whether every bar is met.
pub fn run(options: &LaunchOptions) -> Result<bool, LabError> {
    setup::install(PackageSet::Peers)?;
    let wanted = |launcher: &Launcher| !options.skip.iter().any(|name| name == launcher.name());
    let launchers: Vec<Launcher> = Launcher::ALL.into_iter().filter(wanted).collect();
    let rlaunch = match launchers.contains(&Launcher::Rlaunch) {
        true => dist::build(Profile::Release)?,
        false => PathBuf::new(),
    };
    let results = Testbed::with_fresh(&bench_lab(options.hosts), rlaunch, |testbed| {
        measure(testbed, &launchers, options.rounds)
    })?;
    println!(
        "\n{PROGRAM} on {} hosts, median (min–max) of {} rounds",
        options.hosts, options.rounds
    );
    print_table(&results);
    Ok(print_ratios(&results))
}

/// Compares this build with an earlier one and prints; returns whether it is slower in no row.
pub fn run_against(options: &LaunchOptions, earlier: &EarlierBuild) -> Result<bool, LabError> {
    let builds = Builds::make(earlier, options.rounds)?;
    let rows =
        against::on_hosts(options.hosts, builds, |testbeds| compare(testbeds, options.rounds))?;
    println!(
        "\n{PROGRAM} on {} hosts, median (min–max) of {} rounds",
        options.hosts, options.rounds
    );
    Ok(against::print(&rows))
}

/// Runs the timed rounds, then a few for memory.
fn compare(testbeds: &Testbeds, rounds: usize) -> Result<Vec<ComparisonRow>, LabError> {
    let (mut wall, mut cpu) = (ComparisonRow::new("wall", "s"), ComparisonRow::new("CPU", "s"));
    testbeds.for_each_turn(rounds, |turn| {
        let (seconds, used) = time(turn.testbed, Launcher::Rlaunch)?;
        let used = against::required(used)?;
        println!("{turn} {seconds:.2} s, {used:.2} s of CPU");
        wall.note(turn, seconds);
        cpu.note(turn, used);
        Ok(())
    })?;
    let mut peak = ComparisonRow::without_bar("memory", "MiB");
    for _ in 0..rounds.min(MEMORY_ROUNDS) {
        for build in Build::ALL {
            peak.push(build, memory(testbeds.testbed(build), Launcher::Rlaunch)?);
        }
    }
    Ok(vec![wall, cpu, peak])
}

/// Runs a warm-up round, the timed rounds, and one round for memory; launchers take turns.
fn measure(
    testbed: &Testbed,
    launchers: &[Launcher],
    rounds: usize,
) -> Result<Vec<LauncherResults>, LabError> {
    let new = |&launcher: &Launcher| LauncherResults {
        launcher,
        wall: Series::default(),
        cpu: Series::default(),
        memory: Series::default(),
    };
    let mut results: Vec<LauncherResults> = launchers.iter().map(new).collect();
    for round in 0..=rounds {
        for result in &mut results {
            let (wall, cpu) = time(testbed, result.launcher)?;
            println!("round {round}: {:<8} {wall:.2} s", result.launcher.name());
            if round > 0 {
                result.wall.push(wall);
                cpu.into_iter().for_each(|cpu| result.cpu.push(cpu));
            }
        }
    }
    for result in &mut results {
        result.memory.push(memory(testbed, result.launcher)?);
    }
    Ok(results)
}

/// Returns wall time and CPU time of one run in seconds. CPU time is that of all nodes together
/// until the hosts are idle.
fn time(testbed: &Testbed, launcher: Launcher) -> Result<(f64, Option<f64>), LabError> {
    testbed.with_cpu(|| {
        let start = Instant::now();
        let output = complete(testbed, launcher);
        let wall = start.elapsed().as_secs_f64();
        check(testbed, launcher, &output?)?;
        Ok(wall)
    })
}

/// Returns the peak memory of the launcher's processes on the launch node in MiB. Sampling costs
/// time, so this run is not timed.
fn memory(testbed: &Testbed, launcher: Launcher) -> Result<f64, LabError> {
    let (output, peak) = thread::scope(|scope| {
        let run = scope.spawn(|| complete(testbed, launcher));
        let mut peak = 0;
        while !run.is_finished() {
            peak = peak.max(testbed.lab.launch_memory().unwrap_or(0));
            thread::sleep(Duration::from_millis(5));
        }
        (run.join(), peak)
    });
    // The thread does not panic.
    let lost =
        |_| Err(LabError::Unexpected(format!("the thread that runs {} panicked", launcher.name())));
    check(testbed, launcher, &output.unwrap_or_else(lost)?)?;
    testbed.wait_until_idle()?;
    // Exact: no launcher takes 2^53 bytes.
    Ok(peak as f64 / f64::from(1 << 20))
}

fn complete(testbed: &Testbed, launcher: Launcher) -> Result<Output, LabError> {
    let mut command = launcher.command(testbed, 1, &[PROGRAM]);
    command.stdin(Stdio::null()).output().map_err(LabError::io(format!("run {}", launcher.name())))
}

/// Checks that every host printed its name once.
fn check(testbed: &Testbed, launcher: Launcher, output: &Output) -> Result<(), LabError> {
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut printed: Vec<&str> = stdout.lines().collect();
    printed.sort_unstable();
    let mut wanted: Vec<&str> = testbed.hosts.iter().map(String::as_str).collect();
    wanted.sort_unstable();
    if output.status.success() && printed == wanted {
        return Ok(());
    }
    let stderr = last_lines(&String::from_utf8_lossy(&output.stderr), 10);
    let (name, status, lines) = (launcher.name(), output.status, printed.len());
    Err(LabError::Unexpected(format!(
        "{name} ended with {status} and printed {lines} lines where {} hosts should print their \
         names once each\n{stderr}",
        wanted.len()
    )))
}

fn print_table(results: &[LauncherResults]) {
    println!("{:<10}{:>22}{:>22}{:>14}", "", "wall s", "CPU s", "memory MiB");
    for LauncherResults { launcher, wall, cpu, memory } in results {
        let memory = memory.median().map_or("–".into(), |value| format!("{value:.1}"));
        let (wall, cpu) = (wall.summary(), cpu.summary());
        println!("{:<10}{wall:>22}{cpu:>22}{memory:>14}", launcher.name());
    }
}

/// Prints the ratio of rlaunch to each peer, with the bar of each ratio; returns whether every bar
/// is met.
fn print_ratios(results: &[LauncherResults]) -> bool {
    let (own, peers): (Vec<_>, Vec<_>) =
        results.iter().partition(|result| result.launcher == Launcher::Rlaunch);
    let Some(own) = own.first() else { return true };
    let mut met = true;
    for peer in peers {
        let rows = [
            ("wall", own.wall.ratio_to(&peer.wall), bar(peer.launcher)),
            ("CPU", own.cpu.ratio_to(&peer.cpu), bar(peer.launcher)),
            ("memory", own.memory.ratio_to(&peer.memory), memory_bar(peer.launcher)),
        ];
        for (what, ratio, bar) in rows {
            let (Some(ratio), Some(bar)) = (ratio, bar) else { continue };
            let verdict = if ratio <= bar { "met" } else { "MISSED" };
            met &= ratio <= bar;
            let name = peer.launcher.name();
            println!("rlaunch/{name:<7} {what:<7} {ratio:.3}  (bar {bar:.2}: {verdict})");
        }
    }
    met
}
