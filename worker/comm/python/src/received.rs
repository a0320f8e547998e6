//! Result of a receive.

use crate::dtype::Dtype;
use crate::error::Error;
use pyo3::prelude::*;
use rlaunch_comm as comm;

/// Source and length of a received message.
#[pyclass(frozen, module = "rlaunch")]
pub(crate) struct Received {
    /// Rank that sent the message.
    #[pyo3(get)]
    source: usize,
    /// Length of the message, in elements of the buffer that it was received into.
    #[pyo3(get)]
    length: usize,
}

impl Received {
    /// Converts the length from bytes to elements of type `dtype`.
    pub(crate) fn new(received: comm::Received, dtype: &Dtype) -> PyResult<Received> {
        let (length, size) = (received.length, dtype.size());
        if !length.is_multiple_of(size) {
            let wrong =
                format!("a message of {length} bytes, which is not a whole number of {dtype}");
            return Err(Error::new_err(wrong));
        }
        Ok(Received { source: received.from, length: length / size })
    }
}

#[pymethods]
impl Received {
    fn __repr__(&self) -> String {
        format!("Received(source={}, length={})", self.source, self.length)
    }
}
