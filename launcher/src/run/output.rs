//! What ranks print, on its way to this process's stdout and stderr: every byte, whole lines,
//! however many ranks write at once.
//!
//! One thread does the writing, so that a slow terminal never holds up anything else; it gives an
//! agent new credit only for what has been written, so a slow reader slows the ranks down and
//! fills no memory.

mod files;
mod pen;
mod sink;
mod tags;
mod tail;

pub(crate) use files::Files;
pub(crate) use tags::Tags;

use crate::connect::outbox::{Outbox, Reserved};
use crate::job::options::OutputOptions;
use crate::plan::nccl::Log;
use crate::run::output::pen::{Pen, Said, Shown};
use crate::run::output::sink::Sink;
use crate::run::output::tail::Tails;
use crate::run::record::Kept;
use rlaunch_bootstrap::id::{NodeId, Rank};
use rlaunch_bootstrap::protocol::control::{MAX_OUTPUT, Stream};
use rlaunch_console::exit::Exit;
use rlaunch_console::messages::{self, Failed};
use std::borrow::Cow;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use tokio::sync::oneshot;

/// The most output on its way from all nodes together, in bytes, as long as each has the least.
const TOTAL_WINDOW: usize = 2 << 20;
/// The most from one node, in bytes: what is faster than any reader, over a distance as well.
const NODE_WINDOW: usize = 256 << 10;
/// The least, in bytes: a whole frame goes even when a quarter is still to be paid back.
const LEAST_WINDOW: usize = 2 * MAX_OUTPUT;

/// How much output one of `nodes` nodes may have on its way, in bytes.
pub(crate) fn window(nodes: usize) -> u32 {
    let window = (TOTAL_WINDOW / nodes.max(1)).clamp(LEAST_WINDOW, NODE_WINDOW);
    u32::try_from(window).unwrap_or(u32::MAX)
}

/// Where a stream comes from.
pub(crate) type Source = (Rank, Stream);

/// Makes the files of this many ranks, where they are wanted.
pub(crate) fn files(options: &OutputOptions, ranks: u32) -> Result<Option<Files>, Failed> {
    let create = |directory: &PathBuf| Files::create(directory, ranks, options.merge_stderr);
    let files = options.directory.as_ref().map(create).transpose();
    files.map_err(|error| Failed::from_error(Exit::FILES, &error))
}

/// Work of the thread, with its part of the node's room where no credit pays for it.
enum Item {
    Said(Said, Option<Reserved>),
    /// A rank's process, before anything that it wrote.
    Started(Rank, u32, Option<Reserved>),
}

/// The way in; clones feed the same thread.
#[derive(Clone)]
pub(crate) struct Output(Sender<Item>);

impl Output {
    /// Hands over what a rank wrote, and when that was read, in microseconds since 1970. Empty data
    /// ends the stream.
    pub(crate) fn push(
        &self,
        (node, source): (NodeId, Source),
        stamp: Option<u64>,
        data: Vec<u8>,
        room: Option<Reserved>,
    ) {
        // The thread leaves only after every sender.
        let _ = self.0.send(Item::Said(Said { node, source, stamp, data }, room));
    }

    /// A rank's process id, which is known before it writes anything.
    pub(crate) fn started(&self, rank: Rank, pid: u32, room: Option<Reserved>) {
        let _ = self.0.send(Item::Started(rank, pid, room));
    }
}

/// What is known when everything is written.
#[derive(Debug, Default)]
pub(crate) struct Written {
    /// The last lines that each rank wrote to stderr, or to the one stream for both.
    pub(crate) tails: Tails,
    /// It was one stream.
    pub(crate) merged: bool,
    /// What NCCL has said, when that was wanted.
    pub(crate) nccl: Option<Log>,
    /// What is recorded of it, when that was wanted.
    pub(crate) kept: Option<Kept>,
    /// Why not all of it is in the files that were wanted.
    pub(crate) incomplete: Option<Failed>,
}

/// The writing thread, seen from the launcher.
pub(crate) struct Writer {
    thread: JoinHandle<Written>,
    reader_gone: Option<oneshot::Receiver<()>>,
}

/// How output is shown, and who is given credit for it.
pub(crate) struct Setup {
    /// Tag that each line starts with.
    pub(crate) tags: Option<Tags>,
    /// Each rank's own.
    pub(crate) files: Option<Files>,
    /// Stderr comes with stdout.
    pub(crate) merged: bool,
    /// By node.
    pub(crate) credit: Vec<Outbox>,
    pub(crate) ranks: u32,
    /// Reads what NCCL logs.
    pub(crate) nccl: Option<Log>,
    /// Keeps what is recorded.
    pub(crate) kept: Option<Kept>,
    /// Ranks' stdout goes to stderr as well: this process's stdout is for something else.
    pub(crate) aside: bool,
}

/// What ranks print, before it is known how it is shown.
pub(crate) struct Unread(Receiver<Item>);

/// The way from sessions to the thread that is started later.
pub(crate) fn pipe() -> (Output, Unread) {
    let (sender, items) = channel();
    (Output(sender), Unread(items))
}

/// Starts the thread.
pub(crate) fn start(setup: Setup, Unread(items): Unread) -> Writer {
    let (gone, reader_gone) = oneshot::channel();
    let thread = std::thread::spawn(move || Thread::new(setup, gone).run(&items));
    Writer { thread, reader_gone: Some(reader_gone) }
}

impl Writer {
    /// Resolves when the reader of stdout or stderr went away. Safe to cancel.
    pub(crate) async fn reader_gone(&mut self) {
        if let Some(gone) = &mut self.reader_gone {
            let heard = gone.await;
            self.reader_gone = None;
            if heard.is_ok() {
                return;
            }
        }
        // The thread has ended in order, or has said so once.
        std::future::pending::<()>().await;
    }

    /// Waits until everything is written; every [`Output`] must be gone.
    pub(crate) async fn finish(self) -> Written {
        let joined = tokio::task::spawn_blocking(|| self.thread.join()).await;
        joined.ok().and_then(Result::ok).unwrap_or_default()
    }
}

struct Thread {
    sink: Sink,
    pen: Pen,
    files: Option<Files>,
    tails: Tails,
    /// By which ranks say what went wrong.
    last_words: Stream,
    nccl: Option<Log>,
    kept: Option<Kept>,
    credit: Vec<Account>,
    ranks: u32,
    gone: Option<oneshot::Sender<()>>,
}

/// Credit owed to one node; paid back in lumps, not for every frame.
struct Account {
    node: Outbox,
    owed: u32,
    lump: u32,
}

impl Thread {
    fn new(setup: Setup, gone: oneshot::Sender<()>) -> Thread {
        let lump = window(setup.credit.len()) / 4;
        let account = |node| Account { node, owed: 0, lump };
        // Where nobody can be torn apart, or a person is waiting for a prompt, unfinished lines
        // are shown at once.
        let (alone, stderr) = (setup.ranks == 1, std::io::stderr().is_terminal());
        let stdout = if setup.aside { stderr } else { std::io::stdout().is_terminal() };
        let show_unfinished = Shown { stdout: alone || stdout, stderr: alone || stderr };
        Thread {
            sink: Sink::new(setup.tags, setup.aside),
            pen: Pen::new(show_unfinished),
            files: setup.files,
            tails: Tails::default(),
            last_words: if setup.merged { Stream::Stdout } else { Stream::Stderr },
            nccl: setup.nccl,
            kept: setup.kept,
            credit: setup.credit.into_iter().map(account).collect(),
            ranks: setup.ranks,
            gone: Some(gone),
        }
    }

    fn run(mut self, items: &Receiver<Item>) -> Written {
        loop {
            let item = match self.pen.patience() {
                None => items.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(patience) => items.recv_timeout(patience),
            };
            let last = matches!(item, Err(RecvTimeoutError::Disconnected));
            match item {
                // Records by rank are bounded by the number of ranks, not by what agents say.
                Ok(Item::Said(Said { source: (rank, _), .. }, _) | Item::Started(rank, ..))
                    if rank.0 >= self.ranks => {}
                Ok(Item::Said(said, _room)) => {
                    self.note(&said);
                    self.pen.take(said);
                }
                Ok(Item::Started(rank, pid, _room)) => {
                    self.sink.tags().into_iter().for_each(|tags| tags.started(rank, pid));
                }
                Err(RecvTimeoutError::Timeout) => self.pen.put_down(),
                Err(RecvTimeoutError::Disconnected) => self.pen.finish(),
            }
            self.write_ready();
            if last {
                return self.written();
            }
        }
    }

    /// What does not wait for whole lines.
    fn note(&mut self, Said { source, data, .. }: &Said) {
        if source.1 == self.last_words {
            self.tails.add(source.0, data);
        }
        let unwritten = self.files.as_mut().and_then(|files| files.add(*source, data));
        if let Some(unwritten) = unwritten {
            messages::warn(&messages::error_chain(unwritten));
        }
    }

    fn written(self) -> Written {
        let trouble = self.files.and_then(Files::into_trouble);
        let incomplete = trouble.map(|trouble| Failed::from_error(Exit::FILES, &trouble));
        let merged = self.last_words == Stream::Stdout;
        Written { tails: self.tails, merged, nccl: self.nccl, kept: self.kept, incomplete }
    }

    fn write_ready(&mut self) {
        while let Some(pen::Piece { said, credit }) = self.pen.next() {
            let Said { node, source, stamp, data } = said;
            let shown = match &mut self.nccl {
                Some(log) => Cow::Owned(log.take(source.0, &data)),
                None => Cow::Borrowed(&data[..]),
            };
            let written = self.sink.write((source, stamp), &shown);
            drop(shown);
            if let Some(kept) = &mut self.kept {
                kept.add(source, data);
            }
            // Everything that follows is taken and dropped, so that the ranks can end. Where it goes
            // to files as well, they go on.
            if written.is_err()
                && self.files.is_none()
                && let Some(gone) = self.gone.take()
            {
                let _ = gone.send(());
            }
            if let Some(account) = self.credit.get_mut(node.index()) {
                account.owed += u32::try_from(credit).unwrap_or(u32::MAX);
                if account.owed >= account.lump {
                    account.node.grant(std::mem::take(&mut account.owed));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_goes_whatever_is_still_to_be_paid_back() {
        for nodes in [0, 1, 4, 8, 64, 385, 1000, 65_536] {
            let window = window(nodes) as usize;
            // Less than a lump is owed for as long as nothing else comes.
            assert!(window - window / 4 >= MAX_OUTPUT, "{nodes} nodes: {window}");
            assert!(window <= NODE_WINDOW);
        }
    }
}
