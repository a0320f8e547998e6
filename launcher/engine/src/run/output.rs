//! Output of ranks, written to this process's stdout and stderr: every byte, in whole lines, however
//! many ranks write at once.
//!
//! A separate thread writes, so that a slow terminal delays nothing else. Agents send only as many bytes as
//! they have credit for, and get credit back once their output is written: a slow reader slows the ranks down
//! and does not fill memory.
//!
//! | file | subject |
//! |---|---|
//! | `line_arbiter` | the order of writes, so that lines of different ranks do not mix |
//! | `bursts`, `fold` | at a terminal, what each rank prints within a moment is shown in one piece; what several ranks print, once |
//! | `rows` | progress bars and other unfinished lines below all that |
//! | `sink`, `tags` | this process's stdout and stderr; tags in front of lines |
//! | `outlet` | readers that do not read |
//! | `rank_files` | `--output-dir` |
//! | `store`, `replay` | the whole output of a job that has left its terminal, and how it is shown |
//! | `transcript` | what is kept for the record of the job, and for the report of a failure |

mod bursts;
mod fold;
mod line_arbiter;
mod outlet;
mod rank_files;
pub mod replay;
mod rows;
mod sink;
pub mod store;
mod tags;
mod transcript;

pub use rank_files::RankFiles;
pub use tags::Tags;
pub use transcript::{OutputPart, RecordedChunk, RecordedOutput, SharedTranscript};

use crate::connect::outbox::{Outbox, Reserved};
use crate::run::live::LiveStatus;
use crate::run::output::bursts::{Bursts, ShownOutput};
use crate::run::output::line_arbiter::{Chunk, LineArbiter, ReadyChunk};
use crate::run::output::outlet::{Outlet, Patience};
use crate::run::output::sink::Sink;
use crate::run::output::store::{OutputStore, StoredRecord};
use crate::run::output::transcript::Tails;
use rlaunch_bootstrap::id::{NodeId, Rank};
use rlaunch_bootstrap::protocol::control::{MAX_OUTPUT, Stream};
use rlaunch_console::{footer, messages};
use rlaunch_plan::env::nccl::Log;
use rlaunch_plan::job::options::{Folding, OutputOptions};
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use std::borrow::Cow;
use std::io::{self, IsTerminal, PipeWriter};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::io::Interest;
use tokio::net::unix::pipe;
use tokio::sync::oneshot;

/// Maximum size, in bytes, of the output that all nodes together have sent and that is not written yet.
/// [`MIN_WINDOW`] for each node takes precedence.
const TOTAL_WINDOW: usize = 2 << 20;
/// Maximum window of one node, in bytes. At usual round-trip times this does not limit the throughput.
const MAX_WINDOW: usize = 256 << 10;
/// Minimum window of one node, in bytes. Credit for up to a quarter of the window is withheld until that
/// quarter can be granted in one message. A frame of maximum size must fit into the other three quarters.
const MIN_WINDOW: usize = 2 * MAX_OUTPUT;

/// Returns the window of each of `nodes` nodes: the number of bytes of output that a node may have sent and
/// that are not written yet.
pub fn window(nodes: usize) -> u32 {
    let window = (TOTAL_WINDOW / nodes.max(1)).clamp(MIN_WINDOW, MAX_WINDOW);
    u32::try_from(window).unwrap_or(u32::MAX)
}

/// Destination of the ranks' stdout.
#[derive(Clone, Debug, Default)]
pub enum Stdio {
    /// This process's stdout.
    #[default]
    Stdout,
    /// This process's stderr, because it prints its own result to stdout.
    Stderr,
    /// Nowhere, stderr neither: the output is read elsewhere, and later.
    Nowhere,
    /// A pipe whose other end this process reads. The reader sees the end once the job is dropped.
    Pipe(Arc<PipeWriter>),
}

impl Stdio {
    pub fn is_terminal(&self) -> bool {
        match self {
            Stdio::Stdout => io::stdout().is_terminal(),
            Stdio::Stderr => io::stderr().is_terminal(),
            Stdio::Nowhere | Stdio::Pipe(_) => false,
        }
    }
}

/// Stdout or stderr of a rank.
pub(crate) type StreamId = (Rank, Stream);

/// A value for each of a rank's two streams.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PerStream<T> {
    pub stdout: T,
    pub stderr: T,
}

impl<T> PerStream<T> {
    fn of(&self, stream: Stream) -> &T {
        match stream {
            Stream::Stdout => &self.stdout,
            Stream::Stderr => &self.stderr,
        }
    }

    fn of_mut(&mut self, stream: Stream) -> &mut T {
        match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        }
    }
}

/// Returns the name of a stream, for files and for records.
fn stream_name(stream: Stream) -> &'static str {
    match stream {
        Stream::Stdout => "stdout",
        Stream::Stderr => "stderr",
    }
}

/// Creates the files of `--output-dir` for `ranks` ranks. Returns `None` without the option.
pub(crate) fn rank_files(options: &OutputOptions, ranks: u32) -> Result<Option<RankFiles>, Failed> {
    let create = |directory: &PathBuf| RankFiles::create(directory, ranks, options.merge_stderr);
    let files = options.directory.as_ref().map(create).transpose();
    files.map_err(|error| Failed::from_error(Exit::FILES, &error))
}

/// Item in the queue of the writing thread. An item that costs no credit (the end of a stream, or a process
/// id) holds a [`Reserved`] permit instead, which bounds the number of such items.
enum OutputItem {
    Chunk(Chunk, Option<Reserved>),
    /// Process id of a rank, which precedes the rank's output.
    Started(Rank, u32, Option<Reserved>),
    /// Lines that rlaunch itself has printed when the output that is shown again came.
    Message(Vec<u8>),
    /// Time at which the items that follow came before, in microseconds since 1970.
    CameAt(u64),
}

/// Sender of output to the writing thread.
#[derive(Clone)]
pub struct OutputSender(Sender<OutputItem>);

impl OutputSender {
    /// Queues output of a rank. `stamp` is the time at which the agent read the data, in microseconds since
    /// 1970. Empty data ends the stream.
    pub fn push(
        &self,
        (node, source): (NodeId, StreamId),
        stamp: Option<u64>,
        data: Vec<u8>,
        room: Option<Reserved>,
    ) {
        // The receiver outlives every sender.
        let _ = self.0.send(OutputItem::Chunk(Chunk { node, source, stamp, data }, room));
    }

    /// Queues lines of rlaunch itself.
    fn message(&self, lines: Vec<u8>) {
        let _ = self.0.send(OutputItem::Message(lines));
    }

    /// Says when what is queued next came before.
    fn came_at(&self, time: u64) {
        let _ = self.0.send(OutputItem::CameAt(time));
    }

    /// Queues the process id of a rank. Must be called before any output of the rank is queued.
    pub fn started(&self, rank: Rank, pid: u32, room: Option<Reserved>) {
        let _ = self.0.send(OutputItem::Started(rank, pid, room));
    }
}

/// Result of writing all output.
#[derive(Debug, Default)]
pub struct Written {
    /// Last lines that each rank wrote to stderr or, if `merged`, to the only stream.
    pub tails: Tails,
    /// Whether ranks wrote stdout and stderr to one stream.
    pub merged: bool,
    /// Whether that stream is shown where rlaunch's own messages are not.
    pub is_elsewhere: bool,
    /// Networks that NCCL logged; `None` without `--nccl-verify`.
    pub nccl: Option<Log>,
    /// Error that left the files of `--output-dir` incomplete.
    pub incomplete: Option<Failed>,
    /// Error that left stdout or stderr incomplete, unless their reader has gone.
    pub unwritten: Option<Failed>,
}

/// Handle of the writing thread.
pub struct OutputWriter {
    thread: Arc<JoinHandle<()>>,
    outlets: Vec<Arc<Outlet>>,
    /// Result of the thread.
    written: oneshot::Receiver<Written>,
    /// Time for which readers may take nothing; `None` as long as there is no limit.
    patience: Option<Arc<Patience>>,
    /// Message of the thread that a write failed; `None` once it has been received.
    failed: Option<oneshot::Receiver<()>>,
    /// Pipe to a reader in this process, which may leave while ranks print nothing; `None` once it has left.
    pipe: Option<pipe::Sender>,
}

/// Settings of the writing thread.
pub struct OutputConfig {
    pub tags: Option<Tags>,
    pub fold: Option<Folding>,
    /// Files of `--output-dir`.
    pub files: Option<RankFiles>,
    /// Whether ranks write stderr to the same stream as stdout.
    pub merged: bool,
    /// Outboxes through which nodes are granted credit, by node.
    pub(crate) credit: Vec<Outbox>,
    pub ranks: u32,
    /// Parser of NCCL's log; `None` without `--nccl-verify`.
    pub nccl: Option<Log>,
    /// Output for the job's record and for `rlaunch logs`; `None` if no record is wanted.
    pub(crate) transcript: Option<SharedTranscript>,
    /// File for the whole output; `None` if the output is shown as it comes.
    pub(crate) store: Option<OutputStore>,
    pub stdio: Stdio,
    /// State of the job, which has the time of the last output.
    pub status: LiveStatus,
}

/// Receiving end of the queue of output, before the writing thread is started.
pub struct OutputReceiver(Receiver<OutputItem>);

/// Makes the queue from sessions to the writing thread, which is started later.
pub(crate) fn output_channel() -> (OutputSender, OutputReceiver) {
    let (sender, items) = channel();
    (OutputSender(sender), OutputReceiver(items))
}

/// Starts the thread that writes the output in the queue.
pub fn start(config: OutputConfig, OutputReceiver(items): OutputReceiver) -> OutputWriter {
    let (gone, failed) = oneshot::channel();
    let pipe = match &config.stdio {
        // The copy is only waited on. Waiting does not change the pipe's mode, which the writer shares.
        Stdio::Pipe(writer) => writer
            .try_clone()
            .and_then(|writer| pipe::Sender::from_owned_fd_unchecked(writer.into()))
            .ok(),
        Stdio::Stdout | Stdio::Stderr | Stdio::Nowhere => None,
    };
    let writer = WriterThread::new(config, gone);
    let outlets = writer.sink.outlets();
    let (result, written) = oneshot::channel();
    let thread = std::thread::spawn(move || {
        // The receiver is gone if the job could not be started.
        let _ = result.send(writer.run(&items));
    });
    OutputWriter {
        thread: Arc::new(thread),
        outlets,
        written,
        patience: None,
        failed: Some(failed),
        pipe,
    }
}

impl OutputWriter {
    /// Waits until the reader of stdout or stderr has closed it. Returns once; later calls wait for ever.
    /// Cancel-safe.
    pub(crate) async fn reader_gone(&mut self) {
        tokio::select! {
            () = receive_once(&mut self.failed) => self.pipe = None,
            () = closed(&mut self.pipe) => self.failed = None,
        }
    }

    /// Gives up from now on, and until all output is written, each reader that takes nothing for `time`. A limit that was
    /// set before may be shorter.
    pub(crate) fn limit_readers(&mut self, time: Duration) {
        let (thread, outlets) = (&self.thread, &self.outlets);
        let patience = self.patience.get_or_insert_with(|| {
            let patience = Patience::new();
            let task =
                outlet::give_up_idle_readers(thread.clone(), outlets.clone(), patience.clone());
            tokio::spawn(async move {
                if let Err(error) = task.await {
                    tracing::warn!("cannot give up readers: {error}");
                }
            });
            patience
        });
        patience.shorten(time);
    }

    /// Tells whether output waits for its reader.
    pub(crate) fn waits_for_reader(&self) -> bool {
        self.outlets.iter().any(|outlet| outlet.waits_for_reader())
    }

    /// Returns the number of bytes of output that readers have not got so far, because they were given up.
    pub(crate) fn unread(&self) -> u64 {
        self.outlets.iter().map(|outlet| outlet.unread()).sum()
    }

    /// Waits until all output is written, which cannot be before every [`OutputSender`] is dropped. Cancel-safe.
    pub(crate) async fn finish(&mut self) -> Written {
        (&mut self.written).await.unwrap_or_default()
    }
}

/// Waits for a message, once. Waits for ever if its sender is dropped.
async fn receive_once(message: &mut Option<oneshot::Receiver<()>>) {
    if let Some(receiver) = message {
        let received = receiver.await;
        *message = None;
        if received.is_ok() {
            return;
        }
    }
    std::future::pending::<()>().await;
}

/// Waits until the reading end of a pipe is closed, once.
async fn closed(pipe: &mut Option<pipe::Sender>) {
    if let Some(writer) = pipe
        && writer.ready(Interest::ERROR).await.is_ok()
    {
        *pipe = None;
        return;
    }
    std::future::pending::<()>().await;
}

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

struct WriterThread {
    sink: Sink,
    arbiter: LineArbiter,
    /// Output that is held; `None` if none is, but for its last line.
    bursts: Option<Bursts>,
    /// Clock of the bursts; `None` for that of this machine.
    recorded: Option<RecordedClock>,
    files: Option<RankFiles>,
    tails: Tails,
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
    fn new(config: OutputConfig, gone: oneshot::Sender<()>) -> WriterThread {
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
            recorded: None,
            files: config.files,
            tails: Tails::default(),
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

    fn run(mut self, items: &Receiver<OutputItem>) -> Written {
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
                    messages::replay(lines);
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
    fn receive(&self, items: &Receiver<OutputItem>) -> Result<OutputItem, RecvTimeoutError> {
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
            self.tails.count(data);
            // The end of the stream, which has no data, is nothing that anybody sees.
            if source.1 == self.error_stream {
                self.tails.add(source.0, data);
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
            tails: self.tails,
            merged,
            is_elsewhere: merged && self.is_stdout_elsewhere,
            nccl: self.nccl,
            incomplete,
            unwritten: self.unwritten,
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
            match &mut self.bursts {
                None => {
                    let written = self.sink.write((source, stamp), &shown);
                    self.end_job_on_error(source.1, written);
                }
                Some(bursts) => {
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
            let (stream, written) = match shown {
                ShownOutput::Plain { source, stamp, data } => {
                    (source.1, self.sink.write((source, stamp), &data))
                }
                ShownOutput::Folded { stream, ranks, lines } => {
                    if stream == self.error_stream {
                        self.tails.folded(&ranks);
                    }
                    (stream, self.sink.write_folded(stream, &ranks, &lines))
                }
                ShownOutput::CursorMoves(rank) => {
                    self.sink.tags().into_iter().for_each(|tags| tags.leave_alone(rank));
                    continue;
                }
            };
            self.end_job_on_error(stream, written);
        }
        // Nothing may be below the last lines.
        if let Some(rows) = rows.or(is_end.then(Vec::new)) {
            let written = self.sink.draw(&rows);
            self.end_job_on_error(Stream::Stdout, written);
        }
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
            status: LiveStatus::new(),
        };
        WriterThread::new(config, oneshot::channel().0)
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
            let written = writer_thread(Stdio::Nowhere, false).run(&items);
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
        thread.run(&items);
        assert_eq!(io::read_to_string(reader).unwrap(), "a\nb\nc\nd\n");
    }

    #[test]
    fn a_frame_goes_whatever_is_still_to_be_paid_back() {
        for nodes in [0, 1, 4, 8, 64, 385, 1000, 65_536] {
            let window = window(nodes) as usize;
            // Credit for up to a quarter of the window is withheld until more is written.
            assert!(window - window / 4 >= MAX_OUTPUT, "{nodes} nodes: {window}");
            assert!(window <= MAX_WINDOW);
        }
    }
}
