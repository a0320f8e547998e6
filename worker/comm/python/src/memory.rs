//! The memory of a call.

use crate::buffer::{Access, Buffer};
use crate::dtype::Dtype;
use crate::received::Received;
use pyo3::prelude::*;
use rlaunch_comm::{self as comm, ElementType};

/// An argument that lends memory.
pub(crate) type Argument<'a, 'py> = Option<&'a Bound<'py, PyAny>>;

/// The memory of a call: what it reads and what it writes, either of which a rank may have no part
/// in, or one that is both.
pub(crate) struct Memory {
    input: Option<Buffer>,
    output: Option<Buffer>,
    pub(crate) is_one: bool,
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

    pub(crate) fn in_place(call: &str, x: &Bound<'_, PyAny>) -> PyResult<Memory> {
        let output = Some(Buffer::of(x, call, Access::Write)?);
        Ok(Memory { input: None, output, is_one: true })
    }

    /// Of a receive.
    pub(crate) fn to_write(call: &str, x: &Bound<'_, PyAny>) -> PyResult<Memory> {
        Memory::apart(call, None, Some(x))
    }

    /// Bytes that came into it, as its elements.
    pub(crate) fn received(&self, came: comm::Received) -> PyResult<Received> {
        Received::of(came, &self.written().unwrap_or_else(Dtype::bytes))
    }

    pub(crate) fn buffers(&self) -> impl Iterator<Item = &Buffer> {
        [&self.input, &self.output].into_iter().flatten()
    }

    pub(crate) fn element(&self) -> ElementType {
        self.buffers().next().map_or(ElementType::U8, Buffer::moves_as)
    }

    /// What is written, if anything.
    pub(crate) fn written(&self) -> Option<Dtype> {
        self.output.as_ref().map(|output| output.dtype().clone())
    }

    /// As bytes: what is read and what is written.
    pub(crate) fn bytes(&mut self) -> (&[u8], &mut [u8]) {
        #[expect(unsafe_code, reason = "what Python's threads do is for Python to say")]
        // SAFETY: what `read` and `write` want has three parts. The bytes are there: the buffers
        // are held by `self`, which is borrowed. No slice of this module overlaps one that is
        // written: `apart` has compared the two of this call; a request keeps addresses, no slices
        // (`raw::isend` and its kin), and so only calls that block in another thread have any.
        // Nothing else writes to, or reads, the bytes for as long: that is not checked, and cannot
        // be, since Python's memory has no owner who could be asked; other threads run while a call
        // waits. The module's documentation asks it of the program, as numpy does for what it works
        // on without the interpreter, and NCCL and MPI for their buffers. A program that breaks it
        // has a data race of its own making: what is torn is bytes, of which any value is valid,
        // and which nothing here takes for an address, a length or a type.
        let input = self.input.as_ref().map_or(&[][..], |input| unsafe { input.read() });
        #[expect(unsafe_code, reason = "what Python's threads do is for Python to say")]
        // SAFETY: as above.
        let output = self.output.as_mut().map_or(&mut [][..], |output| unsafe { output.write() });
        (input, output)
    }
}
