//! What benchmarks print of their speed, and NCCL of its network, read from a job's output line by
//! line. What it amounts to is for [`crate::commands::report`] to say.

pub(crate) mod collective;
mod line;
pub(crate) mod network;
pub(crate) mod throughput;

use collective::Collective;
use line::{Tagged, untag};
use network::Networks;
use std::collections::{BTreeMap, BTreeSet};
use throughput::Throughput;

/// What is read, for those who have given something else.
pub(crate) const KNOWN: &str = "lines of tf_cnn_benchmarks (images/sec: …), of Horovod's synthetic \
    benchmarks (Iter #0: … img/sec per GPU), of nccl-tests, and of NCCL_DEBUG=INFO are known";

/// All figures of one job.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    pub(crate) throughput: Throughput,
    pub(crate) collective: Collective,
    pub(crate) networks: Networks,
    /// Ranks that have printed anything, where lines say by whom they are.
    pub(crate) ranks: BTreeSet<u32>,
    /// Their hosts, where lines say that as well.
    pub(crate) hosts: BTreeMap<u32, String>,
}

impl Figures {
    /// Reads a line; `rank` is known to have printed it.
    pub(crate) fn take(&mut self, rank: Option<u32>, line: &str) {
        self.ranks.extend(rank);
        self.throughput.take(rank, line);
        self.collective.take(line);
        self.networks.take(rank, line);
    }

    /// Reads a line that may have a tag.
    pub(crate) fn take_tagged(&mut self, line: &str) {
        let Tagged { rank, host, text } = untag(line);
        if let (Some(rank), Some(host)) = (rank, host) {
            self.hosts.entry(rank).or_insert_with(|| host.to_owned());
        }
        self.take(rank, text);
    }

    /// Whether nothing of what was read was a figure.
    pub(crate) fn is_empty(&self) -> bool {
        self.throughput.is_empty() && self.collective.is_empty() && self.networks.is_empty()
    }
}
