//! Metrics in a job's output, found line by line: speeds that benchmarks print, and networks that NCCL logs.
//!
//! | file | subject |
//! |---|---|
//! | `throughput` | images per second |
//! | `collective` | tables of nccl-tests |
//! | `nccl_network` | networks in NCCL's log |
//! | `line_tag` | tags that launchers write in front of lines |

pub(crate) mod collective;
mod line_tag;
pub(crate) mod nccl_network;
pub(crate) mod throughput;

use collective::CollectiveTable;
use line_tag::{TaggedLine, split_tag};
use nccl_network::NcclNetworks;
use std::collections::{BTreeMap, BTreeSet};
use throughput::Throughput;

/// Formats of output that are understood, as the text of a hint.
pub(crate) const KNOWN_FORMATS: &str = "lines of tf_cnn_benchmarks (images/sec: …), of Horovod's synthetic \
    benchmarks (Iter #0: … img/sec per GPU), of nccl-tests, and of NCCL_DEBUG=INFO are known";

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
        self.throughput.add_line(rank, line);
        self.collective.add_line(rank, line);
        self.networks.add_line(rank, line);
    }

    /// Adds a line that may have a tag.
    pub(crate) fn add_tagged_line(&mut self, line: &str) {
        let TaggedLine { rank, host, text } = split_tag(line);
        if let (Some(rank), Some(host)) = (rank, host) {
            self.hosts.entry(rank).or_insert_with(|| host.to_owned());
        }
        self.add_line(rank, text);
    }

    /// Tells whether no line had a metric.
    pub(crate) fn is_empty(&self) -> bool {
        self.throughput.is_empty() && self.collective.is_empty() && self.networks.is_empty()
    }
}
