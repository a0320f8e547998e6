//! Bandwidth and latency between all pairs of ranks, in rounds in which each rank has one partner
//! at most, and then all at once.

use crate::report::Sorted;
use rlaunch_bootstrap::bench::BenchMatrix;
use rlaunch_comm::{CommError, Communicator};
use std::time::{Duration, Instant};

const TAG: u32 = 3;
/// Tag of messages that control a measurement.
const CONTROL: u32 = 4;
/// Maximum number of messages in progress at once from one rank to another.
const WINDOW: usize = 8;
/// Maximum total length in bytes of the messages in progress at once that a rank receives.
const WINDOW_BYTES: usize = 64 << 20;
/// Size of messages by which latency is measured, in bytes.
const SMALL: usize = 8;
/// Part of the time of a bandwidth measurement that a latency measurement takes.
const LATENCY_PART: u32 = 4;
/// Minimum and maximum number of round trips of a latency measurement.
const ROUND_TRIPS: (usize, usize) = (5, 2000);

/// Message by which a measuring rank tells its partner to go on.
const MORE: [u8; 1] = [1];
/// Message by which a measuring rank tells its partner to stop.
const STOP: [u8; 1] = [0];

/// Settings of a measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MatrixOptions {
    /// Size of messages in bytes.
    pub(crate) bytes: usize,
    /// Time for each direction of each pair, and for all at once.
    pub(crate) time: Duration,
}

/// Returns the partner of a rank in a round of a tournament of `ranks` ranks in which all pairs
/// meet once. `None` if the rank has none in this round. There are [`rounds`] rounds.
fn partner(round: usize, rank: usize, ranks: usize) -> Option<usize> {
    // One rank (or none, if their number is odd) stays in place; the others move around a circle.
    let last = ranks + ranks % 2 - 1;
    let other = match rank {
        rank if rank == last => (0..last).find(|other| 2 * other % last == round % last)?,
        rank => {
            let opposite = (round + last - rank) % last;
            if opposite == rank { last } else { opposite }
        }
    };
    (other < ranks).then_some(other)
}

/// Returns the number of rounds in which all pairs of `ranks` ranks meet.
fn rounds(ranks: usize) -> usize {
    if ranks < 2 { 0 } else { ranks + ranks % 2 - 1 }
}

/// Measures all pairs. Returns the results on rank 0, and an empty matrix on other ranks.
pub(crate) fn measure(
    comm: &Communicator,
    options: MatrixOptions,
) -> Result<BenchMatrix, CommError> {
    let ranks = comm.size();
    let mut own = vec![0.0; 2 * ranks + 1];
    let mut buffers = Buffers::new(options.bytes);
    for round in 0..rounds(ranks) {
        comm.barrier()?;
        let Some(other) = partner(round, comm.rank(), ranks) else { continue };
        let mut pair = PairOfRanks { comm, other, buffers: &mut buffers, options };
        if comm.rank() < other {
            own[ranks + other] = pair.lead_latency()?;
            own[other] = pair.lead_stream()?;
            pair.follow_stream()?;
        } else {
            pair.follow_latency()?;
            pair.follow_stream()?;
            own[other] = pair.lead_stream()?;
        }
    }
    if ranks > 2 {
        own[2 * ranks] = all_at_once(comm, options)?;
    }
    let mut all = vec![0.0; if comm.rank() == 0 { ranks * own.len() } else { 0 }];
    comm.gather(&own, &mut all, 0)?;
    Ok(matrix(options.bytes, ranks, &all))
}

/// Makes the matrix from the numbers that each rank measured: bandwidths to all ranks, latencies to
/// all, of which only those to higher ranks are measured, and the rate of all at once.
fn matrix(bytes: usize, ranks: usize, all: &[f64]) -> BenchMatrix {
    let rows: Vec<&[f64]> = all.chunks(2 * ranks + 1).collect();
    if rows.is_empty() {
        return BenchMatrix { bytes, ..BenchMatrix::default() };
    }
    let latency = |a: usize, b: usize| rows[a.min(b)][ranks + a.max(b)];
    let latencies =
        |a: usize| (0..ranks).map(|b| if a == b { 0.0 } else { latency(a, b) }).collect();
    let at_once = rows.iter().map(|row| row[2 * ranks]);
    BenchMatrix {
        bytes,
        megabits: rows.iter().map(|row| row[..ranks].to_vec()).collect(),
        latency_us: (0..ranks).map(latencies).collect(),
        at_once: if ranks > 2 { at_once.collect() } else { Vec::new() },
    }
}

struct Buffers {
    input: Vec<u8>,
    output: Vec<u8>,
    bytes: usize,
    /// Number of messages in progress at once.
    window: usize,
}

impl Buffers {
    fn new(bytes: usize) -> Buffers {
        let window = (WINDOW_BYTES / bytes.max(1)).clamp(1, WINDOW);
        Buffers { input: vec![1; bytes], output: vec![0; bytes * window], bytes, window }
    }
}

/// Measurement between this rank and another one. The leading rank of a measurement decides by its
/// clock how long it lasts.
struct PairOfRanks<'a> {
    comm: &'a Communicator,
    other: usize,
    buffers: &'a mut Buffers,
    options: MatrixOptions,
}

impl PairOfRanks<'_> {
    /// Returns the median of half a round trip in microseconds.
    fn lead_latency(&mut self) -> Result<f64, CommError> {
        let time = self.options.time / LATENCY_PART;
        let (mut message, mut trips) = ([MORE[0]; SMALL], Vec::new());
        let (least, most) = ROUND_TRIPS;
        let begin = Instant::now();
        loop {
            let is_last = trips.len() >= least && (begin.elapsed() >= time || trips.len() >= most);
            message[0] = if is_last { STOP[0] } else { MORE[0] };
            let sent = Instant::now();
            self.comm.send(&message, self.other, TAG)?;
            self.comm.recv(&mut message, self.other, TAG)?;
            trips.push(sent.elapsed().as_secs_f64());
            if is_last {
                return Ok(Sorted::new(trips).quantile(0.5) * 1e6 / 2.0);
            }
        }
    }

    fn follow_latency(&mut self) -> Result<(), CommError> {
        let mut message = [0; SMALL];
        loop {
            self.comm.recv(&mut message, self.other, TAG)?;
            self.comm.send(&message, self.other, TAG)?;
            if message[0] == STOP[0] {
                return Ok(());
            }
        }
    }

    /// Sends as fast as possible. Returns the rate in Mb/s after a first window, which is not
    /// counted: it connects the ranks and registers memory.
    fn lead_stream(&mut self) -> Result<f64, CommError> {
        self.send_window()?;
        let (begin, mut windows) = (Instant::now(), 0_usize);
        while windows == 0 || begin.elapsed() < self.options.time {
            self.comm.send(&MORE, self.other, CONTROL)?;
            self.send_window()?;
            windows += 1;
        }
        let seconds = begin.elapsed().as_secs_f64();
        self.comm.send(&STOP, self.other, CONTROL)?;
        let bits = (windows * self.buffers.window * self.buffers.bytes * 8) as f64;
        Ok(bits / seconds / 1e6)
    }

    fn follow_stream(&mut self) -> Result<(), CommError> {
        let mut control = MORE;
        while control == MORE {
            self.receive_window()?;
            self.comm.recv(&mut control, self.other, CONTROL)?;
        }
        Ok(())
    }

    /// Sends a window of messages, and waits until the partner has received them.
    fn send_window(&mut self) -> Result<(), CommError> {
        let (input, other, window) = (&self.buffers.input, self.other, self.buffers.window);
        self.comm.scope(|scope| {
            let sends = (0..window).map(|_| scope.isend(input, other, TAG));
            let sends: Result<Vec<_>, _> = sends.collect();
            sends?.into_iter().try_for_each(|send| scope.wait(send).map(drop))
        })?;
        self.comm.recv(&mut [0_u8; 0], other, TAG).map(drop)
    }

    fn receive_window(&mut self) -> Result<(), CommError> {
        let (other, bytes) = (self.other, self.buffers.bytes.max(1));
        let output = &mut self.buffers.output;
        self.comm.scope(|scope| {
            let receives = output.chunks_mut(bytes).map(|part| scope.irecv(part, other, TAG));
            let receives: Result<Vec<_>, _> = receives.collect();
            receives?.into_iter().try_for_each(|receive| scope.wait(receive).map(drop))
        })?;
        self.comm.send(&[0_u8; 0], other, TAG)
    }
}

/// Sends from each rank to all others at once. Returns the rate at which this rank sent, in Mb/s.
fn all_at_once(comm: &Communicator, options: MatrixOptions) -> Result<f64, CommError> {
    let ranks = comm.size();
    let bytes = options.bytes.min(WINDOW_BYTES / (ranks - 1)).max(1);
    let (input, mut output) = (vec![1_u8; bytes], vec![0_u8; bytes * (ranks - 1)]);
    let others: Vec<usize> = (1..ranks).map(|step| (comm.rank() + step) % ranks).collect();
    let (mut busy, mut rounds) = (Duration::ZERO, 0_usize);
    loop {
        comm.barrier()?;
        let begin = Instant::now();
        comm.scope(|scope| {
            let parts = output.chunks_mut(bytes.max(1));
            // Each rank receives from its predecessors in the order in which they send.
            let receives = parts
                .zip(1..)
                .map(|(part, step)| scope.irecv(part, (comm.rank() + ranks - step) % ranks, TAG));
            let receives: Vec<_> = receives.collect::<Result<_, _>>()?;
            let sends = others.iter().map(|other| scope.isend(&input, *other, TAG));
            let sends: Vec<_> = sends.collect::<Result<_, _>>()?;
            sends.into_iter().chain(receives).try_for_each(|request| scope.wait(request).map(drop))
        })?;
        // The first round connects ranks.
        if rounds > 0 {
            busy += begin.elapsed();
        }
        rounds += 1;
        let mut is_over = [u8::from(rounds > 1 && busy >= options.time)];
        comm.broadcast(&mut is_over, 0)?;
        if is_over == [1] {
            let bits = ((rounds - 1) * (ranks - 1) * bytes * 8) as f64;
            return Ok(bits / busy.as_secs_f64() / 1e6);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn all_pairs_meet_once() {
        for ranks in 0..40 {
            let mut met = BTreeSet::new();
            for round in 0..rounds(ranks) {
                for rank in 0..ranks {
                    let Some(other) = partner(round, rank, ranks) else { continue };
                    assert_eq!(partner(round, other, ranks), Some(rank), "{ranks} {round}");
                    assert_ne!(rank, other);
                    assert!(rank > other || met.insert((rank, other)), "{ranks} {round}");
                }
            }
            assert_eq!(met.len(), ranks * ranks.saturating_sub(1) / 2, "{ranks}");
        }
    }

    #[test]
    fn the_matrix_has_both_directions_and_one_latency() {
        // Bandwidths to both ranks, latencies to both, and the rate of all at once.
        let all = [0.0, 100.0, 0.0, 7.0, 1.0, 90.0, 0.0, 0.0, 0.0, 2.0];
        let matrix = matrix(64, 2, &all);
        assert_eq!(matrix.megabits, [[0.0, 100.0], [90.0, 0.0]]);
        assert_eq!(matrix.latency_us, [[0.0, 7.0], [7.0, 0.0]]);
        assert!(matrix.at_once.is_empty());
    }

    #[test]
    fn a_rank_alone_has_no_pairs() {
        let comm = Communicator::from_env().unwrap();
        let options = MatrixOptions { bytes: 1 << 10, time: Duration::from_millis(1) };
        let matrix = super::measure(&comm, options).unwrap();
        assert_eq!((matrix.megabits, matrix.at_once), (vec![vec![0.0]], vec![]));
    }
}
