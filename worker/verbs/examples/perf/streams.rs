//! The two measured patterns: a stream of writes, and alternating writes of both ends. Both
//! patterns post one work request for each message. Messages are copied only if they are sent as
//! inline data.

use crate::ticks::Ticks;
use crate::{End, Failure, Plan};
use rlaunch_verbs::{Completion, CompletionBatch};
use std::time::{Duration, Instant};

/// Number of requests of which one is signalled, for messages of up to [`SMALL`] bytes. All
/// requests for longer messages are signalled. Both values are those of perftest.
const SIGNALLED_EVERY: usize = 100;
const SMALL: usize = 8192;
/// Time without progress after which the benchmark fails.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Number of polls without progress between two reads of the clock.
const POLLS: u32 = 1 << 20;

impl End {
    /// Writes all messages, as many at the same time as the queue pair allows. Returns the seconds
    /// from the first post to the last completion.
    pub(crate) fn stream(&self) -> Result<f64, Failure> {
        let Plan { size, iterations, .. } = self.plan;
        let every = if size > SMALL { 1 } else { SIGNALLED_EVERY.min(self.depth) };
        let from = self.region.slice(0, size)?;
        let (mut posted, mut completed) = (0, 0);
        let mut batch = <CompletionBatch>::default();
        let mut stalled = StallTimer::new();
        let started = Instant::now();
        while completed < iterations {
            while posted < iterations && posted < completed + self.depth {
                posted += 1;
                let signalled = posted % every == 0 || posted == iterations;
                // The completion of a signalled write implies that all earlier writes have
                // completed.
                self.pair.write_with(posted as u64, from, self.remote, signalled)?;
            }
            let ended = self.completions.poll_into(&mut batch)?;
            stalled.polled(ended.len() > 0)?;
            for done in ended {
                completed = usize::try_from(checked(done)?.id())?;
            }
        }
        Ok(started.elapsed().as_secs_f64())
    }

    /// Writes messages alternately with the peer: each end waits for the other's message before it
    /// writes its next one, and the client begins. Returns half of each round-trip time in
    /// microseconds, one value for each pair of successive messages.
    pub(crate) fn echo(&self) -> Result<Vec<f64>, Failure> {
        let Plan { size, iterations, .. } = self.plan;
        let from = self.region.slice(0, size)?;
        let inline = size <= usize::try_from(self.inline)?;
        let mut message = vec![0; size];
        let is_server = self.plan.server.is_none();
        let mut posted = Vec::with_capacity(iterations);
        let (mut sent, mut received) = (0, 0);
        let ticks = Ticks::start();
        while sent < iterations || received < iterations {
            if received < iterations && !(sent == 0 && is_server) {
                received += 1;
                self.wait_for(received as u8)?;
            }
            if sent < iterations {
                posted.push(ticks.now());
                sent += 1;
                if inline {
                    message[size - 1] = sent as u8;
                    self.pair.write_inline(sent as u64, &message, self.remote, true)?;
                } else {
                    self.region.write(size - 1, &[sent as u8]);
                    self.pair.write(sent as u64, from, self.remote)?;
                }
                self.wait_for_completion()?;
            }
        }
        let half = ticks.seconds_per_tick() * 1e6 / 2.0;
        Ok(posted.windows(2).map(|two| (two[1] - two[0]) as f64 * half).collect())
    }

    /// Waits for a message whose last byte is `wanted`.
    fn wait_for(&self, wanted: u8) -> Result<(), Failure> {
        let (mut last, mut stalled) = ([0; 1], StallTimer::new());
        loop {
            self.region.read(self.half + self.plan.size - 1, &mut last);
            if last == [wanted] {
                return Ok(());
            }
            stalled.polled(false)?;
        }
    }

    fn wait_for_completion(&self) -> Result<(), Failure> {
        let mut stalled = StallTimer::new();
        loop {
            if let Some(done) = self.completions.poll_one()? {
                return checked(done).map(drop);
            }
            stalled.polled(false)?;
        }
    }
}

fn checked(done: Completion) -> Result<Completion, Failure> {
    match done.status.is_success() {
        true => Ok(done),
        false => Err(format!("write {} failed: {}", done.id(), done.status).into()),
    }
}

/// Detector of a peer that makes no progress. It reads the clock only once in [`POLLS`] polls,
/// because reading the clock takes microseconds on emulated hosts.
struct StallTimer {
    polls_left: u32,
    since: Option<Instant>,
}

impl StallTimer {
    fn new() -> StallTimer {
        StallTimer { polls_left: POLLS, since: None }
    }

    /// Counts a poll. `found` tells whether the poll made progress. Fails if no poll has made
    /// progress for [`TIMEOUT`].
    fn polled(&mut self, found: bool) -> Result<(), Failure> {
        if found {
            *self = StallTimer::new();
        }
        self.polls_left -= 1;
        if self.polls_left > 0 {
            return Ok(());
        }
        self.polls_left = POLLS;
        match self.since.get_or_insert_with(Instant::now).elapsed() < TIMEOUT {
            true => Ok(()),
            false => Err("the peer does not answer".into()),
        }
    }
}
