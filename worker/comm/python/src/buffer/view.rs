//! Access to memory by Python's buffer protocol (PEP 3118).
//!
//! The functions of the protocol are declared here, because PyO3 declares them only for the stable
//! ABI of Python 3.11 and later. They have been the same since Python 3.9.
#![expect(unsafe_code, reason = "calls of the interpreter")]

use super::{ArrayDescription, Exporter};
use crate::dtype::Dtype;
use pyo3::ffi::{Py_ssize_t, PyObject};
use pyo3::prelude::*;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;
use std::slice;

/// C structure `Py_buffer`.
#[repr(C)]
struct PyBuffer {
    buf: *mut c_void,
    obj: *mut PyObject,
    len: Py_ssize_t,
    itemsize: Py_ssize_t,
    readonly: c_int,
    ndim: c_int,
    format: *mut c_char,
    shape: *mut Py_ssize_t,
    strides: *mut Py_ssize_t,
    suboffsets: *mut Py_ssize_t,
    internal: *mut c_void,
}

/// Flags `PyBUF_FULL_RO`: the memory may have any layout and be read-only, and its format is
/// requested.
const FULL_READ_ONLY: c_int = 0x11c;

unsafe extern "C" {
    fn PyObject_CheckBuffer(object: *mut PyObject) -> c_int;
    fn PyObject_GetBuffer(object: *mut PyObject, view: *mut PyBuffer, flags: c_int) -> c_int;
    fn PyBuffer_Release(view: *mut PyBuffer);
}

/// Filled `Py_buffer`. It keeps an object's memory in place until this value is dropped.
pub(super) struct View {
    /// Structure in a box, because it may contain pointers into itself.
    raw: Box<PyBuffer>,
}

// SAFETY: the pointers are only used by threads that are attached to the interpreter.
unsafe impl Send for View {}

/// Releases the buffer, unless the interpreter has been finalized and its memory is gone.
impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: the view was filled by `PyObject_GetBuffer` and is released once, by a thread
        // that is attached to the interpreter.
        Python::try_attach(|_| unsafe { PyBuffer_Release(&mut *self.raw) });
    }
}

/// Describes an object's memory by the buffer protocol; `None` if the object does not support it.
pub(super) fn describe(object: &Bound<'_, PyAny>) -> PyResult<Option<ArrayDescription>> {
    // SAFETY: the object is alive, and this thread is attached to the interpreter.
    if unsafe { PyObject_CheckBuffer(object.as_ptr()) } == 0 {
        return Ok(None);
    }
    let mut raw = Box::new(PyBuffer {
        buf: null_mut(),
        obj: null_mut(),
        len: 0,
        itemsize: 0,
        readonly: 1,
        ndim: 0,
        format: null_mut(),
        shape: null_mut(),
        strides: null_mut(),
        suboffsets: null_mut(),
        internal: null_mut(),
    });
    // SAFETY: as above, and the structure has the layout of `Py_buffer`.
    if unsafe { PyObject_GetBuffer(object.as_ptr(), &mut *raw, FULL_READ_ONLY) } != 0 {
        return Err(PyErr::fetch(object.py()));
    }
    let view = View { raw };
    let raw = &*view.raw;
    let size = usize::try_from(raw.itemsize).unwrap_or_default().max(1);
    let format = if raw.format.is_null() {
        "B".into()
    } else {
        // SAFETY: the format is a string that ends with a zero and is valid until the view is
        // released.
        unsafe { CStr::from_ptr(raw.format) }.to_string_lossy()
    };
    let dtype = Dtype::from_format(&format, size);
    let dimensions = usize::try_from(raw.ndim).unwrap_or_default();
    // SAFETY: `shape` is null or has one value for each dimension.
    let shape = unsafe { values(raw.shape, dimensions) };
    let shape = match shape {
        Some(shape) => shape.iter().map(|n| usize::try_from(*n).unwrap_or_default()).collect(),
        None => vec![usize::try_from(raw.len).unwrap_or_default() / size],
    };
    // SAFETY: `strides` is null or has one value for each dimension.
    let mut strides = unsafe { values(raw.strides, dimensions) }.map(<[Py_ssize_t]>::to_vec);
    if !raw.suboffsets.is_null() {
        // The rows are separate allocations. Strides of 0 make the array count as not contiguous.
        strides = Some(vec![0; dimensions]);
    }
    let (first, is_writable) = (raw.buf.cast(), raw.readonly == 0);
    Ok(Some(ArrayDescription {
        first,
        dtype,
        shape,
        strides,
        is_writable,
        exporter: Exporter::View(view),
    }))
}

/// # Safety
///
/// `first` must be null or point to `length` values.
unsafe fn values<'a>(first: *mut Py_ssize_t, length: usize) -> Option<&'a [Py_ssize_t]> {
    if first.is_null() {
        return None;
    }
    // SAFETY: the caller guarantees it.
    Some(unsafe { slice::from_raw_parts(first, length) })
}
