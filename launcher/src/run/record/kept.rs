//! How much of the ranks' output is kept: its beginning and its end.

use crate::run::output::Source;
use rlaunch_bootstrap::protocol::control::Stream;
use serde::{Deserialize, Serialize};
use std::collections::{HashSet, VecDeque};

/// Kept of the beginning, and of the end, in bytes.
const EACH: usize = 384 << 10;
/// What a piece costs beyond its bytes, so that empty lines are bounded as well.
const OVERHEAD: usize = 64;

/// Pieces of output, in the order in which they were shown. What was written is moved here, not
/// copied.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    first: Vec<(Source, Vec<u8>)>,
    last: VecDeque<(Source, Vec<u8>)>,
    /// Whether `first` takes no more.
    begun: bool,
    first_cost: usize,
    last_cost: usize,
    left_out: u64,
    /// Streams of which the middle of a line was left out last.
    torn: HashSet<Source>,
}

/// The same as text.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct KeptOutput {
    pub(crate) first: Vec<Piece>,
    /// Between the two, in bytes.
    pub(crate) left_out_bytes: u64,
    pub(crate) last: Vec<Piece>,
}

/// Whole lines of one rank, but for a line that was shown before it was finished.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct Piece {
    pub(crate) rank: u32,
    /// `stdout` or `stderr`.
    pub(crate) stream: String,
    /// What is no UTF-8 is replaced.
    pub(crate) text: String,
}

impl Kept {
    /// Takes what a rank wrote.
    pub(crate) fn add(&mut self, source: Source, data: Vec<u8>) {
        if data.is_empty() {
            return;
        }
        let cost = data.len() + OVERHEAD;
        if !self.begun && self.first_cost + cost <= EACH {
            self.first_cost += cost;
            self.first.push((source, data));
            return;
        }
        self.begun = true;
        self.last_cost += cost;
        self.last.push_back((source, data));
        while self.last_cost > EACH {
            let Some((source, data)) = self.last.pop_front() else { break };
            self.last_cost -= data.len() + OVERHEAD;
            self.leave_out(source, &data);
        }
    }

    fn leave_out(&mut self, source: Source, data: &[u8]) {
        self.left_out += data.len() as u64;
        if data.last() == Some(&b'\n') {
            self.torn.remove(&source);
        } else {
            self.torn.insert(source);
        }
    }

    /// As text; of lines that are kept in part, the rest is left out as well. What was kept moves, since
    /// a second copy would be the most that a launcher ever has in memory.
    pub(crate) fn into_output(self) -> KeptOutput {
        let mut output = KeptOutput { left_out_bytes: self.left_out, ..KeptOutput::default() };
        join(&mut output.first, self.first.into_iter());
        let mut torn = self.torn;
        let whole = |(source, mut data): (Source, Vec<u8>)| {
            if torn.contains(&source) {
                let line = data.iter().position(|&byte| byte == b'\n').map(|at| at + 1);
                if line.is_some() {
                    torn.remove(&source);
                }
                output.left_out_bytes += data.drain(..line.unwrap_or(data.len())).len() as u64;
            }
            (source, data)
        };
        join(&mut output.last, self.last.into_iter().map(whole));
        output
    }
}

/// Pieces of one stream that follow each other become one.
fn join(joined: &mut Vec<Piece>, pieces: impl Iterator<Item = (Source, Vec<u8>)>) {
    let mut run: Option<(Source, Vec<u8>)> = None;
    for (source, data) in pieces.filter(|(_, data)| !data.is_empty()) {
        match &mut run {
            Some((known, text)) if *known == source => text.extend_from_slice(&data),
            _ => joined.extend(run.replace((source, data)).map(piece)),
        }
    }
    joined.extend(run.map(piece));
}

fn piece(((rank, stream), text): (Source, Vec<u8>)) -> Piece {
    let stream = match stream {
        Stream::Stdout => "stdout",
        Stream::Stderr => "stderr",
    };
    let text = String::from_utf8(text)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned());
    Piece { rank: rank.0, stream: stream.to_owned(), text }
}

impl KeptOutput {
    /// Each line, with its rank, in the order in which lines were finished.
    pub(crate) fn lines(&self) -> Vec<(u32, String)> {
        let mut lines = Lines::default();
        self.first.iter().for_each(|piece| lines.take(piece));
        if self.left_out_bytes > 0 {
            lines.finish();
        }
        self.last.iter().for_each(|piece| lines.take(piece));
        lines.finish();
        lines.whole
    }
}

/// Puts lines together that came in parts.
#[derive(Default)]
struct Lines<'a> {
    whole: Vec<(u32, String)>,
    unfinished: Vec<((u32, &'a str), String)>,
}

impl<'a> Lines<'a> {
    fn take(&mut self, Piece { rank, stream, text }: &'a Piece) {
        let source = (*rank, stream.as_str());
        for part in text.split_inclusive('\n') {
            let begun = self.unfinished.iter().position(|(known, _)| *known == source);
            let mut line = begun.map_or(String::new(), |at| self.unfinished.swap_remove(at).1);
            line.push_str(part);
            match line.strip_suffix('\n') {
                Some(whole) => self.whole.push((*rank, whole.to_owned())),
                None => self.unfinished.push((source, line)),
            }
        }
    }

    /// What is unfinished will not be finished.
    fn finish(&mut self) {
        let unfinished = self.unfinished.drain(..);
        self.whole.extend(unfinished.map(|((rank, _), line)| (rank, line)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlaunch_bootstrap::id::Rank;

    fn out(rank: u32) -> Source {
        (Rank(rank), Stream::Stdout)
    }

    #[test]
    fn little_is_kept_whole() {
        let mut kept = Kept::default();
        kept.add(out(0), b"a\nb\n".to_vec());
        kept.add(out(0), b"c\n".to_vec());
        kept.add(out(1), b"".to_vec());
        kept.add(out(1), b"d\n".to_vec());
        kept.add((Rank(0), Stream::Stderr), b"half".to_vec());
        let output = kept.into_output();
        let texts: Vec<(u32, &str, &str)> =
            output.first.iter().map(|p| (p.rank, p.stream.as_str(), p.text.as_str())).collect();
        let expected = [(0, "stdout", "a\nb\nc\n"), (1, "stdout", "d\n"), (0, "stderr", "half")];
        assert_eq!(texts, expected);
        assert_eq!((output.left_out_bytes, output.last.len()), (0, 0));
        let lines = output.lines();
        assert_eq!(
            lines.iter().map(|(_, line)| line.as_str()).collect::<Vec<_>>(),
            ["a", "b", "c", "d", "half"]
        );
    }

    #[test]
    fn of_much_the_beginning_and_the_end_are_kept() {
        let mut kept = Kept::default();
        let mut written = 0;
        for n in 0..100_000_u32 {
            let line = format!("line {n} of some length\n").into_bytes();
            written += line.len() as u64;
            kept.add(out(n % 3), line);
        }
        let output = kept.into_output();
        let bytes = |pieces: &[Piece]| pieces.iter().map(|p| p.text.len()).sum::<usize>();
        let (first, last) = (bytes(&output.first), bytes(&output.last));
        assert!(first <= EACH && last <= EACH, "{first} {last}");
        assert_eq!(first as u64 + last as u64 + output.left_out_bytes, written);
        assert_eq!(output.first[0].text, "line 0 of some length\n");
        let end = output.last.last().map(|piece| (piece.rank, piece.text.as_str()));
        assert_eq!(end, Some((0, "line 99999 of some length\n")));
        assert!(output.lines().iter().all(|(_, line)| line.ends_with("length")));
    }

    #[test]
    fn a_line_that_lost_its_beginning_is_left_out() {
        let mut kept = Kept::default();
        kept.add(out(0), vec![b'x'; EACH - OVERHEAD]);
        for _ in 0..20 {
            kept.add(out(0), vec![b'y'; 64 << 10]);
        }
        kept.add(out(0), b"yy\nwhole\n".to_vec());
        let output = kept.into_output();
        assert_eq!(output.last.len(), 1, "{:?}", output.last.len());
        assert_eq!(output.last[0].text, "whole\n");
    }

    #[test]
    fn lines_that_came_in_parts_are_put_together() {
        let mut kept = Kept::default();
        kept.add(out(0), b"10%".to_vec());
        kept.add(out(1), b"other\n".to_vec());
        kept.add(out(0), b" 20%\n".to_vec());
        let lines = kept.into_output().lines();
        assert_eq!(lines, [(1, "other".to_owned()), (0, "10% 20%".to_owned())]);
    }
}
