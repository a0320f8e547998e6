//! Simulation of the tree of agents, and of copies along a chain of hosts, in virtual time.
//!
//! The state machines of the tree are those of `rlaunch_bootstrap::rendezvous`. The network delays
//! frames, breaks and partitions; nodes are slow or crash; ranks exit early, hang or abort. Everything
//! is drawn from one seed, so each run can be replayed, and invariants are checked after every step.
//!
//! | module | contents |
//! |---|---|
//! | [`scenario`], [`script`] | size and faults of a job, and the steps of its ranks, drawn from a seed |
//! | [`world`] | nodes, edges and events |
//! | [`check`] | invariants |
//! | [`copy`] | copies, with all of these for themselves |
//! | [`campaign`] | runs of many seeds, or of one large job or copy |
//! | [`mutations`] | bugs put into the state machines, which the simulation must detect |

pub mod campaign;
pub mod check;
pub mod copy;
pub mod mutations;
pub mod scenario;
pub mod script;
pub mod world;

pub use scenario::Scenario;
pub use world::{RunStats, World};

/// Runs the scenario of `seed`. Fails with a report if an invariant is violated.
pub fn run(seed: u64) -> Result<RunStats, String> {
    let scenario = Scenario::from_seed(seed);
    World::new(&scenario).run().map_err(|broken| {
        format!("{broken}\n  {scenario:?}\n  replay: cargo lab sim --from {seed} --seeds 1")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hundred_seeds_hold() {
        let broken: Vec<String> = (0..100).filter_map(|seed| run(seed).err()).collect();
        assert!(broken.is_empty(), "{} of 100:\n{}", broken.len(), broken.join("\n"));
    }

    #[test]
    fn a_seed_means_one_run() {
        for seed in [7, 23] {
            assert_eq!(run(seed), run(seed));
        }
    }
}
