//! Scenario of a run, drawn from a seed.

use crate::script::{self, Step};
use fastrand::Rng;
use rlaunch_bootstrap::id::Rank;
use std::time::Duration;

/// Numbers of nodes at which other launchers have failed. The first seeds run with these.
const KNOWN_BAD_SIZES: [u32; 5] = [63, 64, 65, 72, 130];
/// Numbers of nodes for the other seeds.
const NODES: std::ops::RangeInclusive<u32> = 2..=257;

/// Size of a job, the script of its ranks, and the faults.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Seed that everything is drawn from.
    pub seed: u64,
    /// Number of nodes.
    pub nodes: u32,
    /// Number of ranks on each node.
    pub ranks_per_node: u32,
    /// Maximum number of children of a node in the tree; `None` for the default of a job of this
    /// size.
    pub radix: Option<u32>,
    /// Minimum latency of an edge of the tree. Some edges have ten times as much.
    pub latency: Duration,
    /// Script of every rank.
    pub script: Vec<Step>,
    /// Faults with their times.
    pub faults: Vec<(Duration, Fault)>,
}

/// Fault during a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The connection between a node and its parent breaks; each end notices by itself.
    EdgeBreaks(u32),
    /// All connections between nodes below this number and the other nodes break.
    Partition(u32),
    /// Frames to a node take this much longer.
    Slow(u32, Duration),
    /// A node crashes. The launcher notices and ends the job.
    Crash(u32),
    /// A crashed node restarts without its state. The launcher ends the job nevertheless.
    Restart(u32),
    /// A rank exits with this code before its next step.
    Exit(Rank, i32),
    /// A rank calls its next collective and exits with 0 without waiting for it.
    Leave(Rank),
    /// A rank stops making calls, but does not exit.
    Hang(Rank),
    /// A rank aborts the job.
    Abort(Rank),
}

impl Scenario {
    /// Draws a small job with faults from `seed`.
    pub fn from_seed(seed: u64) -> Scenario {
        let mut rng = Rng::with_seed(seed);
        let drawn = rng.u32(NODES);
        let known_bad = usize::try_from(seed).ok().and_then(|seed| KNOWN_BAD_SIZES.get(seed));
        let nodes = known_bad.copied().unwrap_or(drawn);
        let ranks_per_node = rng.u32(1..=3);
        let radix = rng.bool().then(|| rng.u32(2..=9));
        let latency = Duration::from_micros(rng.u64(20..2000));
        let script = script::draw(&mut rng, nodes * ranks_per_node);
        let faults = draw_faults(&mut rng, nodes, nodes * ranks_per_node);
        Scenario { seed, nodes, ranks_per_node, radix, latency, script, faults }
    }

    /// Makes a job without faults: a barrier, and a gather of `blob` bytes per rank.
    pub fn large(seed: u64, nodes: u32, blob: usize) -> Scenario {
        let script = vec![Step::Barrier("b"), Step::Gather("g", blob)];
        let latency = Duration::from_micros(50);
        let faults = Vec::new();
        Scenario { seed, nodes, ranks_per_node: 2, radix: None, latency, script, faults }
    }

    /// Returns the number of ranks.
    pub fn world_size(&self) -> u32 {
        self.nodes * self.ranks_per_node
    }
}

/// Draws at least three faults. At most one of them ends the job or keeps a rank from arriving,
/// because the right outcome of two such faults depends on which is noticed first.
fn draw_faults(rng: &mut Rng, nodes: u32, ranks: u32) -> Vec<(Duration, Fault)> {
    let mut faults = Vec::new();
    let mut at =
        |rng: &mut Rng, fault| faults.push((Duration::from_micros(rng.u64(..3_000_000)), fault));
    for _ in 0..rng.u32(3..=6) {
        let fault = match rng.u32(..4) {
            0 | 1 => Fault::EdgeBreaks(rng.u32(1..nodes)),
            2 => Fault::Partition(rng.u32(1..nodes)),
            _ => Fault::Slow(rng.u32(..nodes), Duration::from_micros(rng.u64(100..50_000))),
        };
        at(rng, fault);
    }
    let rank = Rank(rng.u32(..ranks));
    match rng.u32(..9) {
        0 => {
            let node = rng.u32(..nodes);
            at(rng, Fault::Crash(node));
            at(rng, Fault::Restart(node));
        }
        1 => at(rng, Fault::Exit(rank, 0)),
        2 => at(rng, Fault::Exit(rank, 3)),
        3 => at(rng, Fault::Hang(rank)),
        4 => at(rng, Fault::Abort(rank)),
        5 => at(rng, Fault::Leave(rank)),
        _ => {}
    }
    faults
}
