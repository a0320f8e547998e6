//! Random messages among all ranks, whose contents and order are known to both ends.

use rlaunch_comm::sim::Dice;
use rlaunch_comm::{CommError, Communicator};
use std::fmt;
use std::time::{Duration, Instant};

/// Messages between all ranks in a round.
const MESSAGES: u64 = 64;
/// The longest, in words of 8 bytes; most are much shorter.
const LONGEST: usize = 1 << 16;
/// After so many rounds buffers are as large as they get.
const WARM: u64 = 100;
/// Growth beyond this, in KiB, is a leak.
const GROWTH: u64 = 8 << 10;

struct Message {
    from: usize,
    to: usize,
    tag: u32,
    words: Vec<u64>,
}

/// The messages of a round: every rank draws the same.
fn draw(round: u64, size: usize) -> Vec<Message> {
    let mut dice = Dice::new(round.wrapping_mul(0x2545_f491_4f6c_dd1d));
    let message = |_| {
        let (from, to) = (dice.below(size), dice.below(size));
        let tag = dice.below(3) as u32;
        let most = 1 << dice.below(LONGEST.ilog2() as usize);
        let length = dice.below(most);
        let mut content = Dice::new(dice.draw());
        Message { from, to, tag, words: (0..length).map(|_| content.draw()).collect() }
    };
    (0..MESSAGES).map(message).collect()
}

/// How it has gone so far.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Since the beginning, as rank 0's clock says.
    pub lasted: Duration,
    /// Of messages.
    pub rounds: u64,
    /// What the largest rank has in memory, in KiB.
    pub memory: u64,
    /// By how much that of some rank has grown since its buffers are there, in KiB.
    pub grown: u64,
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Progress { lasted, rounds, memory, grown } = self;
        let (minutes, seconds) = (lasted.as_secs() / 60, lasted.as_secs() % 60);
        let messages = rounds * MESSAGES;
        write!(f, "{minutes}:{seconds:02} {rounds} rounds, {messages} messages, {memory} KiB ")?;
        write!(f, "in memory at most, grown by {grown} KiB")
    }
}

/// What rank 0 says before each round.
const STOP: u8 = 0;
const GO_ON: u8 = 1;
const REPORT: u8 = 2;

/// Runs rounds for so long, as rank 0's clock says, and has rank 0 tell every minute how it goes;
/// how many rounds there were.
pub fn traffic(
    comm: &Communicator,
    lasts: Duration,
    tell: impl Fn(&Progress),
) -> Result<u64, String> {
    let begin = Instant::now();
    let (mut before, mut round, mut told) = (None, 0, 0);
    loop {
        let lasted = begin.elapsed();
        let mut next = [match () {
            () if lasted >= lasts => STOP,
            () if lasted.as_secs() / 60 > told => REPORT,
            () => GO_ON,
        }];
        comm.broadcast(&mut next, 0).map_err(|error| error.to_string())?;
        if next != [GO_ON] {
            told = lasted.as_secs() / 60;
            let (memory, grown) = constant(comm, before)?;
            if comm.rank() == 0 {
                tell(&Progress { lasted, rounds: round, memory, grown });
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

/// What the largest rank has in memory, and by how much that of some rank has grown; fails where
/// that is a leak.
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

fn exchange(comm: &Communicator, messages: &[Message]) -> Result<Result<(), String>, CommError> {
    let me = comm.rank();
    let mine: Vec<&Message> = messages.iter().filter(|message| message.to == me).collect();
    // One word more than is sent, so that a longer message would be noticed.
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

/// What this process has in memory, in KiB.
fn memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}
