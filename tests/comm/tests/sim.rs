//! The suite in simulated jobs: every case, and some cases under random faults.

use rlaunch_comm::Cause;
use rlaunch_comm::sim::{self, Faults, Settings};
use rlaunch_comm_suite::{Case, all, cover, run};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const RANKS: [usize; 6] = [1, 2, 3, 4, 7, 8];
/// Number of fixed seeds, and of seeds that differ in every run.
const FIXED_SEEDS: u64 = 200;
const FRESH_SEEDS: u64 = 50;

fn settings(seed: u64, ranks: usize, per_node: usize) -> Settings {
    let timeout = Duration::from_secs(600);
    Settings { seed, ranks, per_node, faults: Faults::default(), timeout }
}

/// Runs cases one after the other in one simulated job.
fn hold(settings: &Settings, cases: &[Case]) {
    let said = sim::run(settings, |comm| cases.iter().try_for_each(|case| run(comm, case)));
    let wrong: Vec<String> = said.into_iter().filter_map(Result::err).collect();
    assert!(wrong.is_empty(), "seed {}, {} a node: {wrong:?}", settings.seed, settings.per_node);
}

#[test]
fn every_case_holds() {
    for ranks in RANKS {
        hold(&settings(ranks as u64, ranks, ranks), &all());
    }
}

#[test]
fn in_place_and_later_and_across_nodes() {
    for ranks in RANKS {
        for per_node in [1, 2, 3] {
            hold(&settings(100 + ranks as u64, ranks, per_node), &cover());
        }
    }
}

/// Returns fixed and fresh seeds. `RLAUNCH_SEED` in the environment replays one.
fn seeds() -> Vec<u64> {
    if let Some(seed) = std::env::var("RLAUNCH_SEED").ok().and_then(|seed| seed.parse().ok()) {
        return vec![seed];
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    println!("fresh seeds begin at {now}");
    (0..FIXED_SEEDS).chain(now..now + FRESH_SEEDS).collect()
}

#[test]
fn some_cases_hold_whatever_chance_brings() {
    let (all, cover) = (all(), cover());
    for seed in seeds() {
        let at = |of: usize| (seed.wrapping_mul(0x9e37_79b9) >> 7) as usize % of;
        let cases: Vec<Case> = (0..6).map(|n| all[(at(all.len()) + n * 91) % all.len()]).collect();
        let more = (0..4).map(|n| cover[(at(cover.len()) + n * 17) % cover.len()]);
        let cases: Vec<Case> = cases.into_iter().chain(more).collect();
        let faults = Faults { no_fetch: seed % 3 == 0, ..Faults::default() };
        let (ranks, per_node) = (2 + (seed % 7) as usize, 1 + (seed % 4) as usize);
        hold(&Settings { faults, ..settings(seed, ranks, per_node) }, &cases);
    }
}

#[test]
fn a_rank_that_dies_ends_every_wait_with_its_name() {
    for seed in seeds() {
        let ranks = 2 + (seed % 7) as usize;
        let dead = seed as usize % ranks;
        let faults = Faults { dies: Some((dead, 10 + seed % 500)), ..Faults::default() };
        let said = sim::run(&Settings { faults, ..settings(seed, ranks, 2) }, |comm| {
            let (own, mut sum) = ([1_u64; 100], [0; 100]);
            loop {
                if let Err(error) = comm.all_reduce(&own, &mut sum, rlaunch_comm::Op::Sum) {
                    return error;
                }
            }
        });
        for (rank, error) in said.iter().enumerate().filter(|(rank, _)| *rank != dead) {
            let names = matches!(error.cause, Cause::Lost { .. } | Cause::Left(_));
            assert!(names, "seed {seed}, rank {rank}: {error}");
        }
    }
}
