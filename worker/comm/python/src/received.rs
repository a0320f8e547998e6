//! What a receive has got.

use crate::dtype::Dtype;
use crate::error::Error;
use pyo3::prelude::*;
use rlaunch_comm as comm;

/// What a receive has got.
#[pyclass(frozen, module = "rlaunch")]
pub(crate) struct Received {
    /// Who sent it.
    #[pyo3(get)]
    source: usize,
    /// How many elements; not more than there was room for.
    #[pyo3(get)]
    length: usize,
}

impl Received {
    /// Of bytes that came, as elements.
    pub(crate) fn of(came: comm::Received, dtype: &Dtype) -> PyResult<Received> {
        let (length, size) = (came.length, dtype.size());
        if !length.is_multiple_of(size) {
            let wrong = format!("a message of {length} bytes, which is no whole number of {dtype}");
            return Err(Error::new_err(wrong));
        }
        Ok(Received { source: came.from, length: length / size })
    }
}

#[pymethods]
impl Received {
    fn __repr__(&self) -> String {
        format!("Received(source={}, length={})", self.source, self.length)
    }
}
