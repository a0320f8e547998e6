//! Metrics in a job's output, found line by line: speeds that benchmarks print, and networks that NCCL logs.
//!
//! | file | subject |
//! |---|---|
//! | `throughput` | images per second, and other speeds |
//! | `collective` | tables of nccl-tests |
//! | `nccl_network` | networks in NCCL's log |

pub(crate) mod collective;
pub(crate) mod nccl_network;
pub(crate) mod throughput;

use collective::CollectiveTable;
use nccl_network::NcclNetworks;
use std::collections::{BTreeMap, BTreeSet};
use throughput::Throughput;

/// Formats of output that are understood, as the text of a hint.
pub(crate) const KNOWN_FORMATS: &str = "lines of tf_cnn_benchmarks (images/sec: …), of Horovod's synthetic \
    benchmarks (Iter #0: … img/sec per GPU), of nccl-tests, and of NCCL_DEBUG=INFO are known, and speeds such as \
    12.3it/s, 1.5 s/it or tokens/sec: 4100";

/// All metrics of one job.
#[derive(Debug, Default)]
pub(crate) struct LogMetrics {
    pub(crate) throughput: Throughput,
    pub(crate) collective: CollectiveTable,
    pub(crate) networks: NcclNetworks,
    /// Ranks that printed a line; empty if lines do not name ranks.
    pub(crate) ranks: BTreeSet<u32>,
    /// Hosts of these ranks, as far as tags name them.
    pub(crate) hosts: BTreeMap<u32, String>,
}

impl LogMetrics {
    /// Adds a line without a tag. `rank` is the rank that printed the line, if known.
    pub(crate) fn add_line(&mut self, rank: Option<u32>, line: &str) {
        self.ranks.extend(rank);
        // A progress bar is one line, which is written again and again.
        for line in line.split('\r') {
            self.throughput.add_line(rank, line);
            self.collective.add_line(rank, line);
            self.networks.add_line(rank, line);
        }
    }

    /// Adds a line that may have a tag.
    pub(crate) fn add_tagged_line(&mut self, line: &str) {
        let mut of_line = None;
        for version in line.split('\r') {
            let TaggedLine { rank, host, text } = split_tag(version);
            if let (Some(rank), Some(host)) = (rank, host) {
                self.hosts.entry(rank).or_insert_with(|| host.to_owned());
            }
            of_line = rank.or(of_line);
            self.add_line(of_line, text);
        }
    }

    /// Tells whether no line had a metric.
    pub(crate) fn is_empty(&self) -> bool {
        self.throughput.is_empty() && self.collective.is_empty() && self.networks.is_empty()
    }
}

/// Line that was split at its tag: `text` is the line after the tag; `rank` and `host` are what the tag says, `None`
/// if it does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TaggedLine<'a> {
    rank: Option<u32>,
    host: Option<&'a str>,
    text: &'a str,
}

/// Splits off a tag: `[1,b] ` (rank, host), which `rlaunch --tag-output` writes, or `[1,0]<stdout>:` (job,
/// rank) of Open MPI's `--tag-output`.
fn split_tag(line: &str) -> TaggedLine<'_> {
    let untagged = TaggedLine { rank: None, host: None, text: line };
    tagged(line).unwrap_or(untagged)
}

fn tagged(line: &str) -> Option<TaggedLine<'_>> {
    let (tag, rest) = line.strip_prefix('[')?.split_once(']')?;
    let (first, second) = tag.split_once(',')?;
    let first = first.parse().ok()?;
    for stream in ["<stdout>:", "<stderr>:"] {
        if let Some(text) = rest.strip_prefix(stream) {
            return Some(TaggedLine { rank: Some(second.parse().ok()?), host: None, text });
        }
    }
    let text = rest.strip_prefix(' ').or(rest.is_empty().then_some(rest))?;
    let is_host = !second.is_empty() && !second.contains(|c: char| c == ',' || c.is_whitespace());
    is_host.then_some(TaggedLine { rank: Some(first), host: Some(second), text })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_taken_off() {
        let tagged = |rank, host, text| TaggedLine { rank: Some(rank), host, text };
        assert_eq!(split_tag("[1,b] a line"), tagged(1, Some("b"), "a line"));
        assert_eq!(split_tag("[1,b] "), tagged(1, Some("b"), ""));
        assert_eq!(split_tag("[1,0]<stdout>:a line"), tagged(0, None, "a line"));
        assert_eq!(split_tag("[1,3]<stderr>:"), tagged(3, None, ""));
    }

    #[test]
    fn other_lines_are_left_alone() {
        for line in ["", "a line", "[1] a", "[0,1,2] x", "[1,b]c", "[x,b] c", "[1,2]<stdout>", "["]
        {
            assert_eq!(
                split_tag(line),
                TaggedLine { rank: None, host: None, text: line },
                "{line}"
            );
        }
    }
}
