//! Runs of many seeds, or of one large job or copy, with reports as text.

use crate::copy::{self, CopyStats};
use crate::scenario::Scenario;
use crate::world::{RunStats, World};
use std::fmt::Write;

/// Number of failures that are reported individually.
const MAX_REPORTED: usize = 5;

/// Runs a job and a copy for each of the seeds `from..from + count`. Returns a report of the first
/// failures, and their number.
pub fn seeds(from: u64, count: u64) -> (String, u64) {
    let mut report = String::new();
    let mut broken = 0;
    for seed in from..from.saturating_add(count) {
        let runs = [crate::run(seed).map(drop), copy::run(seed).map(drop)];
        for why in runs.into_iter().filter_map(Result::err) {
            broken += 1;
            if broken <= MAX_REPORTED as u64 {
                let _ = writeln!(report, "seed {seed}: {why}");
            }
        }
    }
    (report, broken)
}

/// Runs one large job without faults, two ranks per node, with a barrier and a gather of `blob` bytes
/// per rank. Returns its statistics as text.
pub fn large(seed: u64, nodes: u32, blob: usize) -> Result<String, String> {
    let scenario = Scenario::large(seed, nodes, blob);
    let RunStats { duration, depth, max_messages, messages, max_bytes, bytes, answered } =
        World::new(&scenario).run()?;
    let memory = peak_memory().map_or("unknown".to_owned(), |kib| format!("{} MiB", kib >> 10));
    let mean = |sum: u64| sum as f64 / f64::from(nodes);
    Ok(format!(
        "{nodes} nodes, {} ranks: virtual time {:.1} ms, depth {depth}\n\
         messages sent by a node: mean {:.1}, most {max_messages}\n\
         bytes sent by a node, counting shared payloads each time: mean {:.0}, most {max_bytes}\n\
         calls answered: {answered}\n\
         peak memory: {memory}",
        scenario.world_size(),
        duration.as_secs_f64() * 1e3,
        mean(messages),
        mean(bytes),
    ))
}

/// Copies a file of this many chunks along a chain of hosts that have nothing. Returns statistics as
/// text. Fails if this takes more than 1 % longer than an ideal pipeline, or a link carries more than
/// 0.1 % beyond the file.
pub fn chain(seed: u64, hosts: usize, chunks: u32) -> Result<String, String> {
    let CopyStats { bytes, max_link, duration, ideal, .. } =
        copy::simulate(&copy::Scenario::large(seed, hosts, chunks))?;
    let ideal = ideal.unwrap_or_default();
    let text = format!(
        "{chunks} chunks to {hosts} hosts: virtual time {:.3} s, ideal {:.3} s\n\
         bytes of the busiest link: {max_link}, of the file: {bytes}",
        duration.as_secs_f64(),
        ideal.as_secs_f64(),
    );
    let is_good = duration <= ideal.mul_f64(1.01) && max_link <= bytes + bytes / 1000;
    if is_good { Ok(text) } else { Err(text) }
}

/// Returns the peak memory of this process, in KiB.
fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}
