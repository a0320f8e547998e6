//! Tags in front of lines: those of `--tag-output`, and short ones at a terminal, once a second rank prints.

use anstream::adapter::strip_str;
use anstyle::{AnsiColor, Style};
use chrono::{DateTime, SecondsFormat};
use rlaunch_bootstrap::id::{LocalRank, Rank};
use rlaunch_plan::job::tag_pattern::{LineOrigin, TagPattern};
use rlaunch_plan::map::RankMap;
use std::collections::HashSet;

/// Colours of tags on a terminal, assigned to ranks in turn.
const COLOURS: [AnsiColor; 6] = [
    AnsiColor::Cyan,
    AnsiColor::Green,
    AnsiColor::Yellow,
    AnsiColor::Magenta,
    AnsiColor::Blue,
    AnsiColor::Red,
];

/// Style of short tags.
const DIM: Style = Style::new().dimmed();

/// Sequences by which programs erase a line that they write again.
const ERASURES: [&[u8]; 4] = [b"\x1b[K", b"\x1b[0K", b"\x1b[1K", b"\x1b[2K"];

/// Writer of a tag in front of every line, and of each version of a line that is written again, as progress bars are.
pub struct Tags {
    /// Pattern of `--tag-output`; `None` for short tags.
    pattern: Option<TagPattern>,
    /// Whether lines have short tags, as once a second rank prints.
    is_needed: bool,
    by_rank: Vec<RankTag>,
}

/// Place at which output goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cursor {
    LineStart,
    MidLine,
    /// Behind a carriage return: what follows ends the line, or is written over it.
    Returned,
}

impl Cursor {
    /// Returns the place behind a piece of output, which is not empty.
    pub(crate) fn behind(piece: &[u8]) -> Cursor {
        match piece.last() {
            Some(b'\n') => Cursor::LineStart,
            Some(b'\r') => Cursor::Returned,
            _ => Cursor::MidLine,
        }
    }

    /// Returns the index in a piece, which has no line breaks but at its end, at which a tag is needed.
    fn tag_at(self, piece: &[u8]) -> Option<usize> {
        match self {
            Cursor::LineStart => Some(0),
            Cursor::Returned if !matches!(piece, b"\n" | b"\r") => Some(erasure(piece)),
            Cursor::Returned | Cursor::MidLine => None,
        }
    }
}

/// Returns the length of the sequences at the beginning of a piece that would erase a tag.
fn erasure(piece: &[u8]) -> usize {
    let mut rest = piece;
    while let Some(behind) = ERASURES.iter().find_map(|sequence| rest.strip_prefix(*sequence)) {
        rest = behind;
    }
    piece.len() - rest.len()
}

/// Returns the number of columns that a line takes.
fn width(line: &[u8]) -> usize {
    strip_str(&String::from_utf8_lossy(line)).to_string().chars().count()
}

struct RankTag {
    origin: LineOrigin,
    /// Tag of every line of this rank; unused if the pattern contains the time.
    tag: String,
    style: Style,
}

impl RankTag {
    fn paint(&self, tag: &str, coloured: bool) -> String {
        if coloured {
            format!("{}{tag}{}", self.style.render(), self.style.render_reset())
        } else {
            tag.to_owned()
        }
    }
}

impl Tags {
    /// Makes the tags of `--tag-output`.
    pub fn new(pattern: TagPattern, map: &RankMap) -> Tags {
        Tags::from_ranks(pattern, origins(map))
    }

    /// Makes short tags: the host, where each host has one rank, else rank and host.
    pub fn short(map: &RankMap) -> Tags {
        Tags::short_from_ranks(origins(map))
    }

    pub(super) fn from_ranks(pattern: TagPattern, ranks: Vec<LineOrigin>) -> Tags {
        let colours = COLOURS.iter().cycle();
        let rank_tag = |(origin, colour): (LineOrigin, &AnsiColor)| RankTag {
            tag: pattern.format(&origin, ""),
            origin,
            style: colour.on_default(),
        };
        let by_rank = ranks.into_iter().zip(colours).map(rank_tag).collect();
        Tags { pattern: Some(pattern), is_needed: true, by_rank }
    }

    pub(super) fn short_from_ranks(ranks: Vec<LineOrigin>) -> Tags {
        let hosts: HashSet<&str> = ranks.iter().map(|origin| origin.host.as_str()).collect();
        let is_host_enough = hosts.len() == ranks.len();
        let digits = ranks.len().saturating_sub(1).to_string().len();
        let name = |origin: &LineOrigin| {
            if is_host_enough {
                origin.host.clone()
            } else {
                format!("{:digits$} {}", origin.rank, origin.host)
            }
        };
        let names: Vec<String> = ranks.iter().map(name).collect();
        let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
        let rank_tag = |(origin, name): (LineOrigin, &String)| RankTag {
            origin,
            tag: format!("{name:width$} | "),
            style: DIM,
        };
        let by_rank = ranks.into_iter().zip(&names).map(rank_tag).collect();
        Tags { pattern: None, is_needed: false, by_rank }
    }

    /// Shows short tags from now on, since a second rank has printed.
    pub(super) fn need(&mut self) {
        self.is_needed = true;
    }

    /// Tells whether lines in a stream have tags. Short ones are for people.
    pub(super) fn are_shown(&self, is_terminal: bool) -> bool {
        self.pattern.is_some() || (self.is_needed && is_terminal)
    }

    /// Takes the short tag from a rank that moves the cursor.
    pub(super) fn leave_alone(&mut self, rank: Rank) {
        if self.pattern.is_none()
            && let Some(named) = self.by_rank.get_mut(rank.index())
        {
            named.tag.clear();
        }
    }

    /// Returns the tag of a line that several ranks have printed, which are named by `ranges`. It is as long as others
    /// at least.
    pub(super) fn of_several(&self, ranges: &str) -> String {
        match self.by_rank.first() {
            Some(first) if self.pattern.is_none() => {
                let width = first.tag.chars().count().saturating_sub(3);
                let ranges = format!("[{ranges}]");
                format!("{ranges:width$} | ")
            }
            _ => format!("[{ranges}] "),
        }
    }

    /// Tells whether several whole lines, as of a table, fit the terminal's `columns` without a short tag and not
    /// with one.
    pub(super) fn would_break(&self, lines: &[u8], columns: fn() -> Option<u16>) -> bool {
        let Some(first) = self.by_rank.first().filter(|_| self.pattern.is_none()) else {
            return false;
        };
        let lines = lines.strip_suffix(b"\n").unwrap_or_default();
        if memchr::memchr(b'\n', lines).is_none() {
            return false;
        }
        let Some(columns) = columns().map(usize::from) else { return false };
        let room = columns.saturating_sub(first.tag.chars().count());
        let mut long = lines.split(|&byte| byte == b'\n').filter(|line| line.len() > room);
        long.any(|line| (room + 1..=columns).contains(&width(line)))
    }

    /// Returns the line above lines without tags.
    pub(super) fn heading(&self, rank: Rank, coloured: bool) -> String {
        let named = self.by_rank.get(rank.index());
        let name = named.map(|named| named.tag.trim_end_matches([' ', '|'])).unwrap_or_default();
        named.map(|named| named.paint(&format!("{name}:"), coloured) + "\n").unwrap_or_default()
    }

    /// Returns the tag of a rank's unfinished line.
    pub(super) fn of_row(&self, rank: Rank, coloured: bool) -> String {
        let named = self.by_rank.get(rank.index());
        named.map(|named| named.paint(&named.tag, coloured)).unwrap_or_default()
    }

    /// Adds the process id of a rank to its tag.
    pub fn started(&mut self, rank: Rank, pid: u32) {
        if let Some(pattern) = &self.pattern
            && let Some(named) = self.by_rank.get_mut(rank.index())
        {
            named.origin.pid = Some(pid);
            named.tag = pattern.format(&named.origin, "");
        }
    }

    /// Appends output of a rank to `line`. It goes on at `cursor`, and has a tag wherever a line begins.
    pub(crate) fn apply(
        &self,
        (rank, stamp): (Rank, Option<u64>),
        coloured: bool,
        mut cursor: Cursor,
        data: &[u8],
        line: &mut Vec<u8>,
    ) {
        let tag = self.by_rank.get(rank.index()).map(|named| match &self.pattern {
            Some(pattern) if pattern.has_time() => {
                named.paint(&pattern.format(&named.origin, &time(stamp)), coloured)
            }
            _ if named.tag.is_empty() => String::new(),
            _ => named.paint(&named.tag, coloured),
        });
        let tag = tag.unwrap_or_default();
        let ends = memchr::memchr2_iter(b'\n', b'\r', data).map(|at| at + 1);
        let mut written = 0;
        for end in ends.chain([data.len()]) {
            let piece = &data[written..end];
            if piece.is_empty() {
                // The data ends with a line break.
                break;
            }
            if let Some(at) = cursor.tag_at(piece) {
                line.extend_from_slice(&piece[..at]);
                line.extend_from_slice(tag.as_bytes());
                line.extend_from_slice(&piece[at..]);
            } else {
                line.extend_from_slice(piece);
            }
            cursor = Cursor::behind(piece);
            written = end;
        }
    }
}

/// Returns who writes the lines of each rank, by rank.
fn origins(map: &RankMap) -> Vec<LineOrigin> {
    let ranks = map.nodes.iter().flat_map(|node| {
        let locals = (0u32..).map(LocalRank).zip(&node.ranks);
        locals.map(|(local, rank)| LineOrigin {
            rank: rank.0,
            host: node.host.name.clone(),
            local_rank: local.0,
            pid: None,
        })
    });
    let mut ranks: Vec<LineOrigin> = ranks.collect();
    ranks.sort_unstable_by_key(|origin| origin.rank);
    ranks
}

/// Formats a stamp in microseconds since 1970, as in `2026-01-31T12:00:00.123456Z`. Returns an empty text
/// without a stamp.
fn time(stamp: Option<u64>) -> String {
    let stamp = stamp.and_then(|stamp| DateTime::from_timestamp_micros(i64::try_from(stamp).ok()?));
    stamp.map(|time| time.to_rfc3339_opts(SecondsFormat::Micros, true)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tags(pattern: &str) -> Tags {
        let origin =
            |rank, host: &str| LineOrigin { rank, host: host.into(), local_rank: 0, pid: None };
        Tags::from_ranks(pattern.parse().unwrap(), vec![origin(0, "a"), origin(1, "b")])
    }

    fn apply(tags: &Tags, rank: u32, cursor: Cursor, data: &str) -> String {
        let mut line = Vec::new();
        tags.apply((Rank(rank), None), false, cursor, data.as_bytes(), &mut line);
        String::from_utf8(line).unwrap()
    }

    #[test]
    fn every_line_is_tagged_once() {
        let tags = tags("[%r,%h] ");
        let tagged = |cursor, data| apply(&tags, 0, cursor, data);
        let start = Cursor::LineStart;
        assert_eq!(tagged(start, "one\ntwo\nthr"), "[0,a] one\n[0,a] two\n[0,a] thr");
        assert_eq!(tagged(Cursor::MidLine, "ee\n"), "ee\n");
        assert_eq!(tagged(start, "\n"), "[0,a] \n");
        assert_eq!(tagged(start, ""), "");
        assert_eq!(apply(&tags, 1, start, "x"), "[1,b] x");
    }

    #[test]
    fn a_line_that_is_written_again_is_tagged_again() {
        let tags = tags("%r:");
        let tagged = |cursor, data| apply(&tags, 0, cursor, data);
        assert_eq!(tagged(Cursor::LineStart, "5%\r6%\r"), "0:5%\r0:6%\r");
        assert_eq!(tagged(Cursor::Returned, "7%\n8"), "0:7%\n0:8");
        assert_eq!(tagged(Cursor::LineStart, "x\r\ny\r\n"), "0:x\r\n0:y\r\n");
        assert_eq!(tagged(Cursor::Returned, "\n"), "\n");
        // An erased line has its tag behind what erases it.
        assert_eq!(tagged(Cursor::MidLine, "\r\x1b[2K\x1b[K9%"), "\r\x1b[2K\x1b[K0:9%");
    }

    #[test]
    fn a_tag_says_when_and_by_which_process() {
        let mut tags = tags("%t %p: ");
        assert_eq!(apply(&tags, 0, Cursor::LineStart, "x\n"), "- -: x\n");
        tags.started(Rank(0), 77);
        let mut line = Vec::new();
        let stamp = (Rank(0), Some(1_700_000_000_000_042));
        tags.apply(stamp, false, Cursor::LineStart, b"x\ny\n", &mut line);
        let at = "2023-11-14T22:13:20.000042Z 77: ";
        assert_eq!(String::from_utf8(line).unwrap(), format!("{at}x\n{at}y\n"));
    }

    #[test]
    fn a_short_tag_is_the_host_where_that_is_enough() {
        let origin =
            |rank, host: &str| LineOrigin { rank, host: host.into(), local_rank: 0, pid: None };
        let mut tags = Tags::short_from_ranks(vec![origin(0, "a"), origin(1, "node2")]);
        assert!(!tags.are_shown(true));
        tags.need();
        assert!(tags.are_shown(true) && !tags.are_shown(false));
        assert_eq!(apply(&tags, 0, Cursor::LineStart, "x\ry\n"), "a     | x\ra     | y\n");
        assert_eq!(
            (&*tags.of_several("0-1"), &*tags.of_row(Rank(1), false)),
            ("[0-1] | ", "node2 | ")
        );
        let host = |rank: u32| origin(rank, ["a", "b"][rank as usize % 2]);
        let mut tags = Tags::short_from_ranks((0..11).map(host).collect());
        assert_eq!(apply(&tags, 3, Cursor::LineStart, "x\n"), " 3 b | x\n");
        // No process id is added to it.
        tags.started(Rank(10), 77);
        assert_eq!(apply(&tags, 10, Cursor::LineStart, "x\n"), "10 a | x\n");
        tags.leave_alone(Rank(10));
        assert_eq!(apply(&tags, 10, Cursor::LineStart, "x\n"), "x\n");
    }

    #[test]
    fn colours_are_of_the_tag_alone() {
        let tags = tags("%r ");
        let mut line = Vec::new();
        tags.apply((Rank(0), None), true, Cursor::LineStart, b"x\n", &mut line);
        assert_eq!(String::from_utf8(line).unwrap(), "\u{1b}[36m0 \u{1b}[0mx\n");
    }

    proptest! {
        #[test]
        fn however_it_is_cut_every_line_has_one_tag(text in "[ab\r\n]{0,60}", cut in 1usize..9) {
            let tags = tags("<%r>");
            let (mut tagged, mut cursor) = (String::new(), Cursor::LineStart);
            for part in text.as_bytes().chunks(cut) {
                tagged += &apply(&tags, 0, cursor, std::str::from_utf8(part).unwrap());
                cursor = Cursor::behind(part);
            }
            let (mut whole, mut before) = (String::new(), '\n');
            for c in text.chars() {
                if before == '\n' || (before == '\r' && c != '\r' && c != '\n') {
                    whole += "<0>";
                }
                whole.push(c);
                before = c;
            }
            prop_assert_eq!(tagged, whole);
        }
    }
}
