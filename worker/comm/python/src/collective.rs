//! Calls from Python, with checked arguments: kind and operation of a collective, the memory that a
//! call reads and writes, and the result of a receive.

use crate::buffer::{Access, Buffer};
use crate::dtype::Dtype;
use crate::error::Error;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use rlaunch_comm as comm;
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
