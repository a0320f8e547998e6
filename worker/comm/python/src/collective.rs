//! What a collective is asked to do, and on which memory.

use crate::buffer::Buffer;
use crate::dtype::Dtype;
use crate::memory::{Argument, Memory};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use rlaunch_comm::raw::{CollectiveBuffers, CollectiveKind};
use rlaunch_comm::{Communicator, ElementType, Op};

/// A collective that is about to begin.
pub(crate) struct Asked {
    pub(crate) kind: CollectiveKind,
    /// Of the elements, as they travel.
    pub(crate) what: (ElementType, Op),
    pub(crate) memory: Memory,
}

impl Asked {
    /// What `x` and `out` are for: without `out`, `x` is both for the ranks that have both.
    pub(crate) fn new(
        comm: &Communicator,
        (kind, op): (CollectiveKind, Op),
        x: Argument<'_, '_>,
        out: Argument<'_, '_>,
    ) -> PyResult<Asked> {
        let call = kind.name();
        let is_root = kind.root().is_none_or(|root| root == comm.rank());
        let memory = match (kind, x, out) {
            (CollectiveKind::Broadcast { .. }, x, _) => Memory::apart(call, None, x),
            (CollectiveKind::Scatter { .. }, None, None) => {
                Err(PyTypeError::new_err("scatter: neither x nor out is given"))
            }
            (CollectiveKind::Scatter { .. }, Some(x), None) => Memory::in_place(call, x),
            (_, Some(x), None) if is_root => Memory::in_place(call, x),
            (_, x, out) => Memory::apart(call, x, out),
        }?;
        if let Some(buffer) = memory.buffers().next() {
            can(kind, buffer)?;
        }
        // Of the others, one buffer is as many times as long as the other.
        if kind == CollectiveKind::AllToAll || memory.is_one && is_root {
            memory.buffers().try_for_each(|buffer| has_whole_parts(call, buffer, comm.size()))?;
        }
        Ok(Asked { kind, what: (memory.element(), op), memory })
    }

    pub(crate) fn given(&mut self) -> CollectiveBuffers<'_, u8> {
        let is_one = self.memory.is_one;
        let (input, output) = self.memory.bytes();
        if is_one {
            CollectiveBuffers::InPlace(output)
        } else {
            CollectiveBuffers::Separate(input, output)
        }
    }
}

/// Fails where elements of this type cannot be reduced, and would have to be.
fn can(kind: CollectiveKind, buffer: &Buffer) -> PyResult<()> {
    let reduces = matches!(
        kind,
        CollectiveKind::Reduce { .. } | CollectiveKind::AllReduce | CollectiveKind::ReduceScatter
    );
    match buffer.dtype() {
        Dtype::Other(name, _) if reduces => {
            let known = ElementType::ALL.map(|element| Dtype::Element(element).to_string());
            let (call, known) = (kind.name(), known.join(", "));
            Err(PyTypeError::new_err(format!("{call}: {name} cannot be reduced, only {known}")))
        }
        _ => Ok(()),
    }
}

/// Fails where elements would be cut when each of `size` ranks has a part: those that travel as
/// bytes could be.
fn has_whole_parts(call: &str, buffer: &Buffer, size: usize) -> PyResult<()> {
    let travels_as_bytes = matches!(buffer.dtype(), Dtype::Other(..));
    if !travels_as_bytes || buffer.elements().is_multiple_of(size) {
        return Ok(());
    }
    let (elements, dtype) = (buffer.elements(), buffer.dtype());
    Err(PyValueError::new_err(format!("{call}: {elements} elements of {dtype} for {size} ranks")))
}
