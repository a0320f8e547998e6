//! Who may write next, so that no line is torn.
//!
//! Agents send whole lines, so almost everything passes straight through. Two things do not: a
//! line longer than a frame comes in pieces, and whoever began it holds the *pen* until it ends,
//! while the others wait; and a line that was left unfinished for a while (a prompt, a progress
//! bar) is held back until it is finished, unless nobody can tear it or a person is watching.

use super::Source;
use rlaunch_bootstrap::id::NodeId;
use rlaunch_bootstrap::protocol::control::{MAX_OUTPUT, Stream};
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// A writer in the middle of a long line that stays silent this long gives the pen to others.
const PATIENCE: Duration = Duration::from_secs(1);

/// What a rank wrote; empty data ends the stream.
pub(crate) struct Said {
    pub(crate) node: NodeId,
    pub(crate) source: Source,
    /// When its agent read it, in microseconds since 1970.
    pub(crate) stamp: Option<u64>,
    pub(crate) data: Vec<u8>,
}

/// Something to write, and the credit its node is due for it.
pub(crate) struct Piece {
    pub(crate) said: Said,
    /// In bytes. A line that is held back has been paid for before it is written.
    pub(crate) credit: usize,
}

/// Which streams show unfinished lines at once.
#[derive(Clone, Copy)]
pub(crate) struct Shown {
    pub(crate) stdout: bool,
    pub(crate) stderr: bool,
}

impl Shown {
    fn has(self, stream: Stream) -> bool {
        match stream {
            Stream::Stdout => self.stdout,
            Stream::Stderr => self.stderr,
        }
    }
}

/// OutboxReceiver pieces of output.
pub(crate) struct Pen {
    show_unfinished: Shown,
    /// In the middle of a long line.
    holder: Option<Source>,
    ready: VecDeque<Piece>,
    /// Waiting for the holder, in order of arrival.
    waiting: VecDeque<Said>,
    /// Unfinished lines that are held back.
    held: HashMap<Source, Said>,
}

impl Pen {
    pub(crate) fn new(show_unfinished: Shown) -> Pen {
        Pen {
            show_unfinished,
            holder: None,
            ready: VecDeque::new(),
            waiting: VecDeque::new(),
            held: HashMap::new(),
        }
    }

    /// Takes a piece of output; empty data ends the stream.
    pub(crate) fn take(&mut self, said: Said) {
        let (node, source, stamp) = (said.node, said.source, said.stamp);
        if self.holder.is_some_and(|holder| holder != source) {
            self.waiting.push_back(said);
            return;
        }
        let credit = said.data.len();
        let ends = said.data.is_empty();
        let line = match self.held.remove(&source) {
            None => said,
            Some(mut held) => {
                held.data.extend_from_slice(&said.data);
                held
            }
        };
        let shown = self.show_unfinished.has(source.1);
        let finished = line.data.last() == Some(&b'\n');
        let long = line.data.len() >= MAX_OUTPUT;
        if finished || ends || long || shown || self.holder == Some(source) {
            self.ready.push_back(Piece { said: line, credit });
        } else {
            self.held.insert(source, line);
            let nothing = Said { node, source, stamp, data: Vec::new() };
            self.ready.push_back(Piece { said: nothing, credit });
        }
        if finished || ends {
            self.release();
        } else if long && !shown {
            self.holder = Some(source);
        }
    }

    /// The holder is done: those who waited go on, up to the next long line.
    fn release(&mut self) {
        self.holder = None;
        for said in std::mem::take(&mut self.waiting) {
            self.take(said);
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
        let mut held: Vec<Said> = self.held.drain().map(|(_, said)| said).collect();
        held.sort_by_key(|said| said.source.0);
        self.ready.extend(held.into_iter().map(|said| Piece { said, credit: 0 }));
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

    const NEVER: Shown = Shown { stdout: false, stderr: false };
    const OF_STDOUT: Shown = Shown { stdout: true, stderr: false };

    fn push(pen: &mut Pen, rank: u32, data: &[u8]) -> Vec<u8> {
        push_to(pen, (Rank(rank), Stream::Stdout), data)
    }

    fn push_to(pen: &mut Pen, source: Source, data: &[u8]) -> Vec<u8> {
        let (node, stamp) = (NodeId(source.0.0), Some(data.len() as u64));
        pen.take(Said { node, source, stamp, data: data.to_vec() });
        rest(pen)
    }

    fn rest(pen: &mut Pen) -> Vec<u8> {
        std::iter::from_fn(|| pen.next()).flat_map(|piece| piece.said.data).collect()
    }

    #[test]
    fn whole_lines_pass_at_once() {
        let mut pen = Pen::new(NEVER);
        assert_eq!(push(&mut pen, 0, b"a\n"), b"a\n");
        assert_eq!(push(&mut pen, 1, b"b\nc\n"), b"b\nc\n");
    }

    #[test]
    fn an_unfinished_line_waits_for_its_end() {
        let mut pen = Pen::new(NEVER);
        assert_eq!(push(&mut pen, 0, b"10%"), b"");
        assert_eq!(push(&mut pen, 1, b"other\n"), b"other\n");
        assert_eq!(push(&mut pen, 0, b" 20%\n"), b"10% 20%\n");
        assert_eq!(push(&mut pen, 0, b"end"), b"");
        assert_eq!(push(&mut pen, 0, b""), b"end");
    }

    #[test]
    fn a_person_sees_a_prompt() {
        let mut pen = Pen::new(OF_STDOUT);
        assert_eq!(push(&mut pen, 0, b"name? "), b"name? ");
        // What goes to a file meanwhile is not torn.
        let error = (Rank(0), Stream::Stderr);
        assert_eq!(push_to(&mut pen, error, b"half "), b"");
        assert_eq!(push_to(&mut pen, error, b"a line\n"), b"half a line\n");
    }

    #[test]
    fn a_line_has_the_time_at_which_it_began_and_is_paid_for_once() {
        let mut pen = Pen::new(NEVER);
        let said = |stamp, data: &[u8]| {
            let source = (Rank(0), Stream::Stdout);
            Said { node: NodeId(0), source, stamp: Some(stamp), data: data.to_vec() }
        };
        pen.take(said(1, b"10%"));
        pen.take(said(2, b" 20%\n"));
        let pieces: Vec<Piece> = std::iter::from_fn(|| pen.next()).collect();
        assert_eq!(pieces.iter().map(|piece| piece.credit).sum::<usize>(), b"10% 20%\n".len());
        let line = &pieces.last().unwrap().said;
        assert_eq!((line.stamp, &line.data[..]), (Some(1), &b"10% 20%\n"[..]));
    }

    #[test]
    fn a_long_line_is_not_torn() {
        let long = vec![b'x'; MAX_OUTPUT];
        let mut pen = Pen::new(NEVER);
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
        let mut pen = Pen::new(NEVER);
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
        let mut pen = Pen::new(NEVER);
        push(&mut pen, 0, &long);
        push(&mut pen, 1, b"waits\n");
        pen.put_down();
        assert_eq!(rest(&mut pen), b"waits\n");
        push(&mut pen, 1, b"tail");
        pen.finish();
        assert_eq!(rest(&mut pen), b"tail");
    }
}
