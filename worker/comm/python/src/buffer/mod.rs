//! The memory of Python's objects, without a copy: by the buffer protocol (arrays, `bytearray`,
//! numpy), by DLPack (torch), or by `__array_interface__`.

mod dlpack;
mod interface;
mod view;

use crate::dtype::{Dtype, Swapped};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyFloat, PyInt, PyList, PyTuple};
use rlaunch_comm::ElementType;
use std::ptr::NonNull;
use std::slice;

/// What a call is going to do with an object's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// What keeps the memory where it is.
#[expect(dead_code, reason = "they are held to be dropped")]
enum Keeper {
    View(view::View),
    Object(Py<PyAny>),
}

/// Numbers as an object describes them.
struct Described {
    first: *mut u8,
    dtype: Result<Dtype, Swapped>,
    shape: Vec<usize>,
    /// In bytes; what is dense may have none.
    strides: Option<Vec<isize>>,
    is_writable: bool,
    keeper: Keeper,
}

impl Described {
    /// Whether the elements lie one behind the other, the last index first.
    fn is_contiguous(&self, size: usize) -> bool {
        let Some(strides) = &self.strides else { return true };
        if strides.len() != self.shape.len() {
            return false;
        }
        if self.shape.contains(&0) {
            return true;
        }
        let mut expected = size;
        self.shape.iter().zip(strides).rev().all(|(length, stride)| {
            let fits = *length == 1 || usize::try_from(*stride) == Ok(expected);
            expected = expected.saturating_mul(*length);
            fits
        })
    }

    fn shape(&self) -> String {
        match &*self.shape {
            [one] => format!("({one},)"),
            more => {
                format!("({})", more.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))
            }
        }
    }
}

/// Where elements are: an address that may be handed to another thread.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    first: NonNull<u8>,
    length: usize,
    is_writable: bool,
}

#[expect(unsafe_code, reason = "a pointer is nobody's")]
// SAFETY: an address alone, which is followed by those alone who promise what that takes.
unsafe impl Send for Place {}

impl Place {
    /// Where it begins, its length in bytes, whether it may be written to.
    pub(crate) fn raw(self) -> (*mut u8, usize, bool) {
        (self.first.as_ptr(), self.length, self.is_writable)
    }
}

/// Elements of one type, one behind the other, as long as this lives.
pub(crate) struct Buffer {
    first: NonNull<u8>,
    elements: usize,
    dtype: Dtype,
    is_writable: bool,
    _keeper: Keeper,
}

#[expect(unsafe_code, reason = "a pointer is nobody's")]
// SAFETY: the address is followed only by those who promise that nobody else is at it; which thread
// they are makes no difference. The keeper can be dropped by any.
unsafe impl Send for Buffer {}

impl Buffer {
    /// The memory of `object` for `call`, whose name begins what is wrong with it.
    pub(crate) fn of(object: &Bound<'_, PyAny>, call: &str, access: Access) -> PyResult<Buffer> {
        let found = describe(object, call)?;
        let kind = object.get_type().name()?;
        let wrong = |what: String| Err(PyTypeError::new_err(format!("{call}: {what}")));
        let dtype = match &found.dtype {
            Ok(dtype) => dtype.clone(),
            Err(Swapped) => return wrong(format!("{kind} has the other byte order")),
        };
        if !found.is_contiguous(dtype.size()) {
            return wrong(format!("{dtype} array of shape {} is not contiguous", found.shape()));
        }
        if access == Access::Write && !found.is_writable {
            return wrong(format!("{kind} is read-only"));
        }
        let elements = found.shape.iter().try_fold(1_usize, |all, length| all.checked_mul(*length));
        let bytes = elements.and_then(|all| all.checked_mul(dtype.size()));
        let Some(elements) = elements.filter(|_| bytes.is_some_and(|b| b <= isize::MAX as usize))
        else {
            return wrong(format!("{dtype} array of shape {} is no array", found.shape()));
        };
        let Described { first, is_writable, keeper, .. } = found;
        let first = match NonNull::new(first).filter(|_| elements > 0) {
            Some(first) => first,
            None if elements == 0 => NonNull::<u64>::dangling().cast(),
            None => return wrong(format!("{kind} has no memory")),
        };
        if !first.addr().get().is_multiple_of(dtype.alignment()) {
            return wrong(format!("{dtype} array is not aligned to {}", dtype.alignment()));
        }
        Ok(Buffer { first, elements, dtype, is_writable, _keeper: keeper })
    }

    /// Where its elements are, as long as it lives.
    pub(crate) fn place(&self) -> Place {
        let length = self.elements * self.dtype.size();
        Place { first: self.first, length, is_writable: self.is_writable }
    }

    /// Of its elements.
    pub(crate) fn dtype(&self) -> &Dtype {
        &self.dtype
    }

    /// How many there are.
    pub(crate) fn elements(&self) -> usize {
        self.elements
    }

    /// The type as which the elements travel: their own, or bytes.
    pub(crate) fn moves_as(&self) -> ElementType {
        match self.dtype {
            Dtype::Element(element) => element,
            Dtype::Other(..) => ElementType::U8,
        }
    }

    /// Fails where both are the same memory, or of different types.
    pub(crate) fn is_apart_from(&self, other: &Buffer, call: &str) -> PyResult<()> {
        if self.dtype != other.dtype {
            let (x, out) = (&self.dtype, &other.dtype);
            return Err(PyTypeError::new_err(format!("{call}: x is {x}, and out is {out}")));
        }
        let range = |buffer: &Buffer| {
            let first = buffer.first.addr().get();
            (first, first + buffer.elements * buffer.dtype.size())
        };
        let ((first, end), (other_first, other_end)) = (range(self), range(other));
        if first < other_end && other_first < end {
            let hint = "without out, the call works in place";
            return Err(PyValueError::new_err(format!("{call}: x and out overlap; {hint}")));
        }
        Ok(())
    }

    /// # Safety
    ///
    /// Nobody writes to the elements as long as the slice lives.
    #[expect(unsafe_code, reason = "only the caller knows who else writes")]
    pub(crate) unsafe fn read(&self) -> &[u8] {
        let length = self.elements * self.dtype.size();
        // SAFETY: `Buffer::of` has seen that so many bytes are there; the keeper keeps them; that
        // nobody writes is the caller's promise.
        unsafe { slice::from_raw_parts(self.first.as_ptr(), length) }
    }

    /// Nothing where the buffer was made to be read.
    ///
    /// # Safety
    ///
    /// Nobody else reads or writes the elements as long as the slice lives.
    #[expect(unsafe_code, reason = "only the caller knows who else writes")]
    pub(crate) unsafe fn write(&mut self) -> &mut [u8] {
        if !self.is_writable {
            return &mut [];
        }
        let length = self.elements * self.dtype.size();
        // SAFETY: as above, and it is writable; that nobody else has it is the caller's promise.
        unsafe { slice::from_raw_parts_mut(self.first.as_ptr(), length) }
    }
}

/// Asks an object where its memory is, in each way that there is.
fn describe(object: &Bound<'_, PyAny>, call: &str) -> PyResult<Described> {
    // Numpy has arrays of types that its buffers know no letter for.
    let refused = match view::describe(object) {
        Ok(Some(found)) => return Ok(found),
        Ok(None) => None,
        Err(refused) => Some(refused),
    };
    if refused.is_none()
        && let Some(found) = dlpack::describe(object, call)?
    {
        return Ok(found);
    }
    if let Some(found) = interface::describe(object)? {
        return Ok(found);
    }
    Err(refused.unwrap_or_else(|| no_memory(object, call)))
}

fn no_memory(object: &Bound<'_, PyAny>, call: &str) -> PyErr {
    let kind = object.get_type();
    let kind = kind.name().map_or_else(|_| "object".to_owned(), |name| name.to_string());
    let is_number = object.is_instance_of::<PyFloat>()
        || object.is_instance_of::<PyInt>()
        || object.is_instance_of::<PyBool>();
    let reason = if is_number
        || object.is_instance_of::<PyList>()
        || object.is_instance_of::<PyTuple>()
    {
        let numbers = if is_number { "[x]" } else { "x" };
        format!(
            "{kind} lends no memory to others; give array.array('d', {numbers}), a numpy array or \
             a torch tensor"
        )
    } else {
        format!("{kind} has no buffer, no __dlpack__ and no __array_interface__")
    };
    PyTypeError::new_err(format!("{call}: {reason}"))
}
