//! What a seed means.

use crate::script::{self, Step};
use fastrand::Rng;
use rlaunch_bootstrap::id::Rank;
use std::time::Duration;

/// Numbers of nodes at which other launchers have failed; the first seeds run each of them.
const NOTORIOUS: [u32; 5] = [63, 64, 65, 72, 130];
/// Nodes that are drawn otherwise.
const NODES: std::ops::RangeInclusive<u32> = 2..=257;

/// A run: who is there, what the ranks do, and what goes wrong.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The seed.
    pub seed: u64,
    /// How many nodes.
    pub nodes: u32,
    /// Ranks of each node.
    pub ranks_per_node: u32,
    /// The most children a node has; chosen by the number of nodes when `None`.
    pub radix: Option<u32>,
    /// What an edge takes to carry a frame, at least; some take ten times as long.
    pub latency: Duration,
    /// What every rank does.
    pub script: Vec<Step>,
    /// What goes wrong, and when.
    pub faults: Vec<(Duration, Fault)>,
}

/// Something that goes wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The connection between a node and its parent breaks; each end notices by itself.
    EdgeBreaks(u32),
    /// Every connection between nodes below and from this number on breaks.
    Partition(u32),
    /// A node takes this long for every frame.
    Slow(u32, Duration),
    /// A node is gone. The launcher notices and ends the job.
    Crash(u32),
    /// A node that is gone comes back and remembers nothing. Nobody asked it to: the job is ended.
    Restart(u32),
    /// A rank exits with this code before its next step.
    Exit(Rank, i32),
    /// A rank arrives where all meet next and exits with 0 before it hears more.
    Leave(Rank),
    /// A rank does nothing any more, and does not exit either.
    Hang(Rank),
    /// A rank wants the job to end.
    Abort(Rank),
}

impl Scenario {
    /// Draws everything from `seed`.
    pub fn from_seed(seed: u64) -> Scenario {
        let mut rng = Rng::with_seed(seed);
        let drawn = rng.u32(NODES);
        let notorious = usize::try_from(seed).ok().and_then(|seed| NOTORIOUS.get(seed));
        let nodes = notorious.copied().unwrap_or(drawn);
        let ranks_per_node = rng.u32(1..=3);
        let radix = rng.bool().then(|| rng.u32(2..=9));
        let latency = Duration::from_micros(rng.u64(20..2000));
        let script = script::draw(&mut rng, nodes * ranks_per_node);
        let faults = draw_faults(&mut rng, nodes, nodes * ranks_per_node);
        Scenario { seed, nodes, ranks_per_node, radix, latency, script, faults }
    }

    /// Nothing goes wrong: a barrier and a gather of `blob` bytes a rank.
    pub fn large(seed: u64, nodes: u32, blob: usize) -> Scenario {
        let script = vec![Step::Barrier("b"), Step::Gather("g", blob)];
        let latency = Duration::from_micros(50);
        let faults = Vec::new();
        Scenario { seed, nodes, ranks_per_node: 2, radix: None, latency, script, faults }
    }

    /// How many ranks there are.
    pub fn world_size(&self) -> u32 {
        self.nodes * self.ranks_per_node
    }
}

/// At least three faults; at most one of them ends the job or keeps a rank from arriving, because
/// what must follow from two of those depends on which is noticed first.
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
