//! Output of ranks, written to this process's stdout and stderr: every byte, in whole lines, however
//! many ranks write at once.
//!
//! A separate thread writes, so that a slow terminal delays nothing else. Agents send only as many bytes as
//! they have credit for, and get credit back once their output is written: a slow reader slows the ranks down
//! and does not fill memory.
//!
//! | file | subject |
//! |---|---|
//! | `writer` | the thread that writes |
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
mod writer;

pub use rank_files::RankFiles;
pub use tags::Tags;
pub use transcript::{OutputPart, RecordedChunk, RecordedOutput, SharedTranscript};

use crate::connect::outbox::{Outbox, Reserved};
use crate::run::live::LiveStatus;
use crate::run::output::line_arbiter::Chunk;
use crate::run::output::outlet::{Outlet, Patience, Watch};
use crate::run::output::store::OutputStore;
use crate::run::output::transcript::{SharedTails, Tails};
use crate::run::output::writer::{LastLines, WriterThread};
use rlaunch_bootstrap::id::{NodeId, Rank};
use rlaunch_bootstrap::protocol::control::{MAX_OUTPUT, Stream};
use rlaunch_console::messages;
use rlaunch_plan::env::nccl::Log;
use rlaunch_plan::job::options::{Folding, OutputOptions};
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use std::io::{self, IsTerminal, PipeWriter};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::unix::pipe;
use tokio::sync::{mpsc, oneshot};

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
#[derive(Default)]
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
    /// The last lines, which are not written yet; `None` if all were to be.
    last: Option<LastLines>,
}

/// Handle of the writing thread.
pub struct OutputWriter {
    thread: Arc<JoinHandle<()>>,
    outlets: Vec<Arc<Outlet>>,
    /// Result of the thread, or of its successor.
    written: mpsc::UnboundedReceiver<Written>,
    /// Time for which readers may take nothing; `None` as long as there is no limit.
    patience: Option<Arc<Patience>>,
    /// `None` once readers may be given up.
    successor: Option<Successor>,
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
    /// Number of the last lines that are shown, as they are shown, once all are known; `None` for all at once.
    pub last: Option<usize>,
    /// State of the job, which has the time of the last output.
    pub status: LiveStatus,
}

impl OutputConfig {
    /// Makes the settings of a thread that takes the place of one that can go on no more. It writes nowhere, and does what is
    /// left to do.
    fn of_successor(&self) -> OutputConfig {
        OutputConfig {
            tags: None,
            fold: None,
            files: None,
            merged: self.merged,
            credit: self.credit.clone(),
            ranks: self.ranks,
            nccl: None,
            transcript: self.transcript.clone(),
            store: self.store.clone(),
            stdio: Stdio::Nowhere,
            last: None,
            status: self.status.clone(),
        }
    }
}

/// Receiving end of the queue of output, before the writing thread is started.
pub struct OutputReceiver(Receiver<OutputItem>);

/// The same, in the hands of the writing thread and of its successor.
type SharedItems = Arc<Mutex<Receiver<OutputItem>>>;

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
    let (items, (result, written)) = (Arc::new(Mutex::new(items)), mpsc::unbounded_channel());
    let tails = SharedTails::default();
    let successor = Successor {
        config: config.of_successor(),
        tails: tails.clone(),
        items: items.clone(),
        result,
    };
    let writer = WriterThread::new(config, tails, gone);
    let outlets = writer.outlets();
    let thread = spawn_writer(writer, items, successor.result.clone());
    OutputWriter {
        thread: Arc::new(thread),
        outlets,
        written,
        patience: None,
        successor: Some(successor),
        failed: Some(failed),
        pipe,
    }
}

fn spawn_writer(
    writer: WriterThread,
    items: SharedItems,
    result: mpsc::UnboundedSender<Written>,
) -> JoinHandle<()> {
    std::thread::spawn(move || {
        // The receiver is gone if the job could not be started.
        let _ = result.send(writer.run(&items));
    })
}

/// Parts for another thread, if the writing one can go on no more.
struct Successor {
    config: OutputConfig,
    /// Those of the other thread.
    tails: SharedTails,
    items: SharedItems,
    result: mpsc::UnboundedSender<Written>,
}

impl Successor {
    fn start(self) {
        messages::warn(
            "the rest of the ranks' output is dropped, since its reader holds the pipe in the kernel",
        );
        // What the other thread has not paid back is not paid any more.
        let window = window(self.config.credit.len());
        self.config.credit.iter().for_each(|node| node.grant(window));
        let writer = WriterThread::new(self.config, self.tails, oneshot::channel().0);
        drop(spawn_writer(writer, self.items, self.result));
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
        let (thread, outlets, successor) = (&self.thread, &self.outlets, &mut self.successor);
        let patience = self.patience.get_or_insert_with(|| {
            let patience = Patience::new();
            let task =
                outlet::give_up_idle_readers(thread.clone(), outlets.clone(), patience.clone());
            let successor = successor.take();
            tokio::spawn(async move {
                match task.await {
                    Ok(Watch::Over) => {}
                    Ok(Watch::Held) => successor.into_iter().for_each(Successor::start),
                    Err(error) => tracing::warn!("cannot give up readers: {error}"),
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
        self.written.recv().await.unwrap_or_default()
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

#[cfg(test)]
mod tests {
    use super::*;
    use rlaunch_bootstrap::protocol::control::{FrameReader, ToAgent};
    use std::fs::File;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;
    use std::thread::JoinHandle;

    /// Makes a pipe whose reader copies to a socket that nobody reads, by splice(2), and so holds the thread that writes. Also
    /// returns the other end of the socket, and the thread that copies.
    pub(super) fn held_pipe() -> (io::PipeWriter, UnixStream, JoinHandle<io::Result<u64>>) {
        let (reader, writer) = io::pipe().unwrap();
        let (socket, far) = UnixStream::pair().unwrap();
        let copying = std::thread::spawn(move || {
            let (mut from, mut to) =
                (File::from(OwnedFd::from(reader)), File::from(OwnedFd::from(socket)));
            io::copy(&mut from, &mut to)
        });
        (writer, far, copying)
    }

    #[tokio::test]
    async fn what_is_left_is_done_although_the_reader_holds_its_pipe() {
        let (writer, mut far, copying) = held_pipe();
        let ((node, mut granted), (sender, receiver)) = (Outbox::new(), output_channel());
        let transcript = SharedTranscript::default();
        let config = OutputConfig {
            tags: None,
            fold: None,
            files: None,
            merged: false,
            credit: vec![node],
            ranks: 2,
            nccl: None,
            transcript: Some(transcript.clone()),
            store: None,
            stdio: Stdio::Pipe(Arc::new(writer)),
            last: None,
            status: LiveStatus::new(),
        };
        let mut output = start(config, receiver);
        sender.push((NodeId(0), (Rank(1), Stream::Stderr)), None, b"before\n".to_vec(), None);
        // More than pipe and socket hold.
        let (line, flood) = ([vec![b'x'; MAX_OUTPUT - 1], b"\n".to_vec()].concat(), 128);
        for _ in 0..flood {
            sender.push((NodeId(0), (Rank(0), Stream::Stdout)), None, line.clone(), None);
        }
        sender.push((NodeId(0), (Rank(1), Stream::Stderr)), None, b"why\n".to_vec(), None);
        output.limit_readers(Duration::ZERO);
        drop(sender);
        let written = output.finish().await;
        assert_eq!(written.tails.lines(Rank(1)), ["before", "why"]);
        assert!(transcript.take().left_out_bytes > 0);
        let mut frames = FrameReader::default();
        while let Ok((frame, _)) = granted.high_priority.try_recv() {
            frames.push(&frame);
        }
        let mut paid = 0;
        while let Some(message) = frames.next_frame().unwrap() {
            let ToAgent::Credit(bytes) = message else { panic!("{message:?}") };
            paid += bytes as usize;
        }
        assert!(paid >= flood * MAX_OUTPUT, "{paid}");
        drop(output);
        let read = io::copy(&mut far, &mut io::sink()).unwrap();
        assert_eq!(copying.join().unwrap().unwrap(), read);
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
