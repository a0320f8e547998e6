//! Random messages between all ranks; both ends of a message know its contents and order.

use rlaunch_comm::sim::Dice;
use rlaunch_comm::{CommError, Communicator};
use std::fmt;
use std::time::{Duration, Instant};

/// Number of messages in a round.
const MESSAGES: u64 = 64;
/// Maximum length in words of 8 bytes; most messages are much shorter.
const LONGEST: usize = 1 << 16;
/// Number of rounds after which buffers have reached their final size.
const WARM: u64 = 100;
/// Growth in KiB that counts as a leak.
const GROWTH: u64 = 8 << 10;

struct RandomMessage {
    from: usize,
    to: usize,
    tag: u32,
    words: Vec<u64>,
}

/// Returns the messages of a round. Every rank gets the same.
fn draw(round: u64, size: usize) -> Vec<RandomMessage> {
    let mut dice = Dice::new(round.wrapping_mul(0x2545_f491_4f6c_dd1d));
    let message = |_| {
        let (from, to) = (dice.below(size), dice.below(size));
        let tag = dice.below(3) as u32;
        let most = 1 << dice.below(LONGEST.ilog2() as usize);
        let length = dice.below(most);
        let mut content = Dice::new(dice.draw());
        RandomMessage { from, to, tag, words: (0..length).map(|_| content.draw()).collect() }
    };
    (0..MESSAGES).map(message).collect()
}

/// Results so far.
#[derive(Clone, Copy, Debug)]
pub struct TrafficReport {
    /// Time since the beginning, by rank 0's clock.
    pub lasted: Duration,
    /// Rounds of messages.
    pub rounds: u64,
    /// Resident memory of the largest rank, in KiB.
    pub memory: u64,
    /// Largest growth of a rank's memory since its buffers reached their final size, in KiB.
    pub grown: u64,
}

impl fmt::Display for TrafficReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TrafficReport { lasted, rounds, memory, grown } = self;
        let (minutes, seconds) = (lasted.as_secs() / 60, lasted.as_secs() % 60);
        let messages = rounds * MESSAGES;
        write!(f, "{minutes}:{seconds:02} {rounds} rounds, {messages} messages, {memory} KiB ")?;
        write!(f, "in memory at most, grown by {grown} KiB")
    }
}

/// Commands that rank 0 broadcasts before each round.
const STOP: u8 = 0;
const GO_ON: u8 = 1;
const REPORT: u8 = 2;

/// Runs rounds for the given time, by rank 0's clock, and has rank 0 report every minute. Returns
/// the number of rounds.
pub fn traffic(
    comm: &Communicator,
    lasts: Duration,
    report: impl Fn(&TrafficReport),
) -> Result<u64, String> {
    let begin = Instant::now();
    let (mut before, mut round, mut reported) = (None, 0, 0);
    loop {
        let lasted = begin.elapsed();
        let mut next = [match () {
            () if lasted >= lasts => STOP,
            () if lasted.as_secs() / 60 > reported => REPORT,
            () => GO_ON,
        }];
        comm.broadcast(&mut next, 0).map_err(|error| error.to_string())?;
        if next != [GO_ON] {
            reported = lasted.as_secs() / 60;
            let (memory, grown) = constant(comm, before)?;
            if comm.rank() == 0 {
                report(&TrafficReport { lasted, rounds: round, memory, grown });
            }
        }
        if next == [STOP] {
            return Ok(round);
        }
        exchange(comm, &draw(round, comm.size())).map_err(|error| error.to_string())??;
        round += 1;
        if round == WARM {
            before = memory();
        }
    }
}

/// Returns the memory of the largest rank and the largest growth of any rank since `before`, in
/// KiB. Fails if the growth is a leak.
fn constant(comm: &Communicator, before: Option<u64>) -> Result<(u64, u64), String> {
    let now = memory().unwrap_or(0);
    let own = [now, before.map_or(0, |before| now.saturating_sub(before))];
    let mut all = vec![0; 2 * comm.size()];
    comm.all_gather(&own, &mut all).map_err(|error| error.to_string())?;
    let most = |which: usize| {
        let ranks = all.chunks(2).map(|of| of[which]).enumerate();
        ranks.max_by_key(|(_, kib)| *kib).unwrap_or_default()
    };
    match most(1) {
        (rank, grown) if grown > GROWTH => {
            Err(format!("rank {rank}: memory has grown by {grown} KiB"))
        }
        (_, grown) => Ok((most(0).1, grown)),
    }
}

fn exchange(
    comm: &Communicator,
    messages: &[RandomMessage],
) -> Result<Result<(), String>, CommError> {
    let me = comm.rank();
    let mine: Vec<&RandomMessage> = messages.iter().filter(|message| message.to == me).collect();
    // One word more than expected, so that a longer message would be noticed.
    let mut received: Vec<Vec<u64>> =
        mine.iter().map(|message| vec![0; message.words.len() + 1]).collect();
    let lengths = comm.scope(|scope| {
        let mut requests = Vec::new();
        for (message, data) in mine.iter().zip(&mut received) {
            requests.push(scope.irecv(data, message.from, message.tag)?);
        }
        for message in messages.iter().filter(|message| message.from == me) {
            let _ = scope.isend(&message.words, message.to, message.tag)?;
        }
        requests.into_iter().map(|request| Ok(scope.wait(request)?.length)).collect()
    });
    let lengths: Vec<usize> = lengths?;
    for ((message, data), length) in mine.iter().zip(&received).zip(lengths) {
        if data[..length] != message.words {
            let (from, tag) = (message.from, message.tag);
            return Ok(Err(format!("rank {me}: a wrong message from {from}, tag {tag}")));
        }
    }
    Ok(Ok(()))
}

/// Returns the resident memory of this process in KiB.
fn memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}
