//! Order in which ranks' output is written, so that lines of different ranks do not mix.
//!
//! Agents send whole lines, so almost all output passes straight through, with two exceptions:
//!
//! - A line longer than a frame comes in several chunks. Its stream has the *turn* until the line ends,
//!   and the chunks of other streams wait.
//! - A line that is left unfinished for a while, such as a prompt or a progress bar, is held back until it is
//!   finished. It is shown at once on a terminal, or if the job has only one rank.

use super::{PerStream, StreamId};
use rlaunch_bootstrap::id::NodeId;
use rlaunch_bootstrap::protocol::control::MAX_OUTPUT;
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// Time without output in the middle of a long line after which the stream loses the turn.
const TURN_TIMEOUT: Duration = Duration::from_secs(1);

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
    /// Whether unfinished lines of a stream are shown at once.
    show_unfinished: PerStream<bool>,
    /// Stream that is in the middle of a long line, which it may finish before other streams are written.
    turn: Option<StreamId>,
    ready: VecDeque<ReadyChunk>,
    /// Chunks of other streams, in order of arrival, that wait until the stream in `turn` ends its line.
    waiting: VecDeque<Chunk>,
    /// Unfinished lines that are held back, by stream.
    held: HashMap<StreamId, Chunk>,
}

impl LineArbiter {
    pub(crate) fn new(show_unfinished: PerStream<bool>) -> LineArbiter {
        LineArbiter {
            show_unfinished,
            turn: None,
            ready: VecDeque::new(),
            waiting: VecDeque::new(),
            held: HashMap::new(),
        }
    }

    pub(crate) fn push(&mut self, chunk: Chunk) {
        let (node, source, stamp) = (chunk.node, chunk.source, chunk.stamp);
        if self.turn.is_some_and(|turn| turn != source) {
            self.waiting.push_back(chunk);
            return;
        }
        let credit = chunk.data.len();
        let ends = chunk.data.is_empty();
        let line = match self.held.remove(&source) {
            None => chunk,
            Some(mut held) => {
                held.data.extend_from_slice(&chunk.data);
                held
            }
        };
        let shown = *self.show_unfinished.of(source.1);
        let finished = line.data.last() == Some(&b'\n');
        let long = line.data.len() >= MAX_OUTPUT;
        if finished || ends || long || shown || self.turn == Some(source) {
            self.ready.push_back(ReadyChunk { chunk: line, credit });
        } else {
            self.held.insert(source, line);
            let nothing = Chunk { node, source, stamp, data: Vec::new() };
            self.ready.push_back(ReadyChunk { chunk: nothing, credit });
        }
        if finished || ends {
            self.release();
        } else if long && !shown {
            self.turn = Some(source);
        }
    }

    /// Ends the turn and handles the waiting chunks. If one begins a long line, chunks of other streams
    /// behind it wait again.
    fn release(&mut self) {
        self.turn = None;
        for chunk in std::mem::take(&mut self.waiting) {
            self.push(chunk);
        }
    }

    /// Ends the turn of a stream that had no output for [`LineArbiter::timeout`].
    pub(crate) fn end_turn(&mut self) {
        if self.turn.is_some() {
            self.release();
        }
    }

    /// Returns the time to wait for the stream that has the turn; `None` if no other stream waits.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        (self.turn.is_some() && !self.waiting.is_empty()).then_some(TURN_TIMEOUT)
    }

    /// Makes all remaining chunks ready to write, at the end of all output.
    pub(crate) fn finish(&mut self) {
        while self.turn.is_some() {
            self.release();
        }
        let mut held: Vec<Chunk> = self.held.drain().map(|(_, chunk)| chunk).collect();
        held.sort_by_key(|chunk| chunk.source.0);
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
    use rlaunch_bootstrap::id::Rank;
    use rlaunch_bootstrap::protocol::control::Stream;

    const NEVER: PerStream<bool> = PerStream { stdout: false, stderr: false };
    const ONLY_STDOUT: PerStream<bool> = PerStream { stdout: true, stderr: false };

    fn push(arbiter: &mut LineArbiter, rank: u32, data: &[u8]) -> Vec<u8> {
        push_to(arbiter, (Rank(rank), Stream::Stdout), data)
    }

    fn push_to(arbiter: &mut LineArbiter, source: StreamId, data: &[u8]) -> Vec<u8> {
        let (node, stamp) = (NodeId(source.0.0), Some(data.len() as u64));
        arbiter.push(Chunk { node, source, stamp, data: data.to_vec() });
        rest(arbiter)
    }

    fn rest(arbiter: &mut LineArbiter) -> Vec<u8> {
        std::iter::from_fn(|| arbiter.next()).flat_map(|ready| ready.chunk.data).collect()
    }

    #[test]
    fn whole_lines_pass_at_once() {
        let mut arbiter = LineArbiter::new(NEVER);
        assert_eq!(push(&mut arbiter, 0, b"a\n"), b"a\n");
        assert_eq!(push(&mut arbiter, 1, b"b\nc\n"), b"b\nc\n");
    }

    #[test]
    fn an_unfinished_line_waits_for_its_end() {
        let mut arbiter = LineArbiter::new(NEVER);
        assert_eq!(push(&mut arbiter, 0, b"10%"), b"");
        assert_eq!(push(&mut arbiter, 1, b"other\n"), b"other\n");
        assert_eq!(push(&mut arbiter, 0, b" 20%\n"), b"10% 20%\n");
        assert_eq!(push(&mut arbiter, 0, b"end"), b"");
        assert_eq!(push(&mut arbiter, 0, b""), b"end");
    }

    #[test]
    fn a_person_sees_a_prompt() {
        let mut arbiter = LineArbiter::new(ONLY_STDOUT);
        assert_eq!(push(&mut arbiter, 0, b"name? "), b"name? ");
        // Stderr goes to a file, where lines must not mix.
        let error = (Rank(0), Stream::Stderr);
        assert_eq!(push_to(&mut arbiter, error, b"half "), b"");
        assert_eq!(push_to(&mut arbiter, error, b"a line\n"), b"half a line\n");
    }

    #[test]
    fn a_line_has_the_time_at_which_it_began_and_is_paid_for_once() {
        let mut arbiter = LineArbiter::new(NEVER);
        let chunk = |stamp, data: &[u8]| {
            let source = (Rank(0), Stream::Stdout);
            Chunk { node: NodeId(0), source, stamp: Some(stamp), data: data.to_vec() }
        };
        arbiter.push(chunk(1, b"10%"));
        arbiter.push(chunk(2, b" 20%\n"));
        let ready: Vec<ReadyChunk> = std::iter::from_fn(|| arbiter.next()).collect();
        assert_eq!(ready.iter().map(|ready| ready.credit).sum::<usize>(), b"10% 20%\n".len());
        let line = &ready.last().unwrap().chunk;
        assert_eq!((line.stamp, &line.data[..]), (Some(1), &b"10% 20%\n"[..]));
    }

    #[test]
    fn a_long_line_is_not_torn() {
        let long = vec![b'x'; MAX_OUTPUT];
        let mut arbiter = LineArbiter::new(NEVER);
        assert_eq!(push(&mut arbiter, 0, &long), long);
        assert_eq!(push(&mut arbiter, 1, b"other\n"), b"");
        assert!(arbiter.timeout().is_some());
        assert_eq!(push(&mut arbiter, 0, &long), long);
        assert_eq!(push(&mut arbiter, 0, b"end\n"), b"end\nother\n");
        assert!(arbiter.timeout().is_none());
    }

    #[test]
    fn two_long_lines_take_turns() {
        let long = vec![b'x'; MAX_OUTPUT];
        let mut arbiter = LineArbiter::new(NEVER);
        push(&mut arbiter, 0, &long);
        assert_eq!(push(&mut arbiter, 1, &long), b"");
        assert_eq!(push(&mut arbiter, 1, b"one\n"), b"");
        let mut expected = b"zero\n".to_vec();
        expected.extend_from_slice(&long);
        expected.extend_from_slice(b"one\n");
        assert_eq!(push(&mut arbiter, 0, b"zero\n"), expected);
    }

    #[test]
    fn a_silent_holder_loses_the_turn_and_nothing_is_lost_at_the_end() {
        let long = vec![b'x'; MAX_OUTPUT];
        let mut arbiter = LineArbiter::new(NEVER);
        push(&mut arbiter, 0, &long);
        push(&mut arbiter, 1, b"waits\n");
        arbiter.end_turn();
        assert_eq!(rest(&mut arbiter), b"waits\n");
        push(&mut arbiter, 1, b"tail");
        arbiter.finish();
        assert_eq!(rest(&mut arbiter), b"tail");
    }
}
