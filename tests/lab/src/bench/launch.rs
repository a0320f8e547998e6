//! `cargo lab bench launch`: how long, and at what cost, each launcher takes to run `hostname` on
//! every host of a lab.

use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::Series;
use super::against::{self, Build, Builds, Earlier, Ground, Row};
use super::launchers::{Field, Launcher};
use crate::command::last_lines;
use crate::dist::{self, Profile};
use crate::setup::{self, Extent};
use crate::{Lab, LabError, Options};

const NAME: &str = "bench";
const NET: [u8; 2] = [10, 97];
/// What every host runs, and how the lab checks that it did.
const PROGRAM: &str = "hostname";
/// How long hosts may go on after a launcher has returned.
const IDLE: Duration = Duration::from_secs(30);

/// How often the memory of two builds is looked at: it varies less than time.
const MEMORY_ROUNDS: usize = 5;

/// The most that rlaunch may take of this one's time and CPU.
fn bar(peer: Launcher) -> Option<f64> {
    match peer {
        Launcher::Rlaunch => None,
        Launcher::Hydra => Some(0.26),
        Launcher::OpenMpi => Some(0.17),
        Launcher::PlainSsh => Some(0.75),
    }
}

/// The most that rlaunch may take of this one's memory.
fn memory_bar(peer: Launcher) -> Option<f64> {
    (peer == Launcher::OpenMpi).then_some(0.5)
}

/// The names that `--skip` takes.
pub fn launcher_names() -> Vec<&'static str> {
    Launcher::ALL.map(Launcher::name).to_vec()
}

/// How to measure.
#[derive(Debug, Clone)]
pub struct Plan {
    /// On how many hosts.
    pub hosts: usize,
    /// How often.
    pub rounds: usize,
    /// Launchers to leave out.
    pub skip: Vec<String>,
}

/// What was measured of one launcher.
struct Results {
    launcher: Launcher,
    wall: Series,
    cpu: Series,
    /// One value, in MiB.
    memory: Series,
}

/// Measures and prints; true if every bar is met.
pub fn run(plan: &Plan) -> Result<bool, LabError> {
    setup::install(Extent::Peers)?;
    let wanted = |launcher: &Launcher| !plan.skip.iter().any(|name| name == launcher.name());
    let launchers: Vec<Launcher> = Launcher::ALL.into_iter().filter(wanted).collect();
    let rlaunch = match launchers.contains(&Launcher::Rlaunch) {
        true => dist::build(Profile::Release)?,
        false => PathBuf::new(),
    };
    println!("starting {} hosts", plan.hosts);
    // An interrupted run leaves its lab behind, in whatever state.
    Lab::down(NAME)?;
    let lab = Lab::up(&Options { net: NET, ..Options::new(NAME, plan.hosts) })?;
    let field = Field { hosts: lab.hosts(), lab, rlaunch };
    let results = measure(&field, &launchers, plan.rounds);
    Lab::down(NAME)?;
    let results = results?;
    println!("\n{PROGRAM} on {} hosts, median (min–max) of {} rounds", plan.hosts, plan.rounds);
    print_table(&results);
    Ok(print_ratios(&results))
}

/// Measures this build beside an earlier one and prints; true if it is slower by no row.
pub fn run_against(plan: &Plan, earlier: &Earlier) -> Result<bool, LabError> {
    let builds = Builds::make(earlier, plan.rounds)?;
    let rows = against::on_hosts(plan.hosts, builds, |ground| compare(ground, plan.rounds))?;
    println!("\n{PROGRAM} on {} hosts, median (min–max) of {} rounds", plan.hosts, plan.rounds);
    Ok(against::print(&rows))
}

/// The timed rounds, then a few for memory.
fn compare(ground: &Ground, rounds: usize) -> Result<Vec<Row>, LabError> {
    let (mut wall, mut cpu) = (Row::new("wall", "s"), Row::new("CPU", "s"));
    ground.in_turn(rounds, |turn| {
        let (seconds, used) = time(turn.field, Launcher::Rlaunch)?;
        let used = against::required(used)?;
        println!("{turn} {seconds:.2} s, {used:.2} s of CPU");
        wall.note(turn, seconds);
        cpu.note(turn, used);
        Ok(())
    })?;
    let mut peak = Row::without_bar("memory", "MiB");
    for _ in 0..rounds.min(MEMORY_ROUNDS) {
        for build in Build::ALL {
            peak.push(build, memory(ground.field(build), Launcher::Rlaunch)?);
        }
    }
    Ok(vec![wall, cpu, peak])
}

/// A warm-up, the timed rounds in turn, and one more round for memory.
fn measure(field: &Field, launchers: &[Launcher], rounds: usize) -> Result<Vec<Results>, LabError> {
    let new = |&launcher: &Launcher| Results {
        launcher,
        wall: Series::default(),
        cpu: Series::default(),
        memory: Series::default(),
    };
    let mut results: Vec<Results> = launchers.iter().map(new).collect();
    for round in 0..=rounds {
        for result in &mut results {
            let (wall, cpu) = time(field, result.launcher)?;
            println!("round {round}: {:<8} {wall:.2} s", result.launcher.name());
            if round > 0 {
                result.wall.push(wall);
                cpu.into_iter().for_each(|cpu| result.cpu.push(cpu));
            }
        }
    }
    for result in &mut results {
        result.memory.push(memory(field, result.launcher)?);
    }
    Ok(results)
}

/// Wall time of one run in seconds, and the CPU time it took on all nodes together, with what the
/// hosts still did after it had returned.
fn time(field: &Field, launcher: Launcher) -> Result<(f64, Option<f64>), LabError> {
    field.with_cpu(|| {
        let start = Instant::now();
        let output = complete(field, launcher);
        let wall = start.elapsed().as_secs_f64();
        check(field, launcher, &output?)?;
        Ok(wall)
    })
}

/// Peak memory of the launcher's processes on the launch node in MiB. Sampling costs time, so
/// this run is not timed.
fn memory(field: &Field, launcher: Launcher) -> Result<f64, LabError> {
    let (output, peak) = thread::scope(|scope| {
        let run = scope.spawn(|| complete(field, launcher));
        let mut peak = 0;
        while !run.is_finished() {
            peak = peak.max(field.lab.launch_memory().unwrap_or(0));
            thread::sleep(Duration::from_millis(5));
        }
        (run.join(), peak)
    });
    // The thread has nothing to panic over; a lost run would be caught by the check.
    let lost = |_| Err(LabError::Wrong(format!("lost sight of {}", launcher.name())));
    check(field, launcher, &output.unwrap_or_else(lost)?)?;
    field.lab.wait_until_idle(IDLE)?;
    // Exact: no launcher takes 2^53 bytes.
    Ok(peak as f64 / f64::from(1 << 20))
}

fn complete(field: &Field, launcher: Launcher) -> Result<Output, LabError> {
    let mut command = launcher.command(field, 1, &[PROGRAM]);
    command.stdin(Stdio::null()).output().map_err(LabError::io(format!("run {}", launcher.name())))
}

/// Every host must have been heard once.
fn check(field: &Field, launcher: Launcher, output: &Output) -> Result<(), LabError> {
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut heard: Vec<&str> = stdout.lines().collect();
    heard.sort_unstable();
    let mut wanted: Vec<&str> = field.hosts.iter().map(String::as_str).collect();
    wanted.sort_unstable();
    if output.status.success() && heard == wanted {
        return Ok(());
    }
    let stderr = last_lines(&String::from_utf8_lossy(&output.stderr), 10);
    let (name, status, lines) = (launcher.name(), output.status, heard.len());
    Err(LabError::Wrong(format!(
        "{name} ended with {status} and printed {lines} lines where {} hosts should print their \
         names once each\n{stderr}",
        wanted.len()
    )))
}

fn print_table(results: &[Results]) {
    println!("{:<10}{:>22}{:>22}{:>14}", "", "wall s", "CPU s", "memory MiB");
    for Results { launcher, wall, cpu, memory } in results {
        let memory = memory.median().map_or("–".into(), |value| format!("{value:.1}"));
        let (wall, cpu) = (wall.summary(), cpu.summary());
        println!("{:<10}{wall:>22}{cpu:>22}{memory:>14}", launcher.name());
    }
}

/// Prints rlaunch's part of each peer beside the bar; true if every bar is met.
fn print_ratios(results: &[Results]) -> bool {
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
