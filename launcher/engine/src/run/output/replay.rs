//! Output of a job that has left its terminal, shown from its file by the thread that shows output as it comes: with the same
//! tags, rows and folding, and held together by the times at which it came then.

use super::sink::Sink;
use super::store::{StoreReader, StoredAttempt, StoredRecord};
use super::writer::LastLines;
use super::{
    OutputConfig, OutputSender, OutputWriter, RecordedChunk, Stdio, StreamId, Tags, output_channel,
    start, stream_name, window,
};
use crate::connect::outbox::{Outbox, OutboxReceiver};
use crate::run::live::LiveStatus;
use rlaunch_bootstrap::id::{NodeId, Rank};
use rlaunch_bootstrap::protocol::control::{MAX_OUTPUT, Stream};
use rlaunch_console::messages;
use rlaunch_plan::job::tag_pattern::{LineOrigin, TagPattern};
use rlaunch_plan::map::HostRanks;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use rlaunch_text::text;
use std::collections::VecDeque;
use std::fmt::Display;
use std::io;
use std::ops::RangeInclusive;
use std::time::Duration;
use tokio::sync::oneshot;

/// Time between two looks at a file that is followed.
const LOOK: Duration = Duration::from_millis(20);

/// Part of the output that is shown.
#[derive(Clone, Debug, Default)]
pub struct Shown {
    /// Ranks; none for all.
    pub ranks: Vec<RangeInclusive<u32>>,
    /// Time before which nothing is shown, in microseconds since 1970.
    pub since: u64,
    /// Number of the last lines that are shown; `None` for all.
    pub lines: Option<usize>,
    /// Whether what comes later is shown too, until the job ends.
    pub follows: bool,
}

impl Shown {
    /// Tells whether a rank is chosen.
    pub fn has_rank(&self, rank: u32) -> bool {
        self.ranks.is_empty() || self.ranks.iter().any(|range| range.contains(&rank))
    }

    /// Tells whether a record has something to show.
    fn has(&self, record: &StoredRecord) -> bool {
        match record {
            StoredRecord::Output { source, at, .. } => {
                *at >= self.since && self.has_rank(source.0.0)
            }
            StoredRecord::Message { at, .. } => *at >= self.since,
            _ => true,
        }
    }
}

/// What is left out in front.
#[derive(Debug, Default, PartialEq, Eq)]
struct Skip {
    /// Number of records.
    records: u64,
    /// Number of lines of the first record behind them.
    lines: usize,
}

impl Skip {
    /// Finds out what is before the last `lines` lines that were written so far. A line that is shown may be of all ranks,
    /// so as many are taken; the writer leaves out what is too much, unless it shows what comes later, too.
    fn to_last(reader: &mut StoreReader, shown: &Shown, lines: usize) -> io::Result<Skip> {
        let (mut kept, mut sum, mut number) = (VecDeque::new(), 0, 0);
        let mut most = lines;
        while let Some(record) = reader.next_record()? {
            if let StoredRecord::Attempt(attempt) = &record
                && !shown.follows
            {
                most = most.max(lines.saturating_mul(rank_count(attempt)));
            }
            let lines = if shown.has(&record) { lines_of(&record) } else { 0 };
            if lines > 0 {
                kept.push_back((number, lines));
                sum += lines;
            }
            while let Some((_, first)) = kept.front().copied().filter(|(_, n)| sum - n >= most) {
                sum -= first;
                kept.pop_front();
            }
            number += 1;
        }
        Ok(match kept.front() {
            Some((first, _)) => Skip { records: *first, lines: sum.saturating_sub(most) },
            None if most == 0 => Skip { records: number, lines: 0 },
            None => Skip::default(),
        })
    }
}

fn rank_count(attempt: &StoredAttempt) -> usize {
    attempt.hosts.iter().map(|host| host.ranks.len()).sum()
}

fn lines_of(record: &StoredRecord) -> usize {
    match record {
        StoredRecord::Output { data, .. } => count_lines(data),
        StoredRecord::Message { lines, .. } => count_lines(lines),
        _ => 0,
    }
}

pub(super) fn count_lines(bytes: &[u8]) -> usize {
    memchr::memchr_iter(b'\n', bytes).count()
}

/// Returns the bytes behind the first `count` lines.
pub(super) fn behind_lines(bytes: &[u8], count: usize) -> &[u8] {
    match count.checked_sub(1) {
        None => bytes,
        Some(last) => {
            let end = memchr::memchr_iter(b'\n', bytes).nth(last);
            &bytes[end.map_or(bytes.len(), |end| end + 1)..]
        }
    }
}

/// Shows the output of a job. Returns [`Exit::READER_GONE`] if the reader has closed stdout.
pub async fn show(mut reader: StoreReader, shown: &Shown) -> Result<Exit, Failed> {
    let unread = |error: io::Error| {
        Failed::new(Exit::FILES, format!("cannot read the job's output: {error}"))
    };
    let mut replay = Replay {
        shown,
        skip: Skip::default(),
        number: 0,
        attempt: None,
        last: Last::default(),
        lost: Lost::default(),
    };
    if let Some(lines) = shown.lines
        && let Some(mut counted) = reader.reopen().map_err(unread)?
    {
        replay.skip = Skip::to_last(&mut counted, shown, lines).map_err(unread)?;
    }
    loop {
        let mut record = reader.next_record().map_err(unread)?;
        if record.is_none() {
            if !shown.follows {
                break;
            }
            if !reader.is_over() {
                if replay.wait().await {
                    return Ok(Exit::READER_GONE);
                }
                continue;
            }
            // What came between the two looks.
            record = reader.next_record().map_err(unread)?;
        }
        let Some(record) = record else { break };
        if replay.add(record).await? {
            return Ok(Exit::READER_GONE);
        }
    }
    replay.end_attempt().await?;
    replay.last.write().await?;
    Ok(Exit::SUCCESS)
}

struct Replay<'a> {
    shown: &'a Shown,
    skip: Skip,
    /// Number of the next record.
    number: u64,
    attempt: Option<ShownAttempt>,
    last: Last,
    lost: Lost,
}

/// The last lines of all attempts that have ended, of each with what writes them. They are counted together.
#[derive(Default)]
struct Last {
    attempts: VecDeque<LastLines>,
}

impl Last {
    /// Adds those of an attempt, and leaves out what is before the last `most`.
    fn add(&mut self, attempt: LastLines, most: usize) {
        self.attempts.push_back(attempt);
        let mut left = most;
        for attempt in self.attempts.iter_mut().rev() {
            attempt.cut(left);
            left -= attempt.lines();
        }
        self.attempts.retain(|attempt| !attempt.is_empty());
    }

    /// Writes all, by a thread, which a reader may hold up.
    async fn write(self) -> Result<(), Failed> {
        let (result, written) = oneshot::channel();
        let thread = std::thread::Builder::new().spawn(move || {
            let _ = result.send(self.attempts.into_iter().try_for_each(LastLines::write));
        });
        let cannot = |why: &dyn Display| {
            Failed::new(Exit::FILES, format!("cannot write the last lines: {why}"))
        };
        thread.map_err(|error| cannot(&error))?;
        written.await.unwrap_or_else(|_| Err(cannot(&"the thread that writes has failed")))
    }
}

/// Output of an attempt that could not be kept, as on a disk that was full for a while, which leaves many gaps.
#[derive(Debug, Default)]
struct Lost {
    /// Whether a gap was said where it is.
    is_said: bool,
    /// Size and number of the gaps that followed.
    more: (u64, usize),
}

impl Lost {
    /// Adds a gap. Returns the line for the first.
    fn add(&mut self, bytes: u64) -> Option<String> {
        if std::mem::replace(&mut self.is_said, true) {
            self.more = (self.more.0 + bytes, self.more.1 + 1);
            return None;
        }
        Some(format!("rlaunch: {} could not be kept here\n", text::size(bytes)))
    }

    /// Returns the line for the gaps behind the first, if there were any, and forgets all.
    fn take_rest(&mut self) -> Option<String> {
        let (bytes, count) = std::mem::take(self).more;
        let places = || text::count(count, "later place");
        (count > 0)
            .then(|| format!("rlaunch: {} could not be kept at {}\n", text::size(bytes), places()))
    }
}

impl Replay<'_> {
    /// Shows a record. Tells whether the reader of stdout has gone.
    async fn add(&mut self, record: StoredRecord) -> Result<bool, Failed> {
        let number = self.number;
        self.number += 1;
        let skipped = if number == self.skip.records { self.skip.lines } else { 0 };
        let is_shown = number >= self.skip.records && self.shown.has(&record);
        match record {
            StoredRecord::Attempt(attempt) => {
                // It is repeated in each file.
                if self.attempt.as_ref().is_none_or(|known| known.job != attempt.job) {
                    self.end_attempt().await?;
                    let last = self.shown.lines.filter(|_| !self.shown.follows);
                    self.attempt = Some(ShownAttempt::begin(&attempt, last));
                }
            }
            StoredRecord::Started { rank, pid } => {
                if let Some(attempt) = &self.attempt {
                    attempt.sender.started(rank, pid, None);
                }
            }
            _ if !is_shown => {}
            StoredRecord::Output { source, at, data } => {
                if let Some(attempt) = &mut self.attempt {
                    return Ok(attempt.push(source, at, behind_lines(&data, skipped)).await);
                }
            }
            StoredRecord::Message { at, lines } => {
                if let Some(attempt) = &mut self.attempt {
                    attempt.set_time(at);
                }
                self.say(behind_lines(&lines, skipped).to_vec());
            }
            StoredRecord::Lost(bytes) => {
                if let Some(line) = self.lost.add(bytes) {
                    self.say(line.into_bytes());
                }
            }
            StoredRecord::Dropped => {
                self.say(b"rlaunch: what was printed before is not kept\n".to_vec());
            }
        }
        Ok(false)
    }

    /// Prints lines behind the output so far.
    fn say(&self, lines: Vec<u8>) {
        match &self.attempt {
            Some(attempt) => attempt.sender.message(lines),
            None => messages::replay(lines),
        }
    }

    /// Waits for a moment. Tells whether the reader of stdout has gone.
    async fn wait(&mut self) -> bool {
        let Some(attempt) = &mut self.attempt else {
            tokio::time::sleep(LOOK).await;
            return false;
        };
        tokio::select! {
            () = tokio::time::sleep(LOOK) => false,
            () = attempt.writer.reader_gone() => true,
        }
    }

    /// Waits until the output of the attempt is written.
    async fn end_attempt(&mut self) -> Result<(), Failed> {
        if let Some(line) = self.lost.take_rest() {
            self.say(line.into_bytes());
        }
        let Some(ShownAttempt { sender, mut writer, .. }) = self.attempt.take() else {
            return Ok(());
        };
        drop(sender);
        let written = writer.finish().await;
        if let Some(last) = written.last {
            self.last.add(last, self.shown.lines.unwrap_or(usize::MAX));
        }
        match written.unwritten {
            Some(failed) => Err(failed),
            None => Ok(()),
        }
    }
}

/// Attempt whose output is being shown. It is written as that of a node, which sends what it was granted.
struct ShownAttempt {
    job: String,
    ranks: u32,
    /// Time of the last record, in microseconds since 1970.
    time: u64,
    sender: OutputSender,
    writer: OutputWriter,
    granted: OutboxReceiver,
}

impl ShownAttempt {
    fn begin(attempt: &StoredAttempt, last: Option<usize>) -> ShownAttempt {
        let (node, granted) = Outbox::new();
        node.open_window(&[], window(1));
        let count = rank_count(attempt);
        let ranks = u32::try_from(count).unwrap_or(u32::MAX);
        let config = OutputConfig {
            tags: tags(attempt, count),
            fold: attempt.fold.parse().ok(),
            files: None,
            merged: attempt.merged,
            credit: vec![node],
            ranks,
            nccl: None,
            transcript: None,
            store: None,
            stdio: Stdio::Stdout,
            last,
            status: LiveStatus::new(),
        };
        let (sender, queue) = output_channel();
        ShownAttempt {
            job: attempt.job.clone(),
            ranks,
            time: 0,
            sender,
            writer: start(config, queue),
            granted,
        }
    }

    /// Sets the time at which the next record came.
    fn set_time(&mut self, at: u64) {
        if at > self.time {
            self.time = at;
            self.sender.came_at(at);
        }
    }

    /// Shows output of a rank, once there is credit for it. Tells whether the reader of stdout has gone.
    async fn push(&mut self, source: StreamId, at: u64, data: &[u8]) -> bool {
        // The writer would give no credit back.
        if source.0.0 >= self.ranks {
            return false;
        }
        self.set_time(at);
        while self.granted.high_priority.try_recv().is_ok() {}
        if data.is_empty() {
            self.sender.push((NodeId(0), source), Some(at), Vec::new(), None);
        }
        for piece in data.chunks(MAX_OUTPUT) {
            while !self.granted.credit.take(piece.len()) {
                tokio::select! {
                    // The credit was added before this.
                    grant = self.granted.high_priority.recv() => if grant.is_none() {
                        return true;
                    },
                    () = self.writer.reader_gone() => return true,
                }
            }
            self.sender.push((NodeId(0), source), Some(at), piece.to_vec(), None);
        }
        false
    }
}

fn tags(attempt: &StoredAttempt, count: usize) -> Option<Tags> {
    let ranks = attempt.hosts.iter().flat_map(|host| {
        (0..).zip(&host.ranks).map(|(local_rank, rank)| LineOrigin {
            rank: *rank,
            host: host.host.clone(),
            local_rank,
            pid: None,
        })
    });
    let mut ranks: Vec<LineOrigin> = ranks.collect();
    ranks.sort_unstable_by_key(|origin| origin.rank);
    match attempt.tag.parse::<TagPattern>() {
        Ok(pattern) => Some(Tags::from_ranks(pattern, ranks)),
        Err(_) => (!attempt.no_tag && count > 1).then(|| Tags::short_from_ranks(ranks)),
    }
}

/// Writer of what is kept of a job without such a file: at a terminal with short tags, once a second rank prints.
pub struct RecordedWriter {
    sink: Sink,
    first: Option<u32>,
}

impl RecordedWriter {
    pub fn new(hosts: &[HostRanks]) -> RecordedWriter {
        let attempt = StoredAttempt { hosts: hosts.to_vec(), ..StoredAttempt::default() };
        let count: usize = hosts.iter().map(|host| host.ranks.len()).sum();
        RecordedWriter { sink: Sink::new(tags(&attempt, count), &Stdio::Stdout), first: None }
    }

    /// Takes note that a rank has printed some of what is written next.
    pub fn expect(&mut self, rank: u32) {
        if *self.first.get_or_insert(rank) != rank
            && let Some(tags) = self.sink.tags()
        {
            tags.need();
        }
    }

    /// Writes a part of a chunk to stdout or stderr, as the rank did.
    pub fn write(&mut self, chunk: &RecordedChunk, text: &str) -> io::Result<()> {
        let is_error = chunk.stream == stream_name(Stream::Stderr);
        let stream = if is_error { Stream::Stderr } else { Stream::Stdout };
        self.sink.write(((Rank(chunk.rank), stream), None), text.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::super::store::OutputStore;
    use super::*;
    use std::sync::Arc;

    fn of_rank(rank: u32) -> StreamId {
        (Rank(rank), Stream::Stdout)
    }

    #[test]
    fn the_last_lines_of_chosen_ranks_are_found() {
        let place = tempfile::tempdir().unwrap();
        let store = OutputStore::create(place.path(), "x").unwrap();
        store.add(&StoredRecord::Attempt(StoredAttempt::default()));
        for (rank, at, text) in
            [(0, 10, "a\nb\n"), (1, 20, "c\n"), (0, 30, "d\ne\nf\n"), (1, 40, "")]
        {
            store.output(of_rank(rank), Some(at), text.as_bytes());
        }
        let open = || StoreReader::open(&place.path().join(store.file_name())).unwrap().unwrap();
        let skip = |shown: &Shown, most| Skip::to_last(&mut open(), shown, most).unwrap();
        let all = Shown::default();
        assert_eq!(skip(&all, 2), Skip { records: 3, lines: 1 });
        assert_eq!(skip(&all, 4), Skip { records: 2, lines: 0 });
        assert_eq!(skip(&all, 9), Skip { records: 1, lines: 0 });
        assert_eq!(skip(&all, 0), Skip { records: 5, lines: 0 });
        let second = Shown { ranks: vec![1..=1], ..Shown::default() };
        assert_eq!(skip(&second, 1), Skip { records: 2, lines: 0 });
        let late = Shown { since: 25, ..Shown::default() };
        assert_eq!(skip(&late, 9), Skip { records: 3, lines: 0 });
    }

    #[tokio::test]
    async fn the_last_lines_are_those_of_all_attempts_together() {
        for (most, expected) in [(0, ""), (1, "e\n"), (3, "c\nd\ne\n"), (9, "a\nb\nc\nd\ne\n")] {
            let (reader, writer) = io::pipe().unwrap();
            let stdio = Stdio::Pipe(Arc::new(writer));
            let mut last = Last::default();
            for lines in ["a\nb\n", "", "c\n", "d\ne\n"] {
                last.add(LastLines::of(stdio.clone(), lines), most);
            }
            drop(stdio);
            last.write().await.unwrap();
            assert_eq!(io::read_to_string(reader).unwrap(), expected);
        }
    }

    #[test]
    fn many_gaps_are_two_lines() {
        let mut lost = Lost::default();
        assert_eq!(lost.take_rest(), None);
        assert!(lost.add(1 << 15).unwrap().ends_with("32 KiB could not be kept here\n"));
        assert_eq!((lost.add(1 << 20), lost.add(1 << 20)), (None, None));
        let rest = lost.take_rest().unwrap();
        assert!(rest.ends_with("2.0 MiB could not be kept at 2 later places\n"), "{rest}");
        assert!(lost.add(1).is_some());
    }

    #[test]
    fn lines_in_front_are_cut_off() {
        for (count, rest) in [(0, "a\nb\nc"), (1, "b\nc"), (2, "c"), (3, "")] {
            assert_eq!(behind_lines(b"a\nb\nc", count), rest.as_bytes());
        }
    }

    #[tokio::test]
    async fn unknown_ranks_keep_nobody_waiting() {
        let hosts = vec![HostRanks { host: "a".into(), ranks: vec![0] }];
        let attempt = StoredAttempt { hosts, ..StoredAttempt::default() };
        let mut shown = ShownAttempt::begin(&attempt, None);
        let data = vec![b'x'; 2 << 20];
        assert!(!shown.push(of_rank(1), 1, &data).await);
        assert!(!shown.push(of_rank(0), 1, &[]).await);
        drop(shown.sender);
        assert!(shown.writer.finish().await.unwritten.is_none());
    }

    #[test]
    fn tags_are_those_of_the_job() {
        let hosts = ["a", "b"].map(|host| HostRanks { host: host.into(), ranks: vec![] });
        let [mut a, mut b] = hosts;
        (a.ranks, b.ranks) = (vec![0], vec![1]);
        let hosts = vec![a, b];
        let attempt = StoredAttempt { hosts, tag: "%h: ".into(), ..StoredAttempt::default() };
        assert!(tags(&attempt, 2).unwrap().are_shown(false));
        let short = StoredAttempt { tag: String::new(), ..attempt };
        assert!(!tags(&short, 2).unwrap().are_shown(false));
        assert!(tags(&StoredAttempt { no_tag: true, ..short }, 2).is_none());
    }
}
