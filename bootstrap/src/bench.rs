//! Results of `rlaunch-bench`, the program that `rlaunch bench` runs on the hosts. Rank 0 writes
//! them to its stdout, a JSON object in each line; the launcher prints them.

use serde::{Deserialize, Serialize};

/// Line of the output of rank 0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BenchRecord {
    /// The measurement; the first line, except for [`BenchRecord::Matrix`].
    Begin(BenchHeader),
    /// Result for one size.
    Row(BenchRow),
    /// Throughput of one TCP connection between the first two ranks, in Mb/s, for comparison.
    Tcp(f64),
    /// Results between all pairs of ranks; the only line.
    Matrix(BenchMatrix),
}

/// Measurement of several sizes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BenchHeader {
    /// `lat`, `bw`, or the name of the collective.
    pub bench: String,
    /// Type of elements.
    #[serde(rename = "type")]
    pub element: String,
    /// Operation of a reduction; `None` for other patterns.
    pub op: Option<String>,
    /// Number of ranks.
    pub ranks: usize,
    /// Whether a size is that of all ranks' parts together.
    pub size_is_total: bool,
    /// Formula of the bus bandwidth, such as `algbw * (n - 1) / n`.
    pub formula: String,
    /// Ratio of bus bandwidth to algorithm bandwidth.
    pub bus_factor: f64,
}

/// Times of one size in microseconds: quantiles over batches, of each of which the mean is known.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BenchRow {
    /// Size in bytes of a message, of a vector, or of all ranks' parts together.
    pub bytes: usize,
    /// Number of elements.
    pub elements: usize,
    /// Median.
    pub median_us: f64,
    /// Minimum.
    pub min_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// Bytes per median time, in 10^9 bytes per second.
    pub algbw_gb_s: f64,
    /// Number of batches.
    pub batches: usize,
    /// Number of repetitions in each batch.
    pub repetitions: u64,
}

/// Results between all pairs of ranks, which are on different hosts. Tables are indexed by rank;
/// their diagonals are 0.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BenchMatrix {
    /// Size of messages in bytes.
    pub bytes: usize,
    /// Bandwidth from the first to the second rank in Mb/s, while each rank had one partner.
    pub megabits: Vec<Vec<f64>>,
    /// Median of half a round trip between two ranks in microseconds.
    pub latency_us: Vec<Vec<f64>>,
    /// Rate at which each rank sent while all sent to all, in Mb/s; empty for two ranks.
    pub at_once: Vec<f64>,
}
