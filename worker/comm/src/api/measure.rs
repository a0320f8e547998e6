//! How quick a communicator is: messages and collectives, repeated until a clock can tell.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

use crate::{CommError, Communicator, Op};

/// How many messages of a stream are on their way together; an empty one answers them.
const WINDOW: usize = 8;
const TAG: u32 = 1;
/// A batch that was too short is followed by one that should be this much longer than asked for, so
/// that few are too short again: of batches close to the limit only slow ones would count.
const AMPLE: f64 = 1.6;
/// The most by which a batch grows at once; the first one may be all start-up.
const GROWTH: f64 = 100.0;

/// What is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Benchmark {
    /// A message to a partner and one back; the time is that of one way. Ranks act in pairs, 0 with
    /// 1, 2 with 3; one left over only waits.
    Latency,
    /// Messages from one of a pair to the other, several on their way at a time; the time is that of
    /// one message.
    Bandwidth,
    /// A barrier.
    Barrier,
    /// The sum of vectors of f32, at every rank.
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

/// How to measure an act.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// What.
    pub benchmark: Benchmark,
    /// Of each message or vector; a barrier has none.
    pub bytes: usize,
    /// The least time of a batch. Short acts say nothing alone. Where it is zero, batches follow each
    /// other without a pause, as perftest's iterations do: nothing is said in between.
    pub at_least: Duration,
    /// How many batches are timed after one to warm up; at least one.
    pub batches: usize,
    /// How many repetitions a batch begins with, if that is known; more are added as needed.
    pub count: u64,
}

/// What a rank measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// Seconds of one act: the median of the batches.
    pub seconds: f64,
    /// The same of the quickest batch.
    pub least: f64,
    /// Repetitions in each batch.
    pub count: u64,
}

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// The communicator failed.
    #[error(transparent)]
    Communicator(#[from] CommError),
    /// What arrived is not what was sent.
    #[error("{0} of {1} bytes brought wrong data")]
    WrongData(Benchmark, usize),
    /// A message needs two ranks.
    #[error("{0} is between two ranks, and there is only one")]
    Alone(Benchmark),
    /// No act has this name.
    #[error("no such act: there are latency, bandwidth, barrier and allreduce")]
    UnknownBenchmark,
}

/// Measures an act; all ranks call this with the same plan. Rank 0's clock says when a batch is long
/// enough.
///
/// # Errors
///
/// When the communicator fails, when data is wrong, or when there is nobody to send to.
pub fn measure(comm: &Communicator, plan: &Plan) -> Result<Measured, MeasureError> {
    let mut bench = Bench::new(comm, plan)?;
    let mut count = plan.count.max(1);
    // The first only warms up.
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
    // Exact: nothing is repeated 2^53 times.
    let operations = count as f64 * bench.operations_per_repetition();
    let seconds = median(&mut times[1..]) / operations;
    let least = times[1..].iter().copied().fold(f64::INFINITY, f64::min) / operations;
    Ok(Measured { seconds, least, count })
}

/// How many repetitions the next batch has: as many as this one unless this was too short.
fn longer(count: u64, time: Duration, at_least: Duration) -> u64 {
    if time >= at_least {
        return count;
    }
    let wanted = AMPLE * at_least.as_secs_f64() / time.as_secs_f64().max(1e-9);
    // Rounded down, and one more so that it grows.
    (count as f64 * wanted.min(GROWTH)) as u64 + 1
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    let middle = |place: usize| times.get(place).copied().unwrap_or(f64::NAN);
    f64::midpoint(middle(times.len() / 2), middle(times.len().saturating_sub(1) / 2))
}

/// An act with its memory.
struct Bench<'a> {
    comm: &'a Communicator,
    benchmark: Benchmark,
    bytes: usize,
    partner: Option<usize>,
    /// Messages, or empty.
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
    /// Vectors, or empty.
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
        // Zeroed memory comes from the system and is touched here, so that no batch has to.
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
        // Exact: small whole numbers.
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

    /// What rank 0 says.
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

/// Of a message, the byte at this place.
fn pattern(place: usize) -> u8 {
    // Always below 251.
    u8::try_from(place % 251).unwrap_or(u8::MAX)
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
