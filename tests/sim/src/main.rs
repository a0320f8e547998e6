//! Command line of the simulation, `cargo lab sim`.

use clap::Parser;
use rlaunch_sim::{campaign, mutations};
use std::path::PathBuf;
use std::process::ExitCode;

/// Simulate the tree of agents and copies of files in virtual time, with faults. A seed replays a run
/// exactly.
#[derive(Debug, Parser)]
#[command(
    name = "cargo lab sim",
    after_help = "\
Examples:
  cargo lab sim --seeds 200                 200 small jobs and 200 small copies with faults
  cargo lab sim --from 4711 --seeds 1       replay one of these
  cargo lab sim --nodes 10000 --seed 1      one large job without faults
  cargo lab sim --chain 10000               one file copied along 10,000 hosts
  cargo lab sim --mutations                 put bugs into the state machines and expect failures"
)]
struct Args {
    /// Run one job of this many nodes, without faults
    #[arg(long, conflicts_with_all = ["seeds", "mutations"])]
    nodes: Option<u32>,
    /// Copy one file along a chain of this many hosts, without faults
    #[arg(long, value_name = "HOSTS", conflicts_with_all = ["seeds", "mutations", "nodes"])]
    chain: Option<usize>,
    /// Chunks of that file, 1 MiB each
    #[arg(long, default_value_t = 64)]
    chunks: u32,
    /// Seed of that job
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Bytes that each of its ranks contributes to the gather
    #[arg(long, default_value_t = 64)]
    blob: usize,
    /// Run this many small jobs and copies with faults, one of each for a seed
    #[arg(long, default_value_t = 200)]
    seeds: u64,
    /// First of these seeds
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Put one bug after the other into the state machines and check that the seeds detect it
    #[arg(long, value_name = "WORKSPACE", num_args = 0..=1, default_missing_value = ".")]
    mutations: Option<PathBuf>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let passed = match (&args.mutations, args.nodes, args.chain) {
        (Some(workspace), ..) => mutations::run(workspace, args.seeds),
        (None, Some(nodes), _) => shown(campaign::large(args.seed, nodes, args.blob)),
        (None, None, Some(hosts)) => shown(campaign::chain(args.seed, hosts, args.chunks)),
        (None, None, None) => seeds(args.from, args.seeds),
    };
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn seeds(from: u64, count: u64) -> bool {
    let (report, broken) = campaign::seeds(from, count);
    print!("{report}");
    println!("{count} seeds from {from}: {broken} broken");
    broken == 0
}

fn shown(ran: Result<String, String>) -> bool {
    let passed = ran.is_ok();
    let (Ok(report) | Err(report)) = ran;
    println!("{report}");
    passed
}
