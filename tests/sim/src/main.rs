//! `cargo lab sim`: the simulation from a shell.

use clap::Parser;
use rlaunch_sim::{campaign, mutations};
use std::path::PathBuf;
use std::process::ExitCode;

/// The tree of agents in virtual time, with faults. One seed replays a run exactly.
#[derive(Debug, Parser)]
#[command(
    name = "cargo lab sim",
    after_help = "\
Examples:
  cargo lab sim --seeds 200                 200 small jobs with faults
  cargo lab sim --from 4711 --seeds 1       replay one of them
  cargo lab sim --nodes 10000 --seed 1      one large job, and what it costs
  cargo lab sim --mutations                 does the simulation notice faults put in on purpose?"
)]
struct Args {
    /// One job of this many nodes in which nothing goes wrong
    #[arg(long, conflicts_with_all = ["seeds", "mutations"])]
    nodes: Option<u32>,
    /// Its seed
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// What each of its ranks gives to the gather, in bytes
    #[arg(long, default_value_t = 64)]
    blob: usize,
    /// Run this many seeds, each a small job with faults
    #[arg(long, default_value_t = 200)]
    seeds: u64,
    /// From this seed on
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Put a fault into the machines, one after the other, and see whether seeds notice
    #[arg(long, value_name = "WORKSPACE", num_args = 0..=1, default_missing_value = ".")]
    mutations: Option<PathBuf>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let passed = match (&args.mutations, args.nodes) {
        (Some(workspace), _) => mutations::run(workspace, args.seeds),
        (None, Some(nodes)) => large(args.seed, nodes, args.blob),
        (None, None) => seeds(args.from, args.seeds),
    };
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn seeds(from: u64, count: u64) -> bool {
    let (words, broken) = campaign::seeds(from, count);
    print!("{words}");
    println!("{count} seeds from {from}: {broken} broken");
    broken == 0
}

fn large(seed: u64, nodes: u32, blob: usize) -> bool {
    let ran = campaign::large(seed, nodes, blob);
    let passed = ran.is_ok();
    let (Ok(words) | Err(words)) = ran;
    println!("{words}");
    passed
}
