//! `--tag-output`: tags in front of lines.

use anstyle::{AnsiColor, Style};
use chrono::{DateTime, SecondsFormat};
use rlaunch_bootstrap::id::{LocalRank, Rank};
use rlaunch_plan::job::tag_pattern::{LineOrigin, TagPattern};
use rlaunch_plan::map::RankMap;

/// Colours of tags on a terminal, assigned to ranks in turn.
const COLOURS: [AnsiColor; 6] = [
    AnsiColor::Cyan,
    AnsiColor::Green,
    AnsiColor::Yellow,
    AnsiColor::Magenta,
    AnsiColor::Blue,
    AnsiColor::Red,
];

/// Sequences by which programs erase a line that they write again.
const ERASURES: [&[u8]; 4] = [b"\x1b[K", b"\x1b[0K", b"\x1b[1K", b"\x1b[2K"];

/// Writer of a tag in front of every line, and of each version of a line that is written again, as progress bars are.
pub struct Tags {
    pattern: TagPattern,
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

struct RankTag {
    origin: LineOrigin,
    /// Tag of every line of this rank; unused if the pattern contains the time.
    tag: String,
    colour: Style,
}

impl RankTag {
    fn paint(&self, tag: &str, coloured: bool) -> String {
        if coloured {
            format!("{}{tag}{}", self.colour.render(), self.colour.render_reset())
        } else {
            tag.to_owned()
        }
    }
}

impl Tags {
    pub fn new(pattern: TagPattern, map: &RankMap) -> Tags {
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
        Tags::from_ranks(pattern, ranks)
    }

    pub(super) fn from_ranks(pattern: TagPattern, ranks: Vec<LineOrigin>) -> Tags {
        let colours = COLOURS.iter().cycle();
        let rank_tag = |(origin, colour): (LineOrigin, &AnsiColor)| RankTag {
            tag: pattern.format(&origin, ""),
            origin,
            colour: colour.on_default(),
        };
        let by_rank = ranks.into_iter().zip(colours).map(rank_tag).collect();
        Tags { pattern, by_rank }
    }

    /// Adds the process id of a rank to its tag.
    pub fn started(&mut self, rank: Rank, pid: u32) {
        if let Some(named) = self.by_rank.get_mut(rank.index()) {
            named.origin.pid = Some(pid);
            named.tag = self.pattern.format(&named.origin, "");
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
        let tag = self.by_rank.get(rank.index()).map(|named| {
            if self.pattern.has_time() {
                named.paint(&self.pattern.format(&named.origin, &time(stamp)), coloured)
            } else {
                named.paint(&named.tag, coloured)
            }
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
