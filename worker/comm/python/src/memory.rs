//! Memory of a call: the buffers that the call reads and writes.

use crate::buffer::{Access, Buffer};
use crate::dtype::Dtype;
use crate::received::Received;
use pyo3::prelude::*;
use rlaunch_comm::{self as comm, ElementType};

/// Optional argument of a call: a Python object whose memory the call uses.
pub(crate) type Argument<'a, 'py> = Option<&'a Bound<'py, PyAny>>;

/// Input and output buffer of a call. Either buffer may be missing, depending on the rank. The
/// Python objects keep the buffers in place until this value is dropped.
pub(crate) struct Memory {
    input: Option<Buffer>,
    output: Option<Buffer>,
    /// Whether `output` is the input as well.
    pub(crate) is_in_place: bool,
}

impl Memory {
    /// Takes the memory of `x` as the input and of `out` as the output. Fails if the buffers
    /// overlap or differ in type. `call` is the name of the call, for errors.
    pub(crate) fn separate(
        call: &str,
        x: Argument<'_, '_>,
        out: Argument<'_, '_>,
    ) -> PyResult<Memory> {
        let input = x.map(|x| Buffer::from_object(x, call, Access::Read)).transpose()?;
        let output = out.map(|out| Buffer::from_object(out, call, Access::Write)).transpose()?;
        if let (Some(input), Some(output)) = (&input, &output) {
            input.check_separate(output, call)?;
        }
        Ok(Memory { input, output, is_in_place: false })
    }

    /// Takes the memory of `x` as input and output.
    pub(crate) fn in_place(call: &str, x: &Bound<'_, PyAny>) -> PyResult<Memory> {
        let output = Some(Buffer::from_object(x, call, Access::Write)?);
        Ok(Memory { input: None, output, is_in_place: true })
    }

    /// Takes the memory of `x` as the output of a receive.
    pub(crate) fn for_receive(call: &str, x: &Bound<'_, PyAny>) -> PyResult<Memory> {
        Memory::separate(call, None, Some(x))
    }

    /// Converts the length of a received message from bytes to elements of the output.
    pub(crate) fn received(&self, received: comm::Received) -> PyResult<Received> {
        Received::new(received, &self.output_dtype().unwrap_or_else(Dtype::bytes))
    }

    pub(crate) fn buffers(&self) -> impl Iterator<Item = &Buffer> {
        [&self.input, &self.output].into_iter().flatten()
    }

    /// Returns the type by which the communicator transfers the elements.
    pub(crate) fn element(&self) -> ElementType {
        self.buffers().next().map_or(ElementType::U8, Buffer::transfer_type)
    }

    /// Returns the type of the output's elements, if there is an output.
    pub(crate) fn output_dtype(&self) -> Option<Dtype> {
        self.output.as_ref().map(|output| output.dtype().clone())
    }

    /// Returns the bytes of input and output; a missing buffer is empty.
    pub(crate) fn bytes(&mut self) -> (&[u8], &mut [u8]) {
        #[expect(unsafe_code, reason = "the program has to synchronise its threads")]
        // SAFETY: `read` and `write` have three requirements.
        //
        // The bytes exist: `self` holds the buffers, and is borrowed.
        //
        // No slice of this module overlaps one that is written: `separate` has compared the buffers
        // of this call. Requests keep addresses and not slices (`raw::isend` and the like), so
        // other slices exist only in blocking calls of other threads.
        //
        // No other code accesses the bytes meanwhile: this cannot be checked, because Python's
        // memory has no exclusive owner, and other threads run while a call waits. The module's
        // documentation demands it of the program, as numpy does for operations that release the
        // interpreter, and MPI and NCCL for their buffers. If a program violates it, the race
        // affects plain bytes, for which any value is valid, and which this crate never uses as an
        // address, length or type.
        let input = self.input.as_ref().map_or(&[][..], |input| unsafe { input.read() });
        #[expect(unsafe_code, reason = "the program has to synchronise its threads")]
        // SAFETY: as above.
        let output = self.output.as_mut().map_or(&mut [][..], |output| unsafe { output.write() });
        (input, output)
    }
}
