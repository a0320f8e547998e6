//! `cargo lab bench inventory`: time that an agent takes to read the hardware of a large server,
//! beside a program that does nothing.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use super::Series;
use crate::dist::{self, Profile};
use crate::{LabError, command};

#[path = "../../../../worker/fixtures/tree.rs"]
mod tree;

/// Recorded machine: two sockets, eight GPUs, eight NICs, 224 processors.
const MACHINE: &str = include_str!("../../../../worker/fixtures/dgx.tree");
/// Maximum time of a reading in milliseconds.
const BAR: f64 = 30.0;

/// Options of the bench.
#[derive(Debug, Clone)]
pub struct InventoryOptions {
    /// Number of timed readings.
    pub rounds: usize,
}

/// Measures and prints; returns whether the bar is met.
pub fn run(options: &InventoryOptions) -> Result<bool, LabError> {
    dist::build(Profile::Release)?;
    let agent = dist::directory(Profile::Release)?.join("lib/rlaunch");
    let agent = agent.join(dist::host_triple()?).join("rlaunch-worker");
    let root = Path::new("/dev/shm").join(format!("rlaunch-inventory-{}", std::process::id()));
    fs::create_dir(&root).map_err(LabError::io("make a directory for a recorded machine"))?;
    let measured = tree::lay_out_below(&root, MACHINE)
        .map_err(LabError::io("lay out a recorded machine"))
        .and_then(|()| measure(options, &agent, &root));
    // If this fails, what is left is small, and in memory.
    let _ = fs::remove_dir_all(&root);
    let (reading, nothing) = measured?;
    println!("a server with 2 sockets, 8 GPUs and 8 NICs, milliseconds, median (min–max)");
    println!("inventory     {}", reading.summary());
    println!("the program's start alone  {}", nothing.summary());
    let median = reading.median().unwrap_or(f64::INFINITY);
    let met = median < BAR;
    println!("{} the bar of {BAR:.0} ms", if met { "within" } else { "over" });
    Ok(met)
}

/// Measures the milliseconds that the agent takes to read the inventory, and to start without
/// reading it.
fn measure(
    options: &InventoryOptions,
    agent: &Path,
    root: &Path,
) -> Result<(Series, Series), LabError> {
    let (mut reading, mut nothing) = (Series::default(), Series::default());
    for round in 0..=options.rounds {
        let mut inventory = Command::new(agent);
        // Without a search path the agent starts no other program.
        inventory.arg("inventory").arg(root).env_clear();
        let mut version = Command::new(agent);
        version.arg("--version").env_clear();
        let (one, other) = (time(inventory)?, time(version)?);
        // The first round is a warm-up.
        if round > 0 {
            reading.push(one);
            nothing.push(other);
        }
    }
    Ok((reading, nothing))
}

fn time(mut program: Command) -> Result<f64, LabError> {
    let started = Instant::now();
    command::run("read an inventory", &mut program)?;
    Ok(started.elapsed().as_secs_f64() * 1e3)
}
