//! What was begun and goes on.

use crate::dtype::Dtype;
use crate::error::{Error, raise};
use crate::received::Received;
use crate::shared::{Begun, Shared};
use pyo3::prelude::*;
use rlaunch_comm::{self as comm, CommError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

enum State {
    Going(Begun),
    /// A thread has it.
    Taken,
    Done(Result<comm::Received, CommError>),
}

/// Something that goes on, and holds its memory until it is done. It goes on too when it is
/// dropped.
#[pyclass(frozen, module = "rlaunch")]
pub(crate) struct Request {
    shared: Arc<Shared>,
    // Held for moments only, and never while the interpreter is given away.
    state: Mutex<State>,
    /// The elements of a receive.
    receives: Option<Dtype>,
}

impl Request {
    pub(crate) fn new(shared: &Arc<Shared>, begun: Begun, receives: Option<Dtype>) -> Request {
        Request { shared: shared.clone(), state: Mutex::new(State::Going(begun)), receives }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves nothing behind if somebody else has it, or it is done.
    fn take(&self) -> Result<Begun, Option<Result<comm::Received, CommError>>> {
        let mut state = self.state();
        match std::mem::replace(&mut *state, State::Taken) {
            State::Going(begun) => Ok(begun),
            State::Taken => Err(None),
            State::Done(came) => {
                *state = State::Done(came.clone());
                Err(Some(came))
            }
        }
    }

    fn answer(&self, came: Result<comm::Received, CommError>) -> PyResult<Option<Received>> {
        let came = came.map_err(|error| raise(&error))?;
        self.receives.as_ref().map(|dtype| Received::of(came, dtype)).transpose()
    }
}

#[pymethods]
impl Request {
    /// Waits until it is done; of a receive, says what came.
    fn wait(&self, py: Python<'_>) -> PyResult<Option<Received>> {
        self.shared.comm()?;
        let Begun { pending, memory } = match self.take() {
            Ok(begun) => begun,
            Err(Some(came)) => return self.answer(came),
            Err(None) => return Err(Error::new_err("another thread waits for this request")),
        };
        let came = py.detach(|| pending.wait());
        drop(memory);
        *self.state() = State::Done(came.clone());
        self.answer(came)
    }

    /// Whether it is done; `wait` says then what came of it.
    fn test(&self, py: Python<'_>) -> PyResult<bool> {
        self.shared.comm()?;
        let mut begun = match self.take() {
            Ok(begun) => begun,
            Err(done) => return Ok(done.is_some()),
        };
        let came = py.detach(|| begun.pending.test());
        let is_done = came.is_some();
        *self.state() = came.map_or_else(|| State::Going(begun), State::Done);
        Ok(is_done)
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let State::Going(begun) = std::mem::replace(state, State::Taken) {
            self.shared.leave(begun);
        }
    }
}
