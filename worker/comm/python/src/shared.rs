//! State that a Python communicator shares with its requests and registrations.

use crate::error::Error;
use crate::memory::Memory;
use pyo3::prelude::*;
use rlaunch_comm::Communicator;
use rlaunch_comm::raw::Pending;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Number of forks between the first process and this one. A communicator that was made at another
/// number belongs to an ancestor process.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Counts a fork. Called in the child.
pub(crate) fn count_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Operation in progress, and its memory.
pub(crate) struct InFlight {
    // Declared first, because dropping it stops the use of the memory.
    pub(crate) pending: Pending,
    pub(crate) memory: Memory,
}

/// Communicator, together with those of its operations in progress whose requests the program has
/// dropped.
pub(crate) struct SharedComm {
    comm: ManuallyDrop<Arc<Communicator>>,
    /// Operations in progress whose requests the program has dropped.
    abandoned: Mutex<Vec<InFlight>>,
    /// Value of [`FORKS`] in the process that the communicator belongs to.
    forks: u32,
}

impl SharedComm {
    pub(crate) fn new(comm: Communicator) -> SharedComm {
        let forks = FORKS.load(Ordering::Relaxed);
        SharedComm { comm: ManuallyDrop::new(Arc::new(comm)), abandoned: Mutex::default(), forks }
    }

    /// Returns the communicator; fails in a forked child.
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

    /// Keeps an operation whose request was dropped, so that it completes.
    pub(crate) fn abandon(&self, operation: InFlight) {
        if self.is_inherited() {
            return std::mem::forget(operation);
        }
        self.abandoned.lock().unwrap_or_else(PoisonError::into_inner).push(operation);
    }

    /// Drops those operations in `abandoned` that have completed.
    pub(crate) fn sweep(&self, py: Python<'_>) {
        let mut abandoned = self.abandoned.lock().unwrap_or_else(PoisonError::into_inner);
        if abandoned.is_empty() {
            return;
        }
        let mut all = std::mem::take(&mut *abandoned);
        drop(abandoned);
        let is_in_progress = |operation: &mut InFlight| operation.pending.test().is_none();
        let in_progress: Vec<bool> = py.detach(|| all.iter_mut().map(is_in_progress).collect());
        let in_progress = all
            .into_iter()
            .zip(in_progress)
            .filter(|(_, in_progress)| *in_progress)
            .map(|(operation, _)| operation);
        self.abandoned.lock().unwrap_or_else(PoisonError::into_inner).extend(in_progress);
    }
}

/// Leaks the communicator in a forked child. To finalize the communicator there would tell the
/// other ranks that the parent has left.
impl Drop for SharedComm {
    fn drop(&mut self) {
        let is_inherited = self.is_inherited();
        let abandoned =
            std::mem::take(self.abandoned.get_mut().unwrap_or_else(PoisonError::into_inner));
        if is_inherited {
            return std::mem::forget(abandoned);
        }
        drop(abandoned);
        #[expect(unsafe_code, reason = "a forked child must not drop it")]
        // SAFETY: the communicator is dropped only here, and not used afterwards.
        unsafe {
            ManuallyDrop::drop(&mut self.comm);
        }
    }
}
