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
    /// Measurement of RDMA operations; the first line.
    VerbsBegin(VerbsHeader),
    /// Result of RDMA operations of one size.
    VerbsRow(VerbsRow),
    /// Result of one second of RDMA operations, while they go on until they are interrupted.
    VerbsSecond(StreamRate),
}

/// Measurement of several sizes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BenchHeader {
    /// `lat`, `bw`, or the name of the collective.
    pub bench: String,
    #[serde(rename = "type")]
    pub element: String,
    /// Operation of a reduction; `None` for other patterns.
    pub op: Option<String>,
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
    pub elements: usize,
    pub median_us: f64,
    pub min_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// Bytes per median time, in 10^9 bytes per second.
    pub algbw_gb_s: f64,
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

/// Measurement of RDMA operations between rank 0 and rank 1, which is an argument of the measuring
/// program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VerbsRequest {
    pub operation: VerbsOperation,
    pub part: VerbsPart,
    /// Sizes of messages in bytes, at least 1.
    pub sizes: Vec<usize>,
    /// End of the measurement of each size.
    pub amount: VerbsAmount,
    /// Number of queue pairs that carry a stream.
    pub qps: u32,
    /// Maximum number of outstanding requests of each queue pair of a stream.
    pub depth: u32,
    /// Maximum size of messages that are copied into the request, in bytes; `None` for the usual
    /// size where latency is measured, and no such message in streams.
    pub inline: Option<u32>,
    /// Upper limit of the path MTU in bytes.
    pub mtu: Option<u32>,
    /// Whether both ranks send a stream at once.
    pub bidirectional: bool,
    /// Whether times are summed up as perftest does, without the two longest.
    pub perftest: bool,
}

impl VerbsRequest {
    /// Tells whether the bandwidth is that of one direction for some time, which can be compared with
    /// a limit.
    pub fn has_comparable_bandwidth(&self) -> bool {
        self.part != VerbsPart::Latency
            && self.amount != VerbsAmount::Endless
            && !self.bidirectional
    }
}

/// Operation of RDMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VerbsOperation {
    /// Rank 0 writes into the memory of rank 1, which takes no part.
    Write,
    /// Rank 0 reads from the memory of rank 1, which takes no part.
    Read,
    /// Rank 0 sends, and rank 1 posts receives.
    Send,
}

impl VerbsOperation {
    /// All operations.
    pub const ALL: [VerbsOperation; 3] =
        [VerbsOperation::Write, VerbsOperation::Read, VerbsOperation::Send];

    /// Returns the name, as `write`.
    pub fn name(self) -> &'static str {
        match self {
            VerbsOperation::Write => "write",
            VerbsOperation::Read => "read",
            VerbsOperation::Send => "send",
        }
    }
}

/// Part of a measurement of RDMA operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VerbsPart {
    /// Times of single messages.
    Latency,
    /// Streams of messages.
    Bandwidth,
    /// Both, for each size.
    Both,
}

/// End of a measurement of RDMA operations of one size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VerbsAmount {
    /// Number of messages of each queue pair.
    Messages(u64),
    Seconds(f64),
    /// Stream without end, with a [`BenchRecord::VerbsSecond`] each second.
    Endless,
}

/// Description of a measurement of RDMA operations.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VerbsHeader {
    /// Request, with the values in use.
    pub request: VerbsRequest,
    /// Maximum size of messages that are copied into the request where latency is measured, in
    /// bytes, and in streams.
    pub inline: (u32, u32),
    /// Path MTU in bytes, if known.
    pub mtu: Option<u32>,
    /// Maximum number of outstanding RDMA reads of a queue pair.
    pub reads: u8,
    /// Device and port of each rank, such as `mlx5_0/1`.
    pub ports: [String; 2],
    /// Whether the connection manager made the connections.
    pub by_manager: bool,
}

/// Result of RDMA operations of one size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VerbsRow {
    /// Size of messages in bytes.
    pub bytes: usize,
    /// Times of single messages; `None` if only streams are measured.
    pub latency: Option<MessageTimes>,
    /// Stream of messages; `None` if only latency is measured.
    pub bandwidth: Option<StreamRate>,
}

/// Times of single messages in microseconds: half of the round trip of a write or send, or the time
/// until a read is complete.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MessageTimes {
    /// Number of times.
    pub messages: u64,
    pub min_us: f64,
    pub typical_us: f64,
    pub average_us: f64,
    pub deviation_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p999_us: f64,
    pub max_us: f64,
    /// Distribution: upper bound of a class of times, and the number of times in it. Classes
    /// without times are left out.
    pub distribution: Vec<(f64, u64)>,
}

/// Rate of a stream of messages, of all queue pairs and directions together.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct StreamRate {
    pub messages: u64,
    /// Highest rate of any part of the stream in one direction, in 10^9 bytes per second; the sum
    /// of both directions if there are two. `None` for a second of an endless stream.
    pub peak_gb_s: Option<f64>,
    /// Rate from the first post to the last completion, in 10^9 bytes per second.
    pub average_gb_s: f64,
    pub messages_per_s: f64,
    /// Processor time of each rank's process per time passed; 1 is one processor. `None` if it is
    /// not known, as that of the peer during an endless stream.
    pub cpu: [Option<f64>; 2],
}
