//! The tags in front of lines.

use super::Source;
use crate::job::tag_pattern::{Pattern, Who};
use crate::plan::map::RankMap;
use anstyle::{AnsiColor, Style};
use chrono::{DateTime, SecondsFormat};
use rlaunch_bootstrap::id::{LocalRank, Rank};
use std::collections::HashSet;

/// Ranks take them in turn on a terminal.
const COLOURS: [AnsiColor; 6] = [
    AnsiColor::Cyan,
    AnsiColor::Green,
    AnsiColor::Yellow,
    AnsiColor::Magenta,
    AnsiColor::Blue,
    AnsiColor::Red,
];

/// Puts a tag in front of every line.
pub(crate) struct Tags {
    pattern: Pattern,
    by_rank: Vec<Named>,
    /// Streams that are in the middle of a line.
    unfinished: HashSet<Source>,
}

/// A rank, and the tag that all its lines have unless it says when they were written.
struct Named {
    who: Who,
    tag: String,
    colour: Style,
}

impl Named {
    fn paint(&self, tag: &str, coloured: bool) -> String {
        match coloured {
            true => format!("{}{tag}{}", self.colour.render(), self.colour.render_reset()),
            false => tag.to_owned(),
        }
    }
}

impl Tags {
    pub(crate) fn new(pattern: Pattern, map: &RankMap) -> Tags {
        let ranks = map.nodes.iter().flat_map(|node| {
            let locals = (0u32..).map(LocalRank).zip(&node.ranks);
            locals.map(|(local, rank)| Who {
                rank: rank.0,
                host: node.host.name.clone(),
                local_rank: local.0,
                pid: None,
            })
        });
        let mut ranks: Vec<Who> = ranks.collect();
        ranks.sort_unstable_by_key(|who| who.rank);
        Tags::of(pattern, ranks)
    }

    fn of(pattern: Pattern, ranks: Vec<Who>) -> Tags {
        let colours = COLOURS.iter().cycle();
        let named = |(who, colour): (Who, &AnsiColor)| Named {
            tag: pattern.fill_in(&who, ""),
            who,
            colour: colour.on_default(),
        };
        let by_rank = ranks.into_iter().zip(colours).map(named).collect();
        Tags { pattern, by_rank, unfinished: HashSet::new() }
    }

    /// The process id of a rank, before any output of it.
    pub(crate) fn started(&mut self, rank: Rank, pid: u32) {
        if let Some(named) = self.by_rank.get_mut(rank.index()) {
            named.who.pid = Some(pid);
            named.tag = self.pattern.fill_in(&named.who, "");
        }
    }

    /// Appends `data` to `line`, with a tag wherever a line of the source begins.
    pub(crate) fn apply(
        &mut self,
        (source, stamp): (Source, Option<u64>),
        coloured: bool,
        data: &[u8],
        line: &mut Vec<u8>,
    ) {
        if data.is_empty() {
            return;
        }
        let tag = self.by_rank.get(source.0.index()).map(|named| match self.pattern.has_time() {
            true => named.paint(&self.pattern.fill_in(&named.who, &time(stamp)), coloured),
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

    /// The line of this source has been broken off: what follows begins another.
    pub(crate) fn broken_off(&mut self, source: Source) {
        self.unfinished.remove(&source);
    }
}

/// `2026-01-31T12:00:00.123456Z`, as the log has it; nothing without a stamp, in microseconds since
/// 1970.
fn time(stamp: Option<u64>) -> String {
    let stamp = stamp.and_then(|stamp| DateTime::from_timestamp_micros(i64::try_from(stamp).ok()?));
    stamp.map(|time| time.to_rfc3339_opts(SecondsFormat::Micros, true)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rlaunch_bootstrap::protocol::control::Stream;

    const OUT: Source = (Rank(0), Stream::Stdout);

    fn tags(pattern: &str) -> Tags {
        let who = |rank, host: &str| Who { rank, host: host.into(), local_rank: 0, pid: None };
        Tags::of(pattern.parse().unwrap(), vec![who(0, "a"), who(1, "b")])
    }

    fn apply(tags: &mut Tags, source: Source, data: &str) -> String {
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
        tags.broken_off(err);
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
