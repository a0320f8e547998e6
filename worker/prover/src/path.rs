//! What one end of a path does to prove it: decisions alone, no device and no clock.
//!
//! ```text
//! dials                                    waits
//!   AwaitsEcho   token ──────────────────▶   AwaitsToken
//!                ◀────────── token and echo   AwaitsEcho
//!   AwaitsTurn   echo ───────────────────▶   AwaitsTurn
//!   AwaitsBlock  reads the peer's block, as the other end does
//! ```
//!
//! The end that dials sends first: iWARP counts on it. Each end reads once its own token is back,
//! and stays open afterwards, because the peer may still be reading.

use rlaunch_bootstrap::protocol::mesh::{PathFault, ProofStep, RoundTimeouts};
use std::time::{Duration, Instant};

/// What ends write to each other; zero is nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Words {
    /// The writer's own.
    pub(crate) token: u64,
    /// That of the end that is written to.
    pub(crate) echo: u64,
}

/// One end of a path being proved.
#[derive(Debug)]
pub(crate) struct Machine {
    dials: bool,
    token: u64,
    state: State,
    /// Writes that were posted and have not completed.
    writes: u32,
    round_trip: Duration,
    deadlines: Deadlines,
}

#[derive(Debug)]
enum State {
    AwaitsToken,
    AwaitsEcho { since: Instant },
    AwaitsTurn { since: Instant },
    AwaitsBlock { since: Instant },
    Ended(Result<Duration, PathFault>),
}

/// The latest that the steps may end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadlines {
    begin: Instant,
    token: Instant,
    block: Instant,
}

impl Deadlines {
    /// Counted from now.
    pub(crate) fn of(limits: &RoundTimeouts, now: Instant) -> Deadlines {
        let token = now + Duration::from_millis(limits.token_ms.into());
        let block = token + Duration::from_millis(limits.block_ms.into());
        Deadlines { begin: now, token, block }
    }
}

impl Machine {
    /// The end's machine, and what it writes at once if it dials. `token` is not zero.
    pub(crate) fn begin(dials: bool, token: u64, deadlines: Deadlines) -> (Machine, Option<Words>) {
        let since = deadlines.begin;
        let (state, first, writes) = match dials {
            true => (State::AwaitsEcho { since }, Some(Words { token, echo: 0 }), 1),
            false => (State::AwaitsToken, None, 0),
        };
        (Machine { dials, token, state, writes, round_trip: Duration::ZERO, deadlines }, first)
    }

    /// What the peer has written so far; returns what is to be written to it.
    pub(crate) fn see(&mut self, words: Words, now: Instant) -> Option<Words> {
        let answer = Words { token: self.token, echo: words.token };
        match self.state {
            State::AwaitsToken if words.token != 0 => {
                self.state = State::AwaitsEcho { since: now };
            }
            State::AwaitsEcho { since } if words.echo == self.token && words.token != 0 => {
                self.round_trip = now.saturating_duration_since(since);
                self.state = State::AwaitsTurn { since: now };
                if !self.dials {
                    return None;
                }
            }
            _ => return None,
        }
        self.writes += 1;
        Some(answer)
    }

    /// A write has completed.
    pub(crate) fn written(&mut self) {
        self.writes = self.writes.saturating_sub(1);
    }

    /// It may read the block, once it gets a place to read it into.
    pub(crate) fn awaits_turn(&self) -> bool {
        matches!(self.state, State::AwaitsTurn { .. })
    }

    /// The block is being read.
    pub(crate) fn reads(&mut self, now: Instant) {
        self.state = State::AwaitsBlock { since: now };
    }

    /// The block has come, and is what the peer has or not.
    pub(crate) fn came(&mut self, intact: bool) {
        if !matches!(self.state, State::AwaitsBlock { .. }) {
            return;
        }
        match intact {
            true => self.state = State::Ended(Ok(self.round_trip)),
            false => self.fail("the block came changed".to_owned(), None),
        }
    }

    /// The device has said that it does not work.
    pub(crate) fn fail(&mut self, cause: String, hint: Option<String>) {
        self.end(cause, hint, false);
    }

    /// It ends as another path did, with the same ends.
    pub(crate) fn fail_like(&mut self, other: &PathFault) {
        self.end(other.cause.clone(), other.hint.clone(), other.awaited_peer);
    }

    /// Ends what has waited for too long.
    pub(crate) fn expire(&mut self, now: Instant) {
        let deadline = match self.step() {
            Some(ProofStep::Token) => self.deadlines.token,
            Some(_) => self.deadlines.block,
            None => return,
        };
        if now < deadline {
            return;
        }
        let (what, since, waited) = match self.state {
            State::AwaitsToken => ("no token from the peer", self.deadlines.begin, true),
            // Nothing says that the peer has it.
            State::AwaitsEcho { since } if self.writes > 0 => ("no answer", since, false),
            State::AwaitsEcho { since } => ("the token did not come back", since, true),
            State::AwaitsTurn { since } => ("no turn to read the block", since, false),
            State::AwaitsBlock { since } => ("no answer", since, false),
            State::Ended(_) => return,
        };
        let waited_for = now.saturating_duration_since(since).as_secs_f64();
        self.end(format!("{what} within {waited_for:.1} s"), None, waited);
    }

    /// How it ended: the token's round trip, or why it does not carry.
    pub(crate) fn ended(&self) -> Option<&Result<Duration, PathFault>> {
        if let State::Ended(how) = &self.state { Some(how) } else { None }
    }

    fn step(&self) -> Option<ProofStep> {
        match self.state {
            State::AwaitsToken | State::AwaitsEcho { .. } => Some(ProofStep::Token),
            State::AwaitsTurn { .. } | State::AwaitsBlock { .. } => Some(ProofStep::Block),
            State::Ended(_) => None,
        }
    }

    fn end(&mut self, cause: String, hint: Option<String>, waited: bool) {
        if let Some(step) = self.step() {
            self.state = State::Ended(Err(PathFault { step, cause, hint, awaited_peer: waited }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    const LIMITS: RoundTimeouts =
        RoundTimeouts { connect_ms: 1500, token_ms: 1000, block_ms: 1000 };

    /// What goes over the wire, and is done or fails in order.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Request {
        Write(Words),
        Read,
    }

    struct End {
        machine: Machine,
        requests: VecDeque<Request>,
        /// What the peer has written here.
        control: Words,
        /// Requests that get through before the wire is dead.
        carries: u32,
    }

    impl End {
        fn post(&mut self, words: Option<Words>) {
            self.requests.extend(words.map(Request::Write));
        }
    }

    /// Two ends, and the time.
    struct World {
        ends: [End; 2],
        now: Instant,
        seed: u64,
    }

    impl World {
        fn new(seed: u64, carries: [u32; 2]) -> World {
            let now = Instant::now();
            let deadlines = Deadlines::of(&LIMITS, now);
            let end = |dials, token, carries| {
                let (machine, first) = Machine::begin(dials, token, deadlines);
                let mut end =
                    End { machine, requests: VecDeque::new(), control: Words::default(), carries };
                end.post(first);
                end
            };
            World { ends: [end(true, 11, carries[0]), end(false, 22, carries[1])], now, seed }
        }

        fn chance(&mut self, of: u64) -> u64 {
            self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (self.seed >> 33) % of
        }

        /// One of the two looks, posts, or has a request done.
        fn step(&mut self) {
            let passed = self.chance(50);
            self.now += Duration::from_micros(passed);
            let which = self.chance(2) as usize;
            let what = self.chance(3);
            let now = self.now;
            let end = &mut self.ends[which];
            match what {
                0 => {
                    let words = end.machine.see(end.control, now);
                    end.post(words);
                }
                1 if end.machine.awaits_turn() => {
                    end.machine.reads(now);
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
                Request::Read => end.machine.came(true),
                Request::Write(words) => {
                    end.machine.written();
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
            self.ends.map(|end| end.machine.ended().cloned().expect("every machine ends"))
        }
    }

    #[test]
    fn every_order_of_events_proves_a_path_that_carries() {
        for seed in 0..300 {
            let ends = World::new(seed, [u32::MAX; 2]).run();
            assert!(ends.iter().all(Result::is_ok), "seed {seed}: {ends:?}");
        }
    }

    /// The end that dials posts two writes and a read, the other one a write and a read.
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
        machine.ended().and_then(|how| how.as_ref().err()).map_or("", |fault| &fault.cause)
    }

    #[test]
    fn what_comes_too_late_is_named_by_what_was_awaited() {
        let begin = Instant::now();
        let deadlines = Deadlines::of(&LIMITS, begin);
        let late = begin + Duration::from_secs(1);
        let (mut waits, _) = Machine::begin(false, 1, deadlines);
        waits.expire(late);
        assert_eq!(cause(&waits), "no token from the peer within 1.0 s");
        let (mut dials, _) = Machine::begin(true, 1, deadlines);
        dials.expire(late - Duration::from_millis(1));
        assert!(dials.ended().is_none());
        dials.expire(late);
        assert_eq!(cause(&dials), "no answer within 1.0 s");
        let (mut dials, _) = Machine::begin(true, 1, deadlines);
        dials.written();
        dials.expire(late);
        assert_eq!(cause(&dials), "the token did not come back within 1.0 s");
        let (mut dials, _) = Machine::begin(true, 1, deadlines);
        assert!(dials.see(Words { token: 2, echo: 1 }, begin).is_some());
        dials.reads(late);
        dials.expire(late + Duration::from_secs(1));
        assert_eq!(cause(&dials), "no answer within 1.0 s");
    }

    #[test]
    fn a_changed_block_is_none() {
        let begin = Instant::now();
        let (mut dials, _) = Machine::begin(true, 1, Deadlines::of(&LIMITS, begin));
        dials.came(true);
        assert!(dials.ended().is_none(), "no block was asked for");
        assert_eq!(dials.see(Words { token: 2, echo: 7 }, begin), None, "of somebody else");
        let answer = dials.see(Words { token: 2, echo: 1 }, begin);
        assert_eq!(answer, Some(Words { token: 1, echo: 2 }));
        dials.reads(begin);
        dials.came(false);
        assert_eq!(cause(&dials), "the block came changed");
    }
}
