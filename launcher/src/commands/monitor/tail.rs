//! The last lines of a job's output.

use anstream::adapter::strip_str;
use rlaunch_engine::run::output::{OutputPart, RecordedChunk};
use rlaunch_text::printable;
use std::collections::{BTreeMap, VecDeque};

/// Number of lines that are kept.
const MAX_LINES: usize = 2000;
/// Length, in bytes, from which on an unfinished line is shown as a finished one.
const MAX_LINE: usize = 4 << 10;

/// Last lines of the output of all ranks.
#[derive(Debug, Default)]
pub(super) struct Tail {
    /// Position of the output that is added next.
    pub(super) position: u64,
    /// Finished lines with their ranks, oldest first.
    lines: VecDeque<(u32, String)>,
    /// Line that each rank has not finished on a stream, such as a progress bar.
    unfinished: BTreeMap<(u32, String), String>,
}

impl Tail {
    /// Adds output. Returns the number of lines that it has finished.
    pub(super) fn add(&mut self, part: &OutputPart) -> usize {
        self.position = part.next;
        let chunks = part.first.iter().chain(&part.last);
        let finished = chunks.map(|chunk| self.add_chunk(chunk)).sum();
        let excess = self.lines.len().saturating_sub(MAX_LINES);
        self.lines.drain(..excess);
        finished
    }

    fn add_chunk(&mut self, chunk: &RecordedChunk) -> usize {
        let mut finished = 0;
        let source = (chunk.rank, chunk.stream.clone());
        for piece in chunk.text.split_inclusive('\n') {
            let mut line = self.unfinished.remove(&source).unwrap_or_default();
            line.push_str(piece);
            if line.ends_with('\n') || line.len() > MAX_LINE {
                self.lines.push_back((chunk.rank, last_version(&line).to_owned()));
                finished += 1;
            } else {
                self.unfinished.insert(source.clone(), last_version(&line).to_owned());
            }
        }
        finished
    }

    /// Returns the number of lines.
    pub(super) fn len(&self) -> usize {
        self.lines.len() + self.unfinished.len()
    }

    /// Returns up to `count` lines with their ranks, in front of the last `back` ones. Lines that are not finished come last,
    /// at the place of a cursor.
    pub(super) fn lines(&self, count: usize, back: usize) -> Vec<(u32, String)> {
        let finished = self.lines.iter().map(|(rank, line)| (*rank, line));
        let unfinished = self.unfinished.iter().map(|((rank, _), line)| (*rank, line));
        let end = self.len().saturating_sub(back);
        let shown = finished.chain(unfinished).skip(end.saturating_sub(count)).take(end.min(count));
        shown.map(|(rank, line)| (rank, clean(line))).collect()
    }
}

/// Returns what a terminal would show of a line that was written over and over, as progress bars are.
fn last_version(line: &str) -> &str {
    let end = line.trim_end_matches(['\r', '\n']).len();
    let start = line[..end].rfind('\r').map_or(0, |at| at + 1);
    // An unfinished line keeps the carriage return: what comes next is written over it.
    line[start..].trim_end_matches('\n')
}

/// Returns a line without colours and without anything else that a terminal would act upon.
fn clean(line: &str) -> String {
    let plain = strip_str(line.trim_end_matches('\r')).to_string();
    printable::text(&plain).replace('\t', "    ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(chunks: &[(u32, &str)], next: u64) -> OutputPart {
        let chunk = |(rank, text): &(u32, &str)| RecordedChunk {
            rank: *rank,
            stream: "stdout".into(),
            text: (*text).into(),
        };
        let first = chunks.iter().map(chunk).collect();
        OutputPart { first, next, ..OutputPart::default() }
    }

    fn shown(tail: &Tail, count: usize, back: usize) -> String {
        let lines = tail.lines(count, back);
        lines.iter().map(|(rank, line)| format!("{rank}:{line}")).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_last_lines_are_shown() {
        let mut tail = Tail::default();
        assert_eq!(tail.add(&part(&[(0, "a\nb\n"), (1, "c\n")], 2)), 3);
        assert_eq!((shown(&tail, 2, 0), tail.position), ("0:b 1:c".into(), 2));
        assert_eq!(shown(&tail, 2, 1), "0:a 0:b");
        assert_eq!((shown(&tail, 9, 0), shown(&tail, 9, 7)), ("0:a 0:b 1:c".into(), "".into()));
        let many = "x\n".repeat(MAX_LINES + 5);
        tail.add(&part(&[(2, many.as_str())], 3));
        assert_eq!(tail.len(), MAX_LINES);
    }

    #[test]
    fn a_progress_bar_is_one_line() {
        let mut tail = Tail::default();
        assert_eq!(tail.add(&part(&[(0, "\r10 %"), (1, "x\n"), (0, "\r20 %")], 3)), 1);
        assert_eq!(shown(&tail, 9, 0), "1:x 0:20 %");
        tail.add(&part(&[(0, "\r30 %\r")], 4));
        assert_eq!(shown(&tail, 9, 0), "1:x 0:30 %");
        assert_eq!(tail.add(&part(&[(0, "done\r\n")], 5)), 1);
        assert_eq!(shown(&tail, 9, 0), "1:x 0:done");
        // What never ends is shown in pieces.
        let endless = "y".repeat(MAX_LINE + 1);
        tail.add(&part(&[(0, endless.as_str())], 6));
        assert!(tail.unfinished.is_empty());
    }

    #[test]
    fn a_line_cannot_act_on_the_terminal() {
        let mut tail = Tail::default();
        tail.add(&part(&[(0, "\u{1b}[31mred\u{1b}[0m\t\u{202e}x\u{7}\n")], 1));
        let line = shown(&tail, 1, 0);
        assert!(line.starts_with("0:red    ") && line.contains("\\u202e"), "{line}");
        assert!(!line.contains(['\u{1b}', '\u{7}', '\t', '\u{202e}']), "{line}");
    }
}
