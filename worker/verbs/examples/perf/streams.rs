//! The two ways of writing that are measured. Per message each posts once and copies nothing, but
//! for the bytes that a small request carries itself.

use crate::ticks::Ticks;
use crate::{End, Failure, Plan};
use rlaunch_verbs::{Completion, CompletionBatch};
use std::time::{Duration, Instant};

/// Of small messages every so many is signalled, of large ones each: perftest's numbers.
const SIGNALLED_EVERY: usize = 100;
const SMALL: usize = 8192;
/// Without any sign of the peer.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often is looked before the clock is asked.
const LOOKS: u32 = 1 << 20;

impl End {
    /// Writes all messages, as many at once as the queue pair holds; gives seconds from the first
    /// post to the last completion.
    pub(crate) fn stream(&self) -> Result<f64, Failure> {
        let Plan { size, iterations, .. } = self.plan;
        let every = if size > SMALL { 1 } else { SIGNALLED_EVERY.min(self.depth) };
        let from = self.region.slice(0, size)?;
        let (mut posted, mut completed) = (0, 0);
        let mut batch = <CompletionBatch>::default();
        let mut patience = Patience::new();
        let started = Instant::now();
        while completed < iterations {
            while posted < iterations && posted < completed + self.depth {
                posted += 1;
                let signalled = posted % every == 0 || posted == iterations;
                // It stands for all up to itself.
                self.pair.write_with(posted as u64, from, self.there, signalled)?;
            }
            let ended = self.completions.poll_into(&mut batch)?;
            patience.spend(ended.len() > 0)?;
            for done in ended {
                completed = usize::try_from(checked(done)?.id())?;
            }
        }
        Ok(started.elapsed().as_secs_f64())
    }

    /// Writes to each other in turn, the server first; gives halves of round trips in microseconds,
    /// one less than messages.
    pub(crate) fn echo(&self) -> Result<Vec<f64>, Failure> {
        let Plan { size, iterations, .. } = self.plan;
        let from = self.region.slice(0, size)?;
        let inline = size <= usize::try_from(self.inline)?;
        let mut carried = vec![0; size];
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
                    carried[size - 1] = sent as u8;
                    self.pair.write_inline(sent as u64, &carried, self.there, true)?;
                } else {
                    self.region.write(size - 1, &[sent as u8]);
                    self.pair.write(sent as u64, from, self.there)?;
                }
                self.wait_for_completion()?;
            }
        }
        let half = ticks.seconds_per_tick() * 1e6 / 2.0;
        Ok(posted.windows(2).map(|two| (two[1] - two[0]) as f64 * half).collect())
    }

    /// For a message that ends with this byte.
    fn wait_for(&self, wanted: u8) -> Result<(), Failure> {
        let (mut last, mut patience) = ([0; 1], Patience::new());
        loop {
            self.region.read(self.half + self.plan.size - 1, &mut last);
            if last == [wanted] {
                return Ok(());
            }
            patience.spend(false)?;
        }
    }

    fn wait_for_completion(&self) -> Result<(), Failure> {
        let mut patience = Patience::new();
        loop {
            if let Some(done) = self.completions.poll_one()? {
                return checked(done).map(drop);
            }
            patience.spend(false)?;
        }
    }
}

fn checked(done: Completion) -> Result<Completion, Failure> {
    match done.status.is_success() {
        true => Ok(done),
        false => Err(format!("write {} ended: {}", done.id(), done.status).into()),
    }
}

/// Looks that may be made in vain. The clock is not asked before the first have been.
struct Patience {
    looks: u32,
    since: Option<Instant>,
}

impl Patience {
    fn new() -> Patience {
        Patience { looks: LOOKS, since: None }
    }

    fn spend(&mut self, found: bool) -> Result<(), Failure> {
        if found {
            *self = Patience::new();
        }
        self.looks -= 1;
        if self.looks > 0 {
            return Ok(());
        }
        self.looks = LOOKS;
        match self.since.get_or_insert_with(Instant::now).elapsed() < PATIENCE {
            true => Ok(()),
            false => Err("the peer does not answer".into()),
        }
    }
}
