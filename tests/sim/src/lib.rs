//! The tree of agents in virtual time: the real machines of `rlaunch_bootstrap::rendezvous`, a network
//! that delays, breaks and partitions, nodes that are slow or die, ranks that leave early, hang or
//! abort. Everything follows from one seed, and what must always hold is checked at every step.
//!
//! In reading order: what is drawn from a seed ([`scenario`]), what ranks do ([`script`]), the
//! nodes and what is between them ([`world`]), what must hold ([`check`]), many seeds at once
//! ([`campaign`]), and faults put into the machines on purpose ([`mutations`]).

pub mod campaign;
pub mod check;
pub mod mutations;
pub mod scenario;
pub mod script;
pub mod world;

pub use scenario::Scenario;
pub use world::{Figures, World};

/// Runs the scenario of `seed`; what was broken, if anything was.
pub fn run(seed: u64) -> Result<Figures, String> {
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
