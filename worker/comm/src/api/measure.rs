//! Benchmarks of messages and collectives. Operations are timed in batches that are long compared
//! with the resolution of the clock.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

use crate::{CommError, Communicator, Op};

/// Number of messages that the bandwidth benchmark has in flight at once. The receiver acknowledges
/// each group of this many messages with an empty message.
const WINDOW: usize = 8;
const TAG: u32 = 1;
/// Ratio of planned to requested time for the batch that follows a batch that was too short. A
/// batch planned for exactly the requested time would often be too short again, and then only
/// batches that other load slowed down would be long enough to count.
const OVERSHOOT: f64 = 1.6;
/// Maximum ratio of a batch's repetitions to those of the batch before it. The measured time of a
/// very short batch is inaccurate, and could otherwise lead to far too many repetitions.
const GROWTH: f64 = 100.0;

/// Operation to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Benchmark {
    /// Ping-pong between pairs of ranks: 0 with 1, 2 with 3, and so on. The time is half a round
    /// trip. A rank without a partner only takes part in barriers.
    Latency,
    /// Stream of messages from the lower to the higher rank of each pair, several in flight at
    /// once. The time is the mean per message. The pairs are the same as in [`Benchmark::Latency`].
    Bandwidth,
    /// Barrier of all ranks.
    Barrier,
    /// All-reduce of f32 vectors with [`Op::Sum`].
    AllReduce,
}

impl Benchmark {
    const NAMES: [(Benchmark, &str); 4] = [
        (Benchmark::Latency, "latency"),
        (Benchmark::Bandwidth, "bandwidth"),
        (Benchmark::Barrier, "barrier"),
        (Benchmark::AllReduce, "allreduce"),
    ];
}

impl fmt::Display for Benchmark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Benchmark::NAMES
            .iter()
            .find(|(benchmark, _)| benchmark == self)
            .map_or("", |(_, name)| name);
        f.pad(name)
    }
}

impl FromStr for Benchmark {
    type Err = MeasureError;

    fn from_str(text: &str) -> Result<Benchmark, MeasureError> {
        let found = Benchmark::NAMES.iter().find(|(_, name)| *name == text);
        found.map(|(benchmark, _)| *benchmark).ok_or(MeasureError::UnknownBenchmark)
    }
}

/// Parameters of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Operation to measure.
    pub benchmark: Benchmark,
    /// Size in bytes of each message, or of each rank's vector, which is rounded down to whole
    /// `f32`. Ignored for barriers.
    pub bytes: usize,
    /// Minimum duration of a batch. If it is zero, batches follow each other without a barrier or
    /// any other message in between, like the iterations of perftest.
    pub at_least: Duration,
    /// Number of timed batches, which follow one warm-up batch; 0 counts as 1.
    pub batches: usize,
    /// Initial number of repetitions in a batch; 0 counts as 1. The number grows until a batch
    /// takes [`Plan::at_least`].
    pub count: u64,
}

/// Result of a measurement at one rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// Seconds per operation: the median over the batches.
    pub seconds: f64,
    /// Seconds per operation in the fastest batch.
    pub least: f64,
    /// Number of repetitions in each batch.
    pub count: u64,
}

/// Failure of a measurement.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// The communicator failed.
    #[error(transparent)]
    Communicator(#[from] CommError),
    /// This rank received wrong data. The fields are the benchmark, and the size in bytes of each
    /// message or vector.
    #[error("{0} of {1} bytes received wrong data")]
    WrongData(Benchmark, usize),
    /// A message benchmark was run on one rank, but needs at least two.
    #[error("{0} needs two ranks, but there is only one")]
    Alone(Benchmark),
    /// The text is not the name of a benchmark.
    #[error("no such benchmark; use latency, bandwidth, barrier or allreduce")]
    UnknownBenchmark,
}

/// Measures the operation that `plan` describes. Collective: all ranks must call this function with
/// the same plan. Rank 0 decides when batches are long enough.
///
/// # Errors
///
/// Fails if the communicator fails, if received data are wrong, or if a message benchmark runs on
/// one rank.
pub fn measure(comm: &Communicator, plan: &Plan) -> Result<Measured, MeasureError> {
    let mut bench = Bench::new(comm, plan)?;
    let mut count = plan.count.max(1);
    // The first batch is a warm-up.
    let wanted = plan.batches.max(1) + 1;
    let mut times = Vec::with_capacity(wanted);
    let is_one_run = plan.at_least.is_zero();
    while times.len() < wanted {
        if times.is_empty() || !is_one_run {
            comm.barrier()?;
        }
        let time = bench.time(count)?;
        let next =
            if is_one_run { count } else { bench.agree(longer(count, time, plan.at_least))? };
        if next == count {
            times.push(time.as_secs_f64());
        } else {
            times.clear();
        }
        count = next;
    }
    bench.check()?;
    // Exact, since counts stay far below 2^53.
    let operations = count as f64 * bench.operations_per_repetition();
    let seconds = median(&mut times[1..]) / operations;
    let least = times[1..].iter().copied().fold(f64::INFINITY, f64::min) / operations;
    Ok(Measured { seconds, least, count })
}

/// Returns the number of repetitions for the next batch. `count` and `time` are those of the last
/// batch. The result is `count` if `time` is at least `at_least`, and more otherwise.
fn longer(count: u64, time: Duration, at_least: Duration) -> u64 {
    if time >= at_least {
        return count;
    }
    let wanted = OVERSHOOT * at_least.as_secs_f64() / time.as_secs_f64().max(1e-9);
    // Plus one, because rounding down could yield `count` again.
    (count as f64 * wanted.min(GROWTH)) as u64 + 1
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    let middle = |index: usize| times.get(index).copied().unwrap_or(f64::NAN);
    f64::midpoint(middle(times.len() / 2), middle(times.len().saturating_sub(1) / 2))
}

struct Bench<'a> {
    comm: &'a Communicator,
    benchmark: Benchmark,
    bytes: usize,
    partner: Option<usize>,
    /// Bytes of the messages to send, one after the other; empty for collectives.
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
    /// Input vector of an all-reduce; empty for other benchmarks.
    summands: Vec<f32>,
    sums: Vec<f32>,
}

impl<'a> Bench<'a> {
    fn new(comm: &'a Communicator, plan: &Plan) -> Result<Bench<'a>, MeasureError> {
        let (benchmark, bytes, rank) = (plan.benchmark, plan.bytes, comm.rank());
        let (messages, elements) = match benchmark {
            Benchmark::Latency => (bytes, 0),
            Benchmark::Bandwidth => (bytes * WINDOW, 0),
            Benchmark::Barrier => (0, 0),
            Benchmark::AllReduce => (0, bytes / size_of::<f32>()),
        };
        if messages > 0 && comm.size() < 2 {
            return Err(MeasureError::Alone(benchmark));
        }
        // Freshly mapped zero pages are touched here, so that no batch pays for page faults.
        let mut bench = Bench {
            comm,
            benchmark,
            bytes,
            partner: Some(rank ^ 1).filter(|partner| *partner < comm.size()),
            outgoing: vec![0; messages],
            incoming: vec![0; messages],
            summands: vec![0.0; elements],
            sums: vec![0.0; elements],
        };
        bench.outgoing.iter_mut().enumerate().for_each(|(i, byte)| *byte = pattern(i));
        bench.incoming.fill(0xff);
        // Small integers are exact in f32.
        let summand = |i: usize| (rank + i % 7) as f32;
        bench.summands.iter_mut().enumerate().for_each(|(i, one)| *one = summand(i));
        bench.sums.fill(f32::NAN);
        Ok(bench)
    }

    fn operations_per_repetition(&self) -> f64 {
        match self.benchmark {
            Benchmark::Latency => 2.0,
            Benchmark::Bandwidth => WINDOW as f64,
            Benchmark::Barrier | Benchmark::AllReduce => 1.0,
        }
    }

    fn time(&mut self, count: u64) -> Result<Duration, CommError> {
        let start = Instant::now();
        match (self.benchmark, self.partner) {
            (Benchmark::Latency, Some(partner)) => self.ping_pong(partner, count)?,
            (Benchmark::Bandwidth, Some(partner)) => self.stream(partner, count)?,
            (Benchmark::Latency | Benchmark::Bandwidth, None) => {}
            (Benchmark::Barrier, _) => (0..count).try_for_each(|_| self.comm.barrier())?,
            (Benchmark::AllReduce, _) => (0..count)
                .try_for_each(|_| self.comm.all_reduce(&self.summands, &mut self.sums, Op::Sum))?,
        }
        Ok(start.elapsed())
    }

    fn is_first(&self, partner: usize) -> bool {
        self.comm.rank() < partner
    }

    fn ping_pong(&mut self, partner: usize, count: u64) -> Result<(), CommError> {
        let is_first = self.is_first(partner);
        for _ in 0..count {
            if is_first {
                self.comm.send(&self.outgoing, partner, TAG)?;
                self.comm.recv(&mut self.incoming, partner, TAG)?;
            } else {
                self.comm.recv(&mut self.incoming, partner, TAG)?;
                self.comm.send(&self.outgoing, partner, TAG)?;
            }
        }
        Ok(())
    }

    fn stream(&mut self, partner: usize, count: u64) -> Result<(), CommError> {
        let (comm, bytes) = (self.comm, self.bytes.max(1));
        let no_bytes: [u8; 0] = [];
        for _ in 0..count {
            if self.is_first(partner) {
                comm.scope(|scope| {
                    let messages = self.outgoing.chunks(bytes);
                    let requests: Result<Vec<_>, _> =
                        messages.map(|message| scope.isend(message, partner, TAG)).collect();
                    requests?.into_iter().try_for_each(|request| scope.wait(request).map(drop))
                })?;
                comm.recv(&mut [0_u8; 0], partner, TAG)?;
            } else {
                comm.scope(|scope| {
                    let messages = self.incoming.chunks_mut(bytes);
                    let requests: Result<Vec<_>, _> =
                        messages.map(|message| scope.irecv(message, partner, TAG)).collect();
                    requests?.into_iter().try_for_each(|request| scope.wait(request).map(drop))
                })?;
                comm.send(&no_bytes, partner, TAG)?;
            }
        }
        Ok(())
    }

    /// Returns the `count` of rank 0 at every rank; rank 0 sends it to the others.
    fn agree(&self, count: u64) -> Result<u64, CommError> {
        let mut agreed = [count];
        if self.comm.rank() == 0 {
            for other in 1..self.comm.size() {
                self.comm.send(&agreed, other, TAG)?;
            }
        } else {
            self.comm.recv(&mut agreed, 0, TAG)?;
        }
        Ok(agreed[0])
    }

    fn check(&self) -> Result<(), MeasureError> {
        let size = self.comm.size();
        let sum = |i: usize| (size * (size - 1) / 2 + size * (i % 7)) as f32;
        let receives = match (self.benchmark, self.partner) {
            (Benchmark::Latency, Some(_)) => true,
            (Benchmark::Bandwidth, Some(partner)) => !self.is_first(partner),
            _ => false,
        };
        let are_bytes_right =
            !receives || self.incoming.iter().enumerate().all(|(i, byte)| *byte == pattern(i));
        let are_sums_right = self.sums.iter().enumerate().all(|(i, one)| *one == sum(i));
        if are_bytes_right && are_sums_right {
            Ok(())
        } else {
            Err(MeasureError::WrongData(self.benchmark, self.bytes))
        }
    }
}

/// Returns the byte at this offset of every buffer that is sent.
fn pattern(offset: usize) -> u8 {
    // The remainder is below 251, so the conversion never fails.
    u8::try_from(offset % 251).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_batch_grows_until_it_is_long_enough() {
        assert_eq!(longer(10, 20 * MS, 20 * MS), 10);
        assert_eq!(longer(10, 10 * MS, 20 * MS), 33);
        assert_eq!(longer(1, Duration::ZERO, 20 * MS), 101);
        assert!(longer(1, 20 * MS - Duration::from_nanos(1), 20 * MS) > 1);
    }

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut [4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(&mut [7.0]), 7.0);
    }

    #[test]
    fn acts_have_names_that_are_understood() {
        for (benchmark, name) in Benchmark::NAMES {
            assert_eq!(benchmark.to_string(), name);
            assert_eq!(name.parse::<Benchmark>().unwrap(), benchmark);
        }
        assert!("broadcast".parse::<Benchmark>().is_err());
    }
}
