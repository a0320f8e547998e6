//! Proves the paths of a round, all at once, by polling: carries out what the [`Machine`] of each
//! path's end decides, which knows no devices and no clocks.
//!
//! ```text
//! dials                                    waits
//!   AwaitsEcho   token ──────────────────▶   AwaitsToken
//!                ◀────────── token and echo   AwaitsEcho
//!   AwaitsBuffer echo ───────────────────▶   AwaitsBuffer
//!   AwaitsBlock  reads the peer's block, as the other end does
//! ```
//!
//! Each end writes a random token to the peer's memory, together with an *echo*: a copy of the
//! token that the peer has written. An echo of its own token proves to an end that both directions
//! carry small messages. Then the end reads the peer's block, which takes many packets of full size
//! and therefore fails if the MTU is wrong. The dialling end writes first, since iWARP requires
//! that. An end that is done keeps its queue pair, because the peer may still be reading.

use crate::end::{End, Link, Request, Tokens};
use crate::fault;
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

/// State of one end of a path that is being proved.
#[derive(Debug)]
struct Machine {
    dials: bool,
    /// Random token of this end, which the peer has to echo.
    token: u64,
    state: State,
    /// Number of outstanding writes.
    writes: u32,
    round_trip: Duration,
    deadlines: Deadlines,
}

#[derive(Debug)]
enum State {
    AwaitsToken,
    AwaitsEcho { since: Instant },
    AwaitsBuffer { since: Instant },
    AwaitsBlock { since: Instant },
    Done(Result<Duration, PathFault>),
}

/// Times at which the steps of a proof must be over.
#[derive(Clone, Copy, Debug)]
struct Deadlines {
    begin: Instant,
    token: Instant,
    block: Instant,
}

impl Deadlines {
    fn new(limits: &RoundTimeouts, now: Instant) -> Deadlines {
        let token = now + Duration::from_millis(limits.token_ms.into());
        let block = token + Duration::from_millis(limits.block_ms.into());
        Deadlines { begin: now, token, block }
    }
}

impl Machine {
    /// Creates the machine. If the end dials, also returns the tokens to write immediately. `token`
    /// must not be 0.
    fn new(dials: bool, token: u64, deadlines: Deadlines) -> (Machine, Option<Tokens>) {
        let since = deadlines.begin;
        let (state, first, writes) = if dials {
            (State::AwaitsEcho { since }, Some(Tokens { token, echo: 0 }), 1)
        } else {
            (State::AwaitsToken, None, 0)
        };
        (Machine { dials, token, state, writes, round_trip: Duration::ZERO, deadlines }, first)
    }

    /// Handles the tokens that the peer has written so far. Returns the tokens to write to the
    /// peer, if any.
    fn observe(&mut self, tokens: Tokens, now: Instant) -> Option<Tokens> {
        let answer = Tokens { token: self.token, echo: tokens.token };
        match self.state {
            State::AwaitsToken if tokens.token != 0 => {
                self.state = State::AwaitsEcho { since: now };
            }
            State::AwaitsEcho { since } if tokens.echo == self.token && tokens.token != 0 => {
                self.round_trip = now.saturating_duration_since(since);
                self.state = State::AwaitsBuffer { since: now };
                if !self.dials {
                    return None;
                }
            }
            _ => return None,
        }
        self.writes += 1;
        Some(answer)
    }

    /// Records that a write has completed.
    fn write_completed(&mut self) {
        self.writes = self.writes.saturating_sub(1);
    }

    /// Tells whether the end is ready to read the block and waits for a read buffer.
    fn wants_to_read(&self) -> bool {
        matches!(self.state, State::AwaitsBuffer { .. })
    }

    /// Records that the read of the block was posted.
    fn read_started(&mut self, now: Instant) {
        self.state = State::AwaitsBlock { since: now };
    }

    /// Records that the read of the block has completed. `intact` tells whether the bytes that were
    /// read are the peer's block.
    fn read_completed(&mut self, intact: bool) {
        if !matches!(self.state, State::AwaitsBlock { .. }) {
            return;
        }
        if intact {
            self.state = State::Done(Ok(self.round_trip));
        } else {
            self.fail("the block arrived with wrong contents".to_owned(), None);
        }
    }

    /// Ends the proof because the device has reported a failure.
    fn fail(&mut self, cause: String, hint: Option<String>) {
        self.end(cause, hint, false);
    }

    /// Ends the proof with the fault of another path to the same peer.
    fn fail_like(&mut self, other: &PathFault) {
        self.end(other.cause.clone(), other.hint.clone(), other.awaited_peer);
    }

    /// Ends the proof if the deadline of the current step has passed.
    fn expire(&mut self, now: Instant) {
        let deadline = match self.step() {
            Some(ProofStep::Token) => self.deadlines.token,
            Some(_) => self.deadlines.block,
            None => return,
        };
        if now < deadline {
            return;
        }
        let (what, since, awaited_peer) = match self.state {
            State::AwaitsToken => ("no token from the peer", self.deadlines.begin, true),
            // The write has not completed, so the peer may not have received the token.
            State::AwaitsEcho { since } if self.writes > 0 => ("no answer", since, false),
            State::AwaitsEcho { since } => ("the token did not come back", since, true),
            State::AwaitsBuffer { since } => ("no read buffer for the block", since, false),
            State::AwaitsBlock { since } => ("no answer", since, false),
            State::Done(_) => return,
        };
        let waited_for = now.saturating_duration_since(since).as_secs_f64();
        self.end(format!("{what} within {waited_for:.1} s"), None, awaited_peer);
    }

    /// Returns the round-trip time of the token, or the fault, once the proof has ended.
    fn outcome(&self) -> Option<&Result<Duration, PathFault>> {
        if let State::Done(how) = &self.state { Some(how) } else { None }
    }

    fn step(&self) -> Option<ProofStep> {
        match self.state {
            State::AwaitsToken | State::AwaitsEcho { .. } => Some(ProofStep::Token),
            State::AwaitsBuffer { .. } | State::AwaitsBlock { .. } => Some(ProofStep::Block),
            State::Done(_) => None,
        }
    }

    fn end(&mut self, cause: String, hint: Option<String>, awaited_peer: bool) {
        if let Some(step) = self.step() {
            self.state = State::Done(Err(PathFault { step, cause, hint, awaited_peer }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

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

    /// Work request of the simulated queue pair. Requests complete or fail in order.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Request {
        Write(Tokens),
        Read,
    }

    struct End {
        machine: Machine,
        requests: VecDeque<Request>,
        /// Control line, which the peer writes.
        control: Tokens,
        /// Number of requests that succeed before the path fails.
        carries: u32,
    }

    impl End {
        fn post(&mut self, words: Option<Tokens>) {
            self.requests.extend(words.map(Request::Write));
        }
    }

    /// Two ends, and a simulated clock.
    struct World {
        ends: [End; 2],
        now: Instant,
        seed: u64,
    }

    impl World {
        fn new(seed: u64, carries: [u32; 2]) -> World {
            let now = Instant::now();
            let deadlines = Deadlines::new(&LIMITS, now);
            let end = |dials, token, carries| {
                let (machine, first) = Machine::new(dials, token, deadlines);
                let mut end =
                    End { machine, requests: VecDeque::new(), control: Tokens::default(), carries };
                end.post(first);
                end
            };
            World { ends: [end(true, 11, carries[0]), end(false, 22, carries[1])], now, seed }
        }

        fn chance(&mut self, of: u64) -> u64 {
            self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (self.seed >> 33) % of
        }

        /// Lets a random end observe its tokens, post a read or expire, or complete a request.
        fn step(&mut self) {
            let passed = self.chance(50);
            self.now += Duration::from_micros(passed);
            let which = self.chance(2) as usize;
            let what = self.chance(3);
            let now = self.now;
            let end = &mut self.ends[which];
            match what {
                0 => {
                    let words = end.machine.observe(end.control, now);
                    end.post(words);
                }
                1 if end.machine.wants_to_read() => {
                    end.machine.read_started(now);
                    end.requests.push_back(Request::Read);
                }
                1 => end.machine.expire(now),
                _ => self.carry(which),
            }
        }

        fn carry(&mut self, which: usize) {
            let end = &mut self.ends[which];
            let Some(request) = end.requests.pop_front() else { return };
            let Some(left) = end.carries.checked_sub(1) else {
                return end.machine.fail("no answer (status 12)".to_owned(), None);
            };
            end.carries = left;
            match request {
                Request::Read => end.machine.read_completed(true),
                Request::Write(words) => {
                    end.machine.write_completed();
                    self.ends[1 - which].control = words;
                }
            }
        }

        fn run(mut self) -> [Result<Duration, PathFault>; 2] {
            for _ in 0..2_000 {
                self.step();
            }
            for end in &mut self.ends {
                end.machine.expire(self.now + Duration::from_secs(1));
                end.machine.expire(self.now + Duration::from_secs(2));
            }
            self.ends.map(|end| end.machine.outcome().cloned().expect("every machine ends"))
        }
    }

    #[test]
    fn every_order_of_events_proves_a_path_that_carries() {
        for seed in 0..300 {
            let ends = World::new(seed, [u32::MAX; 2]).run();
            assert!(ends.iter().all(Result::is_ok), "seed {seed}: {ends:?}");
        }
    }

    // The dialling end posts two writes and a read, the other end a write and a read.
    #[test]
    fn a_loss_is_named_by_the_end_whose_request_it_was() {
        let step = |end: &Result<Duration, PathFault>| end.as_ref().err().map(|fault| fault.step);
        let waited =
            |end: &Result<Duration, PathFault>| end.as_ref().is_err_and(|fault| fault.awaited_peer);
        for seed in 0..300 {
            for (carries, steps) in [
                ([0, 9], [Some(ProofStep::Token), Some(ProofStep::Token)]),
                ([1, 9], [Some(ProofStep::Block), Some(ProofStep::Token)]),
                ([2, 9], [Some(ProofStep::Block), None]),
                ([9, 0], [Some(ProofStep::Token), Some(ProofStep::Token)]),
                ([9, 1], [None, Some(ProofStep::Block)]),
            ] {
                let ends = World::new(seed, carries).run();
                let dead = usize::from(carries[0] == 9);
                assert_eq!([step(&ends[0]), step(&ends[1])], steps, "seed {seed} {carries:?}");
                assert!(!waited(&ends[dead]), "seed {seed} {carries:?}: {ends:?}");
                let other = &ends[1 - dead];
                assert!(other.is_ok() || waited(other), "seed {seed} {carries:?}: {ends:?}");
            }
        }
    }

    fn cause(machine: &Machine) -> &str {
        machine.outcome().and_then(|how| how.as_ref().err()).map_or("", |fault| &fault.cause)
    }

    #[test]
    fn what_comes_too_late_is_named_by_what_was_awaited() {
        let begin = Instant::now();
        let deadlines = Deadlines::new(&LIMITS, begin);
        let late = begin + Duration::from_secs(1);
        let (mut waits, _) = Machine::new(false, 1, deadlines);
        waits.expire(late);
        assert_eq!(cause(&waits), "no token from the peer within 1.0 s");
        let (mut dials, _) = Machine::new(true, 1, deadlines);
        dials.expire(late - Duration::from_millis(1));
        assert!(dials.outcome().is_none());
        dials.expire(late);
        assert_eq!(cause(&dials), "no answer within 1.0 s");
        let (mut dials, _) = Machine::new(true, 1, deadlines);
        dials.write_completed();
        dials.expire(late);
        assert_eq!(cause(&dials), "the token did not come back within 1.0 s");
        let (mut dials, _) = Machine::new(true, 1, deadlines);
        assert!(dials.observe(Tokens { token: 2, echo: 1 }, begin).is_some());
        dials.read_started(late);
        dials.expire(late + Duration::from_secs(1));
        assert_eq!(cause(&dials), "no answer within 1.0 s");
    }

    #[test]
    fn a_changed_block_is_none() {
        let begin = Instant::now();
        let (mut dials, _) = Machine::new(true, 1, Deadlines::new(&LIMITS, begin));
        dials.read_completed(true);
        assert!(dials.outcome().is_none(), "no block was asked for");
        assert_eq!(
            dials.observe(Tokens { token: 2, echo: 7 }, begin),
            None,
            "an echo of another token"
        );
        let answer = dials.observe(Tokens { token: 2, echo: 1 }, begin);
        assert_eq!(answer, Some(Tokens { token: 1, echo: 2 }));
        dials.read_started(begin);
        dials.read_completed(false);
        assert_eq!(cause(&dials), "the block arrived with wrong contents");
    }
}
