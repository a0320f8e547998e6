//! Collective calls from Python, with checked arguments: kind, operation and buffers.

use crate::buffer::Buffer;
use crate::dtype::Dtype;
use crate::memory::{Argument, Memory};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use rlaunch_comm::raw::{CollectiveBuffers, CollectiveKind};
use rlaunch_comm::{Communicator, ElementType, Op};

/// Collective with checked arguments, ready to start.
pub(crate) struct CollectiveCall {
    pub(crate) kind: CollectiveKind,
    /// Type by which the elements are transferred, and the reduction operation.
    pub(crate) element_and_op: (ElementType, Op),
    pub(crate) memory: Memory,
}

impl CollectiveCall {
    /// Checks the arguments, and takes the memory of `x` and `out` as input and output. Without
    /// `out`, a rank that has an output works in place in `x`.
    pub(crate) fn new(
        comm: &Communicator,
        (kind, op): (CollectiveKind, Op),
        x: Argument<'_, '_>,
        out: Argument<'_, '_>,
    ) -> PyResult<CollectiveCall> {
        let call = kind.name();
        let is_root = kind.root().is_none_or(|root| root == comm.rank());
        let memory = match (kind, x, out) {
            (CollectiveKind::Broadcast { .. }, x, _) => Memory::separate(call, None, x),
            (CollectiveKind::Scatter { .. }, None, None) => {
                Err(PyTypeError::new_err("scatter: neither x nor out is given"))
            }
            (CollectiveKind::Scatter { .. }, Some(x), None) => Memory::in_place(call, x),
            (_, Some(x), None) if is_root => Memory::in_place(call, x),
            (_, x, out) => Memory::separate(call, x, out),
        }?;
        if let Some(buffer) = memory.buffers().next() {
            check_reducible(kind, buffer)?;
        }
        // In all other cases the communicator compares the lengths of input and output.
        if kind == CollectiveKind::AllToAll || memory.is_in_place && is_root {
            memory.buffers().try_for_each(|buffer| check_divisible(call, buffer, comm.size()))?;
        }
        Ok(CollectiveCall { kind, element_and_op: (memory.element(), op), memory })
    }

    /// Returns input and output in the form that the communicator's collectives take.
    pub(crate) fn buffers(&mut self) -> CollectiveBuffers<'_, u8> {
        let is_in_place = self.memory.is_in_place;
        let (input, output) = self.memory.bytes();
        if is_in_place {
            CollectiveBuffers::InPlace(output)
        } else {
            CollectiveBuffers::Separate(input, output)
        }
    }
}

/// Fails if the collective reduces and the buffer's elements cannot be reduced.
fn check_reducible(kind: CollectiveKind, buffer: &Buffer) -> PyResult<()> {
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

/// Fails if a division of the buffer into `size` equal parts would split an element. The
/// communicator cannot detect this for elements that are transferred as bytes.
fn check_divisible(call: &str, buffer: &Buffer, size: usize) -> PyResult<()> {
    let travels_as_bytes = matches!(buffer.dtype(), Dtype::Other(..));
    if !travels_as_bytes || buffer.elements().is_multiple_of(size) {
        return Ok(());
    }
    let (elements, dtype) = (buffer.elements(), buffer.dtype());
    Err(PyValueError::new_err(format!("{call}: {elements} elements of {dtype} for {size} ranks")))
}
