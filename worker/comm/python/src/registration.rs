//! Registration of an object's memory with RDMA devices.

use crate::buffer::Buffer;
use crate::error::Error;
use crate::shared::SharedComm;
use pyo3::prelude::*;
use rlaunch_comm::raw;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
