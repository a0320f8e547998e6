//! `cargo lab bench launch`: time and resources that each launcher takes to run `hostname` on every
//! host of a lab.

use std::process::Command;
use std::thread;
use std::time::Duration;

use clap::Args;
use clap::builder::ArgPredicate;

use super::against::{AGAINST, Against, USUAL_ROUNDS, bars};
use super::contender::{Contender, Launcher, Ran, Testbed, check_names};
use super::table::{Bar, Rounds, Row, Table};
use crate::LabError;
use crate::dist::{self, Profile};
use crate::setup::{self, PackageSet};

/// Program that every host runs; its output shows that the host has run it.
const PROGRAM: [&str; 1] = ["hostname"];
/// Number of runs for the memory of two builds, which varies less than time.
const MEMORY_ROUNDS: usize = 5;

/// Maximum ratios of time and of CPU time.
const BARS: [Bar; 3] = [
    Bar::RatioAtMost("hydra", 0.26),
    Bar::RatioAtMost("mpirun", 0.17),
    Bar::RatioAtMost("ssh", 0.75),
];
const MEMORY_BAR: Bar = Bar::RatioAtMost("mpirun", 0.5);

/// Options of the bench.
#[derive(Debug, Clone, Args)]
pub struct LaunchOptions {
    /// Number of hosts.
    #[arg(long, default_value_t = 64)]
    hosts: usize,
    /// Number of timed rounds, after one warm-up round; 15 with --against.
    #[arg(long, default_value_t = 5)]
    #[arg(default_value_if(AGAINST, ArgPredicate::IsPresent, USUAL_ROUNDS))]
    rounds: usize,
    #[command(flatten)]
    against: Against,
}

/// Measures and prints; returns whether every bar is met.
pub(super) fn run(options: &LaunchOptions) -> Result<bool, LabError> {
    let earlier = options.against.find()?;
    let contenders = match &earlier {
        Some(earlier) => earlier.contenders(options.rounds)?,
        None => {
            setup::install(PackageSet::Peers)?;
            let rlaunch = dist::build(Profile::Release)?;
            Launcher::ALL.map(|launcher| Contender::new(launcher, &rlaunch)).into()
        }
    };
    let times = bars(earlier.as_ref(), &BARS);
    let rows = [Row::new("wall", "s", times), Row::new("CPU", "s", times)];
    let names = || contenders.iter().map(|contender| contender.name);
    let mut table = Table::new(names(), rows);
    let memories: &[Bar] = if earlier.is_some() { &[] } else { &[MEMORY_BAR] };
    let mut memory = Table::new(names(), [Row::new("memory", "MiB", memories)]);
    let memory_rounds = if earlier.is_some() { options.rounds.min(MEMORY_ROUNDS) } else { 1 };
    Testbed::with_fresh(options.hosts, |testbed| {
        earlier.as_ref().map_or(Ok(()), |earlier| earlier.needs_cpu(testbed))?;
        table.measure(Rounds::new(options.rounds), |turn| {
            let Ran { seconds, cpu, .. } = complete(testbed, &contenders[turn.contender])?;
            Ok([Some(seconds)].into_iter().chain(cpu.map(Some)).collect())
        })?;
        memory.measure(Rounds::without_warm_up(memory_rounds), |turn| {
            let peak = peak_memory(testbed, &contenders[turn.contender])?;
            Ok(peak.map(Some).into_iter().collect())
        })
    })?;
    table.rows.append(&mut memory.rows);
    Ok(table.print(&format!("hostname on {} hosts, {} rounds", options.hosts, options.rounds)))
}

/// Runs one job, and checks that every host printed its name once.
fn complete(testbed: &Testbed, contender: &Contender) -> Result<Ran, LabError> {
    let command: Command = contender.command(testbed.all(1), &[], &PROGRAM);
    let ran = testbed.run(&format!("run {}", contender.name), command)?;
    check_names(&ran.stdout, &testbed.hosts).map(|()| ran)
}

/// Returns the peak memory of the launcher's processes on the launch node in MiB, none on a machine
/// without cgroup v2. Sampling costs time, so this run is not timed.
fn peak_memory(testbed: &Testbed, contender: &Contender) -> Result<Option<f64>, LabError> {
    let (ran, peak) = thread::scope(|scope| {
        let run = scope.spawn(|| complete(testbed, contender));
        let mut peak = None;
        while !run.is_finished() {
            peak = peak.max(testbed.lab.launch_memory());
            thread::sleep(Duration::from_millis(5));
        }
        (run.join(), peak)
    });
    ran.unwrap_or_else(|_| Err(LabError::Unexpected("a thread panicked".into())))?;
    // Exact: no launcher takes 2^53 bytes.
    Ok(peak.map(|bytes| bytes as f64 / f64::from(1 << 20)))
}
