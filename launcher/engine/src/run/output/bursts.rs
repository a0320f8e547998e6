//! What is shown at a terminal when several ranks print: what a rank prints within a moment is its *burst*, which is
//! shown in one piece. A state machine without I/O and without a clock.
//!
//! - A burst is shown [`WINDOW`] after its first byte, or as soon as it is large. So no rank waits for long, and a flood
//!   goes through in big pieces.
//! - `--fold`: of bursts that are equal one is shown, with all their ranks; with `=lines` and `=numbers` lines of
//!   different bursts are compared one by one. A line joins the one that is shown only if all lines which its rank has
//!   printed before are shown too, so lines of one rank keep their order.
//! - Lines that are not finished, such as progress bars, are [`Row`]s below everything else, and scroll with the others
//!   once they are finished. Where no rows can be drawn, or a program moves the cursor itself, the beginning of a line
//!   is shown as it is.

use super::rows::{self, Row};
use super::{PerStream, StreamId, fold};
use memchr::{memchr, memchr_iter, memrchr};
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::protocol::control::Stream;
use rlaunch_plan::job::options::Folding;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::{Duration, Instant};

/// Maximum time for which output is held.
const WINDOW: Duration = Duration::from_millis(300);
/// Size from which on a burst is shown at once.
const MAX_BURST: usize = 64 << 10;
/// Maximum size of all bursts. Beyond it the oldest is shown early, so that memory stays bounded.
const MAX_HELD: usize = 256 << 10;
/// Size from which on a burst is a flood, which is not worth the time to look for equal lines, and whose reader sees
/// no rows in between.
const FLOOD: usize = 16 << 10;
/// Minimum and maximum size of an unfinished line that is kept for a row. All ranks' are to fit into [`MAX_HELD`].
const MAX_UNFINISHED: (usize, usize) = (1 << 10, 16 << 10);
/// Minimum time between two drawings of rows that have changed.
const REDRAW: Duration = Duration::from_millis(100);

/// Output to show now.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ShownOutput {
    /// Output of one rank, as it is.
    Plain { source: StreamId, stamp: Option<u64>, data: Vec<u8> },
    /// Whole lines of several ranks.
    Folded { stream: Stream, ranks: Vec<Rank>, lines: Vec<u8> },
    /// From now on output of this rank, which moves the cursor, is shown without a tag.
    CursorMoves(Rank),
}

/// Bursts of all ranks.
pub(crate) struct Bursts {
    /// Whether a stream leads to a terminal. Output of others is not held.
    streams: PerStream<bool>,
    fold: Option<Folding>,
    /// Whether unfinished lines are rows.
    has_rows: bool,
    /// First rank that has printed, and whether another one has.
    first: Option<Rank>,
    has_several: bool,
    bursts: BTreeMap<Rank, Burst>,
    /// Times at which bursts are due.
    queue: BTreeSet<(Instant, Rank)>,
    /// Size of all bursts.
    held: usize,
    unfinished: BTreeMap<(Rank, bool), Unfinished>,
    max_unfinished: usize,
    /// Streams that are in the middle of a line, of which a part was shown.
    open: HashSet<StreamId>,
    /// Ranks that move the cursor.
    movers: HashSet<Rank>,
    shown: Vec<ShownOutput>,
    /// Time at which rows are to be drawn again; `None` as long as they are up to date.
    redraw: Option<Instant>,
    drawn: Option<Instant>,
}

/// Beginning of a line that is not finished.
struct Unfinished {
    text: Vec<u8>,
    stamp: Option<u64>,
    /// Whether it is a row. Otherwise it becomes one with its rank's burst.
    is_visible: bool,
    changed: Instant,
}

impl Unfinished {
    /// Returns the time at which the line is due once it is finished. A row is not to vanish for a while.
    fn due(&self, now: Instant) -> Instant {
        if self.is_visible { now } else { now + WINDOW }
    }
}

#[derive(Default)]
struct Burst {
    due: Option<Instant>,
    runs: Vec<Run>,
    size: usize,
}

/// Output of one stream.
struct Run {
    stream: Stream,
    stamp: Option<u64>,
    /// Whether it is whole lines. Other output goes on in a line of which a part was shown, or begins one.
    is_whole: bool,
    text: Vec<u8>,
    /// Lines as they are compared with others; empty if that is the text itself.
    mask: Vec<u8>,
}

/// Line of a burst, or all of a run that is not whole lines.
struct Line<'a> {
    run: &'a Run,
    text: &'a [u8],
    compared: &'a [u8],
}

impl Line<'_> {
    fn equals(&self, other: &Line<'_>) -> bool {
        self.run.is_whole
            && other.run.is_whole
            && self.run.stream == other.run.stream
            && self.compared == other.compared
    }
}

impl Run {
    fn lines(&self) -> Vec<Line<'_>> {
        let text = &self.text[..];
        let compared = if self.mask.is_empty() { text } else { &self.mask[..] };
        if !self.is_whole {
            return vec![Line { run: self, text, compared }];
        }
        let is_end = |byte: &u8| *byte == b'\n';
        let pairs = text.split_inclusive(is_end).zip(compared.split_inclusive(is_end));
        pairs.map(|(text, compared)| Line { run: self, text, compared }).collect()
    }
}

impl Burst {
    fn lines(&self) -> impl Iterator<Item = Line<'_>> {
        self.runs.iter().flat_map(Run::lines)
    }

    fn equals(&self, other: &Burst) -> bool {
        // Times at which lines were written may cut equal bursts differently.
        let mut others = other.lines();
        self.size == other.size
            && self.lines().all(|line| others.next().is_some_and(|other| line.equals(&other)))
            && others.next().is_none()
    }

    /// Removes the first `count` lines. Returns their size.
    fn drop_lines(&mut self, mut count: usize) -> usize {
        let before = self.size;
        for run in &mut self.runs {
            if count == 0 {
                break;
            }
            let end = |text: &[u8]| memchr_iter(b'\n', text).nth(count - 1).map(|at| at + 1);
            let lines = memchr_iter(b'\n', &run.text).count();
            if lines <= count {
                self.size -= run.text.len();
                count -= lines;
                run.text.clear();
            } else {
                let (text, mask) = (end(&run.text).unwrap_or(0), end(&run.mask).unwrap_or(0));
                self.size -= text;
                run.text.drain(..text);
                run.mask.drain(..mask);
                count = 0;
            }
        }
        self.runs.retain(|run| !run.text.is_empty());
        before - self.size
    }
}

/// Equal lines of several bursts.
struct LineGroup<'a> {
    first: Line<'a>,
    ranks: Vec<Rank>,
    /// Texts of the others, if they may differ.
    texts: Vec<Vec<u8>>,
}

impl Bursts {
    /// Makes the bursts of `ranks` ranks. Returns `None` if their output is shown as it comes: there is only one, or no
    /// terminal.
    pub(crate) fn new(
        fold: Option<Folding>,
        ranks: u32,
        streams: PerStream<bool>,
        has_rows: bool,
    ) -> Option<Bursts> {
        let (least, most) = MAX_UNFINISHED;
        let is_held = ranks > 1 && (streams.stdout || streams.stderr);
        is_held.then(|| Bursts {
            streams,
            fold,
            has_rows,
            first: None,
            has_several: false,
            bursts: BTreeMap::new(),
            queue: BTreeSet::new(),
            held: 0,
            unfinished: BTreeMap::new(),
            max_unfinished: (MAX_HELD / ranks as usize).clamp(least, most),
            open: HashSet::new(),
            movers: HashSet::new(),
            shown: Vec::new(),
            redraw: None,
            drawn: None,
        })
    }

    /// Tells whether more than one rank has printed at a terminal.
    pub(crate) fn has_several(&self) -> bool {
        self.has_several
    }

    /// Takes output of a rank.
    pub(crate) fn push(
        &mut self,
        now: Instant,
        (source, stamp): (StreamId, Option<u64>),
        data: &[u8],
    ) {
        let (rank, stream) = source;
        if data.is_empty() {
            return;
        }
        if !self.streams.of(stream) {
            return self.show_plain(source, stamp, data);
        }
        self.has_several |= *self.first.get_or_insert(rank) != rank;
        if !self.movers.contains(&rank) && rows::moves_cursor(data) {
            self.leave_alone(now, rank);
        }
        let end = memrchr(b'\n', data).map_or(0, |at| at + 1);
        let (lines, rest) = data.split_at(end);
        if !lines.is_empty() {
            self.add_lines(now, (source, stamp), lines);
        }
        if !rest.is_empty() {
            self.add_unfinished(now, (source, stamp), rest);
        }
        if self.bursts.get(&rank).is_some_and(|burst| burst.size >= MAX_BURST) {
            self.show(now, rank);
        }
        while self.held > MAX_HELD
            && let Some(&(_, oldest)) = self.queue.first()
        {
            self.show(now, oldest);
        }
    }

    /// Takes note that a stream has ended: its last line is finished.
    pub(crate) fn end(&mut self, now: Instant, source: StreamId) {
        if let Some(line) = self.take_unfinished(now, source) {
            let text = [&line.text[..], b"\n"].concat();
            let settled = rows::settle(&text);
            // A bar that erases itself leaves nothing.
            if !(matches!(settled, Cow::Owned(_)) && settled.trim_ascii().is_empty()) {
                self.hold(line.due(now), (source, line.stamp), &settled, true);
            }
        }
    }

    /// Takes what is to be shown at `now`.
    pub(crate) fn take(&mut self, now: Instant) -> Vec<ShownOutput> {
        while let Some(&(due, rank)) = self.queue.first()
            && due <= now
        {
            self.show(now, rank);
        }
        let size = |shown: &ShownOutput| match shown {
            ShownOutput::Plain { data, .. } => data.len(),
            ShownOutput::Folded { lines, .. } => lines.len(),
            ShownOutput::CursorMoves(_) => 0,
        };
        let size: usize = self.shown.iter().map(size).sum();
        if size > 0 && self.unfinished.values().any(|line| line.is_visible) {
            // What scrolls erases the rows.
            self.redraw_by(if size < FLOOD { now } else { self.next_redraw(now) });
        }
        std::mem::take(&mut self.shown)
    }

    /// Returns the time until there is something to show; `None` if nothing is held.
    pub(crate) fn timeout(&self, now: Instant) -> Option<Duration> {
        let due = self.queue.first().map(|(due, _)| *due);
        let next = due.into_iter().chain(self.redraw).min()?;
        Some(next.saturating_duration_since(now))
    }

    /// Makes everything due, because there will be no further output.
    pub(crate) fn show_all(&mut self, now: Instant) {
        let unfinished: Vec<(Rank, bool)> = self.unfinished.keys().copied().collect();
        for (rank, is_error) in unfinished {
            self.end(now, (rank, if is_error { Stream::Stderr } else { Stream::Stdout }));
        }
        self.release(now);
    }

    /// Makes everything due but unfinished lines, because something else is shown behind it.
    pub(crate) fn release(&mut self, now: Instant) {
        while let Some(&(_, oldest)) = self.queue.first() {
            self.show(now, oldest);
        }
    }

    /// Returns the rows, if they are to be drawn again at `now`.
    pub(crate) fn rows(&mut self, now: Instant) -> Option<Vec<Row>> {
        self.redraw.take_if(|due| *due <= now)?;
        self.drawn = Some(now);
        let mut by_rank: BTreeMap<Rank, &Unfinished> = BTreeMap::new();
        for ((rank, _), line) in self.unfinished.iter().filter(|(_, line)| line.is_visible) {
            let latest = by_rank.entry(*rank).or_insert(line);
            if latest.changed < line.changed {
                *latest = line;
            }
        }
        let row = |(rank, line): (Rank, &Unfinished)| {
            let text = String::from_utf8_lossy(&rows::flatten(&line.text)).into_owned();
            Row { rank: Some(rank), text }
        };
        let rows = by_rank.into_iter().map(row).filter(|row| !row.text.trim().is_empty());
        Some(rows::choose(rows.collect()))
    }

    /// Draws no rows any more, since a program moves the cursor itself.
    fn leave_alone(&mut self, now: Instant, rank: Rank) {
        self.show(now, rank);
        self.has_rows = false;
        for ((rank, is_error), line) in std::mem::take(&mut self.unfinished) {
            let source = (rank, if is_error { Stream::Stderr } else { Stream::Stdout });
            self.hold(now + WINDOW, (source, line.stamp), &line.text, false);
            self.open.insert(source);
        }
        self.redraw_by(now);
        self.movers.insert(rank);
        self.shown.push(ShownOutput::CursorMoves(rank));
    }

    fn add_lines(
        &mut self,
        now: Instant,
        (source, stamp): (StreamId, Option<u64>),
        mut lines: &[u8],
    ) {
        let end = memchr(b'\n', lines).map_or(lines.len(), |at| at + 1);
        if self.open.remove(&source) {
            self.hold(now + WINDOW, (source, stamp), &lines[..end], false);
            lines = &lines[end..];
        } else if let Some(begun) = self.take_unfinished(now, source) {
            let line = [&begun.text[..], &lines[..end]].concat();
            self.hold(begun.due(now), (source, begun.stamp), &rows::settle(&line), true);
            lines = &lines[end..];
        }
        if self.has_rows {
            self.hold(now + WINDOW, (source, stamp), &rows::settle(lines), true);
        } else {
            self.hold(now + WINDOW, (source, stamp), lines, true);
        }
    }

    fn add_unfinished(
        &mut self,
        now: Instant,
        (source, stamp): (StreamId, Option<u64>),
        rest: &[u8],
    ) {
        if !self.has_rows || self.open.contains(&source) {
            self.hold(now + WINDOW, (source, stamp), rest, false);
            self.open.insert(source);
            return;
        }
        let begun = Unfinished { text: Vec::new(), stamp, is_visible: false, changed: now };
        let line = self.unfinished.entry(key(source)).or_insert(begun);
        line.text.extend_from_slice(rest);
        rows::shorten(&mut line.text);
        line.changed = now;
        let (length, is_visible) = (line.text.len(), line.is_visible);
        if length > self.max_unfinished {
            if let Some(line) = self.take_unfinished(now, source) {
                self.hold(now + WINDOW, (source, line.stamp), &line.text, false);
                self.open.insert(source);
            }
        } else if is_visible {
            self.redraw_by(self.next_redraw(now));
        } else {
            self.schedule(source.0, now + WINDOW);
        }
    }

    fn take_unfinished(&mut self, now: Instant, source: StreamId) -> Option<Unfinished> {
        let line = self.unfinished.remove(&key(source))?;
        if line.is_visible {
            self.redraw_by(self.next_redraw(now));
        }
        Some(line)
    }

    /// Returns the earliest time at which rows that have changed are drawn again.
    fn next_redraw(&self, now: Instant) -> Instant {
        self.drawn.map_or(now, |drawn| now.max(drawn + REDRAW))
    }

    fn redraw_by(&mut self, due: Instant) {
        self.redraw = Some(self.redraw.map_or(due, |redraw| redraw.min(due)));
    }

    /// Makes a rank's burst due at this time, or earlier if it already is.
    fn schedule(&mut self, rank: Rank, due: Instant) {
        let burst = self.bursts.entry(rank).or_default();
        if burst.due.is_some_and(|earlier| earlier <= due) {
            return;
        }
        if let Some(later) = burst.due.replace(due) {
            self.queue.remove(&(later, rank));
        }
        self.queue.insert((due, rank));
    }

    /// Adds output to the burst of its rank.
    fn hold(
        &mut self,
        due: Instant,
        ((rank, stream), stamp): (StreamId, Option<u64>),
        text: &[u8],
        is_whole: bool,
    ) {
        if text.is_empty() {
            return;
        }
        self.schedule(rank, due);
        let burst = self.bursts.entry(rank).or_default();
        let kind = (stream, stamp, is_whole);
        let is_kind = |run: &Run| (run.stream, run.stamp, run.is_whole) == kind;
        if !burst.runs.last().is_some_and(is_kind) {
            let (text, mask) = (Vec::new(), Vec::new());
            burst.runs.push(Run { stream, stamp, is_whole, text, mask });
        }
        if let Some(run) = burst.runs.last_mut() {
            run.text.extend_from_slice(text);
            if is_whole && self.fold == Some(Folding::Numbers) {
                let masks = text.split_inclusive(|&byte| byte == b'\n').map(fold::mask);
                masks.for_each(|mask| run.mask.extend_from_slice(&mask));
            }
        }
        burst.size += text.len();
        self.held += text.len();
    }

    /// Takes the burst of a rank, whose unfinished lines become rows.
    fn take_burst(&mut self, now: Instant, rank: Rank) -> Option<Burst> {
        let burst = self.bursts.remove(&rank)?;
        if let Some(due) = burst.due {
            self.queue.remove(&(due, rank));
        }
        self.held -= burst.size;
        for (_, line) in self.unfinished.range_mut((rank, false)..=(rank, true)) {
            line.is_visible = true;
            self.redraw = Some(self.redraw.map_or(now, |redraw| redraw.min(now)));
        }
        Some(burst)
    }

    /// Shows the burst of a rank, with what is equal in others.
    fn show(&mut self, now: Instant, rank: Rank) {
        let Some(burst) = self.take_burst(now, rank) else { return };
        let is_alone = burst.size >= FLOOD || self.bursts.is_empty() || burst.runs.is_empty();
        match self.fold {
            Some(Folding::Lines | Folding::Numbers) if !is_alone => self.show_by_line(rank, &burst),
            None if !is_alone => self.show_with_equal(now, rank, burst),
            _ => self.show_runs(rank, burst),
        }
    }

    fn show_runs(&mut self, rank: Rank, burst: Burst) {
        for Run { stream, stamp, text, .. } in burst.runs {
            let source = (rank, stream);
            if self.shown.is_empty() {
                self.shown.push(ShownOutput::Plain { source, stamp, data: text });
            } else {
                self.show_plain(source, stamp, &text);
            }
        }
    }

    /// Shows a burst once for all ranks that have the same.
    fn show_with_equal(&mut self, now: Instant, rank: Rank, burst: Burst) {
        let equal = self.bursts.iter().filter(|(_, other)| other.equals(&burst));
        let mut ranks: Vec<Rank> = equal.map(|(rank, _)| *rank).collect();
        if ranks.is_empty() {
            return self.show_runs(rank, burst);
        }
        for rank in &ranks {
            self.take_burst(now, *rank);
        }
        ranks.push(rank);
        for run in burst.runs {
            self.show_folded(run.stream, ranks.clone(), &run.text);
        }
    }

    /// Shows a burst, and of the others the first lines that are equal to lines of it.
    fn show_by_line(&mut self, rank: Rank, burst: &Burst) {
        let has_ranges = self.fold == Some(Folding::Numbers);
        let group = |first| LineGroup { first, ranks: Vec::new(), texts: Vec::new() };
        let mut groups: Vec<LineGroup<'_>> = burst.lines().map(group).collect();
        for (other, theirs) in &mut self.bursts {
            let (mut at, mut joined) = (0, 0);
            for line in theirs.lines() {
                let next = groups[at..].iter().position(|group| group.first.equals(&line));
                let Some(next) = next else { break };
                let group = &mut groups[at + next];
                group.ranks.push(*other);
                if has_ranges {
                    group.texts.push(line.text.to_vec());
                }
                at += next + 1;
                joined += 1;
            }
            self.held -= theirs.drop_lines(joined);
        }
        for LineGroup { first, mut ranks, mut texts } in groups {
            if ranks.is_empty() {
                self.show_plain((rank, first.run.stream), first.run.stamp, first.text);
                continue;
            }
            ranks.push(rank);
            texts.insert(0, first.text.to_vec());
            self.show_folded(first.run.stream, ranks, &fold::merge(texts));
        }
    }

    /// Shows lines of several ranks, together with what precedes them if that is theirs too.
    fn show_folded(&mut self, stream: Stream, mut ranks: Vec<Rank>, added: &[u8]) {
        ranks.sort_unstable();
        if let Some(ShownOutput::Folded { stream: before, ranks: theirs, lines }) =
            self.shown.last_mut()
            && (*before, &*theirs) == (stream, &ranks)
        {
            lines.extend_from_slice(added);
        } else {
            self.shown.push(ShownOutput::Folded { stream, ranks, lines: added.to_vec() });
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

/// Returns a stream's place in an order by ranks: whether it is stderr comes second.
fn key((rank, stream): StreamId) -> (Rank, bool) {
    (rank, stream == Stream::Stderr)
}

#[cfg(test)]
mod tests;
