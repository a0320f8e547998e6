//! Who may write next, so that no line is torn.
//!
//! Agents send whole lines, so almost everything passes straight through. Two things do not: a
//! line longer than a frame comes in pieces, and whoever began it holds the *pen* until it ends,
//! while the others wait; and a line that was left unfinished for a while (a prompt, a progress
//! bar) is held back until it is finished, unless nobody can tear it or a person is watching.

use super::Source;
use rlaunch_bootstrap::id::NodeId;
use rlaunch_bootstrap::wire::MAX_OUTPUT;
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// A writer in the middle of a long line that stays silent this long gives the pen to others.
const PATIENCE: Duration = Duration::from_secs(1);

/// Something to write, and the credit its node is due for it.
pub(crate) struct Piece {
    pub(crate) node: NodeId,
    pub(crate) source: Source,
    pub(crate) data: Vec<u8>,
    /// In bytes. A line that is held back has been paid for before it is written.
    pub(crate) credit: usize,
}

/// Orders pieces of output.
pub(crate) struct Pen {
    show_unfinished: bool,
    /// In the middle of a long line.
    holder: Option<Source>,
    ready: VecDeque<Piece>,
    /// Waiting for the holder, in order of arrival.
    waiting: VecDeque<(NodeId, Source, Vec<u8>)>,
    /// Unfinished lines that are held back.
    held: HashMap<Source, Vec<u8>>,
}

impl Pen {
    pub(crate) fn new(show_unfinished: bool) -> Pen {
        Pen {
            show_unfinished,
            holder: None,
            ready: VecDeque::new(),
            waiting: VecDeque::new(),
            held: HashMap::new(),
        }
    }

    /// Takes a piece of output; empty data ends the stream.
    pub(crate) fn take(&mut self, node: NodeId, source: Source, data: Vec<u8>) {
        if self.holder.is_some_and(|holder| holder != source) {
            self.waiting.push_back((node, source, data));
            return;
        }
        let credit = data.len();
        let ends = data.is_empty();
        let line = match self.held.remove(&source) {
            None => data,
            Some(mut held) => {
                held.extend_from_slice(&data);
                held
            }
        };
        let finished = line.last() == Some(&b'\n');
        let long = line.len() >= MAX_OUTPUT;
        if finished || ends || long || self.show_unfinished || self.holder == Some(source) {
            self.ready.push_back(Piece { node, source, data: line, credit });
        } else {
            self.held.insert(source, line);
            self.ready.push_back(Piece { node, source, data: Vec::new(), credit });
        }
        if finished || ends {
            self.release();
        } else if long && !self.show_unfinished {
            self.holder = Some(source);
        }
    }

    /// The holder is done: those who waited go on, up to the next long line.
    fn release(&mut self) {
        self.holder = None;
        for (node, source, data) in std::mem::take(&mut self.waiting) {
            self.take(node, source, data);
        }
    }

    /// The holder has been silent for [`Pen::patience`].
    pub(crate) fn put_down(&mut self) {
        if self.holder.is_some() {
            self.release();
        }
    }

    /// How long to wait for the holder; `None` when nobody holds the pen or nobody wants it.
    pub(crate) fn patience(&self) -> Option<Duration> {
        (self.holder.is_some() && !self.waiting.is_empty()).then_some(PATIENCE)
    }

    /// No more output comes: lets go of everything.
    pub(crate) fn finish(&mut self) {
        while self.holder.is_some() {
            self.release();
        }
        let mut held: Vec<_> = self.held.drain().collect();
        held.sort_by_key(|&((rank, _), _)| rank);
        for (source, data) in held {
            self.ready.push_back(Piece { node: NodeId(u32::MAX), source, data, credit: 0 });
        }
    }

    /// The next piece to write.
    pub(crate) fn next(&mut self) -> Option<Piece> {
        self.ready.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlaunch_bootstrap::id::Rank;
    use rlaunch_bootstrap::wire::Stream;

    fn push(pen: &mut Pen, rank: u32, data: &[u8]) -> Vec<u8> {
        pen.take(NodeId(rank), (Rank(rank), Stream::Stdout), data.to_vec());
        std::iter::from_fn(|| pen.next()).flat_map(|piece| piece.data).collect()
    }

    fn rest(pen: &mut Pen) -> Vec<u8> {
        std::iter::from_fn(|| pen.next()).flat_map(|piece| piece.data).collect()
    }

    #[test]
    fn whole_lines_pass_at_once() {
        let mut pen = Pen::new(false);
        assert_eq!(push(&mut pen, 0, b"a\n"), b"a\n");
        assert_eq!(push(&mut pen, 1, b"b\nc\n"), b"b\nc\n");
    }

    #[test]
    fn an_unfinished_line_waits_for_its_end() {
        let mut pen = Pen::new(false);
        assert_eq!(push(&mut pen, 0, b"10%"), b"");
        assert_eq!(push(&mut pen, 1, b"other\n"), b"other\n");
        assert_eq!(push(&mut pen, 0, b" 20%\n"), b"10% 20%\n");
        assert_eq!(push(&mut pen, 0, b"end"), b"");
        assert_eq!(push(&mut pen, 0, b""), b"end");
    }

    #[test]
    fn a_person_sees_a_prompt() {
        let mut pen = Pen::new(true);
        assert_eq!(push(&mut pen, 0, b"name? "), b"name? ");
    }

    #[test]
    fn a_long_line_is_not_torn() {
        let long = vec![b'x'; MAX_OUTPUT];
        let mut pen = Pen::new(false);
        assert_eq!(push(&mut pen, 0, &long), long);
        assert_eq!(push(&mut pen, 1, b"other\n"), b"");
        assert!(pen.patience().is_some());
        assert_eq!(push(&mut pen, 0, &long), long);
        assert_eq!(push(&mut pen, 0, b"end\n"), b"end\nother\n");
        assert!(pen.patience().is_none());
    }

    #[test]
    fn two_long_lines_take_turns() {
        let long = vec![b'x'; MAX_OUTPUT];
        let mut pen = Pen::new(false);
        push(&mut pen, 0, &long);
        assert_eq!(push(&mut pen, 1, &long), b"");
        assert_eq!(push(&mut pen, 1, b"one\n"), b"");
        let mut expected = b"zero\n".to_vec();
        expected.extend_from_slice(&long);
        expected.extend_from_slice(b"one\n");
        assert_eq!(push(&mut pen, 0, b"zero\n"), expected);
    }

    #[test]
    fn a_silent_holder_loses_the_pen_and_nothing_is_lost_at_the_end() {
        let long = vec![b'x'; MAX_OUTPUT];
        let mut pen = Pen::new(false);
        push(&mut pen, 0, &long);
        push(&mut pen, 1, b"waits\n");
        pen.put_down();
        assert_eq!(rest(&mut pen), b"waits\n");
        push(&mut pen, 1, b"tail");
        pen.finish();
        assert_eq!(rest(&mut pen), b"tail");
    }
}
