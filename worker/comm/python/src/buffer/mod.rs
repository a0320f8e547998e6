//! Access to the memory of Python objects without a copy.
//!
//! | file | protocol | objects |
//! |---|---|---|
//! | `view` | buffer protocol (PEP 3118) | `array`, `bytearray`, numpy |
//! | `dlpack` | `__dlpack__`, on the CPU | torch |
//! | `mod` | `__array_interface__` | other array libraries |

mod dlpack;
mod view;

use crate::dtype::{Dtype, NonNativeOrder};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyTuple};
use rlaunch_comm::ElementType;
use std::ptr::{NonNull, with_exposed_provenance_mut};
use std::slice;

/// Access that a call needs to an object's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// Reference to a Python object. The object keeps the memory in place until the reference is
/// dropped.
#[expect(dead_code, reason = "held only to be dropped")]
enum Exporter {
    View(view::View),
    Object(Py<PyAny>),
}

/// Array as a Python object describes it, before any check.
struct ArrayDescription {
    /// Address of the first element.
    first: *mut u8,
    dtype: Result<Dtype, NonNativeOrder>,
    shape: Vec<usize>,
    /// Strides in bytes; `None` means C-contiguous.
    strides: Option<Vec<isize>>,
    is_writable: bool,
    exporter: Exporter,
}

impl ArrayDescription {
    /// Tells whether the array is C-contiguous. `size` is the size of an element in bytes.
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

/// Address range of a buffer. It may be passed to another thread.
#[derive(Clone, Copy)]
pub(crate) struct RawRange {
    first: NonNull<u8>,
    length: usize,
    is_writable: bool,
}

#[expect(unsafe_code, reason = "raw pointers are not Send by default")]
// SAFETY: the address is only dereferenced in unsafe code that guarantees its validity.
unsafe impl Send for RawRange {}

impl RawRange {
    /// Returns the address, the length in bytes, and whether the range is writable.
    pub(crate) fn raw(self) -> (*mut u8, usize, bool) {
        (self.first.as_ptr(), self.length, self.is_writable)
    }
}

/// Contiguous, aligned elements of one type in an object's memory. The memory stays in place until
/// this value is dropped.
pub(crate) struct Buffer {
    first: NonNull<u8>,
    elements: usize,
    dtype: Dtype,
    is_writable: bool,
    _exporter: Exporter,
}

#[expect(unsafe_code, reason = "raw pointers are not Send by default")]
// SAFETY: the address is only dereferenced in unsafe code that guarantees exclusive access, in
// whichever thread. The exporter may be dropped by any thread.
unsafe impl Send for Buffer {}

impl Buffer {
    /// Accesses the memory of `object`. Fails unless the memory is contiguous, aligned, in native
    /// byte order, and writable if `access` is [`Access::Write`]. `call` is the name of the call,
    /// with which error messages begin.
    pub(crate) fn from_object(
        object: &Bound<'_, PyAny>,
        call: &str,
        access: Access,
    ) -> PyResult<Buffer> {
        let found = describe(object, call)?;
        let kind = object.get_type().name()?;
        let wrong = |what: String| Err(PyTypeError::new_err(format!("{call}: {what}")));
        let dtype = match &found.dtype {
            Ok(dtype) => dtype.clone(),
            Err(NonNativeOrder) => return wrong(format!("{kind} has non-native byte order")),
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
            return wrong(format!("{dtype} array of shape {} is too large", found.shape()));
        };
        let ArrayDescription { first, is_writable, exporter, .. } = found;
        let first = match NonNull::new(first).filter(|_| elements > 0) {
            Some(first) => first,
            None if elements == 0 => NonNull::<u64>::dangling().cast(),
            None => return wrong(format!("{kind} has no memory")),
        };
        if !first.addr().get().is_multiple_of(dtype.alignment()) {
            return wrong(format!("{dtype} array is not aligned to {}", dtype.alignment()));
        }
        Ok(Buffer { first, elements, dtype, is_writable, _exporter: exporter })
    }

    /// Returns the address range, which is valid until the buffer is dropped.
    pub(crate) fn raw_range(&self) -> RawRange {
        let length = self.elements * self.dtype.size();
        RawRange { first: self.first, length, is_writable: self.is_writable }
    }

    pub(crate) fn dtype(&self) -> &Dtype {
        &self.dtype
    }

    pub(crate) fn elements(&self) -> usize {
        self.elements
    }

    /// Returns the type by which the elements are transferred: their own type if it can be reduced,
    /// else bytes.
    pub(crate) fn transfer_type(&self) -> ElementType {
        match self.dtype {
            Dtype::Element(element) => element,
            Dtype::Other(..) => ElementType::U8,
        }
    }

    /// Fails if the buffers overlap or differ in type.
    pub(crate) fn check_separate(&self, other: &Buffer, call: &str) -> PyResult<()> {
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

    /// Returns the elements as bytes.
    ///
    /// # Safety
    ///
    /// The elements must not be written while the slice exists.
    #[expect(unsafe_code, reason = "only the caller knows of other accesses")]
    pub(crate) unsafe fn read(&self) -> &[u8] {
        let length = self.elements * self.dtype.size();
        // SAFETY: `Buffer::from_object` has checked the length, and the exporter keeps the memory
        // in place; the caller guarantees that it is not written.
        unsafe { slice::from_raw_parts(self.first.as_ptr(), length) }
    }

    /// Returns the elements as bytes; empty if they are read-only.
    ///
    /// # Safety
    ///
    /// The elements must not be accessed otherwise while the slice exists.
    #[expect(unsafe_code, reason = "only the caller knows of other accesses")]
    pub(crate) unsafe fn write(&mut self) -> &mut [u8] {
        if !self.is_writable {
            return &mut [];
        }
        let length = self.elements * self.dtype.size();
        // SAFETY: as above, and the memory is writable; the caller guarantees exclusive access.
        unsafe { slice::from_raw_parts_mut(self.first.as_ptr(), length) }
    }
}

/// Describes an object's memory by the first protocol that the object supports.
fn describe(object: &Bound<'_, PyAny>, call: &str) -> PyResult<ArrayDescription> {
    // Numpy refuses the buffer protocol for element types without a format letter, but supports
    // `__array_interface__` for them.
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
    if let Some(found) = describe_interface(object)? {
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
            "{kind} does not expose its memory; pass array.array('d', {numbers}), a numpy array or \
             a torch tensor"
        )
    } else {
        format!("{kind} has no buffer, no __dlpack__ and no __array_interface__")
    };
    PyTypeError::new_err(format!("{call}: {reason}"))
}

/// Describes an object's memory by `__array_interface__`; `None` if the object does not have that
/// attribute, or if the attribute does not contain an address.
fn describe_interface(object: &Bound<'_, PyAny>) -> PyResult<Option<ArrayDescription>> {
    let Some(interface) = object.getattr_opt("__array_interface__")? else { return Ok(None) };
    let Ok(interface) = interface.cast::<PyDict>() else { return Ok(None) };
    let Some(data) = interface.get_item("data")?.filter(|data| !data.is_none()) else {
        return Ok(None);
    };
    let Ok((address, is_read_only)) = data.extract::<(usize, bool)>() else { return Ok(None) };
    let missing = |key: &str| PyTypeError::new_err(format!("__array_interface__ has no {key}"));
    let typestr = interface.get_item("typestr")?.ok_or_else(|| missing("typestr"))?;
    let typestr: String = typestr.extract()?;
    let dtype = match Dtype::from_typestr(&typestr).ok_or_else(|| missing("typestr"))? {
        // The typestr has no letter for bfloat16, so it is recognised by the name of the dtype.
        Ok(Dtype::Other(_, 2)) if is_bfloat16(object) => Ok(Dtype::bfloat16()),
        dtype => dtype,
    };
    let shape = interface.get_item("shape")?.ok_or_else(|| missing("shape"))?;
    let shape: Vec<usize> = shape.extract()?;
    let strides = match interface.get_item("strides")?.filter(|strides| !strides.is_none()) {
        Some(strides) => Some(strides.extract::<Vec<isize>>()?),
        None => None,
    };
    let (first, is_writable) = (with_exposed_provenance_mut(address), !is_read_only);
    let exporter = Exporter::Object(object.clone().unbind());
    Ok(Some(ArrayDescription { first, dtype, shape, strides, is_writable, exporter }))
}

fn is_bfloat16(object: &Bound<'_, PyAny>) -> bool {
    let name = object.getattr("dtype").and_then(|dtype| dtype.str());
    name.is_ok_and(|name| name == "bfloat16")
}
