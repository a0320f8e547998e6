//! `--fold`: a line that several ranks print within a moment is shown once, with the ranks. A state machine without
//! I/O and without a clock.
//!
//! Lines are held for [`WINDOW`] at most. Lines that are equal form a *group*, and groups are shown in the order in
//! which they began. A line joins a group only if that group began after the group of its rank's previous line, so
//! lines of one rank are shown in the order in which it printed them, each in exactly one group.
//!
//! With `--fold=numbers`, lines that differ in numbers alone are equal too, and these numbers are shown as ranges: the
//! functions below [`Folder`] find, mask and merge the numbers of lines.

use super::{PerStream, StreamId};
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::protocol::control::Stream;
use rlaunch_plan::job::options::Folding;
use std::cmp::Reverse;
use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::time::{Duration, Instant};

/// Maximum time for which a line is held.
const WINDOW: Duration = Duration::from_millis(200);
/// Maximum cost of all groups. Beyond it the oldest group is shown early, so that memory stays bounded and a flood of
/// output is not slowed down.
const MAX_HELD: usize = 256 << 10;
/// Size from which on output that a rank has sent at once is a flood, which is not worth the time to look for equal lines.
const FLOOD: usize = 16 << 10;
/// Cost of a group, and of one of its ranks, in addition to the bytes of its lines.
const GROUP_COST: usize = 128;
const MEMBER_COST: usize = 32;
/// Number of ranks from which on their lines are folded if the user has not asked for folding.
const DEFAULT_RANKS: u32 = 5;

/// Output to show now.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ShownOutput {
    /// Output of one rank, as it is without folding.
    Plain { source: StreamId, stamp: Option<u64>, data: Vec<u8> },
    /// Whole line of several ranks.
    Folded { stream: Stream, ranks: Vec<Rank>, line: Vec<u8> },
}

/// Folder of the lines of all ranks.
pub(crate) struct Folder {
    /// Whether the lines of a stream are folded, as those that are shown on a terminal.
    streams: PerStream<bool>,
    /// Whether lines that differ in numbers alone form a group.
    has_ranges: bool,
    /// Number of ranks from which on a group is shown as one line.
    min_ranks: usize,
    groups: VecDeque<LineGroup>,
    /// Number of the oldest group. Groups are numbered from 1 on in the order in which they began.
    oldest: u64,
    by_hash: HashMap<u64, EqualGroups>,
    hasher: RandomState,
    /// Number of the group that each rank's last line has joined; 0 before its first line.
    latest: Vec<u64>,
    cost: usize,
    /// Streams that are in the middle of a line, of which a part was shown.
    unfinished: HashSet<StreamId>,
    shown: Vec<ShownOutput>,
}

/// Equal lines that are held.
struct LineGroup {
    stream: Stream,
    hash: u64,
    /// Line by which group and lines are compared; empty if that is the first line itself.
    pattern: Vec<u8>,
    /// First line, and those of later members if they may differ.
    lines: Vec<Vec<u8>>,
    members: Vec<(Rank, Option<u64>)>,
    began: Instant,
    /// Number of the next group of the same hash.
    next_equal: Option<u64>,
    cost: usize,
}

/// Numbers of the first and the last group of one hash.
struct EqualGroups {
    first: u64,
    last: u64,
}

impl LineGroup {
    fn is_like(&self, stream: Stream, pattern: &[u8]) -> bool {
        let own = if self.pattern.is_empty() { &self.lines[0] } else { &self.pattern };
        self.stream == stream && own == pattern
    }
}

impl Folder {
    /// Makes the folder for `ranks` ranks. Returns `None` if nothing is to be folded.
    pub(crate) fn new(
        wanted: Option<Folding>,
        ranks: u32,
        streams: PerStream<bool>,
    ) -> Option<Folder> {
        let min_ranks = match wanted {
            Some(Folding::None) => return None,
            Some(Folding::Lines | Folding::Numbers) => 2,
            None => DEFAULT_RANKS,
        };
        let folds = (streams.stdout || streams.stderr) && ranks >= min_ranks;
        folds.then(|| Folder {
            streams,
            has_ranges: wanted == Some(Folding::Numbers),
            min_ranks: min_ranks as usize,
            groups: VecDeque::new(),
            oldest: 1,
            by_hash: HashMap::new(),
            hasher: RandomState::new(),
            latest: vec![0; ranks as usize],
            cost: 0,
            unfinished: HashSet::new(),
            shown: Vec::new(),
        })
    }

    /// Takes output of a rank, in whole lines except for the first and the last.
    pub(crate) fn push(
        &mut self,
        now: Instant,
        (source, stamp): (StreamId, Option<u64>),
        data: &[u8],
    ) {
        if !self.streams.of(source.1) {
            return self.show_plain(source, stamp, data);
        }
        if data.len() >= FLOOD {
            return self.show_at_once(source, stamp, data);
        }
        for piece in data.split_inclusive(|&byte| byte == b'\n') {
            if piece.ends_with(b"\n") && !self.unfinished.contains(&source) {
                self.hold(now, (source, stamp), piece);
            } else {
                self.show_at_once(source, stamp, piece);
            }
        }
        while self.cost > MAX_HELD {
            self.show_oldest();
        }
    }

    /// Shows output at once, behind all that was printed before.
    fn show_at_once(&mut self, source: StreamId, stamp: Option<u64>, data: &[u8]) {
        self.show_all();
        self.show_plain(source, stamp, data);
        match data.last() {
            Some(b'\n') => drop(self.unfinished.remove(&source)),
            Some(_) => drop(self.unfinished.insert(source)),
            None => {}
        }
    }

    /// Takes what is to be shown at `now`.
    pub(crate) fn take(&mut self, now: Instant) -> Vec<ShownOutput> {
        while self.groups.front().is_some_and(|group| {
            group.members.len() == self.latest.len() || group.began + WINDOW <= now
        }) {
            self.show_oldest();
        }
        std::mem::take(&mut self.shown)
    }

    /// Returns the time until the next line is due; `None` if none is held.
    pub(crate) fn timeout(&self, now: Instant) -> Option<Duration> {
        let oldest = self.groups.front()?;
        Some((oldest.began + WINDOW).saturating_duration_since(now))
    }

    /// Makes everything due, because there will be no further output.
    pub(crate) fn show_all(&mut self) {
        while !self.groups.is_empty() {
            self.show_oldest();
        }
    }

    /// Holds a line: it joins a group, or begins one.
    fn hold(&mut self, now: Instant, (source, stamp): (StreamId, Option<u64>), line: &[u8]) {
        let (rank, stream) = source;
        let pattern = if self.has_ranges { mask(line) } else { Vec::new() };
        let compared = if pattern.is_empty() { line } else { &pattern };
        let hash = self.hasher.hash_one((stream == Stream::Stdout, compared));
        let own = self.first_equal(hash, self.latest[rank.index()]);
        let own = own.filter(|own| self.group(*own).is_like(stream, compared));
        let number = own.unwrap_or_else(|| {
            let group = LineGroup {
                stream,
                hash,
                pattern,
                lines: Vec::new(),
                members: Vec::new(),
                began: now,
                next_equal: None,
                cost: GROUP_COST,
            };
            self.begin(group)
        });
        self.latest[rank.index()] = number;
        let has_ranges = self.has_ranges;
        let group = self.group_mut(number);
        group.members.push((rank, stamp));
        let mut added = MEMBER_COST;
        if has_ranges || group.lines.is_empty() {
            group.lines.push(line.to_vec());
            added += line.len();
        }
        group.cost += added;
        self.cost += added;
    }

    /// Adds a group behind all others. Returns its number.
    fn begin(&mut self, group: LineGroup) -> u64 {
        let number = self.oldest + self.groups.len() as u64;
        match self.by_hash.get_mut(&group.hash) {
            None => {
                self.by_hash.insert(group.hash, EqualGroups { first: number, last: number });
            }
            Some(equal) => {
                let last = std::mem::replace(&mut equal.last, number);
                self.group_mut(last).next_equal = Some(number);
            }
        }
        self.cost += group.cost;
        self.groups.push_back(group);
        number
    }

    /// Returns the number of the oldest group with this hash that began after the group `after`.
    fn first_equal(&self, hash: u64, after: u64) -> Option<u64> {
        // Ranks that print the same line again and again are where the last one left them.
        let last = (after >= self.oldest).then(|| self.group(after));
        if let Some(last) = last.filter(|last| last.hash == hash) {
            return last.next_equal;
        }
        let mut number = self.by_hash.get(&hash)?.first;
        while number <= after {
            number = self.group(number).next_equal?;
        }
        Some(number)
    }

    fn position(&self, number: u64) -> usize {
        usize::try_from(number - self.oldest).unwrap_or(usize::MAX)
    }

    fn group(&self, number: u64) -> &LineGroup {
        &self.groups[self.position(number)]
    }

    fn group_mut(&mut self, number: u64) -> &mut LineGroup {
        let position = self.position(number);
        &mut self.groups[position]
    }

    fn show_oldest(&mut self) {
        let Some(group) = self.groups.pop_front() else { return };
        self.oldest += 1;
        self.cost -= group.cost;
        match group.next_equal {
            None => drop(self.by_hash.remove(&group.hash)),
            Some(next) => {
                self.by_hash.entry(group.hash).and_modify(|equal| equal.first = next);
            }
        }
        let LineGroup { stream, lines, mut members, .. } = group;
        if members.len() >= self.min_ranks {
            members.sort_unstable_by_key(|(rank, _)| *rank);
            let ranks = members.into_iter().map(|(rank, _)| rank).collect();
            self.shown.push(ShownOutput::Folded { stream, ranks, line: merge(lines) });
            return;
        }
        for (at, (rank, stamp)) in members.into_iter().enumerate() {
            let line = lines.get(at).unwrap_or(&lines[0]);
            self.show_plain((rank, stream), stamp, line);
        }
    }

    /// Shows output of one rank, together with what precedes it if that is the rank's too.
    fn show_plain(&mut self, source: StreamId, stamp: Option<u64>, data: &[u8]) {
        if let Some(ShownOutput::Plain { source: before, stamp: then, data: whole }) =
            self.shown.last_mut()
            && (*before, *then) == (source, stamp)
        {
            whole.extend_from_slice(data);
        } else if !data.is_empty() {
            self.shown.push(ShownOutput::Plain { source, stamp, data: data.to_vec() });
        }
    }
}

/// Byte that stands for a number in a mask. A digit, since a mask has none that belongs to the line's other bytes.
const PLACE: u8 = b'0';

/// Returns a line with a placeholder for each of its numbers.
fn mask(line: &[u8]) -> Vec<u8> {
    let mut masked = Vec::with_capacity(line.len());
    let mut end = 0;
    for number in numbers(line) {
        masked.extend_from_slice(&line[end..number.start]);
        masked.push(PLACE);
        end = number.end;
    }
    masked.extend_from_slice(&line[end..]);
    masked
}

/// Merges lines of one mask: numbers that differ become `MIN..MAX`.
fn merge(mut lines: Vec<Vec<u8>>) -> Vec<u8> {
    if lines.len() < 2 {
        return lines.pop().unwrap_or_default();
    }
    let mut cursors: Vec<_> = lines.iter().map(|line| (line, numbers(line))).collect();
    let (mut merged, mut end) = (Vec::new(), 0);
    for number in numbers(&lines[0]) {
        merged.extend_from_slice(&lines[0][end..number.start]);
        let texts = cursors.iter_mut().filter_map(|(line, at)| line.get(at.next()?));
        merged.extend_from_slice(&span(texts));
        end = number.end;
    }
    merged.extend_from_slice(&lines[0][end..]);
    merged
}

/// Returns the range of the numbers with these texts.
fn span<'a>(texts: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let texts: Vec<(Value, &[u8])> = texts.map(|text| (value(text), text)).collect();
    let low = texts.iter().min_by(|(one, _), (other, _)| one.cmp(other));
    let high = texts.iter().max_by(|(one, _), (other, _)| one.cmp(other));
    match (low, high) {
        (Some((low, first)), Some((high, last))) if low < high => {
            [first, &b".."[..], last].concat()
        }
        (Some((_, first)), _) => first.to_vec(),
        _ => Vec::new(),
    }
}

/// Value of a number, exact however many digits it has: a step counter may be above 2^53.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Value {
    Negative(Reverse<Magnitude>),
    Zero,
    Positive(Magnitude),
}

/// Power of ten of a number's first digit, and its digits, from the first to the last that is not zero.
type Magnitude = (i64, Vec<u8>);

/// Returns the value of a number that [`numbers`] has found.
fn value(text: &[u8]) -> Value {
    let number = text.strip_prefix(b"-").unwrap_or(text);
    let end = number.iter().position(|byte| matches!(byte, b'e' | b'E'));
    let mantissa = &number[..end.unwrap_or(number.len())];
    let exponent = end.map_or(0, |end| exponent(&number[end + 1..]));
    let whole = mantissa.iter().position(|&byte| byte == b'.').unwrap_or(mantissa.len());
    let digits: Vec<u8> = mantissa.iter().copied().filter(u8::is_ascii_digit).collect();
    let is_counted = |digit: &u8| *digit != b'0';
    let (Some(first), Some(last)) =
        (digits.iter().position(is_counted), digits.iter().rposition(is_counted))
    else {
        return Value::Zero;
    };
    let magnitude = (exponent + whole as i64 - first as i64, digits[first..=last].to_vec());
    if number.len() == text.len() {
        Value::Positive(magnitude)
    } else {
        Value::Negative(Reverse(magnitude))
    }
}

/// Returns an exponent; one beyond all that programs print as a very large one.
fn exponent(text: &[u8]) -> i64 {
    let beyond: i64 = if text.starts_with(b"-") { -(1 << 40) } else { 1 << 40 };
    let parsed = std::str::from_utf8(text).ok().and_then(|text| text.parse::<i32>().ok());
    parsed.map_or(beyond, i64::from)
}

/// Finds the numbers in a line, such as `7`, `-0.17` or `1e-05`.
fn numbers(line: &[u8]) -> impl Iterator<Item = Range<usize>> + '_ {
    let mut at = 0;
    std::iter::from_fn(move || {
        at += line[at..].iter().position(u8::is_ascii_digit)?;
        let is_negative = line[..at].ends_with(b"-")
            && line[..at - 1].last().is_none_or(|before| b" \t=:([,".contains(before));
        let start = at - usize::from(is_negative);
        at = end_of_number(line, at);
        Some(start..at)
    })
}

/// Returns the end of the number whose first digit is at `start`.
fn end_of_number(line: &[u8], start: usize) -> usize {
    let digits = |from: usize| line[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let mut end = start + digits(start);
    if line.get(end) == Some(&b'.') && digits(end + 1) > 0 {
        end += 1 + digits(end + 1);
    }
    if matches!(line.get(end), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(line.get(end + 1), Some(b'+' | b'-')));
        let exponent = end + 1 + sign;
        if exponent < line.len() && digits(exponent) > 0 {
            end = exponent + digits(exponent);
        }
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BOTH: PerStream<bool> = PerStream { stdout: true, stderr: true };

    struct Screen {
        folder: Folder,
        now: Instant,
        lines: Vec<String>,
    }

    impl Screen {
        fn new(wanted: Option<Folding>, ranks: u32) -> Screen {
            let folder = Folder::new(wanted, ranks, BOTH).unwrap();
            Screen { folder, now: Instant::now(), lines: Vec::new() }
        }

        fn print(&mut self, rank: u32, text: &str) {
            self.print_to((Rank(rank), Stream::Stdout), text);
        }

        fn print_to(&mut self, source: StreamId, text: &str) {
            self.folder.push(self.now, (source, None), text.as_bytes());
            self.look();
        }

        fn wait(&mut self, time: Duration) {
            self.now += time;
            self.look();
        }

        fn look(&mut self) {
            for shown in self.folder.take(self.now) {
                let (ranks, data) = match shown {
                    ShownOutput::Plain { source, data, .. } => (source.0.to_string(), data),
                    ShownOutput::Folded { ranks, line, .. } => {
                        let ranks: Vec<String> = ranks.iter().map(Rank::to_string).collect();
                        (format!("={}", ranks.join(",")), line)
                    }
                };
                let text = String::from_utf8(data).unwrap();
                self.lines.extend(text.split_inclusive('\n').map(|line| format!("{ranks} {line}")));
            }
        }

        fn finish(mut self) -> Vec<String> {
            self.folder.show_all();
            self.look();
            self.lines
        }
    }

    #[test]
    fn ranks_that_print_the_same_share_a_line() {
        let mut screen = Screen::new(None, 5);
        (0..5).for_each(|rank| screen.print(rank, "epoch 1\nepoch 2\n"));
        // All ranks have printed it, so that no time has to pass.
        assert_eq!(screen.lines, ["=0,1,2,3,4 epoch 1\n", "=0,1,2,3,4 epoch 2\n"]);
        (0..4).for_each(|rank| screen.print(rank, "few\n"));
        screen.wait(WINDOW / 2);
        assert_eq!(screen.lines.len(), 2);
        screen.wait(WINDOW / 2);
        assert_eq!(screen.lines[2..], ["0 few\n", "1 few\n", "2 few\n", "3 few\n"]);
    }

    #[test]
    fn lines_of_a_rank_keep_their_order() {
        let mut screen = Screen::new(Some(Folding::Lines), 2);
        screen.print(0, "a\nb\na\n");
        screen.print(1, "b\na\nc\na\n");
        assert_eq!(screen.finish(), ["0 a\n", "=0,1 b\n", "=0,1 a\n", "1 c\n", "1 a\n"]);
    }

    #[test]
    fn the_rank_that_differs_stands_beside_the_others() {
        let mut screen = Screen::new(None, 6);
        for rank in 0..5 {
            screen.print_to((Rank(rank), Stream::Stderr), "Traceback:\n  lost rank 5\n");
        }
        screen.print_to((Rank(5), Stream::Stderr), "Traceback:\n  no memory\n");
        let shown = ["=0,1,2,3,4,5 Traceback:\n", "=0,1,2,3,4   lost rank 5\n", "5   no memory\n"];
        assert_eq!(screen.finish(), shown);
    }

    #[test]
    fn a_prompt_is_shown_at_once_behind_its_lines() {
        let mut screen = Screen::new(Some(Folding::Lines), 2);
        screen.print(1, "x\n");
        screen.print(0, "x\nname? ");
        assert_eq!(screen.lines, ["=0,1 x\n", "0 name? "]);
        screen.print(0, "me\nx\n");
        assert_eq!(screen.lines[2..], ["0 me\n"]);
        assert_eq!(screen.finish()[3..], ["0 x\n"]);
    }

    #[test]
    fn numbers_are_shown_as_ranges() {
        let mut screen = Screen::new(Some(Folding::Numbers), 3);
        for (rank, loss) in [(0, "0.18"), (1, "0.19"), (2, "-0.170")] {
            screen.print(rank, &format!("step 7 loss {loss} of 0x1f\n"));
        }
        assert_eq!(screen.finish(), ["=0,1,2 step 7 loss -0.170..0.19 of 0x1f\n"]);
    }

    #[test]
    fn what_is_not_shown_on_a_terminal_is_not_held() {
        let streams = PerStream { stdout: false, stderr: true };
        let mut screen = Screen::new(Some(Folding::Lines), 2);
        screen.folder = Folder::new(Some(Folding::Lines), 2, streams).unwrap();
        screen.print(0, "x\n");
        assert_eq!(screen.lines, ["0 x\n"]);
        for (wanted, ranks) in [(None, 4), (Some(Folding::None), 9), (Some(Folding::Lines), 1)] {
            assert!(Folder::new(wanted, ranks, BOTH).is_none());
        }
        let neither = PerStream { stdout: false, stderr: false };
        assert!(Folder::new(Some(Folding::Lines), 9, neither).is_none());
    }

    #[test]
    fn a_flood_is_not_held() {
        let mut screen = Screen::new(None, 5);
        for line in 0..20_000 {
            screen.print(0, &format!("{line}\n"));
            assert!(screen.folder.cost <= MAX_HELD);
        }
        (0..20_000).for_each(|_| screen.print(1, "\n"));
        screen.print(2, "held\n");
        screen.print(3, &"flood\n".repeat(FLOOD / 6 + 1));
        assert_eq!(screen.folder.groups.len(), 0);
        let flood = FLOOD / 6 + 1;
        assert!(screen.folder.groups.len() <= MAX_HELD / GROUP_COST);
        screen.wait(WINDOW);
        assert_eq!((screen.lines.len(), screen.folder.cost), (40_001 + flood, 0));
        assert!(screen.folder.by_hash.is_empty());
    }

    proptest! {
        /// Every rank's output is on the screen once and in its order, whatever was folded.
        #[test]
        fn no_line_is_lost_or_reordered(
            steps in prop::collection::vec((0..3_u32, 0..5_usize, any::<bool>(), 0..3_u32), 0..60),
            wanted in prop::sample::select(&[Folding::Lines, Folding::Numbers]),
        ) {
            let pieces = ["a\n", "b\n", "a\nb\n", "n 1\n", "half "];
            let mut screen = Screen::new(Some(wanted), 3);
            let mut printed = vec![String::new(); 3];
            for (rank, piece, is_error, wait) in steps {
                let stream = if is_error { Stream::Stderr } else { Stream::Stdout };
                // Half a line of one stream is not continued by the other.
                let piece = if is_error { pieces[piece % 4] } else { pieces[piece] };
                screen.print_to((Rank(rank), stream), piece);
                printed[rank as usize].push_str(piece);
                screen.wait(WINDOW * wait / 3);
            }
            let mut shown = vec![String::new(); 3];
            for line in screen.finish() {
                let (ranks, text) = line.split_once(' ').unwrap();
                for rank in ranks.trim_start_matches('=').split(',') {
                    shown[rank.parse::<usize>().unwrap()].push_str(text);
                }
            }
            prop_assert_eq!(shown, printed);
        }
    }

    fn found(line: &str) -> Vec<&str> {
        numbers(line.as_bytes()).map(|range| &line[range]).collect()
    }

    fn merged(lines: &[&str]) -> String {
        let lines = lines.iter().map(|line| line.as_bytes().to_vec()).collect();
        String::from_utf8(merge(lines)).unwrap()
    }

    #[test]
    fn numbers_of_all_forms_are_found() {
        assert_eq!(
            found("loss=-0.17 lr 1e-05 2.5E+3 v1.2.3."),
            ["-0.17", "1e-05", "2.5E+3", "1.2", "3"]
        );
        assert_eq!(found("a-7 node03 5e 6e+ 1.\n"), ["7", "03", "5", "6", "1"]);
        assert!(found("none").is_empty() && found("").is_empty());
    }

    #[test]
    fn lines_with_other_words_differ() {
        assert_eq!(mask(b"rank 3 of 8\n"), mask(b"rank 17 of -2.5\n"));
        assert_ne!(mask(b"rank 3 of 8\n"), mask(b"rank 3 of\n"));
        // A zero byte is no number.
        assert_ne!(mask(b"a\0b\n"), mask(b"a5b\n"));
    }

    #[test]
    fn ranges_are_by_value() {
        assert_eq!(merged(&["t 9 of 8\n", "t 10 of 8\n", "t 1e1 of 8\n"]), "t 9..1e1 of 8\n");
        assert_eq!(merged(&["1.0\n", "1\n"]), "1.0\n");
        assert_eq!(merged(&["-0 -3\n", "0.0 -20\n"]), "-0 -20..-3\n");
        assert_eq!(merged(&["0.05 7\n", "5e-2 0\n", "0.5e-1 -1\n"]), "0.05 -1..7\n");
        assert_eq!(merged(&["alone 3\n"]), "alone 3\n");
    }

    #[test]
    fn numbers_of_any_length_have_their_own_value() {
        let (low, high) = ("9007199254740992", "9007199254740993");
        let lines = [format!("{high}\n"), format!("{low}\n")];
        assert_eq!(merged(&[&lines[0], &lines[1]]), format!("{low}..{high}\n"));
        assert_eq!(merged(&["1e400\n", "1e399\n"]), "1e399..1e400\n");
    }
}
