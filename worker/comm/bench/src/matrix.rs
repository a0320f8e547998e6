//! Bandwidth and latency between all pairs of ranks, in rounds in which each rank has one partner
//! at most, and then all at once. Slow pairs are measured again before the result says so.
//!
//! The leading rank of a pair decides by its clock how long a measurement lasts, and how many
//! messages are in progress at once. In the [`barrier`] between rounds a rank may wait for as long as
//! the measurement of others lasts.

use crate::Sorted;
use rlaunch_bootstrap::bench::BenchMatrix;
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::rank_table::{Nic, RankTable};
use rlaunch_comm::{CommError, Communicator};
use std::thread;
use std::time::{Duration, Instant};

/// Maximum number of times that slow pairs are measured again. A disturbance rarely lasts.
const AGAIN: usize = 2;
/// Part of the ninth decile of all bandwidths below which a pair is slow enough to be measured
/// again. The launcher calls pairs slow below a smaller part.
const DOUBTFUL_PART: f64 = 0.8;
/// Number of pairs per rank, in both directions together, that are measured again at most: those of a slow host, and as
/// many others. On hosts that disturb each other nearly all are doubtful, and measuring them again tells nothing.
const DOUBTFUL_PER_RANK: usize = 4;
/// Ratio of a pair's bandwidth to that of the measurement before, up to which both agree.
const AGREEMENT: f64 = 1.1;

/// Time that measurements of doubtful pairs may have taken before another one begins.
const AGAIN_TIME: Duration = Duration::from_secs(10);

/// Settings of a measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MatrixOptions {
    /// Size of messages in bytes.
    pub(crate) bytes: usize,
    /// Time for each direction of each pair, and for all at once; zero: as [`default_time`] says.
    pub(crate) time: Duration,
}

/// Returns the time for each direction of each pair if the user gives none. Between more ranks it is less, so that all
/// rounds together take a few seconds.
fn default_time(ranks: usize) -> Duration {
    const EACH: Duration = Duration::from_millis(100);
    const ALL: Duration = Duration::from_secs(6);
    EACH.min(ALL / (2 * rounds(ranks)).max(1) as u32)
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
    table: Option<&RankTable>,
    options: MatrixOptions,
) -> Result<BenchMatrix, CommError> {
    let ranks = comm.size();
    let time = if options.time.is_zero() { default_time(ranks) } else { options.time };
    let options = MatrixOptions { time, ..options };
    let mut own = Row { megabits: vec![0.0; ranks], latency_us: vec![0.0; ranks] };
    let mut buffers = Buffers::new(options.bytes);
    let rates = PortRates { table };
    measure_pairs(comm, options, &mut buffers, &mut own, |_, _| true)?;
    let begin = Instant::now();
    let mut bandwidths = own.shared_bandwidths(comm)?;
    let mut doubtful = doubtful(&rates.parts(&bandwidths), None);
    for _ in 0..AGAIN {
        // What is doubtful is the same on all ranks; the time is that of rank 0.
        let mut is_over = [u8::from(begin.elapsed() > AGAIN_TIME)];
        comm.broadcast(&mut is_over, 0)?;
        if !doubtful.contains(&true) || is_over == [1] {
            break;
        }
        measure_pairs(comm, options, &mut buffers, &mut own, |a, b| doubtful[a * ranks + b])?;
        let before = std::mem::replace(&mut bandwidths, own.shared_bandwidths(comm)?);
        doubtful = self::doubtful(&rates.parts(&bandwidths), Some(&rates.parts(&before)));
    }
    let at_once = if ranks > 2 { all_at_once(comm, options)? } else { 0.0 };
    let row = [&own.megabits[..], &own.latency_us, &[at_once]].concat();
    let mut all = vec![0.0; if comm.rank() == 0 { ranks * row.len() } else { 0 }];
    comm.gather(&row, &mut all, 0)?;
    Ok(matrix(options.bytes, ranks, &all))
}

/// Returns a NIC of a rank's node.
pub(crate) fn nic(table: &RankTable, rank: Rank, index: Option<u32>) -> Option<&Nic> {
    let node = table.ranks().get(rank.index())?.node;
    table.nodes().get(node.index())?.nics.get(index? as usize)
}

/// Rates of ports, by which pairs with different ports can be compared.
struct PortRates<'a> {
    table: Option<&'a RankTable>,
}

impl PortRates<'_> {
    /// Divides the bandwidths of pairs by the rate of the slower port, where both rates are known.
    fn parts(&self, bandwidths: &[f64]) -> Vec<f64> {
        let ranks = bandwidths.len().isqrt();
        let part = |(pair, bandwidth): (usize, &f64)| {
            bandwidth / self.rate(pair / ranks, pair % ranks).map_or(1.0, f64::from)
        };
        bandwidths.iter().enumerate().map(part).collect()
    }

    /// Returns the rate of the slower port between two ranks in Mb/s.
    fn rate(&self, a: usize, b: usize) -> Option<u32> {
        let table = self.table?;
        let pair = table.pair(Rank(a as u32), Rank(b as u32))?;
        let rate = |rank, index| nic(table, rank, index)?.rate_mbps;
        Some(rate(pair.a, pair.nic_a)?.min(rate(pair.b, pair.nic_b)?))
    }
}

/// Results between this rank and the others, by rank.
struct Row {
    /// Best bandwidth to the other rank in Mb/s.
    megabits: Vec<f64>,
    /// Latency in microseconds, measured to higher ranks only.
    latency_us: Vec<f64>,
}

impl Row {
    /// Returns the bandwidths from each rank to each other one, known to all ranks.
    fn shared_bandwidths(&self, comm: &Communicator) -> Result<Vec<f64>, CommError> {
        let mut all = vec![0.0; comm.size() * comm.size()];
        comm.all_gather(&self.megabits, &mut all)?;
        Ok(all)
    }

    fn faster(&mut self, other: usize, megabits: f64) {
        self.megabits[other] = self.megabits[other].max(megabits);
    }
}

/// Measures the wanted pairs in the rounds of a tournament. All ranks want the same pairs, each in
/// both orders.
fn measure_pairs(
    comm: &Communicator,
    options: MatrixOptions,
    buffers: &mut Buffers,
    best: &mut Row,
    is_wanted: impl Fn(usize, usize) -> bool,
) -> Result<(), CommError> {
    let (rank, ranks) = (comm.rank(), comm.size());
    for round in 0..rounds(ranks) {
        let partner_of = |rank| partner(round, rank, ranks).filter(|other| is_wanted(rank, *other));
        if !(0..ranks).any(|rank| partner_of(rank).is_some()) {
            continue;
        }
        barrier(comm)?;
        let Some(other) = partner_of(rank) else { continue };
        let mut pair = PairOfRanks { comm, other, buffers, time: options.time };
        // Pairs that are measured again have a latency already.
        let needs_latency = best.megabits[other] == 0.0;
        if rank < other {
            if needs_latency {
                best.latency_us[other] = pair.lead_latency()?;
            }
            best.faster(other, pair.lead_stream()?);
            pair.follow_stream()?;
        } else {
            if needs_latency {
                pair.follow_latency()?;
            }
            pair.follow_stream()?;
            best.faster(other, pair.lead_stream()?);
        }
    }
    Ok(())
}

/// Returns for each two ranks whether they are to be measured again: their bandwidth is low, and
/// has not been confirmed, since the last measurement found more than the one before.
fn doubtful(bandwidths: &[f64], before: Option<&[f64]>) -> Vec<bool> {
    let ranks = bandwidths.len().isqrt();
    let mut sorted: Vec<f64> = bandwidths.iter().copied().filter(|speed| *speed > 0.0).collect();
    sorted.sort_by(f64::total_cmp);
    let Some(reference) = sorted.get(sorted.len() * 9 / 10) else {
        return vec![false; bandwidths.len()];
    };
    let is_doubtful = |pair: usize| {
        let is_confirmed =
            before.is_some_and(|before| bandwidths[pair] <= AGREEMENT * before[pair]);
        bandwidths[pair] < DOUBTFUL_PART * reference && !is_confirmed
    };
    let mut slowest: Vec<usize> = (0..bandwidths.len())
        .filter(|pair| pair / ranks != pair % ranks && is_doubtful(*pair))
        .collect();
    slowest.sort_by(|a, b| bandwidths[*a].total_cmp(&bandwidths[*b]));
    slowest.truncate(DOUBTFUL_PER_RANK * ranks);
    let mut doubtful = vec![false; bandwidths.len()];
    for (a, b) in slowest.iter().map(|pair| (pair / ranks, pair % ranks)) {
        doubtful[a * ranks + b] = true;
        doubtful[b * ranks + a] = true;
    }
    doubtful
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

pub(crate) const TAG: u32 = 3;
/// Tag of messages that control a measurement.
const CONTROL: u32 = 4;
/// Maximum number of messages in progress at once from one rank to another. At 400 Gb/s, the time
/// between two windows of 256 KiB messages is below 2 % of a window.
const WINDOW: usize = 128;
/// Maximum total length in bytes of the messages in progress at once that a rank receives.
pub(crate) const WINDOW_BYTES: usize = 64 << 20;
/// Number of windows into which the time of a measurement is divided at least, if a message does
/// not take longer than that.
const WINDOWS: u32 = 4;
/// Size of messages by which latency is measured, in bytes.
const SMALL: usize = 8;
/// Part of the time of a bandwidth measurement that a latency measurement takes.
const LATENCY_PART: u32 = 4;
/// Minimum and maximum number of round trips of a latency measurement.
const ROUND_TRIPS: (usize, usize) = (5, 2000);

/// Time for which a rank polls for a message of a latency measurement before it sleeps: many times as long as it takes to
/// wake its partner.
const AWAKE: Duration = Duration::from_millis(2);
/// Number of polls between two looks at the clock.
const POLLS: usize = 64;

/// Message by which the leading rank of a latency measurement tells its partner to go on.
const MORE: u8 = 1;
/// Message by which it tells its partner to stop.
const STOP: u8 = 0;

/// Memory of messages, used for all pairs.
pub(crate) struct Buffers {
    input: Vec<u8>,
    /// Space for [`Buffers::window`] messages.
    output: Vec<u8>,
    bytes: usize,
    /// Maximum number of messages in progress at once.
    window: usize,
}

impl Buffers {
    /// Makes buffers for messages of `bytes` bytes.
    pub(crate) fn new(bytes: usize) -> Buffers {
        let window = (WINDOW_BYTES / bytes.max(1)).clamp(1, WINDOW);
        Buffers { input: vec![1; bytes], output: vec![0; bytes * window], bytes, window }
    }
}

/// Measurement between this rank and another one.
pub(crate) struct PairOfRanks<'a> {
    pub(crate) comm: &'a Communicator,
    pub(crate) other: usize,
    pub(crate) buffers: &'a mut Buffers,
    /// Time of a bandwidth measurement.
    pub(crate) time: Duration,
}

impl PairOfRanks<'_> {
    /// Returns the median of half a round trip in microseconds.
    pub(crate) fn lead_latency(&mut self) -> Result<f64, CommError> {
        let time = self.time / LATENCY_PART;
        let (mut message, mut trips) = ([MORE; SMALL], Vec::new());
        let (least, most) = ROUND_TRIPS;
        let begin = Instant::now();
        loop {
            let is_last = trips.len() >= least && (begin.elapsed() >= time || trips.len() >= most);
            message[0] = if is_last { STOP } else { MORE };
            let sent = Instant::now();
            self.comm.send(&message, self.other, TAG)?;
            receive_awake(self.comm, &mut message, self.other)?;
            trips.push(sent.elapsed().as_secs_f64());
            if is_last {
                return Ok(Sorted::new(trips).quantile(0.5) * 1e6 / 2.0);
            }
        }
    }

    /// Answers the messages of the leading rank.
    pub(crate) fn follow_latency(&mut self) -> Result<(), CommError> {
        let mut message = [0; SMALL];
        loop {
            receive_awake(self.comm, &mut message, self.other)?;
            self.comm.send(&message, self.other, TAG)?;
            if message[0] == STOP {
                return Ok(());
            }
        }
    }

    /// Sends as fast as possible, and returns the rate in Mb/s. The first message is not counted:
    /// it connects the ranks and registers memory. The time of the window before tells how many
    /// messages are in progress at once, fewer on a slow link, which would otherwise be measured
    /// for too long.
    pub(crate) fn lead_stream(&mut self) -> Result<f64, CommError> {
        let warm = Instant::now();
        self.send_window(1)?;
        let mut window = self.window(warm.elapsed());
        let (begin, mut messages) = (Instant::now(), 0);
        while messages == 0 || begin.elapsed() < self.time {
            let sent = Instant::now();
            self.send_window(window)?;
            messages += window;
            window = self.window(sent.elapsed() / window as u32);
        }
        let seconds = begin.elapsed().as_secs_f64();
        self.comm.send(&[0_u64], self.other, CONTROL)?;
        Ok((messages * self.buffers.bytes * 8) as f64 / seconds / 1e6)
    }

    /// Receives until the leading rank stops.
    pub(crate) fn follow_stream(&mut self) -> Result<(), CommError> {
        let mut window = [0_u64];
        loop {
            self.comm.recv(&mut window, self.other, CONTROL)?;
            match window {
                [0] => return Ok(()),
                [window] => self.receive_window(window as usize)?,
            }
        }
    }

    /// Returns the number of messages in progress at once, if one takes this time.
    fn window(&self, message: Duration) -> usize {
        let time = (self.time / WINDOWS).as_secs_f64();
        ((time / message.as_secs_f64().max(1e-9)) as usize).clamp(1, self.buffers.window)
    }

    /// Sends a window of messages, and waits until the partner has received them.
    fn send_window(&mut self, window: usize) -> Result<(), CommError> {
        self.comm.send(&[window as u64], self.other, CONTROL)?;
        send_window(self.comm, &self.buffers.input, window, (self.other, TAG))
    }

    fn receive_window(&mut self, window: usize) -> Result<(), CommError> {
        let parts = self.buffers.output.chunks_mut(self.buffers.bytes.max(1));
        receive_window(self.comm, parts.take(window), (self.other, TAG))
    }
}

/// Receives a message of a latency measurement. The barrier before it lets one rank sleep until the other sends, which
/// then sleeps until this one has been woken, and so on: what is measured would be how long it takes to wake them.
fn receive_awake(comm: &Communicator, message: &mut [u8], from: usize) -> Result<(), CommError> {
    comm.scope(move |scope| {
        let request = scope.irecv(message, from, TAG)?;
        let begin = Instant::now();
        match awake(request, |request| scope.test(request), || begin.elapsed())? {
            Ok(_) => Ok(()),
            Err(request) => scope.wait(request).map(drop),
        }
    })
}

/// Polls until something has come, for [`AWAKE`] of a clock at most.
fn awake<R, T>(
    mut request: R,
    mut test: impl FnMut(R) -> Result<Result<T, R>, CommError>,
    clock: impl Fn() -> Duration,
) -> Result<Result<T, R>, CommError> {
    while clock() < AWAKE {
        for _ in 0..POLLS {
            match test(request)? {
                Ok(received) => return Ok(Ok(received)),
                Err(pending) => request = pending,
            }
        }
        // The partner may need this processor.
        thread::yield_now();
    }
    Ok(Err(request))
}

/// Sends a message `count` times at once to a rank, and waits until it has confirmed them all with one
/// empty message.
pub(crate) fn send_window(
    comm: &Communicator,
    message: &[u8],
    count: usize,
    (to, tag): (usize, u32),
) -> Result<(), CommError> {
    comm.scope(|scope| {
        let sends = (0..count).map(|_| scope.isend(message, to, tag));
        let sends: Result<Vec<_>, _> = sends.collect();
        sends?.into_iter().try_for_each(|send| scope.wait(send).map(drop))
    })?;
    comm.recv(&mut [0_u8; 0], to, tag).map(drop)
}

/// Receives messages at once into these buffers, and confirms them.
pub(crate) fn receive_window<'a>(
    comm: &Communicator,
    buffers: impl Iterator<Item = &'a mut [u8]>,
    (from, tag): (usize, u32),
) -> Result<(), CommError> {
    comm.scope(|scope| {
        let receives = buffers.map(|buffer| scope.irecv(buffer, from, tag));
        let receives: Result<Vec<_>, _> = receives.collect();
        receives?.into_iter().try_for_each(|receive| scope.wait(receive).map(drop))
    })?;
    comm.send(&[0_u8; 0], from, tag)
}

/// Shortest and longest time between two looks at a barrier. The first ones are close together, since
/// most ranks enter at about the same time.
const SHORTEST: Duration = Duration::from_micros(20);
const LONGEST: Duration = Duration::from_millis(5);

/// Waits until all ranks have called this function. [`Communicator::barrier`] would report after
/// 10 s which ranks it waits for, though they only measure, and would use the processor meanwhile.
pub(crate) fn barrier(comm: &Communicator) -> Result<(), CommError> {
    comm.scope(|scope| {
        let (mut request, mut pause) = (scope.ibarrier()?, SHORTEST);
        loop {
            match scope.test(request)? {
                Ok(_) => return Ok(()),
                Err(pending) => request = pending,
            }
            thread::sleep(pause);
            pause = (pause * 2).min(LONGEST);
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::collections::BTreeSet;

    /// Between the two, a partner that sleeps is woken, which takes a millisecond where other programs run.
    #[test]
    fn a_rank_stays_awake_for_a_partner_that_has_to_be_woken_and_not_for_ever() {
        let finds = |after: Duration| {
            let clock = Cell::new(Duration::ZERO);
            let poll = |()| {
                clock.set(clock.get() + Duration::from_micros(1));
                Ok(if clock.get() >= after { Ok(()) } else { Err(()) })
            };
            awake((), poll, || clock.get()).unwrap().is_ok()
        };
        assert!(finds(Duration::ZERO) && finds(Duration::from_millis(1)));
        assert!(!finds(Duration::from_millis(10)));
    }

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
    fn slow_pairs_are_measured_until_a_measurement_confirms_them() {
        let first = [0.0, 100.0, 95.0, 100.0, 0.0, 40.0, 95.0, 98.0, 0.0];
        let pairs = |doubtful: Vec<bool>| {
            let pairs = (0..9).filter(|pair| doubtful[*pair]);
            pairs.map(|pair| (pair / 3, pair % 3)).collect::<Vec<_>>()
        };
        assert_eq!(pairs(doubtful(&first, None)), [(1, 2), (2, 1)]);
        assert_eq!(pairs(doubtful(&first, Some(&first))), []);
        let mut second = first;
        second[5] = 60.0;
        assert_eq!(pairs(doubtful(&second, Some(&first))), [(1, 2), (2, 1)], "still rising");
        second[5] = 99.0;
        assert_eq!(pairs(doubtful(&second, Some(&first))), []);
        assert_eq!(doubtful(&[0.0], None), [false]);
    }

    #[test]
    fn on_disturbed_hosts_only_the_slowest_pairs_are_measured_again() {
        const RANKS: usize = 32;
        // All pairs but a tenth are slow.
        let speed = |pair: usize| {
            let (a, b) = (pair / RANKS, pair % RANKS);
            if a == b {
                0.0
            } else if pair.is_multiple_of(10) {
                1000.0
            } else {
                10.0 + pair as f64 / 2.0
            }
        };
        let speeds: Vec<f64> = (0..RANKS * RANKS).map(speed).collect();
        let doubtful = doubtful(&speeds, None);
        assert!(doubtful[1] && doubtful[RANKS], "the slowest, in both directions");
        let count = doubtful.iter().filter(|doubtful| **doubtful).count();
        assert!(
            (DOUBTFUL_PER_RANK * RANKS..=2 * DOUBTFUL_PER_RANK * RANKS).contains(&count),
            "{count}"
        );
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
        let matrix = super::measure(&comm, None, options).unwrap();
        assert_eq!((matrix.megabits, matrix.at_once), (vec![vec![0.0]], vec![]));
    }

    #[test]
    fn a_rank_alone_does_not_wait() {
        barrier(&Communicator::from_env().unwrap()).unwrap();
    }
}
