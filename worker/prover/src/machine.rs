//! State machine of one end of a path that is being proved. It makes decisions only; devices and
//! clocks are the caller's ([`crate::prove`]).
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

use rlaunch_bootstrap::protocol::mesh::{PathFault, ProofStep, RoundTimeouts};
use std::time::{Duration, Instant};

/// Tokens that an end writes to its peer; 0 stands for no token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tokens {
    /// Token of the writing end.
    pub(crate) token: u64,
    /// Token that the writing end has received from the other end.
    pub(crate) echo: u64,
}

/// State of one end of a path that is being proved.
#[derive(Debug)]
pub(crate) struct Machine {
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
pub(crate) struct Deadlines {
    begin: Instant,
    token: Instant,
    block: Instant,
}

impl Deadlines {
    pub(crate) fn new(limits: &RoundTimeouts, now: Instant) -> Deadlines {
        let token = now + Duration::from_millis(limits.token_ms.into());
        let block = token + Duration::from_millis(limits.block_ms.into());
        Deadlines { begin: now, token, block }
    }
}

impl Machine {
    /// Creates the machine. If the end dials, also returns the tokens to write immediately. `token`
    /// must not be 0.
    pub(crate) fn new(dials: bool, token: u64, deadlines: Deadlines) -> (Machine, Option<Tokens>) {
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
    pub(crate) fn observe(&mut self, tokens: Tokens, now: Instant) -> Option<Tokens> {
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
    pub(crate) fn write_completed(&mut self) {
        self.writes = self.writes.saturating_sub(1);
    }

    /// Tells whether the end is ready to read the block and waits for a read buffer.
    pub(crate) fn wants_to_read(&self) -> bool {
        matches!(self.state, State::AwaitsBuffer { .. })
    }

    /// Records that the read of the block was posted.
    pub(crate) fn read_started(&mut self, now: Instant) {
        self.state = State::AwaitsBlock { since: now };
    }

    /// Records that the read of the block has completed. `intact` tells whether the bytes that were
    /// read are the peer's block.
    pub(crate) fn read_completed(&mut self, intact: bool) {
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
    pub(crate) fn fail(&mut self, cause: String, hint: Option<String>) {
        self.end(cause, hint, false);
    }

    /// Ends the proof with the fault of another path to the same peer.
    pub(crate) fn fail_like(&mut self, other: &PathFault) {
        self.end(other.cause.clone(), other.hint.clone(), other.awaited_peer);
    }

    /// Ends the proof if the deadline of the current step has passed.
    pub(crate) fn expire(&mut self, now: Instant) {
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
    pub(crate) fn outcome(&self) -> Option<&Result<Duration, PathFault>> {
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

    /// Work request of the simulated queue pair. Requests complete or fail in order.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum SimulatedRequest {
        Write(Tokens),
        Read,
    }

    struct SimulatedEnd {
        machine: Machine,
        requests: VecDeque<SimulatedRequest>,
        /// Control line, which the peer writes.
        control: Tokens,
        /// Number of requests that succeed before the path fails.
        carries: u32,
    }

    impl SimulatedEnd {
        fn post(&mut self, words: Option<Tokens>) {
            self.requests.extend(words.map(SimulatedRequest::Write));
        }
    }

    /// Two ends, and a simulated clock.
    struct World {
        ends: [SimulatedEnd; 2],
        now: Instant,
        seed: u64,
    }

    impl World {
        fn new(seed: u64, carries: [u32; 2]) -> World {
            let now = Instant::now();
            let deadlines = Deadlines::new(&LIMITS, now);
            let end = |dials, token, carries| {
                let (machine, first) = Machine::new(dials, token, deadlines);
                let (requests, control) = (VecDeque::new(), Tokens::default());
                let mut end = SimulatedEnd { machine, requests, control, carries };
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
                    end.requests.push_back(SimulatedRequest::Read);
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
                SimulatedRequest::Read => end.machine.read_completed(true),
                SimulatedRequest::Write(words) => {
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
