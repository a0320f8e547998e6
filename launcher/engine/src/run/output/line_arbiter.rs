//! Order in which ranks' output is written, so that lines of different ranks do not mix. A state machine without
//! I/O and without a clock.
//!
//! Agents send whole lines, so almost all output passes straight through, with two exceptions:
//!
//! - A line longer than a frame comes in several chunks. Its stream has the *turn* until the line ends or has taken too
//!   long ([`LineTurn`]), and the chunks of other streams wait. Short lines wait for one turn at most: all of them are
//!   written before the next long line.
//! - A line that is left unfinished for a while, such as a prompt or a progress bar, is held back until it is
//!   finished or as long as a frame. On a terminal, or if the job has only one rank, everything is shown at once.

use super::{PerStream, StreamId};
use rlaunch_bootstrap::id::NodeId;
use rlaunch_bootstrap::protocol::control::{MAX_OUTPUT, Stream};
use rlaunch_bootstrap::protocol::line_turn::{LineTurn, pause};
use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

/// Output of a rank. Empty data ends the stream.
pub(crate) struct Chunk {
    pub node: NodeId,
    pub source: StreamId,
    /// Time at which the agent read the data, in microseconds since 1970 by the clock of its host.
    pub stamp: Option<u64>,
    pub data: Vec<u8>,
}

/// Chunk to write now.
pub(crate) struct ReadyChunk {
    pub(crate) chunk: Chunk,
    /// Credit, in bytes, that the chunk's node gets back. It does not include data that was held back, since
    /// the credit for such data was given back on arrival.
    pub(crate) credit: usize,
}

/// Queue that puts chunks of all streams in the order in which they are written.
pub(crate) struct LineArbiter {
    /// Whether everything in a stream is shown at once.
    show_unfinished: PerStream<bool>,
    /// Stream that is in the middle of a long line, which it may finish before other streams are written.
    turn: Option<StreamId>,
    ready: VecDeque<ReadyChunk>,
    /// Chunks of other streams than the one in `turn`, with their times of arrival, in that order.
    waiting: VecDeque<(Instant, Chunk)>,
    lines: HashMap<StreamId, OpenLine>,
}

/// Line of a stream that is not finished.
#[derive(Default)]
struct OpenLine {
    turn: LineTurn,
    /// Part that is held back.
    held: Option<Chunk>,
}

impl LineArbiter {
    pub(crate) fn new(show_unfinished: PerStream<bool>) -> LineArbiter {
        LineArbiter {
            show_unfinished,
            turn: None,
            ready: VecDeque::new(),
            waiting: VecDeque::new(),
            lines: HashMap::new(),
        }
    }

    /// Takes a chunk that has come, and lets it wait if another stream has the turn.
    pub(crate) fn push(&mut self, now: Instant, chunk: Chunk) {
        let source = chunk.source;
        if *self.show_unfinished.of(source.1) {
            let credit = chunk.data.len();
            self.ready.push_back(ReadyChunk { chunk, credit });
        } else if self.turn.is_some_and(|turn| turn != source) {
            self.waiting.push_back((now, chunk));
        } else {
            self.make_ready(now, now, chunk);
            self.release_waiting(now);
        }
    }

    /// Makes a chunk ready, or holds it back, and takes or ends the turn. No other stream may have the turn.
    fn make_ready(&mut self, now: Instant, since: Instant, chunk: Chunk) {
        let (node, source, stamp) = (chunk.node, chunk.source, chunk.stamp);
        let (credit, ends) = (chunk.data.len(), chunk.data.is_empty());
        let line = self.lines.entry(source).or_default();
        line.turn.wrote(&chunk.data, since, now);
        let has_turn = line.turn.until().is_some();
        self.turn = has_turn.then_some(source);
        let mut chunk = match line.held.take() {
            None => chunk,
            Some(mut held) => {
                held.data.extend_from_slice(&chunk.data);
                held
            }
        };
        let is_long = chunk.data.len() >= MAX_OUTPUT;
        let finished = ends || chunk.data.last() == Some(&b'\n');
        if !(finished || is_long || has_turn) {
            let nothing = Chunk { node, source, stamp, data: Vec::new() };
            line.held = Some(std::mem::replace(&mut chunk, nothing));
        }
        self.ready.push_back(ReadyChunk { chunk, credit });
    }

    /// Handles the waiting chunks if the turn has ended: first those that need no turn, then the next long line.
    fn release_waiting(&mut self, now: Instant) {
        while self.turn.is_none() {
            let mut long = HashSet::new();
            for (since, chunk) in std::mem::take(&mut self.waiting) {
                // Output that follows a long line in its stream stays behind it.
                if long.contains(&chunk.source) || self.begins_long_line(&chunk) {
                    long.insert(chunk.source);
                    self.waiting.push_back((since, chunk));
                } else {
                    self.make_ready(now, since, chunk);
                }
            }
            let Some((_, first)) = self.waiting.front() else { return };
            let (source, mut goes_on) = (first.source, true);
            for (since, chunk) in std::mem::take(&mut self.waiting) {
                if goes_on && chunk.source == source {
                    self.make_ready(now, since, chunk);
                    goes_on = self.turn.is_some();
                } else {
                    self.waiting.push_back((since, chunk));
                }
            }
        }
    }

    fn begins_long_line(&self, chunk: &Chunk) -> bool {
        let line = self.lines.get(&chunk.source).map(|line| line.turn).unwrap_or_default();
        line.begins(&chunk.data)
    }

    /// Ends the turn of a stream whose time is over.
    pub(crate) fn end_turn(&mut self, now: Instant) {
        let Some(line) = self.turn.and_then(|turn| self.lines.get_mut(&turn)) else { return };
        line.turn.end_if_over(now);
        if line.turn.until().is_none() {
            self.turn = None;
            self.release_waiting(now);
        }
    }

    /// Returns the time at which [`LineArbiter::end_turn`] has to be called; `None` if no stream waits.
    pub(crate) fn turn_end(&self) -> Option<Instant> {
        let turn = self.turn.filter(|_| !self.waiting.is_empty())?;
        self.lines.get(&turn)?.turn.until()
    }

    /// Takes note that ready chunks have been written, which took some time. That of a reader who pauses is not the
    /// time of a line.
    pub(crate) fn has_written(&mut self, took: Duration) {
        if pause(took).is_zero() {
            return;
        }
        if let Some(line) = self.turn.and_then(|turn| self.lines.get_mut(&turn)) {
            line.turn.put_off(took);
        }
        for (since, _) in &mut self.waiting {
            *since += pause(took);
        }
    }

    /// Makes all remaining chunks ready to write, at the end of all output.
    pub(crate) fn finish(&mut self, now: Instant) {
        while self.turn.take().is_some() {
            self.release_waiting(now);
        }
        let mut held: Vec<Chunk> = self.lines.drain().filter_map(|(_, line)| line.held).collect();
        held.sort_by_key(|chunk| (chunk.source.0, chunk.source.1 == Stream::Stderr));
        self.ready.extend(held.into_iter().map(|chunk| ReadyChunk { chunk, credit: 0 }));
    }

    /// Returns the next chunk to write.
    pub(crate) fn next(&mut self) -> Option<ReadyChunk> {
        self.ready.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rlaunch_bootstrap::id::Rank;
    use rlaunch_bootstrap::protocol::line_turn::MAX_TURN;

    const NEVER: PerStream<bool> = PerStream { stdout: false, stderr: false };
    const ONLY_STDOUT: PerStream<bool> = PerStream { stdout: true, stderr: false };

    /// Arbiter with a clock of its own.
    struct Output {
        arbiter: LineArbiter,
        now: Instant,
    }

    impl Output {
        fn new(show_unfinished: PerStream<bool>) -> Output {
            Output { arbiter: LineArbiter::new(show_unfinished), now: Instant::now() }
        }

        /// Pushes output of a rank, and returns what is written then.
        fn push(&mut self, rank: u32, data: &[u8]) -> Vec<u8> {
            self.push_to((Rank(rank), Stream::Stdout), data)
        }

        fn push_to(&mut self, source: StreamId, data: &[u8]) -> Vec<u8> {
            let (node, stamp) = (NodeId(source.0.0), Some(data.len() as u64));
            self.arbiter.end_turn(self.now);
            self.arbiter.push(self.now, Chunk { node, source, stamp, data: data.to_vec() });
            self.rest()
        }

        /// Lets time pass, and returns what is written then.
        fn wait(&mut self, time: Duration) -> Vec<u8> {
            self.now += time;
            self.arbiter.end_turn(self.now);
            self.rest()
        }

        fn finish(&mut self) -> Vec<u8> {
            self.arbiter.finish(self.now);
            self.rest()
        }

        fn rest(&mut self) -> Vec<u8> {
            std::iter::from_fn(|| self.arbiter.next()).flat_map(|ready| ready.chunk.data).collect()
        }
    }

    #[test]
    fn whole_lines_pass_at_once() {
        let mut output = Output::new(NEVER);
        assert_eq!(output.push(0, b"a\n"), b"a\n");
        assert_eq!(output.push(1, b"b\nc\n"), b"b\nc\n");
    }

    #[test]
    fn an_unfinished_line_waits_for_its_end() {
        let mut output = Output::new(NEVER);
        assert_eq!(output.push(0, b"10%"), b"");
        assert_eq!(output.push(1, b"other\n"), b"other\n");
        assert_eq!(output.push(0, b" 20%\n"), b"10% 20%\n");
        assert_eq!(output.push(0, b"end"), b"");
        assert_eq!(output.push(0, b""), b"end");
    }

    #[test]
    fn a_person_sees_a_prompt() {
        let mut output = Output::new(ONLY_STDOUT);
        assert_eq!(output.push(0, b"name? "), b"name? ");
        // Stderr goes to a file, where lines must not mix.
        let error = (Rank(0), Stream::Stderr);
        assert_eq!(output.push_to(error, b"half "), b"");
        assert_eq!(output.push_to(error, b"a line\n"), b"half a line\n");
        // Long lines of the other stream do not hold this one up.
        assert_eq!(output.push_to(error, &[b'x'; MAX_OUTPUT]).len(), MAX_OUTPUT);
        assert_eq!(output.push(1, b"name? "), b"name? ");
    }

    #[test]
    fn a_line_has_the_time_at_which_it_began_and_is_paid_for_once() {
        let (mut arbiter, now) = (LineArbiter::new(NEVER), Instant::now());
        let chunk = |stamp, data: &[u8]| {
            let source = (Rank(0), Stream::Stdout);
            Chunk { node: NodeId(0), source, stamp: Some(stamp), data: data.to_vec() }
        };
        arbiter.push(now, chunk(1, b"10%"));
        arbiter.push(now, chunk(2, b" 20%\n"));
        let ready: Vec<ReadyChunk> = std::iter::from_fn(|| arbiter.next()).collect();
        assert_eq!(ready.iter().map(|ready| ready.credit).sum::<usize>(), b"10% 20%\n".len());
        let line = &ready.last().unwrap().chunk;
        assert_eq!((line.stamp, &line.data[..]), (Some(1), &b"10% 20%\n"[..]));
    }

    #[test]
    fn a_long_line_is_not_torn() {
        let long = vec![b'x'; MAX_OUTPUT];
        let mut output = Output::new(NEVER);
        assert_eq!(output.push(0, &long), long);
        assert!(output.arbiter.turn_end().is_none());
        assert_eq!(output.push(1, b"other\n"), b"");
        assert!(output.arbiter.turn_end().is_some());
        assert_eq!(output.push(0, &long), long);
        assert_eq!(output.push(0, b"end\n"), b"end\nother\n");
        assert!(output.arbiter.turn_end().is_none());
    }

    #[test]
    fn two_long_lines_take_turns() {
        let long = vec![b'x'; MAX_OUTPUT];
        let mut output = Output::new(NEVER);
        output.push(0, &long);
        assert_eq!(output.push(1, &long), b"");
        assert_eq!(output.push(1, b"one\n"), b"");
        let mut expected = b"zero\n".to_vec();
        expected.extend_from_slice(&long);
        expected.extend_from_slice(b"one\n");
        assert_eq!(output.push(0, b"zero\n"), expected);
    }

    /// Output of others does not give a silent stream more time.
    #[test]
    fn a_silent_holder_loses_the_turn_and_nothing_is_lost_at_the_end() {
        let mut output = Output::new(NEVER);
        output.push(0, &[b'x'; MAX_OUTPUT]);
        output.push(0, b"half");
        assert_eq!(output.push(1, b"waits\n"), b"");
        for beat in 0..9_u8 {
            assert_eq!(output.wait(MAX_TURN / 10), b"", "beat {beat}");
            output.push(2, &[b'0' + beat]);
        }
        output.push(2, b"\n");
        assert_eq!(output.wait(MAX_TURN / 10), b"waits\n012345678\n");
        assert_eq!(output.push(0, b" more"), b"");
        output.push(1, b"tail");
        assert_eq!(output.finish(), b" moretail");
    }

    #[test]
    fn a_flood_has_one_turn_for_its_line() {
        let long = vec![b'x'; MAX_OUTPUT];
        let mut output = Output::new(NEVER);
        for _ in 0..10 {
            assert_eq!(output.push(0, &long), long);
            output.push(1, b".");
            output.wait(MAX_TURN / 10);
        }
        output.push(1, b"\n");
        for _ in 0..3 {
            assert_eq!(output.push(0, &long), long);
            assert_eq!(output.push(1, b"at once\n"), b"at once\n");
        }
        output.push(0, b"\n");
        assert_eq!(output.push(0, &long), long);
        assert_eq!(output.push(1, b"later\n"), b"");
    }

    #[test]
    fn a_progress_bar_keeps_nobody_waiting() {
        let bar = format!("\r{:>1000}%", 7).into_bytes();
        let (mut output, mut shown) = (Output::new(NEVER), Vec::new());
        for _ in 0..100 {
            shown.extend(output.push(0, &bar));
            assert_eq!(output.push(1, b"other\n"), b"other\n");
        }
        assert!(shown.len() > 2 * MAX_OUTPUT);
        shown.extend(output.push(0, b"\n"));
        assert_eq!(shown, [bar.repeat(100), b"\n".to_vec()].concat());
        // One that is quick fills whole frames.
        assert_eq!(output.push(0, &shown[..MAX_OUTPUT]), &shown[..MAX_OUTPUT]);
        assert_eq!(output.push(1, b"other\n"), b"other\n");
    }

    /// Ranks of one program often do the same at the same time.
    #[test]
    fn a_short_line_waits_for_one_of_many_long_lines() {
        let long = vec![b'x'; MAX_OUTPUT];
        let mut output = Output::new(NEVER);
        for rank in 0..9 {
            output.push(rank, &long);
        }
        output.wait(MAX_TURN / 2);
        assert_eq!(output.push(9, b"short\n"), b"");
        let shown = output.wait(MAX_TURN / 2);
        assert!(shown.starts_with(b"short\nxxx") && shown.len() == 6 + MAX_OUTPUT);
        // They have paused meanwhile, and do not take a second each.
        for rank in 2..9 {
            assert_eq!(output.push(rank, b"half"), b"");
        }
        assert_eq!(output.wait(MAX_TURN).len(), 7 * MAX_OUTPUT);
        assert_eq!(output.finish(), b"half".repeat(7));
    }

    #[test]
    fn a_reader_who_pauses_takes_no_turn_away() {
        let mut output = Output::new(NEVER);
        output.push(0, &[b'x'; MAX_OUTPUT]);
        output.push(1, b"waits\n");
        let pause = 60 * MAX_TURN;
        output.arbiter.has_written(pause);
        assert_eq!(output.wait(pause), b"");
        assert_eq!(output.push(0, b"end\n"), b"end\nwaits\n");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]

        /// The first two ranks write whole lines alone, the others anything.
        #[test]
        fn nobody_waits_for_long_and_every_byte_is_written_in_order(
            steps in prop::collection::vec(
                (0..5_u32, any::<bool>(), 0..9_usize, 0..400_u64, 0..250_u64), 0..80,
            ),
        ) {
            let full = vec![b'x'; MAX_OUTPUT];
            let bar = b"\r 1%".repeat(MAX_OUTPUT / 4);
            let mut line = full.clone();
            line[MAX_OUTPUT - 1] = b'\n';
            let pieces: [&[u8]; 9] =
                [&full, &full, &line, &bar, b"half", b"\r50%", b"\xff\0\r", b"end\n", b""];
            let mut simulation = Simulation::new();
            for (rank, is_error, piece, wait, write) in steps {
                let stream = if is_error { Stream::Stderr } else { Stream::Stdout };
                let data = if rank < 2 { &b"line\n"[..] } else { pieces[piece] };
                simulation.push((Rank(rank), stream), data)?;
                simulation.write(Duration::from_millis(write))?;
                simulation.wait(Duration::from_millis(wait))?;
            }
            simulation.output.arbiter.finish(simulation.output.now);
            simulation.collect(None)?;
            prop_assert!(simulation.written == simulation.pushed, "bytes are lost or out of order");
            let pushed: usize = simulation.pushed.values().map(Vec::len).sum();
            prop_assert_eq!(simulation.credit, pushed);
        }
    }

    /// Writing thread in virtual time.
    struct Simulation {
        output: Output,
        pushed: HashMap<StreamId, Vec<u8>>,
        written: HashMap<StreamId, Vec<u8>>,
        credit: usize,
        /// Times at which the lines of the first two ranks were pushed that are not written.
        lines: HashMap<StreamId, VecDeque<Instant>>,
    }

    impl Simulation {
        fn new() -> Simulation {
            Simulation {
                output: Output::new(NEVER),
                pushed: HashMap::new(),
                written: HashMap::new(),
                credit: 0,
                lines: HashMap::new(),
            }
        }

        fn push(&mut self, source: StreamId, data: &[u8]) -> Result<(), TestCaseError> {
            self.pushed.entry(source).or_default().extend_from_slice(data);
            self.written.entry(source).or_default();
            if source.0.0 < 2 {
                self.lines.entry(source).or_default().push_back(self.output.now);
            }
            let (node, stamp) = (NodeId(source.0.0), None);
            let chunk = Chunk { node, source, stamp, data: data.to_vec() };
            self.output.arbiter.end_turn(self.output.now);
            self.output.arbiter.push(self.output.now, chunk);
            self.collect(Some(MAX_TURN))
        }

        /// Lets the reader take some time. A line may be late by what does not count as a pause.
        fn write(&mut self, time: Duration) -> Result<(), TestCaseError> {
            self.output.now += time;
            self.output.arbiter.has_written(time);
            self.lines.values_mut().flatten().for_each(|pushed| *pushed += pause(time));
            self.output.arbiter.end_turn(self.output.now);
            self.collect(Some(MAX_TURN + (time - pause(time))))
        }

        fn wait(&mut self, time: Duration) -> Result<(), TestCaseError> {
            let until = self.output.now + time;
            while let Some(end) = self.output.arbiter.turn_end().filter(|end| *end <= until) {
                self.output.now = end.max(self.output.now);
                self.output.arbiter.end_turn(self.output.now);
                self.collect(Some(MAX_TURN))?;
            }
            self.output.now = until;
            Ok(())
        }

        /// Takes what is written. Lines must not have waited for longer than `limit`.
        fn collect(&mut self, limit: Option<Duration>) -> Result<(), TestCaseError> {
            while let Some(ReadyChunk { chunk, credit }) = self.output.arbiter.next() {
                let Chunk { source, data, .. } = chunk;
                self.credit += credit;
                self.written.entry(source).or_default().extend_from_slice(&data);
                if let Some(pushed) = self.lines.get_mut(&source).and_then(VecDeque::pop_front) {
                    let waited = self.output.now - pushed;
                    prop_assert!(limit.is_none_or(|limit| waited <= limit), "{:?}", waited);
                }
            }
            Ok(())
        }
    }
}
