//! The buffer protocol.
//!
//! Its functions belong to the stable ABI since Python 3.11 only, where they were frozen as they
//! had been in 3.9 and 3.10: so they are declared here.
#![expect(unsafe_code, reason = "calls of the interpreter")]

use super::{Described, Keeper};
use crate::dtype::Dtype;
use pyo3::ffi::{Py_ssize_t, PyObject};
use pyo3::prelude::*;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;
use std::slice;

/// `Py_buffer`.
#[repr(C)]
struct Raw {
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

/// `PyBUF_FULL_RO`: whatever it is, with its format.
const FULL_READ_ONLY: c_int = 0x11c;

unsafe extern "C" {
    fn PyObject_CheckBuffer(object: *mut PyObject) -> c_int;
    fn PyObject_GetBuffer(object: *mut PyObject, view: *mut Raw, flags: c_int) -> c_int;
    fn PyBuffer_Release(view: *mut Raw);
}

/// An object's memory, which is neither moved nor freed as long as this lives.
pub(super) struct View {
    /// It may point into itself.
    raw: Box<Raw>,
}

// SAFETY: what it points to is the interpreter's, and only touched by who has that.
unsafe impl Send for View {}

/// Where the interpreter has gone already, so has the memory.
impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: it was filled by `PyObject_GetBuffer`, is released once, and the interpreter is
        // this thread's.
        Python::try_attach(|_| unsafe { PyBuffer_Release(&mut *self.raw) });
    }
}

/// None where the object has no buffer.
pub(super) fn describe(object: &Bound<'_, PyAny>) -> PyResult<Option<Described>> {
    // SAFETY: the object lives, and the interpreter is this thread's.
    if unsafe { PyObject_CheckBuffer(object.as_ptr()) } == 0 {
        return Ok(None);
    }
    let mut raw = Box::new(Raw {
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
    // SAFETY: as above, and the structure is the interpreter's.
    if unsafe { PyObject_GetBuffer(object.as_ptr(), &mut *raw, FULL_READ_ONLY) } != 0 {
        return Err(PyErr::fetch(object.py()));
    }
    let view = View { raw };
    let raw = &*view.raw;
    let size = usize::try_from(raw.itemsize).unwrap_or_default().max(1);
    let format = match raw.format.is_null() {
        true => "B".into(),
        // SAFETY: a format ends with a zero, and lives as long as the view.
        false => unsafe { CStr::from_ptr(raw.format) }.to_string_lossy(),
    };
    let dtype = Dtype::from_format(&format, size);
    let dimensions = usize::try_from(raw.ndim).unwrap_or_default();
    // SAFETY: there is one length for each dimension, if any.
    let shape = unsafe { numbers(raw.shape, dimensions) };
    let shape = match shape {
        Some(shape) => shape.iter().map(|n| usize::try_from(*n).unwrap_or_default()).collect(),
        None => vec![usize::try_from(raw.len).unwrap_or_default() / size],
    };
    // SAFETY: and a stride.
    let mut strides = unsafe { numbers(raw.strides, dimensions) }.map(<[Py_ssize_t]>::to_vec);
    if !raw.suboffsets.is_null() {
        // Rows that lie anywhere: no strides fit them.
        strides = Some(vec![0; dimensions]);
    }
    let (first, is_writable) = (raw.buf.cast(), raw.readonly == 0);
    Ok(Some(Described { first, dtype, shape, strides, is_writable, keeper: Keeper::View(view) }))
}

/// # Safety
///
/// `first` is null or the first of so many numbers.
unsafe fn numbers<'a>(first: *mut Py_ssize_t, length: usize) -> Option<&'a [Py_ssize_t]> {
    if first.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    Some(unsafe { slice::from_raw_parts(first, length) })
}
