//! What ranks print, on its way to this process's stdout and stderr: every byte, whole lines,
//! however many ranks write at once.
//!
//! One thread does the writing, so that a slow terminal never holds up anything else; it gives an
//! agent new credit only for what has been written, so a slow reader slows the ranks down and
//! fills no memory.

mod pen;
mod sink;
mod tail;

use crate::nccl::Log;
use crate::output::pen::Pen;
use crate::output::sink::Sink;
use crate::output::tail::Tails;
use crate::record::Kept;
use crate::session::Commands;
use rlaunch_bootstrap::id::{NodeId, Rank};
use rlaunch_bootstrap::wire::{Stream, ToAgent};
use std::borrow::Cow;
use std::io::IsTerminal;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use tokio::sync::oneshot;

/// The most output on its way from all nodes together, in bytes.
const TOTAL_WINDOW: usize = 12 << 20;
/// The most from one node, in bytes.
const NODE_WINDOW: usize = 1 << 20;

/// How much output one of `nodes` nodes may have on its way, in bytes.
pub(crate) fn window(nodes: usize) -> u32 {
    let window = (TOTAL_WINDOW / nodes.max(1)).min(NODE_WINDOW);
    u32::try_from(window).unwrap_or(u32::MAX)
}

/// Where a stream comes from.
pub(crate) type Source = (Rank, Stream);

struct Item {
    node: NodeId,
    source: Source,
    data: Vec<u8>,
}

/// The way in; clones feed the same thread.
#[derive(Clone)]
pub(crate) struct Output(Sender<Item>);

impl Output {
    /// Hands over what a rank wrote. Empty data ends the stream.
    pub(crate) fn push(&self, node: NodeId, source: Source, data: Vec<u8>) {
        // The thread leaves only after every sender.
        let _ = self.0.send(Item { node, source, data });
    }
}

/// What is known when everything is written.
#[derive(Debug, Default)]
pub(crate) struct Written {
    /// The last lines that each rank wrote to stderr.
    pub(crate) tails: Tails,
    /// What NCCL has said, when that was wanted.
    pub(crate) nccl: Option<Log>,
    /// What is recorded of it, when that was wanted.
    pub(crate) kept: Option<Kept>,
}

/// The writing thread, seen from the launcher.
pub(crate) struct Writer {
    thread: JoinHandle<Written>,
    reader_gone: Option<oneshot::Receiver<()>>,
}

/// How output is shown, and who is given credit for it.
pub(crate) struct Setup {
    /// By rank, what each line starts with.
    pub(crate) tags: Option<Vec<String>>,
    /// By node.
    pub(crate) credit: Vec<Commands>,
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
    tails: Tails,
    nccl: Option<Log>,
    kept: Option<Kept>,
    credit: Vec<Account>,
    gone: Option<oneshot::Sender<()>>,
}

/// Credit owed to one node; paid back in lumps, not for every frame.
struct Account {
    node: Commands,
    owed: u32,
    lump: u32,
}

impl Thread {
    fn new(setup: Setup, gone: oneshot::Sender<()>) -> Thread {
        let lump = window(setup.credit.len()) / 4;
        let account = |node| Account { node, owed: 0, lump };
        // Where nobody can be torn apart, or a person is waiting for a prompt, unfinished lines
        // are shown at once.
        let show_unfinished = setup.ranks == 1 || std::io::stdout().is_terminal();
        Thread {
            sink: Sink::new(setup.tags, setup.aside),
            pen: Pen::new(show_unfinished),
            tails: Tails::default(),
            nccl: setup.nccl,
            kept: setup.kept,
            credit: setup.credit.into_iter().map(account).collect(),
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
                Ok(Item { node, source, data }) => {
                    if source.1 == Stream::Stderr {
                        self.tails.add(source.0, &data);
                    }
                    self.pen.take(node, source, data);
                }
                Err(RecvTimeoutError::Timeout) => self.pen.put_down(),
                Err(RecvTimeoutError::Disconnected) => self.pen.finish(),
            }
            self.write_ready();
            if last {
                return Written { tails: self.tails, nccl: self.nccl, kept: self.kept };
            }
        }
    }

    fn write_ready(&mut self) {
        while let Some(piece) = self.pen.next() {
            let data = match &mut self.nccl {
                Some(log) => Cow::Owned(log.take(piece.source.0, &piece.data)),
                None => Cow::Borrowed(&piece.data[..]),
            };
            let written = self.sink.write(piece.source, &data);
            drop(data);
            if let Some(kept) = &mut self.kept {
                kept.add(piece.source, piece.data);
            }
            if written.is_err() {
                // Everything that follows is taken and dropped, so that the ranks can end.
                if let Some(gone) = self.gone.take() {
                    let _ = gone.send(());
                }
            }
            if let Some(account) = self.credit.get_mut(piece.node.index()) {
                account.owed += u32::try_from(piece.credit).unwrap_or(u32::MAX);
                if account.owed >= account.lump {
                    account.node.tell(&ToAgent::Credit(std::mem::take(&mut account.owed)));
                }
            }
        }
    }
}
