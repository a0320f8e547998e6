//! `--tag-output`: tags in front of lines.

use super::StreamId;
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

/// Writer of a tag in front of every line.
pub struct Tags {
    pattern: TagPattern,
    by_rank: Vec<RankTag>,
    /// Streams that are in the middle of a line.
    unfinished: HashSet<StreamId>,
}

struct RankTag {
    origin: LineOrigin,
    /// Tag of every line of this rank; unused if the pattern contains the time.
    tag: String,
    colour: Style,
}

impl RankTag {
    fn paint(&self, tag: &str, coloured: bool) -> String {
        match coloured {
            true => format!("{}{tag}{}", self.colour.render(), self.colour.render_reset()),
            false => tag.to_owned(),
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

    fn from_ranks(pattern: TagPattern, ranks: Vec<LineOrigin>) -> Tags {
        let colours = COLOURS.iter().cycle();
        let rank_tag = |(origin, colour): (LineOrigin, &AnsiColor)| RankTag {
            tag: pattern.format(&origin, ""),
            origin,
            colour: colour.on_default(),
        };
        let by_rank = ranks.into_iter().zip(colours).map(rank_tag).collect();
        Tags { pattern, by_rank, unfinished: HashSet::new() }
    }

    /// Adds the process id of a rank to its tag.
    pub fn started(&mut self, rank: Rank, pid: u32) {
        if let Some(named) = self.by_rank.get_mut(rank.index()) {
            named.origin.pid = Some(pid);
            named.tag = self.pattern.format(&named.origin, "");
        }
    }

    /// Appends `data` to `line`, with a tag wherever a line of the rank's stream begins.
    pub fn apply(
        &mut self,
        (source, stamp): (StreamId, Option<u64>),
        coloured: bool,
        data: &[u8],
        line: &mut Vec<u8>,
    ) {
        if data.is_empty() {
            return;
        }
        let tag = self.by_rank.get(source.0.index()).map(|named| match self.pattern.has_time() {
            true => named.paint(&self.pattern.format(&named.origin, &time(stamp)), coloured),
            false => named.paint(&named.tag, coloured),
        });
        let tag = tag.unwrap_or_default();
        if !self.unfinished.contains(&source) {
            line.extend_from_slice(tag.as_bytes());
        }
        let mut written = 0;
        for end in memchr::memchr_iter(b'\n', data).map(|at| at + 1) {
            line.extend_from_slice(&data[written..end]);
            if end < data.len() {
                line.extend_from_slice(tag.as_bytes());
            }
            written = end;
        }
        line.extend_from_slice(&data[written..]);
        if written < data.len() {
            self.unfinished.insert(source);
        } else {
            self.unfinished.remove(&source);
        }
    }

    /// Records that the unfinished line of a stream was ended by a newline that the stream did not write.
    pub(crate) fn newline_inserted(&mut self, source: StreamId) {
        self.unfinished.remove(&source);
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
    use rlaunch_bootstrap::protocol::control::Stream;

    const OUT: StreamId = (Rank(0), Stream::Stdout);

    fn tags(pattern: &str) -> Tags {
        let origin =
            |rank, host: &str| LineOrigin { rank, host: host.into(), local_rank: 0, pid: None };
        Tags::from_ranks(pattern.parse().unwrap(), vec![origin(0, "a"), origin(1, "b")])
    }

    fn apply(tags: &mut Tags, source: StreamId, data: &str) -> String {
        let mut line = Vec::new();
        tags.apply((source, None), false, data.as_bytes(), &mut line);
        String::from_utf8(line).unwrap()
    }

    #[test]
    fn every_line_is_tagged_once() {
        let mut tags = tags("[%r,%h] ");
        assert_eq!(apply(&mut tags, OUT, "one\ntwo\nthr"), "[0,a] one\n[0,a] two\n[0,a] thr");
        let err = (Rank(0), Stream::Stderr);
        assert_eq!(apply(&mut tags, err, "other"), "[0,a] other");
        assert_eq!(apply(&mut tags, OUT, "ee\n"), "ee\n");
        assert_eq!(apply(&mut tags, OUT, "\n"), "[0,a] \n");
        assert_eq!(apply(&mut tags, OUT, ""), "");
        assert_eq!(apply(&mut tags, (Rank(1), Stream::Stdout), "x"), "[1,b] x");
        tags.newline_inserted(err);
        assert_eq!(apply(&mut tags, err, "rest\n"), "[0,a] rest\n");
    }

    #[test]
    fn a_tag_says_when_and_by_which_process() {
        let mut tags = tags("%t %p: ");
        assert_eq!(apply(&mut tags, OUT, "x\n"), "- -: x\n");
        tags.started(Rank(0), 77);
        let mut line = Vec::new();
        tags.apply((OUT, Some(1_700_000_000_000_042)), false, b"x\ny\n", &mut line);
        let at = "2023-11-14T22:13:20.000042Z 77: ";
        assert_eq!(String::from_utf8(line).unwrap(), format!("{at}x\n{at}y\n"));
    }

    #[test]
    fn colours_are_of_the_tag_alone() {
        let mut tags = tags("%r ");
        let mut line = Vec::new();
        tags.apply((OUT, None), true, b"x\n", &mut line);
        assert_eq!(String::from_utf8(line).unwrap(), "\u{1b}[36m0 \u{1b}[0mx\n");
    }

    proptest! {
        #[test]
        fn however_it_is_cut_every_line_has_one_tag(text in "[ab\n]{0,60}", cut in 1usize..9) {
            let mut tags = tags("<%r>");
            let parts = text.as_bytes().chunks(cut);
            let tagged: String =
                parts.map(|part| apply(&mut tags, OUT, std::str::from_utf8(part).unwrap())).collect();
            let whole: String = text.split_inclusive('\n').map(|line| format!("<0>{line}")).collect();
            prop_assert_eq!(tagged, whole);
        }
    }
}
