//! Attachments, which are what devices are told of lent memory: made by a thread that has left the desk, since it may take
//! as long as a hundred messages.

use crate::held::Held;
use std::any::Any;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

/// Answer to a request for an attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attached<R> {
    /// It is there, and was used.
    Used(R),
    /// It is being made; to be asked for again.
    Later,
    /// Nothing is lent, or nothing could be made.
    Unable,
}

/// Something that one device was told of, by its key.
#[derive(Debug)]
pub(super) struct Attachment {
    pub(super) key: usize,
    cell: Arc<Cell>,
}

/// Where it is made.
#[derive(Debug)]
struct Cell {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
enum State {
    Queued,
    Running,
    /// With what watches over the [`Held`] that it was made of.
    Made(Option<Box<dyn Any + Send>>, Weak<()>),
    /// The memory is taken back.
    Over,
}

/// A maker of something of memory.
type Maker = Box<dyn FnOnce(Held) -> Option<Box<dyn Any + Send>> + Send>;

/// Makes an attachment, by whichever thread has time for it.
pub(super) struct Job {
    cell: Arc<Cell>,
    memory: (*mut u8, usize, bool),
    maker: Maker,
}

// SAFETY: the address is used once the cell says that the job runs, until when the memory may be taken
// back, and from when on its taking back waits for the job's end.
unsafe impl Send for Job {}

impl Cell {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Attachment {
    /// Begins one of memory that is lent: where it begins, its length, whether it may be written to.
    pub(super) fn begin<A: Any + Send>(
        key: usize,
        memory: (*mut u8, usize, bool),
        maker: impl FnOnce(Held) -> Option<A> + Send + 'static,
    ) -> (Attachment, Job) {
        let cell = Arc::new(Cell { state: Mutex::new(State::Queued), changed: Condvar::new() });
        let maker: Maker = Box::new(|held| Some(Box::new(maker(held)?)));
        (Attachment { key, cell: cell.clone() }, Job { cell, memory, maker })
    }

    /// Hands it to `uses`, once it is there.
    pub(super) fn used<A: Any, R>(&self, uses: impl FnOnce(&A) -> R) -> Attached<R> {
        match &*self.cell.state() {
            State::Queued | State::Running => Attached::Later,
            State::Made(made, _) => {
                let made = made.as_ref().and_then(|made| made.downcast_ref());
                made.map_or(Attached::Unable, |made| Attached::Used(uses(made)))
            }
            State::Over => Attached::Unable,
        }
    }

    /// Ends it: no device reaches the memory from here on. Waits for a job that runs.
    pub(super) fn end(self) {
        let mut state = self.cell.state();
        while matches!(*state, State::Running) {
            state = self.cell.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let was = std::mem::replace(&mut *state, State::Over);
        drop(state);
        let State::Made(made, alive) = was else { return };
        drop(made);
        if alive.strong_count() > 0 {
            eprintln!("rlaunch: memory is taken back that a device may still write to");
            std::process::abort();
        }
    }
}

impl Job {
    /// Does it, unless the memory was taken back.
    pub(super) fn run(self) {
        let mut state = self.cell.state();
        if !matches!(*state, State::Queued) {
            return;
        }
        *state = State::Running;
        drop(state);
        let alive = Arc::new(());
        // Also when the maker panics: whoever let the memory escape is found out all the same.
        let mut ends = Ends { cell: &self.cell, made: None, alive: Arc::downgrade(&alive) };
        let (first, length, writable) = self.memory;
        ends.made = (self.maker)(Held::new(first, length, writable, alive));
    }
}

struct Ends<'c> {
    cell: &'c Cell,
    made: Option<Box<dyn Any + Send>>,
    alive: Weak<()>,
}

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        *self.cell.state() = State::Made(self.made.take(), std::mem::take(&mut self.alive));
        self.cell.changed.notify_all();
    }
}
