//! Parts of the ranks' output that are kept: its beginning and its end for the record of the job, and the last lines of each
//! rank, which the report of a failure quotes.

use super::replay::count_lines;
use super::{StreamId, stream_name};
use rlaunch_bootstrap::id::Rank;
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet, VecDeque};
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Maximum size of the recorded beginning of the output, and of the recorded end, in bytes.
const PART: usize = 384 << 10;
/// Bytes that each chunk counts in addition to its data, so that the number of short chunks is limited too.
const OVERHEAD: usize = 64;

/// Beginning and end of the ranks' output, in the order in which it was shown.
#[derive(Debug, Default)]
pub(crate) struct Transcript {
    first: Vec<(StreamId, Vec<u8>)>,
    last: VecDeque<(StreamId, Vec<u8>)>,
    /// Whether `first` is full, so that all further output goes to `last`.
    first_full: bool,
    first_cost: usize,
    last_cost: usize,
    omitted: u64,
    /// Streams whose omitted output ends in the middle of a line.
    torn: HashSet<StreamId>,
    /// Number of chunks that were added.
    added: u64,
}

/// Transcript that the writing thread fills while others read it. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct SharedTranscript(Arc<Mutex<Transcript>>);

/// Output of a running job from a position on.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct OutputPart {
    pub first: Vec<RecordedChunk>,
    /// Whether output between `first` and `last` is not kept.
    pub is_cut: bool,
    pub last: Vec<RecordedChunk>,
    /// Position of what is printed after this part.
    pub next: u64,
}

/// Transcript as text, in the form in which it is stored.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct RecordedOutput {
    pub first: Vec<RecordedChunk>,
    /// Number of bytes that were omitted between `first` and `last`.
    pub left_out_bytes: u64,
    pub last: Vec<RecordedChunk>,
}

/// Output of one rank: whole lines, unless a line was shown before it was finished.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct RecordedChunk {
    pub rank: u32,
    /// `stdout` or `stderr`.
    pub stream: String,
    /// Bytes that are not UTF-8 are replaced.
    pub text: String,
}

impl Transcript {
    /// Adds output of a rank, without copying it.
    fn add(&mut self, source: StreamId, data: Vec<u8>) {
        if data.is_empty() {
            return;
        }
        self.added += 1;
        let cost = data.len() + OVERHEAD;
        if !self.first_full && self.first_cost + cost <= PART {
            self.first_cost += cost;
            self.first.push((source, data));
            return;
        }
        self.first_full = true;
        self.last_cost += cost;
        self.last.push_back((source, data));
        while self.last_cost > PART {
            let Some((source, data)) = self.last.pop_front() else { break };
            self.last_cost -= data.len() + OVERHEAD;
            self.omit(source, &data);
        }
    }

    fn omit(&mut self, source: StreamId, data: &[u8]) {
        self.omitted += data.len() as u64;
        if data.last() == Some(&b'\n') {
            self.torn.remove(&source);
        } else {
            self.torn.insert(source);
        }
    }

    /// Converts the transcript to text. If the beginning of a line was omitted, the rest of the line is
    /// omitted too. Data is moved, since a second copy would raise the peak memory of the launcher.
    fn into_output(self) -> RecordedOutput {
        let mut output =
            RecordedOutput { left_out_bytes: self.omitted, ..RecordedOutput::default() };
        join_chunks(&mut output.first, self.first.into_iter());
        let mut torn = self.torn;
        let whole = |(source, mut data): (StreamId, Vec<u8>)| {
            if torn.contains(&source) {
                let line = data.iter().position(|&byte| byte == b'\n').map(|at| at + 1);
                if line.is_some() {
                    torn.remove(&source);
                }
                output.left_out_bytes += data.drain(..line.unwrap_or(data.len())).len() as u64;
            }
            (source, data)
        };
        join_chunks(&mut output.last, self.last.into_iter().map(whole));
        output
    }
}

impl SharedTranscript {
    /// Adds output of a rank, without copying it.
    pub(crate) fn add(&self, source: StreamId, data: Vec<u8>) {
        self.transcript().add(source, data);
    }

    /// Returns a copy of what was added at `position` and later; the first position is 0.
    pub(crate) fn since(&self, position: u64) -> OutputPart {
        let (first, is_cut, last, added) = {
            let transcript = self.transcript();
            let (first, last) = (&transcript.first, &transcript.last);
            let last_begins = transcript.added.saturating_sub(last.len() as u64);
            let skip = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
            let is_cut = position < last_begins && (first.len() as u64) < last_begins;
            (
                first.iter().skip(skip(position)).cloned().collect::<Vec<_>>(),
                is_cut,
                last.iter()
                    .skip(skip(position.saturating_sub(last_begins)))
                    .cloned()
                    .collect::<Vec<_>>(),
                transcript.added,
            )
        };
        // The lock is free again, since the ranks' output waits for it.
        let mut part = OutputPart { is_cut, next: added.max(position), ..OutputPart::default() };
        join_chunks(&mut part.first, first.into_iter());
        join_chunks(&mut part.last, last.into_iter());
        part
    }

    /// Takes all output, for the record of the job.
    pub(crate) fn take(&self) -> RecordedOutput {
        mem::take(&mut *self.transcript()).into_output()
    }

    fn transcript(&self) -> MutexGuard<'_, Transcript> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Joins successive chunks of the same stream into one chunk.
fn join_chunks(joined: &mut Vec<RecordedChunk>, chunks: impl Iterator<Item = (StreamId, Vec<u8>)>) {
    let mut run: Option<(StreamId, Vec<u8>)> = None;
    for (source, data) in chunks.filter(|(_, data)| !data.is_empty()) {
        match &mut run {
            Some((known, text)) if *known == source => text.extend_from_slice(&data),
            _ => joined.extend(run.replace((source, data)).map(chunk)),
        }
    }
    joined.extend(run.map(chunk));
}

fn chunk(((rank, stream), text): (StreamId, Vec<u8>)) -> RecordedChunk {
    let text = String::from_utf8(text)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned());
    RecordedChunk { rank: rank.0, stream: stream_name(stream).to_owned(), text }
}

impl RecordedOutput {
    /// Returns every recorded line with its rank, in the order in which lines were finished.
    pub fn lines(&self) -> Vec<(u32, String)> {
        let mut lines = LineJoiner::default();
        self.first.iter().for_each(|chunk| lines.add(chunk));
        if self.left_out_bytes > 0 {
            lines.finish();
        }
        self.last.iter().for_each(|chunk| lines.add(chunk));
        lines.finish();
        lines.whole
    }
}

/// Lines of a transcript, joined from several chunks if necessary.
#[derive(Default)]
struct LineJoiner<'a> {
    whole: Vec<(u32, String)>,
    unfinished: Vec<((u32, &'a str), String)>,
}

impl<'a> LineJoiner<'a> {
    fn add(&mut self, RecordedChunk { rank, stream, text }: &'a RecordedChunk) {
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

    /// Adds unfinished lines to `whole` as they are.
    fn finish(&mut self) {
        let unfinished = self.unfinished.drain(..);
        self.whole.extend(unfinished.map(|((rank, _), line)| (rank, line)));
    }
}

/// Minimum number of bytes that are kept from the end of each rank's output; at most twice as many are kept.
const KEPT: usize = 4 << 10;
/// Maximum number of lines that are quoted.
const LINES: usize = 10;

/// Last bytes that each rank wrote to stderr or, if ranks write only one stream, to that stream.
#[derive(Debug, Default)]
pub struct Tails {
    tails: HashMap<Rank, Tail>,
    /// Number of lines of all ranks so far.
    printed: u64,
}

#[derive(Debug, Default)]
struct Tail {
    bytes: Vec<u8>,
    /// [`Tails::printed`] after the last of `bytes`.
    end: u64,
    /// Whether lines of the rank were shown as one with those of others.
    is_folded: bool,
}

/// [`Tails`] that the writing thread leaves to a successor. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedTails(Arc<Mutex<Tails>>);

impl SharedTails {
    /// Locks the tails. The lock must not be held during a write.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Tails> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes all tails, for the report of the job.
    pub(crate) fn take(&self) -> Tails {
        mem::take(&mut *self.lock())
    }
}

impl Tails {
    /// Counts the lines in output of any rank and stream, which move those before it out of sight.
    pub(crate) fn count(&mut self, data: &[u8]) {
        self.printed += count_lines(data) as u64;
    }

    /// Adds output of a rank that was counted.
    pub fn add(&mut self, rank: Rank, data: &[u8]) {
        let tail = self.tails.entry(rank).or_default();
        tail.end = self.printed;
        tail.bytes.extend_from_slice(&data[data.len().saturating_sub(KEPT)..]);
        if tail.bytes.len() > 2 * KEPT {
            tail.bytes.drain(..tail.bytes.len() - KEPT);
        }
    }

    /// Notes that lines of `ranks` were shown as one.
    pub(crate) fn folded(&mut self, ranks: &[Rank]) {
        for rank in ranks {
            self.tails.entry(*rank).or_default().is_folded = true;
        }
    }

    /// Tells whether the last lines of a rank, as they were shown, are not among the last `rows` lines.
    pub(crate) fn is_out_of_sight(&self, rank: Rank, rows: u16) -> bool {
        let is_far = |tail: &Tail| tail.is_folded || self.printed - tail.end > u64::from(rows);
        self.tails.get(&rank).is_some_and(is_far)
    }

    /// Returns the last lines of a rank, oldest first, without blank lines and colours.
    pub fn lines(&self, rank: Rank) -> Vec<String> {
        let tail = self.tails.get(&rank).map(|tail| String::from_utf8_lossy(&tail.bytes));
        let tail = tail.unwrap_or_default();
        let lines: Vec<&str> = tail.lines().filter(|line| !line.trim().is_empty()).collect();
        let plain = |line: &&str| anstream::adapter::strip_str(line).to_string();
        lines[lines.len().saturating_sub(LINES)..].iter().map(plain).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlaunch_bootstrap::protocol::control::Stream;

    fn out(rank: u32) -> StreamId {
        (Rank(rank), Stream::Stdout)
    }

    #[test]
    fn little_is_kept_whole() {
        let mut transcript = Transcript::default();
        transcript.add(out(0), b"a\nb\n".to_vec());
        transcript.add(out(0), b"c\n".to_vec());
        transcript.add(out(1), b"".to_vec());
        transcript.add(out(1), b"d\n".to_vec());
        transcript.add((Rank(0), Stream::Stderr), b"half".to_vec());
        let output = transcript.into_output();
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
        let mut transcript = Transcript::default();
        let mut written = 0;
        for n in 0..100_000_u32 {
            let line = format!("line {n} of some length\n").into_bytes();
            written += line.len() as u64;
            transcript.add(out(n % 3), line);
        }
        let output = transcript.into_output();
        let bytes = |chunks: &[RecordedChunk]| chunks.iter().map(|p| p.text.len()).sum::<usize>();
        let (first, last) = (bytes(&output.first), bytes(&output.last));
        assert!(first <= PART && last <= PART, "{first} {last}");
        assert_eq!(first as u64 + last as u64 + output.left_out_bytes, written);
        assert_eq!(output.first[0].text, "line 0 of some length\n");
        let end = output.last.last().map(|piece| (piece.rank, piece.text.as_str()));
        assert_eq!(end, Some((0, "line 99999 of some length\n")));
        assert!(output.lines().iter().all(|(_, line)| line.ends_with("length")));
    }

    #[test]
    fn a_reader_gets_what_is_new_and_is_told_what_it_missed() {
        let shared = SharedTranscript::default();
        let texts = |part: &OutputPart| {
            let chunks = part.first.iter().chain(&part.last);
            chunks.map(|chunk| chunk.text.clone()).collect::<String>()
        };
        shared.add(out(0), b"a\n".to_vec());
        shared.add(out(1), b"b\n".to_vec());
        let begin = shared.since(0);
        assert_eq!((texts(&begin).as_str(), begin.is_cut, begin.next), ("a\nb\n", false, 2));
        assert_eq!(texts(&shared.since(1)), "b\n");
        let mut position = begin.next;
        for n in 0..10_000_u32 {
            shared.add(out(n % 3), format!("line {n} of a length that fills it\n").into_bytes());
            if n % 1000 == 0 {
                let part = shared.since(position);
                assert!(
                    !part.is_cut
                        && texts(&part).ends_with(&format!("line {n} of a length that fills it\n"))
                );
                position = part.next;
            }
        }
        let whole = shared.since(0);
        assert!(whole.is_cut && texts(&whole).starts_with("a\nb\nline 0 "), "{}", whole.next);
        let rest = shared.since(whole.next);
        assert_eq!((texts(&rest).as_str(), rest.is_cut, rest.next), ("", false, 10_002));
        // The end of the job takes it all.
        assert!(shared.take().left_out_bytes > 0);
        assert_eq!(texts(&shared.since(0)), "");
    }

    #[test]
    fn a_line_that_lost_its_beginning_is_left_out() {
        let mut transcript = Transcript::default();
        transcript.add(out(0), vec![b'x'; PART - OVERHEAD]);
        for _ in 0..20 {
            transcript.add(out(0), vec![b'y'; 64 << 10]);
        }
        transcript.add(out(0), b"yy\nwhole\n".to_vec());
        let output = transcript.into_output();
        assert_eq!(output.last.len(), 1, "{:?}", output.last.len());
        assert_eq!(output.last[0].text, "whole\n");
    }

    #[test]
    fn lines_that_came_in_parts_are_put_together() {
        let mut transcript = Transcript::default();
        transcript.add(out(0), b"10%".to_vec());
        transcript.add(out(1), b"other\n".to_vec());
        transcript.add(out(0), b" 20%\n".to_vec());
        let lines = transcript.into_output().lines();
        assert_eq!(lines, [(1, "other".to_owned()), (0, "10% 20%".to_owned())]);
    }

    #[test]
    fn keeps_the_end() {
        let mut tails = Tails::default();
        for n in 0..100_000 {
            tails.add(Rank(1), format!("line {n}\n").as_bytes());
        }
        assert!(tails.tails[&Rank(1)].bytes.len() <= 2 * KEPT);
        let lines = tails.lines(Rank(1));
        assert_eq!(lines.len(), LINES);
        assert_eq!(lines[LINES - 1], "line 99999");
        assert!(tails.lines(Rank(0)).is_empty());
    }

    #[test]
    fn lines_are_out_of_sight_behind_a_screen_of_others_or_where_they_were_folded() {
        let mut tails = Tails::default();
        let mut print = |rank: u32, lines: usize| {
            let data = "line\n".repeat(lines);
            tails.count(data.as_bytes());
            tails.add(Rank(rank), data.as_bytes());
            [0, 1, 2].map(|rank| tails.is_out_of_sight(Rank(rank), 24))
        };
        assert_eq!(print(0, 100), [false; 3]);
        assert_eq!(print(1, 24), [false; 3]);
        assert_eq!(print(1, 1), [true, false, false]);
        tails.folded(&[Rank(1)]);
        assert!(tails.is_out_of_sight(Rank(1), 24));
    }
}
