//! Proves the paths of a round, all at once, by polling: carries out what [`crate::machine`]
//! decides.

use crate::end::{End, Link, Request};
use crate::fault;
use crate::machine::{Deadlines, Machine, Tokens};
use crate::measure::ReadSchedule;
use rlaunch_bootstrap::deadline::SUSPENSION_THRESHOLD;
use rlaunch_bootstrap::protocol::mesh::{
    PathFault, PathOutcome, PathProof, ProofStep, RoundTimeouts,
};
use rlaunch_verbs::{Completion, VerbsError};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Time without progress after which the process sleeps for [`NAP`] between polls. RDMA cards
/// answer within this time, so sleeping does not falsify the round-trip times of their paths.
const SPIN: Duration = Duration::from_micros(200);
const NAP: Duration = Duration::from_micros(100);

/// Backoff between polls: first spins, then sleeps. Soft RoCE needs the sleep, because it runs on
/// the same processors as this process.
struct Backoff {
    progress_at: Instant,
}

impl Backoff {
    /// Waits between two polls. `progress` tells whether the poll before found anything.
    fn wait(&mut self, progress: bool) {
        if progress {
            self.progress_at = Instant::now();
        } else if self.progress_at.elapsed() > SPIN {
            thread::sleep(NAP);
            return;
        }
        thread::yield_now();
    }
}

/// Clock that does not count the time while this process was suspended, so that a suspension does
/// not make peers look late.
#[derive(Debug)]
struct ActiveClock {
    last_read: Instant,
    suspended: Duration,
}

impl ActiveClock {
    fn start(now: Instant) -> ActiveClock {
        ActiveClock { last_read: now, suspended: Duration::ZERO }
    }

    /// Returns the clock's time at `now`. Must be called at short intervals, because a long gap
    /// between two calls counts as a suspension.
    fn read(&mut self, now: Instant) -> Instant {
        let since = now.saturating_duration_since(self.last_read);
        if since > SUSPENSION_THRESHOLD {
            self.suspended += since;
        }
        self.last_read = now;
        now - self.suspended
    }
}

/// Proofs of the paths of one end.
struct EndProofs<'a> {
    end: &'a Arc<End>,
    schedule: ReadSchedule,
    /// Proofs by [`Link::slot`]; `None` for paths that are not connected.
    proofs: Vec<Option<Proof<'a>>>,
}

struct Proof<'a> {
    link: &'a Link,
    machine: Machine,
    /// Index of the read buffer while a read is outstanding.
    reading: Option<usize>,
}

/// Proves the connected paths of a round, and returns their outcomes. Calls `meanwhile` after each
/// poll.
pub(crate) fn prove<E>(
    paths: &[Result<Link, PathFault>],
    limits: &RoundTimeouts,
    mut meanwhile: impl FnMut() -> Result<(), E>,
) -> Result<Vec<PathOutcome>, E> {
    let now = Instant::now();
    let mut ends = begin(paths.iter().flatten(), Deadlines::new(limits, now));
    let (mut clock, mut backoff) = (ActiveClock::start(now), Backoff { progress_at: now });
    loop {
        let (mut waits, mut progress) = (false, false);
        for end in &mut ends {
            progress |= end.complete();
            waits |= end.advance(clock.read(Instant::now()));
        }
        if !waits {
            break;
        }
        meanwhile()?;
        backoff.wait(progress);
    }
    Ok(ends.iter().flat_map(EndProofs::outcomes).collect())
}

fn begin<'a>(links: impl Iterator<Item = &'a Link>, deadlines: Deadlines) -> Vec<EndProofs<'a>> {
    let mut ends: Vec<EndProofs<'a>> = Vec::new();
    let random = RandomState::new();
    for link in links {
        let known = ends.iter().position(|end| Arc::ptr_eq(end.end, &link.end));
        let index = known.unwrap_or_else(|| {
            let schedule = ReadSchedule::new(link.end.layout().read_buffers);
            ends.push(EndProofs { end: &link.end, schedule, proofs: Vec::new() });
            ends.len() - 1
        });
        // A token must not be 0.
        let token = random.hash_one(link.path.id) | 1;
        let (machine, first) = Machine::new(link.path.dials, token, deadlines);
        let mut proof = Proof { link, machine, reading: None };
        proof.write(first);
        let proofs = &mut ends[index].proofs;
        proofs.resize_with(proofs.len().max(link.slot + 1), || None);
        proofs[link.slot] = Some(proof);
    }
    ends
}

impl EndProofs<'_> {
    /// Polls the completion queue. Returns whether there was any completion.
    fn complete(&mut self) -> bool {
        match self.end.resources.completions.poll() {
            Ok(completions) => {
                for completion in &completions {
                    self.completed(completion);
                }
                !completions.is_empty()
            }
            Err(error) => {
                for proof in self.proofs.iter_mut().flatten() {
                    proof.refused(&error);
                }
                false
            }
        }
    }

    fn completed(&mut self, completion: &Completion) {
        let (slot, request) = Request::from_completion(completion);
        let Some(proof) = self.proofs.get_mut(slot).and_then(Option::as_mut) else { return };
        let done = completion.status.is_success();
        if !done {
            proof.machine.fail(completion.status.to_string(), None);
        }
        match (request, proof.reading) {
            (Request::Tokens, _) if done => proof.machine.write_completed(),
            (Request::Read, Some(into)) => {
                if done {
                    proof.machine.read_completed(proof.link.is_intact(into));
                }
                proof.release_buffer(&mut self.schedule, done);
            }
            _ => {}
        }
    }

    /// Advances all proofs. Returns whether any is still in progress.
    fn advance(&mut self, now: Instant) -> bool {
        let mut left = false;
        let (schedule, end) = (&mut self.schedule, self.end);
        for proof in self.proofs.iter_mut().flatten().filter(|proof| proof.reading.is_some()) {
            proof.machine.expire(now);
            if proof.machine.outcome().is_some() {
                proof.release_buffer(schedule, false);
            }
        }
        for proof in self.proofs.iter_mut().flatten() {
            if proof.machine.outcome().is_none() {
                let answer = proof.machine.observe(end.tokens_received(proof.link.slot), now);
                proof.write(answer);
                proof.advance(schedule, now);
                left |= proof.machine.outcome().is_none();
            }
        }
        left
    }

    fn outcomes(&self) -> impl Iterator<Item = PathOutcome> {
        self.proofs.iter().flatten().map(|proof| {
            let mtu = proof.link.mtu;
            let proved = |round_trip_ns| PathProof { mtu, round_trip_ns, write_mbps: None };
            let result = match proof.machine.outcome() {
                Some(Ok(took)) => Ok(proved(u32::try_from(took.as_nanos()).unwrap_or(u32::MAX))),
                Some(Err(fault)) => Err(fault.clone()),
                None => Err(fault::awaiting_peer(ProofStep::Token, "not tried".to_owned())),
            };
            PathOutcome { id: proof.link.path.id, result }
        })
    }
}

impl Proof<'_> {
    fn write(&mut self, tokens: Option<Tokens>) {
        if let Some(Err(error)) = tokens.map(|tokens| self.link.write(tokens)) {
            self.refused(&error);
        }
    }

    fn refused(&mut self, error: &VerbsError) {
        let PathFault { cause, hint, .. } = fault::from_verbs(ProofStep::Token, error);
        self.machine.fail(cause, hint);
    }

    /// Posts the read of the block if a read buffer is free. Ends the proof if its deadline has
    /// passed or another path has shown that the peer cannot be reached.
    fn advance(&mut self, schedule: &mut ReadSchedule, now: Instant) {
        let peer = self.link.path.peer;
        if self.machine.wants_to_read()
            && let Some(fault) = schedule.fault_of(peer)
        {
            return self.machine.fail_like(fault);
        }
        self.machine.expire(now);
        if self.machine.wants_to_read()
            && let Some(buffer) = schedule.take(peer)
        {
            self.machine.read_started(now);
            self.reading = Some(buffer);
            if let Err(error) = self.link.read(buffer) {
                self.refused(&error);
                self.release_buffer(schedule, false);
            }
        }
    }

    /// Frees the read buffer after a read; `answered` tells whether the read has succeeded.
    fn release_buffer(&mut self, schedule: &mut ReadSchedule, answered: bool) {
        let Some(buffer) = self.reading.take() else { return };
        let fault = self.machine.outcome().and_then(|how| how.as_ref().err());
        schedule.release(self.link.path.peer, buffer, fault.filter(|_| !answered));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: RoundTimeouts =
        RoundTimeouts { connect_ms: 1500, token_ms: 1000, block_ms: 1000, measure_ms: 0 };

    #[test]
    fn a_standstill_of_this_process_is_not_its_peers_silence() {
        let begin = Instant::now();
        let (mut machine, _) = Machine::new(true, 1, Deadlines::new(&LIMITS, begin));
        let mut clock = ActiveClock::start(begin);
        let second = |seconds| begin + Duration::from_secs_f64(seconds);
        for now in [0.4, 0.8, 7.0, 7.1].map(second) {
            machine.expire(clock.read(now));
            assert!(machine.outcome().is_none(), "{clock:?}");
        }
        // Only the gap of 6.2 s is not counted.
        machine.expire(clock.read(second(7.3)));
        let fault = machine.outcome().and_then(|how| how.clone().err()).unwrap();
        assert_eq!(fault.cause, "no answer within 1.1 s");
    }
}
