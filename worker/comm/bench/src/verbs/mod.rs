//! RDMA operations between rank 0 and rank 1, measured as perftest's `ib_write_lat`, `ib_write_bw`
//! and their like measure them: the same requests to the device for each message.
//!
//! | file | subject |
//! |---|---|
//! | `ends` | queue pairs and memory of this rank; `connect` connects them with the peer's |
//! | `echo` | times of single messages |
//! | `stream` | rate of many messages; `send_queue` counts those of each queue pair, and finds the highest rate of any part |
//! | `mod` | quantiles and distribution of times; end of a measurement that makes no progress |

mod connect;
mod echo;
mod ends;
mod send_queue;
mod stream;

use connect::{EndOptions, Inline};
use ends::Ends;
use hdrhistogram::Histogram;
use rlaunch_bootstrap::bench::{
    BenchRecord, MessageTimes, StreamRate, VerbsAmount, VerbsHeader, VerbsOperation, VerbsPart,
    VerbsRequest, VerbsRow,
};
use rlaunch_bootstrap::rank_table::{PairTransport, RankTable};
use rlaunch_comm::{CommError, Communicator};
use rlaunch_sys::Ticks;
use rlaunch_verbs::{Completion, VerbsError};
use std::borrow::Cow;
use std::io;
use std::time::{Duration, Instant};

/// Tag of messages by which the ranks prepare measurements.
const TAG: u32 = 5;

/// Reason why RDMA operations could not be measured.
#[derive(Debug, thiserror::Error)]
pub(crate) enum VerbsBenchError {
    #[error("RDMA operations are measured between 2 ranks, but there are {0}")]
    Ranks(usize),
    #[error("rank 0 and rank 1 are connected by {}, not by RDMA", .0.name())]
    NoRdma(PairTransport),
    #[error("the rank table names no device for rank {0}")]
    NoDevice(usize),
    #[error("{name} of {bytes} bytes failed: {status}")]
    Failed { name: &'static str, bytes: usize, status: String },
    #[error("no {name} of {bytes} bytes has completed for {seconds} s")]
    Stalled { name: &'static str, bytes: usize, seconds: u64 },
    #[error("{missing} of {qps} queue pairs were not connected within {seconds} s")]
    NotConnected { missing: usize, qps: usize, seconds: u64 },
    #[error("{device} takes {most} {what}, not the {asked} that were asked for")]
    Limit { device: String, what: &'static str, asked: u64, most: u64 },
    #[error("buffers take {} MiB, more than half of the {} MiB of free memory", .needed >> 20, .free >> 20)]
    Memory { needed: u64, free: u64 },
    #[error("--mtu has no effect on connections of the connection manager, which {0} needs")]
    Mtu(String),
    #[error("cannot write results: {0}")]
    Write(#[from] io::Error),
    #[error(transparent)]
    Comm(#[from] CommError),
    #[error(transparent)]
    Verbs(#[from] VerbsError),
}

impl VerbsBenchError {
    /// Returns what the user may do about it.
    pub(crate) fn hint(&self) -> Option<Cow<'static, str>> {
        match self {
            VerbsBenchError::Verbs(error) => error.hint(),
            VerbsBenchError::Limit { .. } => Some("lower --qps, --depth or --inline".into()),
            VerbsBenchError::Memory { .. } => Some("lower --sizes or --qps".into()),
            _ => None,
        }
    }
}

/// Message size and operation that a measurement is of.
#[derive(Clone, Copy, Debug)]
struct Subject {
    operation: VerbsOperation,
    bytes: usize,
    amount: VerbsAmount,
}

impl Subject {
    /// Returns the name of the operation for messages.
    fn name(self) -> &'static str {
        self.operation.name()
    }

    /// Fails unless the request that has completed was successful.
    fn checked(self, done: Completion) -> Result<Completion, VerbsBenchError> {
        if done.status.is_success() {
            return Ok(done);
        }
        let (name, bytes, status) = (self.name(), self.bytes, done.status.to_string());
        Err(VerbsBenchError::Failed { name, bytes, status })
    }
}

/// Measures all sizes, and passes the results on rank 0 to `write`.
pub(crate) fn measure(
    comm: &Communicator,
    table: Option<&RankTable>,
    request: &VerbsRequest,
    mut write: impl FnMut(&BenchRecord) -> io::Result<()>,
) -> Result<(), VerbsBenchError> {
    if comm.size() != 2 {
        return Err(VerbsBenchError::Ranks(comm.size()));
    }
    let table = table.ok_or(VerbsBenchError::NoDevice(comm.rank()))?;
    let ticks = Ticks::start();
    let (latency, bandwidth) = end_options(request);
    let connect = |options: Option<EndOptions>| {
        options.map(|options| Ends::connect(comm, table, options)).transpose()
    };
    let (latency, mut bandwidth) = (connect(latency)?, connect(bandwidth)?);
    let is_first = comm.rank() == 0;
    if let Some(ends) = latency.as_ref().or(bandwidth.as_ref()).filter(|_| is_first) {
        let inline = |ends: &Option<Ends>| ends.as_ref().map_or(0, Ends::max_inline);
        let inline = (inline(&latency), inline(&bandwidth));
        write(&BenchRecord::VerbsBegin(header(request, ends, inline)))?;
    }
    for bytes in request.sizes.iter().copied() {
        let subject = Subject { operation: request.operation, bytes, amount: request.amount };
        let is_perftest = request.perftest;
        let times =
            latency.as_ref().map(|ends| echo::measure(comm, ends, subject, is_perftest, &ticks));
        let times = times.transpose()?.flatten();
        let mut second = |rate: StreamRate| Ok(write(&BenchRecord::VerbsSecond(rate))?);
        let rate = bandwidth.as_mut().map(|ends| {
            stream::measure(comm, ends, subject, request.bidirectional, &ticks, &mut second)
        });
        let rate = rate.transpose()?;
        if is_first {
            write(&BenchRecord::VerbsRow(VerbsRow { bytes, latency: times, bandwidth: rate }))?;
        }
    }
    Ok(())
}

/// Returns what the queue pairs for latency and those for streams need.
fn end_options(request: &VerbsRequest) -> (Option<EndOptions>, Option<EndOptions>) {
    let bytes = request.sizes.iter().copied().max().unwrap_or(1);
    let operation = request.operation;
    let common = EndOptions { bytes, mtu: request.mtu, operation, ..EndOptions::default() };
    // Reads carry no data into a request. The others are as perftest has them for most devices.
    let usual = match operation {
        VerbsOperation::Read => 0,
        VerbsOperation::Write => 220,
        VerbsOperation::Send => 236,
    };
    let inline = |usual: u32| match request.inline {
        _ if operation == VerbsOperation::Read => Inline::UpTo(0),
        Some(asked) => Inline::Exactly(asked),
        None => Inline::UpTo(usual),
    };
    let is_watched = operation == VerbsOperation::Write;
    let latency = EndOptions { inline: inline(usual), is_watched, ..common };
    let (qps, depth) = (request.qps.max(1) as usize, request.depth.max(1));
    let bandwidth = EndOptions { qps, depth, inline: inline(0), ..common };
    (
        (request.part != VerbsPart::Bandwidth).then_some(latency),
        (request.part != VerbsPart::Latency).then_some(bandwidth),
    )
}

fn header(request: &VerbsRequest, ends: &Ends, inline: (u32, u32)) -> VerbsHeader {
    VerbsHeader {
        request: request.clone(),
        inline,
        mtu: ends.mtu,
        reads: ends.reads,
        ports: ends.ports.clone(),
        by_manager: ends.by_manager,
    }
}

/// Time without progress after which a measurement fails, and the rate in bytes per second of the
/// slowest device, whose messages may take longer.
const TIMEOUT: Duration = Duration::from_secs(30);
const SLOWEST: u64 = 1 << 20;
/// Number of polls without progress between two readings of the clock.
const POLLS: u32 = 1 << 20;

/// Detector of a peer that makes no progress. It reads the clock only once in [`POLLS`] polls,
/// because reading the clock takes microseconds on emulated hosts.
#[derive(Debug)]
struct StallTimer {
    subject: Subject,
    polls_left: u32,
    since: Option<Instant>,
}

impl StallTimer {
    fn new(subject: Subject) -> StallTimer {
        StallTimer { subject, polls_left: POLLS, since: None }
    }

    /// Counts a poll. `found` tells whether the poll made progress. Fails if no poll has made
    /// progress for a time that depends on the size.
    #[inline]
    fn polled(&mut self, found: bool) -> Result<(), VerbsBenchError> {
        if found {
            (self.polls_left, self.since) = (POLLS, None);
            return Ok(());
        }
        self.polls_left -= 1;
        if self.polls_left > 0 {
            return Ok(());
        }
        self.polls_left = POLLS;
        let (name, bytes) = (self.subject.name(), self.subject.bytes);
        let timeout = TIMEOUT + Duration::from_secs(bytes as u64 / SLOWEST);
        if self.since.get_or_insert_with(Instant::now).elapsed() < timeout {
            return Ok(());
        }
        Err(VerbsBenchError::Stalled { name, bytes, seconds: timeout.as_secs() })
    }
}

/// Number of decimal digits of a time that are kept, from 0 to 5.
const DIGITS: u8 = 3;
/// Maximum time in ticks, some minutes. Longer times count as this one.
const MOST: u64 = 1 << 40;
/// Number of the longest times that perftest leaves out.
const PERFTEST_TAIL: u64 = 2;
/// Ratio of the bounds of two classes of the distribution.
const CLASS: f64 = 1.25;

/// Times in ticks.
#[derive(Debug)]
struct Times(Histogram<u64>);

impl Times {
    fn new() -> Times {
        let histogram = Histogram::new_with_max(MOST, DIGITS);
        Times(histogram.unwrap_or_else(|_| unreachable!("{MOST} and {DIGITS} are allowed")))
    }

    #[inline]
    fn push(&mut self, ticks: u64) {
        self.0.saturating_record(ticks);
    }

    /// Returns the number of times.
    #[cfg(test)]
    fn count(&self) -> u64 {
        self.0.len()
    }

    /// Returns the time at a place in their order, from 0.
    fn nth(&self, place: u64) -> u64 {
        let mut passed = 0;
        let mut classes = self.0.iter_recorded();
        let class = classes.find(|class| {
            passed += class.count_at_value();
            passed > place
        });
        match class {
            Some(class) => class.value_iterated_to(),
            None => 0,
        }
    }

    /// Does the same as [`Times::summary`] in the way of perftest (`print_report_lat`): the two longest times are left
    /// out, the maximum is the shorter of these, and quantiles are taken at places in the order.
    fn summary_of_perftest(&self, microseconds: f64) -> MessageTimes {
        let count = self.0.len().saturating_sub(PERFTEST_TAIL);
        if count == 0 {
            return self.summary(microseconds);
        }
        let (mut body, mut left) = (Times::new(), count);
        for class in self.0.iter_recorded() {
            let taken = class.count_at_value().min(left);
            body.0.saturating_record_n(class.value_iterated_to(), taken);
            left -= taken;
        }
        let at = |place: u64| self.nth(place) as f64 * microseconds;
        let quantile = |quantile: f64| at((count as f64 * quantile).ceil() as u64);
        MessageTimes {
            messages: self.0.len(),
            typical_us: f64::midpoint(at(count / 2), at((count - 1) / 2)),
            p99_us: quantile(0.99),
            p999_us: quantile(0.999),
            max_us: at(count),
            ..body.summary(microseconds)
        }
    }

    /// Converts to microseconds. `microseconds` is the time of a tick, for each message.
    fn summary(&self, microseconds: f64) -> MessageTimes {
        let at = |quantile: f64| self.0.value_at_quantile(quantile) as f64 * microseconds;
        let classes = self.0.iter_log(1, CLASS).map(|class| {
            (class.value_iterated_to() as f64 * microseconds, class.count_since_last_iteration())
        });
        MessageTimes {
            messages: self.0.len(),
            min_us: self.0.min() as f64 * microseconds,
            typical_us: at(0.5),
            average_us: self.0.mean() * microseconds,
            deviation_us: self.0.stdev() * microseconds,
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: self.0.max() as f64 * microseconds,
            distribution: classes.filter(|(_, count)| *count > 0).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(operation: VerbsOperation, part: VerbsPart) -> VerbsRequest {
        VerbsRequest {
            operation,
            part,
            sizes: vec![2, 1 << 20],
            amount: VerbsAmount::Messages(10),
            qps: 3,
            depth: 128,
            inline: None,
            mtu: None,
            bidirectional: false,
            perftest: false,
        }
    }

    #[test]
    fn latency_takes_one_queue_pair_and_a_stream_as_many_as_asked_for() {
        let (latency, bandwidth) = end_options(&request(VerbsOperation::Write, VerbsPart::Both));
        let (latency, bandwidth) = (latency.unwrap(), bandwidth.unwrap());
        assert_eq!((latency.qps, latency.depth, latency.inline), (1, 1, Inline::UpTo(220)));
        assert_eq!((bandwidth.qps, bandwidth.depth), (3, 128));
        assert_eq!((bandwidth.inline, bandwidth.bytes), (Inline::UpTo(0), 1 << 20));
        let (latency, bandwidth) = end_options(&request(VerbsOperation::Send, VerbsPart::Latency));
        assert_eq!(latency.unwrap().inline, Inline::UpTo(236));
        assert!(bandwidth.is_none());
        let asked =
            VerbsRequest { inline: Some(64), ..request(VerbsOperation::Write, VerbsPart::Both) };
        assert_eq!(end_options(&asked).1.unwrap().inline, Inline::Exactly(64));
        let read = VerbsRequest { operation: VerbsOperation::Read, ..asked };
        assert_eq!(end_options(&read).0.unwrap().inline, Inline::UpTo(0));
    }

    #[test]
    fn a_rank_alone_measures_nothing() {
        let comm = Communicator::from_env().unwrap();
        let request = request(VerbsOperation::Write, VerbsPart::Both);
        let error = measure(&comm, None, &request, |_| Ok(())).unwrap_err().to_string();
        assert_eq!(error, "RDMA operations are measured between 2 ranks, but there are 1");
    }

    #[test]
    fn perftest_leaves_the_two_longest_times_out() {
        let mut times = Times::new();
        (1..=1000).for_each(|time| times.push(time * 1000));
        let summary = times.summary_of_perftest(1e-3);
        let is_near = |value: f64, expected: f64| (value / expected - 1.0).abs() < 2e-3;
        assert_eq!(summary.messages, 1000);
        assert!(is_near(summary.min_us, 1.0) && is_near(summary.max_us, 999.0), "{summary:?}");
        assert!(is_near(summary.typical_us, 499.5) && is_near(summary.average_us, 499.5));
        assert!(is_near(summary.p99_us, 990.0) && is_near(summary.p999_us, 999.0), "{summary:?}");
        let mut times = Times::new();
        (0..98).for_each(|_| times.push(1000));
        [500_000, 900_000].into_iter().for_each(|time| times.push(time));
        let summary = times.summary_of_perftest(1e-3);
        assert!(is_near(summary.average_us, 1.0) && is_near(summary.max_us, 500.0), "{summary:?}");
        assert!(is_near(times.summary(1e-3).max_us, 900.0));
        let mut few = Times::new();
        few.push(7000);
        assert!(is_near(few.summary_of_perftest(1e-3).max_us, 7.0));
    }

    #[test]
    fn quantiles_are_those_of_the_times() {
        let mut times = Times::new();
        (1..=1000).for_each(|time| times.push(time * 1000));
        let summary = times.summary(1e-3);
        let is_near = |value: f64, expected: f64| (value / expected - 1.0).abs() < 2e-3;
        assert_eq!(summary.messages, 1000);
        assert!(is_near(summary.min_us, 1.0) && is_near(summary.max_us, 1000.0), "{summary:?}");
        assert!(is_near(summary.typical_us, 500.0) && is_near(summary.average_us, 500.5));
        assert!(is_near(summary.p99_us, 990.0) && is_near(summary.p999_us, 999.0), "{summary:?}");
        assert!(is_near(summary.deviation_us, 288.675), "{summary:?}");
        let counts: Vec<u64> = summary.distribution.iter().map(|(_, count)| *count).collect();
        assert_eq!(counts.iter().sum::<u64>(), 1000);
        assert!(counts.iter().all(|count| *count > 0));
        assert!(summary.distribution.is_sorted_by(|one, other| one.0 < other.0));
    }
}
