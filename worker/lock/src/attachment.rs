//! Attachments: registrations of lent buffers with RDMA devices. A thread makes an attachment only
//! after it has released the lock, because registering may take as long as a hundred messages.
//!
//! Memory is described here as callers lend it, as the buffer table keeps it, and as a device reads
//! and writes it without the processor.

use std::any::Any;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

/// Result of a request to use an attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attached<R> {
    /// The attachment exists and was passed to the caller's closure, which returned this value.
    Used(R),
    /// The attachment is being made; the caller has to try again.
    Pending,
    /// The buffer was taken back, or the device could not register it.
    Unavailable,
}

/// Registration of a buffer with one device, which `key` identifies.
#[derive(Debug)]
pub(crate) struct Attachment {
    pub(crate) key: usize,
    cell: Arc<Cell>,
}

/// State that an attachment shares with the job that makes it.
#[derive(Debug)]
struct Cell {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
enum State {
    Queued,
    Running,
    /// Result of the job (`None` if it failed), and a reference that tells whether the job's
    /// [`PinnedBuffer`] still exists.
    Made(Option<Box<dyn Any + Send>>, Weak<()>),
    /// The buffer was taken back.
    Ended,
}

type Maker = Box<dyn FnOnce(PinnedBuffer) -> Option<Box<dyn Any + Send>> + Send>;

/// Job that makes an attachment, run by the next thread that releases the lock.
pub(crate) struct Job {
    cell: Arc<Cell>,
    memory: RawBuffer,
    maker: Maker,
}

// SAFETY: the address is used only while the cell's state is `Running`. Until then the memory may be
// taken back, which ends the job; from then on `Attachment::end` waits for the job.
unsafe impl Send for Job {}

impl Cell {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Attachment {
    /// Creates an attachment of lent memory, and the job that makes it by calling `maker`.
    pub(crate) fn begin<A: Any + Send>(
        key: usize,
        memory: RawBuffer,
        maker: impl FnOnce(PinnedBuffer) -> Option<A> + Send + 'static,
    ) -> (Attachment, Job) {
        let cell = Arc::new(Cell { state: Mutex::new(State::Queued), changed: Condvar::new() });
        let maker: Maker = Box::new(|pinned| Some(Box::new(maker(pinned)?)));
        (Attachment { key, cell: cell.clone() }, Job { cell, memory, maker })
    }

    /// Passes the attachment to `uses` if it has been made.
    pub(crate) fn with<A: Any, R>(&self, uses: impl FnOnce(&A) -> R) -> Attached<R> {
        match &*self.cell.state() {
            State::Queued | State::Running => Attached::Pending,
            State::Made(made, _) => {
                let made = made.as_ref().and_then(|made| made.downcast_ref());
                made.map_or(Attached::Unavailable, |made| Attached::Used(uses(made)))
            }
            State::Ended => Attached::Unavailable,
        }
    }

    /// Drops the attachment, so that the device can no longer access the memory. Waits first if the
    /// attachment's job is running. Aborts the process if the [`PinnedBuffer`] outlived the
    /// attachment.
    pub(crate) fn end(self) {
        let mut state = self.cell.state();
        while matches!(*state, State::Running) {
            state = self.cell.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let previous = std::mem::replace(&mut *state, State::Ended);
        drop(state);
        let State::Made(made, alive) = previous else { return };
        drop(made);
        if alive.strong_count() > 0 {
            eprintln!(
                "rlaunch: a device may still write to a buffer that was taken back; aborting"
            );
            std::process::abort();
        }
    }
}

impl Job {
    /// Makes the attachment, unless the buffer was taken back before.
    pub(crate) fn run(self) {
        let mut state = self.cell.state();
        if !matches!(*state, State::Queued) {
            return;
        }
        *state = State::Running;
        drop(state);
        let alive = Arc::new(());
        // Dropped, and so published, even if the maker panics: `Attachment::end` must find out if
        // the maker has leaked the `PinnedBuffer`.
        let mut outcome = Outcome { cell: &self.cell, made: None, alive: Arc::downgrade(&alive) };
        outcome.made = (self.maker)(PinnedBuffer { memory: self.memory, _alive: alive });
    }
}

/// Result of a job. Dropping this value publishes the result to the attachment.
struct Outcome<'c> {
    cell: &'c Cell,
    made: Option<Box<dyn Any + Send>>,
    alive: Weak<()>,
}

impl Drop for Outcome<'_> {
    fn drop(&mut self) {
        *self.cell.state() = State::Made(self.made.take(), std::mem::take(&mut self.alive));
        self.cell.changed.notify_all();
    }
}

/// Memory that a caller lends.
#[derive(Debug)]
pub enum Memory<'a> {
    /// Bytes that the engine only reads.
    Shared(&'a [u8]),
    /// Bytes that the engine reads and writes.
    Exclusive(&'a mut [u8]),
}

impl Memory<'_> {
    pub(crate) fn raw(&mut self) -> RawBuffer {
        match self {
            Memory::Shared(bytes) => {
                RawBuffer { first: bytes.as_ptr().cast_mut(), length: bytes.len(), writable: false }
            }
            Memory::Exclusive(bytes) => {
                RawBuffer { first: bytes.as_mut_ptr(), length: bytes.len(), writable: true }
            }
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct RawBuffer {
    pub(crate) first: *mut u8,
    pub(crate) length: usize,
    pub(crate) writable: bool,
}

impl RawBuffer {
    const EMPTY: RawBuffer = RawBuffer { first: std::ptr::null_mut(), length: 0, writable: false };

    pub(crate) fn new(first: *mut u8, length: usize, writable: bool) -> RawBuffer {
        match length {
            0 => RawBuffer { writable, ..RawBuffer::EMPTY },
            _ => RawBuffer { first, length, writable },
        }
    }

    /// Tells whether all of `other` is inside this buffer, and this buffer is writable if `other`
    /// is writable. Returns `false` if `other` is empty.
    pub(crate) fn contains(self, other: RawBuffer) -> bool {
        let offset = other.first.addr().checked_sub(self.first.addr());
        let fits = offset
            .is_some_and(|offset| offset <= self.length && other.length <= self.length - offset);
        fits && other.length > 0 && (self.writable || !other.writable)
    }
}

/// Memory of a buffer, passed to the closure that registers the memory with a device (see
/// [`BufferTable::with_attachment`](crate::BufferTable::with_attachment)). The memory stays in
/// place until this value is dropped.
///
/// The registration that the closure returns must own this value, and drop it only after the device
/// has given up the memory. If this value still exists after the registration was dropped, the
/// process aborts, because the device could write to memory that the program uses again.
#[derive(Debug)]
pub struct PinnedBuffer {
    memory: RawBuffer,
    _alive: Arc<()>,
}

// SAFETY: an address of bytes that any thread may use while this exists; `PinnedBuffer` itself
// never follows it.
unsafe impl Send for PinnedBuffer {}

impl PinnedBuffer {
    /// Returns the address of the first byte. If the buffer is empty, the address is not valid.
    pub fn as_ptr(&self) -> *mut u8 {
        self.memory.first
    }

    /// Returns the length in bytes.
    pub fn length(&self) -> usize {
        self.memory.length
    }

    /// Tells whether the memory may be written to.
    pub fn is_writable(&self) -> bool {
        self.memory.writable
    }
}
