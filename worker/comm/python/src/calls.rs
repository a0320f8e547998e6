//! What a call is asked to do, and on which memory.

use crate::buffer::{Access, Buffer};
use crate::dtype::Dtype;
use crate::request;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use rlaunch_comm::raw::{Given, Kind};
use rlaunch_comm::{Communicator, ElementType, Op, Received};

/// An argument that lends memory.
pub(crate) type Argument<'a, 'py> = Option<&'a Bound<'py, PyAny>>;

/// The memory of a call: what it reads and what it writes, either of which a rank may have no part
/// in, or one that is both.
pub(crate) struct Memory {
    input: Option<Buffer>,
    output: Option<Buffer>,
    is_one: bool,
}

impl Memory {
    pub(crate) fn apart(
        call: &str,
        x: Argument<'_, '_>,
        out: Argument<'_, '_>,
    ) -> PyResult<Memory> {
        let input = x.map(|x| Buffer::of(x, call, Access::Read)).transpose()?;
        let output = out.map(|out| Buffer::of(out, call, Access::Write)).transpose()?;
        if let (Some(input), Some(output)) = (&input, &output) {
            input.is_apart_from(output, call)?;
        }
        Ok(Memory { input, output, is_one: false })
    }

    fn in_place(call: &str, x: &Bound<'_, PyAny>) -> PyResult<Memory> {
        let output = Some(Buffer::of(x, call, Access::Write)?);
        Ok(Memory { input: None, output, is_one: true })
    }

    /// Of a receive.
    pub(crate) fn to_write(call: &str, x: &Bound<'_, PyAny>) -> PyResult<Memory> {
        Memory::apart(call, None, Some(x))
    }

    /// Bytes that came into it, as its elements.
    pub(crate) fn received(&self, came: Received) -> PyResult<request::Received> {
        request::Received::of(came, &self.written().unwrap_or_else(Dtype::bytes))
    }

    fn buffers(&self) -> impl Iterator<Item = &Buffer> {
        [&self.input, &self.output].into_iter().flatten()
    }

    fn element(&self) -> ElementType {
        self.buffers().next().map_or(ElementType::U8, Buffer::moves_as)
    }

    /// What is written, if anything.
    pub(crate) fn written(&self) -> Option<Dtype> {
        self.output.as_ref().map(|output| output.dtype().clone())
    }

    /// As bytes: what is read and what is written.
    pub(crate) fn bytes(&mut self) -> (&[u8], &mut [u8]) {
        #[expect(unsafe_code, reason = "what Python's threads do is for Python to say")]
        // SAFETY: what `read` and `write` want has three parts.
        // The bytes are there: the buffers are held by `self`, which is borrowed.
        // No slice of this module overlaps one that is written: `apart` has compared the two of this
        // call; a request keeps addresses, no slices (`raw::isend` and its kin), and so only calls
        // that block in another thread have any.
        // Nothing else writes to, or reads, the bytes for as long: that is not checked, and cannot
        // be, since Python's memory has no owner who could be asked; other threads run while a call
        // waits. The module's documentation asks it of the program, as numpy does for what it works
        // on without the interpreter, and NCCL and MPI for their buffers. A program that breaks it
        // has a data race of its own making: what is torn is bytes, of which any value is valid, and
        // which nothing here takes for an address, a length or a type.
        let input = self.input.as_ref().map_or(&[][..], |input| unsafe { input.read() });
        #[expect(unsafe_code, reason = "what Python's threads do is for Python to say")]
        // SAFETY: as above.
        let output = self.output.as_mut().map_or(&mut [][..], |output| unsafe { output.write() });
        (input, output)
    }
}

/// A collective that is about to begin.
pub(crate) struct Asked {
    pub(crate) kind: Kind,
    /// Of the elements, as they travel.
    pub(crate) what: (ElementType, Op),
    pub(crate) memory: Memory,
}

impl Asked {
    /// What `x` and `out` are for: without `out`, `x` is both for the ranks that have both.
    pub(crate) fn new(
        comm: &Communicator,
        (kind, op): (Kind, Op),
        x: Argument<'_, '_>,
        out: Argument<'_, '_>,
    ) -> PyResult<Asked> {
        let call = kind.name();
        let is_root = kind.root().is_none_or(|root| root == comm.rank());
        let memory = match (kind, x, out) {
            (Kind::Broadcast { .. }, x, _) => Memory::apart(call, None, x),
            (Kind::Scatter { .. }, None, None) => {
                Err(PyTypeError::new_err("scatter: neither x nor out is given"))
            }
            (Kind::Scatter { .. }, Some(x), None) => Memory::in_place(call, x),
            (_, Some(x), None) if is_root => Memory::in_place(call, x),
            (_, x, out) => Memory::apart(call, x, out),
        }?;
        if let Some(buffer) = memory.buffers().next() {
            can(kind, buffer)?;
        }
        // Of the others, one buffer is as many times as long as the other.
        if kind == Kind::AllToAll || memory.is_one && is_root {
            memory.buffers().try_for_each(|buffer| has_whole_parts(call, buffer, comm.size()))?;
        }
        Ok(Asked { kind, what: (memory.element(), op), memory })
    }

    pub(crate) fn given(&mut self) -> Given<'_, u8> {
        let is_one = self.memory.is_one;
        let (input, output) = self.memory.bytes();
        if is_one { Given::InPlace(output) } else { Given::Apart(input, output) }
    }
}

/// Fails where elements of this type cannot be reduced, and would have to be.
fn can(kind: Kind, buffer: &Buffer) -> PyResult<()> {
    let reduces = matches!(kind, Kind::Reduce { .. } | Kind::AllReduce | Kind::ReduceScatter);
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
