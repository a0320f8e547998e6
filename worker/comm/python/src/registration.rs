//! Memory that devices are told of once.

use crate::buffer::Buffer;
use crate::error::Error;
use crate::shared::Shared;
use pyo3::prelude::*;
use rlaunch_comm::raw;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A registration, and the object whose memory it is.
struct Held {
    // Dropped first: devices forget the memory before its object may free it.
    registration: raw::Registration,
    _buffer: Buffer,
}

/// Memory of an object that RDMA devices know until this is released: long messages from and to any
/// part of it need not be told to them. The object keeps its memory until then.
#[pyclass(frozen, module = "rlaunch")]
pub(crate) struct Registration {
    shared: Arc<Shared>,
    // Held for moments only, and never while the interpreter is given away.
    held: Mutex<Option<Held>>,
}

impl Registration {
    pub(crate) fn new(
        shared: &Arc<Shared>,
        registration: raw::Registration,
        buffer: Buffer,
    ) -> Self {
        let held = Mutex::new(Some(Held { registration, _buffer: buffer }));
        Registration { shared: shared.clone(), held }
    }

    fn held(&self) -> MutexGuard<'_, Option<Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Registration {
    /// Has devices forget the memory. Fails while a request on it is not done.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        self.shared.comm()?;
        let Some(mut held) = self.held().take() else { return Ok(()) };
        if py.detach(|| held.registration.end()) {
            return Ok(());
        }
        *self.held() = Some(held);
        Err(Error::new_err("register: the memory is in use: a request on it is not done"))
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
