//! Python module of rlaunch's communicator (`rlaunch._rlaunch`, behind `import rlaunch`).
//!
//! Calls work directly on the memory of Python objects (`array`, `bytearray`, numpy arrays, torch
//! tensors), and let other threads of the interpreter run while they wait. If an interpreter cannot
//! load this extension, `_fallback.py` makes the same calls by ctypes; `torch.py` is a backend of
//! `torch.distributed`.
//!
//! Layers, each of which uses layers before it: `dtype`, `error` ← `buffer` ← `collective` ←
//! `request` ← `communicator`.

#![warn(missing_docs)]

mod buffer;
mod collective;
mod communicator;
mod dtype;
mod error;
mod request;

use pyo3::prelude::*;

/// The extension module behind `rlaunch`.
#[pymodule]
fn _rlaunch(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("Error", py.get_type::<error::Error>())?;
    module.add("PeerLost", py.get_type::<error::PeerLost>())?;
    module.add("TimedOut", py.get_type::<error::TimedOut>())?;
    module.add_class::<communicator::Communicator>()?;
    module.add_class::<collective::Received>()?;
    module.add_class::<request::Request>()?;
    module.add_class::<request::Registration>()?;
    module.add_function(wrap_pyfunction!(communicator::start, module)?)?;
    module.add_function(wrap_pyfunction!(communicator::forked, module)?)?;
    Ok(())
}
