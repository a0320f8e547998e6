//! Requests: operations in progress, as Python sees them. Beside them, registrations of an object's
//! memory with RDMA devices, and the state that a communicator shares with both.

use crate::buffer::Buffer;
use crate::collective::{Memory, Received};
use crate::dtype::Dtype;
use crate::error::{Error, to_exception};
use pyo3::prelude::*;
use rlaunch_comm as comm;
use rlaunch_comm::raw::{self, Pending};
use rlaunch_comm::{CommError, Communicator};
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

enum State {
    InFlight(InFlight),
    /// A thread has taken the operation out of the request, to wait for it or to test it.
    Taken,
    Done(Result<comm::Received, CommError>),
}

/// A nonblocking operation. The objects passed to it keep their memory until it completes, and must
/// not be accessed before. An operation whose request is dropped continues, as long as the program
/// makes calls.
#[pyclass(frozen, module = "rlaunch")]
pub(crate) struct Request {
    shared: Arc<SharedComm>,
    // Locked only briefly, and never while the interpreter is detached, so it cannot deadlock.
    state: Mutex<State>,
    /// Type of the received elements; `None` if the operation is not a receive.
    receives: Option<Dtype>,
}

impl Request {
    pub(crate) fn new(
        shared: &Arc<SharedComm>,
        operation: InFlight,
        receives: Option<Dtype>,
    ) -> Request {
        Request { shared: shared.clone(), state: Mutex::new(State::InFlight(operation)), receives }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the operation out of the request. Fails with `None` if another thread has taken the
    /// operation, and with the result if the operation has completed.
    fn take(&self) -> Result<InFlight, Option<Result<comm::Received, CommError>>> {
        let mut state = self.state();
        match std::mem::replace(&mut *state, State::Taken) {
            State::InFlight(operation) => Ok(operation),
            State::Taken => Err(None),
            State::Done(result) => {
                *state = State::Done(result.clone());
                Err(Some(result))
            }
        }
    }

    fn to_received(&self, result: Result<comm::Received, CommError>) -> PyResult<Option<Received>> {
        let result = result.map_err(|error| to_exception(&error))?;
        self.receives.as_ref().map(|dtype| Received::new(result, dtype)).transpose()
    }
}

#[pymethods]
impl Request {
    /// Waits until the operation completes. Returns a Received for a receive, else None. Raises the
    /// operation's error, also if called again. Ctrl-C interrupts it.
    fn wait(&self, py: Python<'_>) -> PyResult<Option<Received>> {
        self.shared.comm()?;
        let InFlight { pending, memory } = match self.take() {
            Ok(operation) => operation,
            Err(Some(result)) => return self.to_received(result),
            Err(None) => return Err(Error::new_err("another thread is waiting for this request")),
        };
        let result = py.detach(|| pending.wait());
        drop(memory);
        *self.state() = State::Done(result.clone());
        self.to_received(result)
    }

    /// Tells whether the operation has completed, without waiting; wait() then returns its result.
    /// False while another thread waits.
    fn test(&self, py: Python<'_>) -> PyResult<bool> {
        self.shared.comm()?;
        let mut operation = match self.take() {
            Ok(operation) => operation,
            Err(done) => return Ok(done.is_some()),
        };
        let result = py.detach(|| operation.pending.test());
        let is_done = result.is_some();
        *self.state() = result.map_or_else(|| State::InFlight(operation), State::Done);
        Ok(is_done)
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let State::InFlight(operation) = std::mem::replace(state, State::Taken) {
            self.shared.abandon(operation);
        }
    }
}

/// Registration with the RDMA devices, and the buffer that keeps the registered memory in place.
struct RegisteredBuffer {
    // Declared first, so that the memory is deregistered before the object may free it.
    registration: raw::Registration,
    _buffer: Buffer,
}

/// Memory of an object that is registered with the RDMA devices, which speeds up long messages from
/// and to any part of it. The object keeps its memory until release(), or until the end of a `with`
/// block.
#[pyclass(frozen, module = "rlaunch")]
pub(crate) struct Registration {
    shared: Arc<SharedComm>,
    // Locked only briefly, and never while the interpreter is detached, so it cannot deadlock.
    held: Mutex<Option<RegisteredBuffer>>,
}

impl Registration {
    pub(crate) fn new(
        shared: &Arc<SharedComm>,
        registration: raw::Registration,
        buffer: Buffer,
    ) -> Self {
        let held = Mutex::new(Some(RegisteredBuffer { registration, _buffer: buffer }));
        Registration { shared: shared.clone(), held }
    }

    fn held(&self) -> MutexGuard<'_, Option<RegisteredBuffer>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Registration {
    /// Deregisters the memory. Raises Error while a request that uses the memory is in progress.
    /// Does nothing the second time.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        self.shared.comm()?;
        let Some(mut held) = self.held().take() else { return Ok(()) };
        if py.detach(|| held.registration.end()) {
            return Ok(());
        }
        *self.held() = Some(held);
        Err(Error::new_err("register: the memory is in use: a request on it has not completed"))
    }

    fn __enter__(this: Py<Self>) -> Py<Self> {
        this
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _kind: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _trace: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.release(py)
    }
}

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
        if self.is_inherited() {
            Err(Error::new_err("the communicator belongs to the process that forked this one"))
        } else {
            Ok(&self.comm)
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
