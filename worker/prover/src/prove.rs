//! Proves the paths of a round: carries out what [`crate::path`] decides, all paths at once.

use crate::end::End;
use crate::fault;
use crate::link::{Link, Request};
use crate::path::{Deadlines, Machine, Words};
use crate::turns::Turns;
use rlaunch_bootstrap::deadline::SUSPENSION_THRESHOLD;
use rlaunch_bootstrap::protocol::mesh::{
    PathFault, PathOutcome, PathProof, ProofStep, RoundTimeouts,
};
use rlaunch_verbs::{Completion, VerbsError};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Who has not answered by then is no card nearby.
const SOON: Duration = Duration::from_micros(200);
const NAP: Duration = Duration::from_micros(100);

/// Between two looks: a card answers while this looks again and again, but soft RoCE answers by
/// the same few processors.
struct Rest {
    news_at: Instant,
}

impl Rest {
    fn take(&mut self, news: bool) {
        if news {
            self.news_at = Instant::now();
        } else if self.news_at.elapsed() > SOON {
            thread::sleep(NAP);
            return;
        }
        thread::yield_now();
    }
}

/// The time that passes while this process runs. What its peers said while it stood still has come, or
/// could not come: neither is late.
#[derive(Debug)]
struct Clock {
    looked: Instant,
    still: Duration,
}

impl Clock {
    fn start(now: Instant) -> Clock {
        Clock { looked: now, still: Duration::ZERO }
    }

    /// What it shows at `now`. It is looked at all the time.
    fn look(&mut self, now: Instant) -> Instant {
        let since = now.saturating_duration_since(self.looked);
        if since > SUSPENSION_THRESHOLD {
            self.still += since;
        }
        self.looked = now;
        now - self.still
    }
}

/// The paths of one end.
struct Proofs<'a> {
    end: &'a Arc<End>,
    turns: Turns,
    /// By [`Link::place`]; without those that have no queue pair.
    proofs: Vec<Option<Proof<'a>>>,
}

struct Proof<'a> {
    link: &'a Link,
    machine: Machine,
    /// Where the block goes that is being read.
    reading: Option<usize>,
}

/// Proves what has connected, and calls `meanwhile` again and again.
pub(crate) fn prove<E>(
    paths: &[Result<Link, PathFault>],
    limits: &RoundTimeouts,
    mut meanwhile: impl FnMut() -> Result<(), E>,
) -> Result<Vec<PathOutcome>, E> {
    let now = Instant::now();
    let mut ends = begin(paths.iter().flatten(), Deadlines::of(limits, now));
    let (mut clock, mut rest) = (Clock::start(now), Rest { news_at: now });
    loop {
        let (mut waits, mut news) = (false, false);
        for end in &mut ends {
            news |= end.complete();
            waits |= end.advance(clock.look(Instant::now()));
        }
        if !waits {
            break;
        }
        meanwhile()?;
        rest.take(news);
    }
    Ok(ends.iter().flat_map(Proofs::outcomes).collect())
}

fn begin<'a>(links: impl Iterator<Item = &'a Link>, deadlines: Deadlines) -> Vec<Proofs<'a>> {
    let mut ends: Vec<Proofs<'a>> = Vec::new();
    let random = RandomState::new();
    for link in links {
        let known = ends.iter().position(|end| Arc::ptr_eq(end.end, &link.end));
        let index = known.unwrap_or_else(|| {
            let turns = Turns::new(link.end.layout().places);
            ends.push(Proofs { end: &link.end, turns, proofs: Vec::new() });
            ends.len() - 1
        });
        // Zero would be nothing.
        let token = random.hash_one(link.path.id) | 1;
        let (machine, first) = Machine::begin(link.path.dials, token, deadlines);
        let mut proof = Proof { link, machine, reading: None };
        proof.write(first);
        let proofs = &mut ends[index].proofs;
        proofs.resize_with(proofs.len().max(link.place + 1), || None);
        proofs[link.place] = Some(proof);
    }
    ends
}

impl Proofs<'_> {
    /// Takes what the device says; whether it says anything.
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
        let (place, request) = Request::of(completion);
        let Some(proof) = self.proofs.get_mut(place).and_then(Option::as_mut) else { return };
        let done = completion.status.is_success();
        if !done {
            proof.machine.fail(completion.status.to_string(), None);
        }
        match (request, proof.reading) {
            (Request::Words, _) if done => proof.machine.written(),
            (Request::Read, Some(into)) => {
                if done {
                    proof.machine.came(proof.link.is_intact(into));
                }
                proof.leave_place(&mut self.turns, done);
            }
            _ => {}
        }
    }

    /// Has all paths do what they can do now; whether any is left.
    fn advance(&mut self, now: Instant) -> bool {
        let mut left = false;
        let (turns, end) = (&mut self.turns, self.end);
        for proof in self.proofs.iter_mut().flatten().filter(|proof| proof.reading.is_some()) {
            proof.machine.expire(now);
            if proof.machine.ended().is_some() {
                proof.leave_place(turns, false);
            }
        }
        for proof in self.proofs.iter_mut().flatten() {
            if proof.machine.ended().is_none() {
                let answer = proof.machine.see(end.seen(proof.link.place), now);
                proof.write(answer);
                proof.turn(turns, now);
                left |= proof.machine.ended().is_none();
            }
        }
        left
    }

    fn outcomes(&self) -> impl Iterator<Item = PathOutcome> {
        self.proofs.iter().flatten().map(|proof| {
            let mtu = proof.link.mtu;
            let proved = |round_trip_ns| PathProof { mtu, round_trip_ns };
            let result = match proof.machine.ended() {
                Some(Ok(took)) => Ok(proved(u32::try_from(took.as_nanos()).unwrap_or(u32::MAX))),
                Some(Err(fault)) => Err(fault.clone()),
                None => Err(fault::waited(ProofStep::Token, "it was not tried".to_owned())),
            };
            PathOutcome { id: proof.link.path.id, result }
        })
    }
}

impl Proof<'_> {
    fn write(&mut self, words: Option<Words>) {
        if let Some(Err(error)) = words.map(|words| self.link.write(words)) {
            self.refused(&error);
        }
    }

    fn refused(&mut self, error: &VerbsError) {
        let PathFault { cause, hint, .. } = fault::of(ProofStep::Token, error);
        self.machine.fail(cause, hint);
    }

    /// Reads the block if it can, or ends what has waited for too long.
    fn turn(&mut self, turns: &mut Turns, now: Instant) {
        let peer = self.link.path.peer;
        if self.machine.awaits_turn()
            && let Some(fault) = turns.hopeless(peer)
        {
            return self.machine.fail_like(fault);
        }
        self.machine.expire(now);
        if self.machine.awaits_turn()
            && let Some(place) = turns.take(peer)
        {
            self.machine.reads(now);
            self.reading = Some(place);
            if let Err(error) = self.link.read(place) {
                self.refused(&error);
                self.leave_place(turns, false);
            }
        }
    }

    /// Whether the read has ended well or not, the next may use its place.
    fn leave_place(&mut self, turns: &mut Turns, answered: bool) {
        let Some(place) = self.reading.take() else { return };
        let fault = self.machine.ended().and_then(|how| how.as_ref().err());
        turns.done(self.link.path.peer, place, fault.filter(|_| !answered));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: RoundTimeouts =
        RoundTimeouts { connect_ms: 1500, token_ms: 1000, block_ms: 1000 };

    #[test]
    fn a_standstill_of_this_process_is_not_its_peers_silence() {
        let begin = Instant::now();
        let (mut machine, _) = Machine::begin(true, 1, Deadlines::of(&LIMITS, begin));
        let mut clock = Clock::start(begin);
        let second = |seconds| begin + Duration::from_secs_f64(seconds);
        for now in [0.4, 0.8, 7.0, 7.1].map(second) {
            machine.expire(clock.look(now));
            assert!(machine.ended().is_none(), "{clock:?}");
        }
        // The 6.2 s are all that is left out.
        machine.expire(clock.look(second(7.3)));
        let fault = machine.ended().and_then(|how| how.clone().err()).unwrap();
        assert_eq!(fault.cause, "no answer within 1.1 s");
    }
}
