//! What ports and ranks have done in the last minute, for sparklines, and the last lines of a job's output.

use super::sample::{Activity, HostActivity, PortActivity, Rate};
use anstream::adapter::strip_str;
use rlaunch_bootstrap::id::Rank;
use rlaunch_engine::run::output::{OutputPart, RecordedChunk};
use rlaunch_text::printable;
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// Time that a sparkline shows.
pub(super) const SHOWN: Duration = Duration::from_secs(60);

/// Readings of the last minute.
#[derive(Debug)]
pub(super) struct History {
    began: Instant,
    /// Time of the last readings, since the beginning.
    now: Duration,
    /// What each port has received and sent, by host and name.
    ports: BTreeMap<(String, String), [Series; 2]>,
    speeds: BTreeMap<Rank, Series>,
}

/// Readings of one value, oldest first.
#[derive(Debug, Default)]
struct Series(VecDeque<Reading>);

/// Value over a time, which is counted from the beginning.
#[derive(Debug)]
struct Reading {
    from: Duration,
    to: Duration,
    value: f64,
}

/// Readings of one value, as they are now.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recent<'a> {
    series: &'a Series,
    now: Duration,
}

impl History {
    pub(super) fn new(began: Instant) -> History {
        let (ports, speeds) = (BTreeMap::new(), BTreeMap::new());
        History { began, now: Duration::ZERO, ports, speeds }
    }

    /// Adds what has happened until `at` since the last time, and forgets what is too old.
    pub(super) fn add(&mut self, at: Instant, activity: &Activity<'_>) {
        let from = self.now;
        let to = at.saturating_duration_since(self.began);
        self.now = to;
        for HostActivity { host, ports, .. } in &activity.hosts {
            for port in ports {
                let series = self.ports.entry(((*host).to_owned(), port.name.clone()));
                let [received, sent] = series.or_default();
                received.add(from, to, amount(port.received));
                sent.add(from, to, amount(port.sent));
            }
        }
        for of in activity.job.iter().flat_map(|job| &job.speeds) {
            // A rank that has not printed for longer may stand still.
            if of.seconds_ago < SHOWN.as_secs_f64() {
                let series = self.speeds.entry(Rank(of.rank)).or_default();
                series.add(from, to, Some(of.speed.per_second().0));
            }
        }
        self.forget();
    }

    fn forget(&mut self) {
        let oldest = self.now.saturating_sub(SHOWN);
        self.ports.retain(|_, both| {
            let are_left = both.each_mut().map(|series| series.forget(oldest));
            are_left.contains(&true)
        });
        self.speeds.retain(|_, series| series.forget(oldest));
    }

    /// Returns what a port has received and sent.
    pub(super) fn port(&self, host: &str, port: &PortActivity) -> Option<[Recent<'_>; 2]> {
        let [received, sent] = self.ports.get(&(host.to_owned(), port.name.clone()))?;
        Some([received, sent].map(|series| Recent { series, now: self.now }))
    }

    pub(super) fn speed(&self, rank: Rank) -> Option<Recent<'_>> {
        Some(Recent { series: self.speeds.get(&rank)?, now: self.now })
    }
}

/// Returns bytes per second or, of ports that count packets alone, packets per second.
fn amount(rate: Rate) -> Option<f64> {
    rate.bytes.or(rate.packets)
}

impl Series {
    fn add(&mut self, from: Duration, to: Duration, value: Option<f64>) {
        self.0.extend(value.map(|value| Reading { from, to, value }));
    }

    /// Removes readings that end before `oldest`. Returns whether any are left.
    fn forget(&mut self, oldest: Duration) -> bool {
        while self.0.front().is_some_and(|reading| reading.to <= oldest) {
            self.0.pop_front();
        }
        !self.0.is_empty()
    }
}

impl Recent<'_> {
    /// Divides the last minute into `count` parts, and returns the highest value in each.
    pub(super) fn parts(self, count: usize) -> Vec<Option<f64>> {
        let length = SHOWN.as_secs_f64() / count as f64;
        // Parts begin at multiples of their length. If they ended now, what is in each would change with every
        // reading, and the shape with it.
        let last = (self.now.as_secs_f64() / length).ceil() as usize;
        let part = |end: usize| {
            let (begin, end) = ((end as f64 - 1.0) * length, end as f64 * length);
            let is_in = |reading: &&Reading| {
                reading.from.as_secs_f64() < end && reading.to.as_secs_f64() > begin
            };
            self.series.0.iter().filter(is_in).map(|reading| reading.value).reduce(f64::max)
        };
        (0..count).map(|back| (last + back + 1).checked_sub(count).and_then(part)).collect()
    }

    /// Tells whether all values are 0.
    pub(super) fn is_idle(self) -> bool {
        self.series.0.iter().all(|reading| reading.value == 0.0)
    }
}

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
pub(super) mod tests {
    use super::super::sample::tests::{job, samples};
    use super::*;

    /// Makes the history of readings at the end of each second, beginning with the first.
    pub(in super::super) fn recent<T>(values: &[f64], shown: impl Fn(Recent<'_>) -> T) -> T {
        let mut series = Series::default();
        let mut now = Duration::ZERO;
        for value in values {
            let from = now;
            now += Duration::from_secs(1);
            series.add(from, now, Some(*value));
        }
        shown(Recent { series: &series, now })
    }

    #[test]
    fn a_part_has_the_highest_of_its_readings() {
        let parts = |values: &[f64]| recent(values, |recent| recent.parts(6));
        let none = [None; 5];
        assert_eq!(parts(&[1.0, 3.0, 2.0])[..5], none);
        assert_eq!(parts(&[1.0, 3.0, 2.0])[5], Some(3.0));
        // The eleventh second begins the next part, and leaves those before it as they are.
        let eleven: Vec<f64> = (1..=11).map(f64::from).collect();
        assert_eq!(parts(&eleven)[4..], [Some(10.0), Some(11.0)]);
        let twelve: Vec<f64> = (1..=12).map(f64::from).collect();
        assert_eq!(parts(&twelve)[4..], [Some(10.0), Some(12.0)]);
    }

    #[test]
    fn a_reading_fills_the_time_that_it_is_of() {
        let series = Series(
            [Reading { from: Duration::from_secs(5), to: Duration::from_secs(35), value: 7.0 }]
                .into(),
        );
        let parts = Recent { series: &series, now: Duration::from_secs(60) }.parts(6);
        assert_eq!(parts, [Some(7.0), Some(7.0), Some(7.0), Some(7.0), None, None]);
    }

    #[test]
    fn what_is_older_than_a_minute_is_forgotten() {
        let [before, mut now] = samples();
        now.job = Some(job());
        let mut history = History::new(before.at);
        history.add(now.at, &now.since(&before));
        let activity = now.since(&before);
        let erdma = &activity.hosts[0].ports[0];
        let [received, sent] = history.port("a", erdma).unwrap();
        assert_eq!(received.parts(1), [Some(1_413_000.0)]);
        assert!(sent.is_idle() && !received.is_idle());
        assert!(history.port("b", erdma).is_none() && history.speed(Rank(0)).is_none());
        assert_eq!(history.speed(Rank(1)).unwrap().parts(1), [Some(812.5)]);
        let silent = before.since(&before);
        history.add(now.at + SHOWN, &silent);
        assert!(history.ports.is_empty() && history.speeds.is_empty());
    }

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
