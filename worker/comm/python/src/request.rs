//! Requests: operations in progress, as Python sees them.

use crate::dtype::Dtype;
use crate::error::{Error, to_exception};
use crate::received::Received;
use crate::shared::{InFlight, SharedComm};
use pyo3::prelude::*;
use rlaunch_comm::{self as comm, CommError};
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
