//! What a communicator and its requests have together.

use crate::error::Error;
use crate::memory::Memory;
use pyo3::prelude::*;
use rlaunch_comm::Communicator;
use rlaunch_comm::raw::Pending;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// How often this process has been forked from another: what its parent made is not its own.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// This process was just forked.
pub(crate) fn count_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Something that goes on, and the memory that it works on.
pub(crate) struct Begun {
    // Dropped first, which takes the memory back.
    pub(crate) pending: Pending,
    pub(crate) memory: Memory,
}

pub(crate) struct Shared {
    comm: ManuallyDrop<Arc<Communicator>>,
    /// What goes on although the program has dropped the request.
    left: Mutex<Vec<Begun>>,
    forks: u32,
}

impl Shared {
    pub(crate) fn new(comm: Communicator) -> Shared {
        let forks = FORKS.load(Ordering::Relaxed);
        Shared { comm: ManuallyDrop::new(Arc::new(comm)), left: Mutex::default(), forks }
    }

    pub(crate) fn comm(&self) -> PyResult<&Arc<Communicator>> {
        match self.is_inherited() {
            false => Ok(&self.comm),
            true => {
                Err(Error::new_err("the communicator belongs to the process that forked this one"))
            }
        }
    }

    pub(crate) fn is_inherited(&self) -> bool {
        self.forks != FORKS.load(Ordering::Relaxed)
    }

    /// Nobody will ask for it, but it is to be done.
    pub(crate) fn leave(&self, begun: Begun) {
        if self.is_inherited() {
            return std::mem::forget(begun);
        }
        self.left.lock().unwrap_or_else(PoisonError::into_inner).push(begun);
    }

    /// Drops what was left and is done by now.
    pub(crate) fn sweep(&self, py: Python<'_>) {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        if left.is_empty() {
            return;
        }
        let mut all = std::mem::take(&mut *left);
        drop(left);
        let goes_on = |begun: &mut Begun| begun.pending.test().is_none();
        let going: Vec<bool> = py.detach(|| all.iter_mut().map(goes_on).collect());
        let going = all.into_iter().zip(going).filter(|(_, going)| *going).map(|(begun, _)| begun);
        self.left.lock().unwrap_or_else(PoisonError::into_inner).extend(going);
    }
}

/// A forked process would take leave of the ranks in its parent's place.
impl Drop for Shared {
    fn drop(&mut self) {
        let is_inherited = self.is_inherited();
        let left = std::mem::take(self.left.get_mut().unwrap_or_else(PoisonError::into_inner));
        if is_inherited {
            return std::mem::forget(left);
        }
        drop(left);
        #[expect(unsafe_code, reason = "it is dropped here or not at all")]
        // SAFETY: it is dropped once, and nobody sees it afterwards.
        unsafe {
            ManuallyDrop::drop(&mut self.comm);
        }
    }
}
