//! `cargo lab bench inventory`: time that an agent takes to read the hardware of a large server,
//! beside a program that does nothing.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use super::contender::Scratch;
use super::table::{Bar, Rounds, Row, Table};
use crate::dist::{self, Profile};
use crate::{LabError, command};

#[path = "../../../../worker/fixtures/tree.rs"]
mod tree;

/// Recorded machine: two sockets, eight GPUs, eight NICs, 224 processors.
const MACHINE: &str = include_str!("../../../../worker/fixtures/dgx.tree");
/// Maximum time of a reading in milliseconds.
const BAR: f64 = 30.0;

/// Measures and prints; returns whether the bar is met.
pub(super) fn run(rounds: usize) -> Result<bool, LabError> {
    dist::build(Profile::Release)?;
    let agent = dist::directory(Profile::Release)?.join(dist::agent_beside()?);
    let root = Scratch::make("/dev/shm")?;
    tree::lay_out_below(&root.0, MACHINE).map_err(LabError::io("lay out a recorded machine"))?;
    let row = Row::new("time", "ms", &[Bar::Median(BAR)]);
    let mut table = Table::new(["inventory", "start alone"], [row]);
    table.measure(Rounds::new(rounds), |turn| {
        let words = [&[Path::new("inventory"), &root.0][..], &[Path::new("--version")]];
        let mut program = Command::new(&agent);
        // Without a search path the agent starts no other program.
        program.args(words[turn.contender]).env_clear();
        let started = Instant::now();
        command::run("read an inventory", &mut program)?;
        Ok(vec![Some(started.elapsed().as_secs_f64() * 1e3)])
    })?;
    Ok(table.print("a server with 2 sockets, 8 GPUs and 8 NICs"))
}
