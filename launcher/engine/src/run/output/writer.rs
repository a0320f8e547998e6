//! The thread that writes: it takes what comes, keeps lines of different ranks apart, and pays credit back.

use super::{
    OutputConfig, OutputItem, PerStream, RankFiles, SharedTranscript, Stdio, Tags, Written,
    stream_name, window,
};
use crate::connect::outbox::Outbox;
use crate::run::live::LiveStatus;
use crate::run::output::bursts::{Bursts, ShownOutput};
use crate::run::output::line_arbiter::{Chunk, LineArbiter, ReadyChunk};
use crate::run::output::outlet::Outlet;
use crate::run::output::replay::{behind_lines, count_lines};
use crate::run::output::sink::Sink;
use crate::run::output::store::{OutputStore, StoredRecord};
use crate::run::output::transcript::SharedTails;
#[cfg(test)]
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::protocol::control::Stream;
use rlaunch_console::{footer, messages};
use rlaunch_plan::env::nccl::Log;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use std::borrow::Cow;
use std::collections::VecDeque;
use std::io::{self, IsTerminal};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Makes the error of a stream that cannot be written.
fn unwritten(stream: Stream, error: &io::Error) -> Failed {
    let name = stream_name(stream);
    let full = error.kind() == io::ErrorKind::StorageFull;
    Failed::new(Exit::FILES, format!("cannot write the ranks' output to {name}: {error}"))
        .hint(full.then_some("`df` shows which file system is full; --output-dir writes elsewhere"))
}

/// Clock of output that is shown again: it goes on from the time at which the last item came before. So what came seconds
/// apart is not taken for one moment, because it is read from a file at once.
#[derive(Clone, Copy)]
struct RecordedClock {
    first: u64,
    latest: u64,
    /// Times at which the items of these two times were taken.
    first_taken: Instant,
    latest_taken: Instant,
}

impl RecordedClock {
    fn new(time: u64) -> RecordedClock {
        let now = Instant::now();
        RecordedClock { first: time, latest: time, first_taken: now, latest_taken: now }
    }

    /// Sets the clock, which never goes back: clocks of hosts may differ.
    fn set(&mut self, time: u64) {
        self.latest = self.latest.max(time);
        self.latest_taken = Instant::now();
    }

    fn now(&self) -> Instant {
        let recorded = Duration::from_micros(self.latest - self.first);
        self.first_taken + recorded + self.latest_taken.elapsed()
    }
}

/// The last lines of what is shown, a folded line as one.
struct LastShown {
    stdio: Stdio,
    most: usize,
    /// Number of lines in `held`.
    lines: usize,
    held: VecDeque<Held>,
}

enum Held {
    Output(ShownOutput),
    /// Lines of rlaunch itself.
    Message(Vec<u8>),
}

impl Held {
    fn text(&mut self) -> Option<&mut Vec<u8>> {
        match self {
            Held::Output(ShownOutput::Plain { data: text, .. })
            | Held::Output(ShownOutput::Folded { lines: text, .. })
            | Held::Message(text) => Some(text),
            Held::Output(ShownOutput::CursorMoves(_)) => None,
        }
    }

    fn lines(&mut self) -> usize {
        self.text().map_or(0, |text| count_lines(text))
    }
}

impl LastShown {
    fn new(stdio: Stdio, most: usize) -> LastShown {
        LastShown { stdio, most, lines: 0, held: VecDeque::new() }
    }

    fn push(&mut self, mut held: Held) {
        self.lines += held.lines();
        self.held.push_back(held);
        self.drop_front();
    }

    /// Drops what is wholly before the last lines.
    fn drop_front(&mut self) {
        while let Some(lines) = self.held.front_mut().map(Held::lines)
            && self.lines - lines >= self.most
        {
            self.lines -= lines;
            self.held.pop_front();
        }
    }

    /// Leaves out what is before the last `most` lines.
    fn cut(&mut self, most: usize) {
        self.most = most;
        self.drop_front();
        let beyond = self.lines.saturating_sub(most);
        if let Some(text) = self.held.front_mut().and_then(Held::text) {
            *text = behind_lines(text, beyond).to_vec();
        }
        self.lines -= beyond;
    }
}

/// The last lines of an attempt, with the tags of its ranks. There may be many attempts, so no stream is open yet.
pub(super) struct LastLines {
    tags: Option<Tags>,
    shown: LastShown,
}

impl LastLines {
    #[cfg(test)]
    pub(super) fn of(stdio: Stdio, text: &str) -> LastLines {
        let mut shown = LastShown::new(stdio, usize::MAX);
        let (source, data) = ((Rank(0), Stream::Stdout), text.as_bytes().to_vec());
        shown.push(Held::Output(ShownOutput::Plain { source, stamp: None, data }));
        LastLines { tags: None, shown }
    }

    pub(super) fn lines(&self) -> usize {
        self.shown.lines
    }

    pub(super) fn is_empty(&self) -> bool {
        self.shown.held.is_empty()
    }

    /// Leaves out the first lines, so that at most this number stay.
    pub(super) fn cut(&mut self, most: usize) {
        self.shown.cut(most);
    }

    /// Writes the lines. A reader that has gone wants no more.
    pub(super) fn write(self) -> Result<(), Failed> {
        let LastLines { tags, shown } = self;
        let mut sink = Sink::new(tags, &shown.stdio);
        for held in shown.held {
            let (stream, written) = match held {
                Held::Output(ShownOutput::Plain { source, stamp, data }) => {
                    (source.1, sink.write((source, stamp), &data))
                }
                Held::Output(ShownOutput::Folded { stream, ranks, lines }) => {
                    (stream, sink.write_folded(stream, &ranks, &lines))
                }
                Held::Output(ShownOutput::CursorMoves(_)) => continue,
                Held::Message(lines) => {
                    messages::replay(lines);
                    continue;
                }
            };
            match written {
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
                written => written.map_err(|error| unwritten(stream, &error))?,
            }
        }
        Ok(())
    }
}

/// Thread that writes, with all that it keeps.
pub(super) struct WriterThread {
    sink: Sink,
    arbiter: LineArbiter,
    /// Output that is held; `None` if none is, but for its last line.
    bursts: Option<Bursts>,
    /// What is to be shown at the end; `None` if all is shown as it comes.
    last: Option<LastShown>,
    /// Clock of the bursts; `None` for that of this machine.
    recorded: Option<RecordedClock>,
    files: Option<RankFiles>,
    tails: SharedTails,
    /// Stream on which ranks report errors. Its last lines are kept.
    error_stream: Stream,
    /// Whether stdout is shown elsewhere than stderr, as in a file.
    is_stdout_elsewhere: bool,
    nccl: Option<Log>,
    transcript: Option<SharedTranscript>,
    store: Option<OutputStore>,
    credit: Vec<CreditAccount>,
    ranks: u32,
    status: LiveStatus,
    gone: Option<oneshot::Sender<()>>,
    unwritten: Option<Failed>,
}

/// Credit that a node is owed for output that was written, in bytes. It is granted once `lump` bytes are
/// owed, so that not every frame of output needs a grant of its own.
struct CreditAccount {
    node: Outbox,
    owed: u32,
    lump: u32,
}

impl WriterThread {
    pub(super) fn new(
        config: OutputConfig,
        tails: SharedTails,
        gone: oneshot::Sender<()>,
    ) -> WriterThread {
        let lump = window(config.credit.len()) / 4;
        let account = |node| CreditAccount { node, owed: 0, lump };
        // Unfinished lines are shown at once if there is only one rank, or on a terminal, where a
        // person may wait for a prompt.
        let alone = config.ranks == 1;
        let stdout = config.stdio.is_terminal();
        let stderr = !matches!(config.stdio, Stdio::Nowhere) && io::stderr().is_terminal();
        let streams = PerStream { stdout, stderr };
        // The reader of a pipe may print at the same terminal, where it would find the rows in its way.
        let has_rows = stdout && footer::is_possible();
        let show_unfinished = PerStream { stdout: alone || stdout, stderr: alone || stderr };
        let sink = Sink::new(config.tags, &config.stdio);
        WriterThread {
            is_stdout_elsewhere: !sink.is_shared(),
            sink,
            arbiter: LineArbiter::new(show_unfinished),
            bursts: Bursts::new(config.fold, config.ranks, streams, has_rows),
            last: config.last.map(|most| LastShown::new(config.stdio, most)),
            recorded: None,
            files: config.files,
            tails,
            error_stream: if config.merged { Stream::Stdout } else { Stream::Stderr },
            nccl: config.nccl,
            transcript: config.transcript,
            store: config.store,
            credit: config.credit.into_iter().map(account).collect(),
            ranks: config.ranks,
            status: config.status,
            gone: Some(gone),
            unwritten: None,
        }
    }

    /// Returns the ways to the readers of stdout and stderr.
    pub(super) fn outlets(&self) -> Vec<Arc<Outlet>> {
        self.sink.outlets()
    }

    pub(super) fn run(mut self, items: &Mutex<Receiver<OutputItem>>) -> Written {
        loop {
            let item = self.receive(items);
            let last = matches!(item, Err(RecvTimeoutError::Disconnected));
            let now = Instant::now();
            self.arbiter.end_turn(now);
            match item {
                // Output of unknown ranks is dropped: a faulty agent must not make the tables by rank grow.
                Ok(
                    OutputItem::Chunk(Chunk { source: (rank, _), .. }, _)
                    | OutputItem::Started(rank, ..),
                ) if rank.0 >= self.ranks => {}
                Ok(OutputItem::Chunk(chunk, _room)) => {
                    self.keep(&chunk);
                    self.arbiter.push(now, chunk);
                }
                Ok(OutputItem::Message(lines)) => {
                    self.release_bursts();
                    match &mut self.last {
                        Some(last) => last.push(Held::Message(lines)),
                        None => messages::replay(lines),
                    }
                }
                Ok(OutputItem::CameAt(time)) => {
                    self.recorded.get_or_insert_with(|| RecordedClock::new(time)).set(time);
                }
                Ok(OutputItem::Started(rank, pid, _room)) => {
                    if let Some(store) = &self.store {
                        store.add(&StoredRecord::Started { rank, pid });
                    }
                    self.sink.tags().into_iter().for_each(|tags| tags.started(rank, pid));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => self.arbiter.finish(now),
            }
            self.write_ready();
            self.write_bursts(last);
            self.arbiter.has_written(now.elapsed());
            if last {
                return self.into_written();
            }
        }
    }

    /// Waits for the next item, or until held lines are due.
    fn receive(&self, items: &Mutex<Receiver<OutputItem>>) -> Result<OutputItem, RecvTimeoutError> {
        // Only a thread that has a successor shares them.
        let items = items.lock().unwrap_or_else(PoisonError::into_inner);
        let turn_end = self.arbiter.turn_end();
        if turn_end.is_none() && self.bursts.is_none() {
            return items.recv().map_err(|_| RecvTimeoutError::Disconnected);
        }
        let turn = turn_end.map(|end| end.saturating_duration_since(Instant::now()));
        let now = self.burst_time();
        let held = self.bursts.as_ref().and_then(|bursts| bursts.timeout(now));
        match turn.into_iter().chain(held).min() {
            None => items.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(timeout) => items.recv_timeout(timeout),
        }
    }

    /// Adds a chunk to the last lines of its rank, to the file with the whole output and to the files of `--output-dir`.
    /// All get the chunk at once, even if stdout and stderr must wait for the end of a line.
    fn keep(&mut self, Chunk { source, stamp, data, .. }: &Chunk) {
        if let Some(store) = &self.store {
            store.output(*source, *stamp, data);
        }
        if !data.is_empty() {
            self.status.printed(source.0, data);
            let mut tails = self.tails.lock();
            tails.count(data);
            // The end of the stream, which has no data, is nothing that anybody sees.
            if source.1 == self.error_stream {
                tails.add(source.0, data);
            }
        }
        let unwritten = self.files.as_mut().and_then(|files| files.add(*source, data));
        if let Some(unwritten) = unwritten {
            messages::warn(&messages::error_chain(unwritten));
        }
    }

    fn into_written(self) -> Written {
        let error = self.files.and_then(RankFiles::into_error);
        let incomplete = error.map(|error| Failed::from_error(Exit::FILES, &error));
        let merged = self.error_stream == Stream::Stdout;
        Written {
            tails: self.tails.take(),
            merged,
            is_elsewhere: merged && self.is_stdout_elsewhere,
            nccl: self.nccl,
            incomplete,
            unwritten: self.unwritten,
            last: self.last.map(|shown| LastLines { tags: self.sink.into_tags(), shown }),
        }
    }

    /// Returns the present time for bursts.
    fn burst_time(&self) -> Instant {
        self.recorded.map_or_else(Instant::now, |clock| clock.now())
    }

    fn write_ready(&mut self) {
        while let Some(ReadyChunk { chunk, credit }) = self.arbiter.next() {
            let Chunk { node, source, stamp, data } = chunk;
            let now = self.burst_time();
            let shown = match &mut self.nccl {
                Some(log) => Cow::Owned(log.read_lines(source.0, &data)),
                None => Cow::Borrowed(&data[..]),
            };
            match (&mut self.bursts, &mut self.last) {
                (None, Some(last)) => {
                    let data = shown.to_vec();
                    last.push(Held::Output(ShownOutput::Plain { source, stamp, data }));
                }
                (None, None) => {
                    let written = self.sink.write((source, stamp), &shown);
                    self.end_job_on_error(source.1, written);
                }
                (Some(bursts), _) => {
                    bursts.push(now, (source, stamp), &shown);
                    if data.is_empty() {
                        bursts.end(now, source);
                    }
                    self.write_bursts(false);
                }
            }
            drop(shown);
            if let Some(transcript) = &self.transcript {
                transcript.add(source, data);
            }
            if let Some(account) = self.credit.get_mut(node.index()) {
                account.owed += u32::try_from(credit).unwrap_or(u32::MAX);
                if account.owed >= account.lump {
                    account.node.grant(std::mem::take(&mut account.owed));
                }
            }
        }
    }

    /// Writes all that is held, but for unfinished lines.
    fn release_bursts(&mut self) {
        let now = self.burst_time();
        if let Some(bursts) = &mut self.bursts {
            bursts.release(now);
        }
        self.write_bursts(false);
    }

    /// Writes what was held and is due, all of it if there is no further output, and draws rows that have changed.
    fn write_bursts(&mut self, is_end: bool) {
        let now = self.burst_time();
        let Some(bursts) = &mut self.bursts else { return };
        if is_end {
            bursts.show_all(now);
        }
        let (shown, rows) = (bursts.take(now), bursts.rows(now));
        if bursts.has_several() {
            self.sink.tags().into_iter().for_each(Tags::need);
        }
        for shown in shown {
            match (&mut self.last, shown) {
                (Some(last), shown @ (ShownOutput::Plain { .. } | ShownOutput::Folded { .. })) => {
                    last.push(Held::Output(shown));
                }
                (_, shown) => self.write_shown(shown),
            }
        }
        // Nothing may be below the last lines.
        if let Some(rows) = rows.or(is_end.then(Vec::new)) {
            let written = self.sink.draw(&rows);
            self.end_job_on_error(Stream::Stdout, written);
        }
    }

    fn write_shown(&mut self, shown: ShownOutput) {
        let (stream, written) = match shown {
            ShownOutput::Plain { source, stamp, data } => {
                (source.1, self.sink.write((source, stamp), &data))
            }
            ShownOutput::Folded { stream, ranks, lines } => {
                if stream == self.error_stream {
                    self.tails.lock().folded(&ranks);
                }
                (stream, self.sink.write_folded(stream, &ranks, &lines))
            }
            ShownOutput::CursorMoves(rank) => {
                self.sink.tags().into_iter().for_each(|tags| tags.leave_alone(rank));
                return;
            }
        };
        self.end_job_on_error(stream, written);
    }

    /// Ends the job if a stream can no longer be written. Further output is received and dropped, so that the ranks
    /// can end. With `--output-dir` the job goes on, because the files still receive the output.
    fn end_job_on_error(&mut self, stream: Stream, written: io::Result<()>) {
        let Err(error) = written else { return };
        if error.kind() != io::ErrorKind::BrokenPipe && self.unwritten.is_none() {
            self.unwritten = Some(unwritten(stream, &error));
        }
        if self.files.is_none()
            && let Some(gone) = self.gone.take()
        {
            let _ = gone.send(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::output::{OutputReceiver, output_channel};
    use rlaunch_bootstrap::id::NodeId;
    use rlaunch_plan::job::options::Folding;

    fn writer_thread(stdio: Stdio, merged: bool) -> WriterThread {
        let config = OutputConfig {
            tags: None,
            fold: None,
            files: None,
            merged,
            credit: Vec::new(),
            ranks: 2,
            nccl: None,
            transcript: None,
            store: None,
            stdio,
            last: None,
            status: LiveStatus::new(),
        };
        WriterThread::new(config, SharedTails::default(), oneshot::channel().0)
    }

    #[test]
    fn lines_are_as_far_as_they_were_printed_whichever_stream_ends_last() {
        let (out, err) = ((Rank(0), Stream::Stdout), (Rank(0), Stream::Stderr));
        for ends in [[out, err], [err, out]] {
            let (sender, OutputReceiver(items)) = output_channel();
            let chunks = [(err, b"why\n".to_vec()), (out, b"a line\n".repeat(100))];
            let ends = ends.map(|source| (source, Vec::new()));
            for (source, data) in chunks.into_iter().chain(ends) {
                sender.push((NodeId(0), source), None, data, None);
            }
            drop(sender);
            let written = writer_thread(Stdio::Nowhere, false).run(&Mutex::new(items));
            assert!(written.tails.is_out_of_sight(Rank(0), 24));
            assert!(!written.tails.is_out_of_sight(Rank(0), 100));
        }
    }

    #[test]
    fn output_that_is_shown_again_keeps_the_order_of_its_times() {
        let (reader, writer) = io::pipe().unwrap();
        let mut thread = writer_thread(Stdio::Pipe(Arc::new(writer)), true);
        let terminal = PerStream { stdout: true, stderr: true };
        thread.bursts = Bursts::new(None, 2, terminal, false);
        let (sender, OutputReceiver(items)) = output_channel();
        // A clock of a host that is behind does not put lines into one moment with later ones.
        for (rank, seconds, line) in [(0, 9, "a\n"), (1, 11, "b\n"), (1, 10, "c\n"), (0, 13, "d\n")]
        {
            sender.came_at(seconds * 1_000_000);
            let source = (Rank(rank), Stream::Stdout);
            sender.push((NodeId(0), source), None, line.into(), None);
        }
        drop(sender);
        thread.run(&Mutex::new(items));
        assert_eq!(io::read_to_string(reader).unwrap(), "a\nb\nc\nd\n");
    }

    #[test]
    fn the_last_lines_are_counted_as_they_are_shown() {
        let terminal = PerStream { stdout: true, stderr: true };
        let folding = || Bursts::new(Some(Folding::Lines), 2, terminal, false);
        for (bursts, most, expected) in [
            (folding(), 2, "[0-1] step 14\n[0-1] step 15\n"),
            (folding(), 9, "[0-1] step 13\n[0-1] step 14\n[0-1] step 15\n"),
            (None, 3, "step 14\nstep 15\nstep 15\n"),
            (None, 0, ""),
        ] {
            let (reader, writer) = io::pipe().unwrap();
            let stdio = Stdio::Pipe(Arc::new(writer));
            let mut thread = writer_thread(stdio.clone(), true);
            (thread.bursts, thread.last) = (bursts, Some(LastShown::new(stdio, most)));
            let (sender, OutputReceiver(items)) = output_channel();
            for step in 13..16 {
                sender.came_at(step * 1_000_000);
                for rank in [0, 1] {
                    let line = format!("step {step}\n");
                    sender.push((NodeId(0), (Rank(rank), Stream::Stdout)), None, line.into(), None);
                }
            }
            drop(sender);
            let mut last = thread.run(&Mutex::new(items)).last.unwrap();
            last.cut(most);
            last.write().unwrap();
            assert_eq!(io::read_to_string(reader).unwrap(), expected);
        }
    }
}
