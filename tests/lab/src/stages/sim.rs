//! `cargo lab sim`: the simulation of the agents' tree and of copies. It is a separate program, so that the lab
//! builds without the code that it simulates.

use std::ffi::OsStr;
use std::process::Command;

use super::check;
use crate::dist;

/// Builds and runs the simulation with these arguments; returns whether it found nothing wrong.
pub fn run<S: AsRef<OsStr>>(words: &[S]) -> bool {
    let mut cargo = dist::cargo();
    cargo.args(["run", "--quiet", "--profile", "lab", "--package", "rlaunch-sim", "--"]);
    check(cargo.args(words)).failed == 0
}

/// Returns a seed that depends on the commit, so that each commit has new ones that can be
/// reproduced.
pub fn fresh_seed() -> u64 {
    let head = Command::new("git").args(["rev-parse", "HEAD"]).output().ok();
    let id = head.and_then(|output| String::from_utf8(output.stdout).ok());
    let digits = id.and_then(|id| id.get(..12).map(str::to_owned));
    digits.and_then(|digits| u64::from_str_radix(&digits, 16).ok()).unwrap_or(1_000_000)
}
