//! Many seeds, or one large run, and what they came to in words.

use crate::scenario::Scenario;
use crate::world::{Figures, World};
use std::fmt::Write;

/// Failures that are shown one by one.
const SHOWN: usize = 5;

/// Runs seeds `from..from + count`; the words of those that broke something, and how many did.
pub fn seeds(from: u64, count: u64) -> (String, u64) {
    let mut words = String::new();
    let mut broken = 0;
    for seed in from..from.saturating_add(count) {
        if let Err(why) = crate::run(seed) {
            broken += 1;
            if broken <= SHOWN as u64 {
                let _ = writeln!(words, "seed {seed}: {why}");
            }
        }
    }
    (words, broken)
}

/// One run of many nodes in which nothing goes wrong: table, barrier, and a gather of `blob` bytes
/// from each of two ranks a node.
pub fn large(seed: u64, nodes: u32, blob: usize) -> Result<String, String> {
    let scenario = Scenario::large(seed, nodes, blob);
    let Figures { took, depth, most_messages, messages, most_bytes, bytes, answered } =
        World::new(&scenario).run()?;
    let memory = peak_memory().map_or("unknown".to_owned(), |kib| format!("{} MiB", kib >> 10));
    let mean = |sum: u64| sum as f64 / f64::from(nodes);
    Ok(format!(
        "{nodes} nodes, {} ranks: virtual time {:.1} ms, depth {depth}\n\
         messages sent by a node: mean {:.1}, most {most_messages}\n\
         bytes sent by a node, as if copied: mean {:.0}, most {most_bytes}\n\
         calls answered: {answered}\n\
         peak memory: {memory}",
        scenario.world_size(),
        took.as_secs_f64() * 1e3,
        mean(messages),
        mean(bytes),
    ))
}

/// The most memory this process has had, in KiB.
fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}
