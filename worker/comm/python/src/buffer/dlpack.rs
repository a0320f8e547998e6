//! DLPack: how torch and others lend tensors.
//!
//! The capsule that an object gives is only held, not consumed: it frees the tensor when it is
//! dropped.
#![expect(unsafe_code, reason = "the memory behind capsules")]

use super::{Described, Keeper};
use crate::dtype::Dtype;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};
use std::ffi::c_void;
use std::slice;

/// `DLTensor`.
#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    ndim: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *const i64,
    /// In elements; null where the tensor is dense.
    strides: *const i64,
    byte_offset: u64,
}

/// `DLManagedTensorVersioned`, as far as major version 1 goes.
#[repr(C)]
struct Versioned {
    major: u32,
    minor: u32,
    manager: *mut c_void,
    deleter: *mut c_void,
    flags: u64,
    tensor: Tensor,
}

const READ_ONLY: u64 = 1;
const IS_COPIED: u64 = 2;

/// Devices whose memory is this process's: CPU, and what CUDA and ROCm have pinned there.
const HOST: [i32; 3] = [1, 3, 11];

/// None where the object has no `__dlpack__`.
pub(super) fn describe(object: &Bound<'_, PyAny>, call: &str) -> PyResult<Option<Described>> {
    if !object.hasattr("__dlpack__")? {
        return Ok(None);
    }
    let kind = object.get_type().name()?;
    let wrong = |what: &str| PyTypeError::new_err(format!("{call}: {kind} {what}"));
    let on_device = || wrong("is in a device's memory; copy it to the host's first");
    if object.hasattr("__dlpack_device__")? {
        let (device, _): (i32, i32) = object.call_method0("__dlpack_device__")?.extract()?;
        if !HOST.contains(&device) {
            return Err(on_device());
        }
    }
    let given = ask(object)?;
    let capsule = given.cast::<PyCapsule>().map_err(|_| wrong("has no capsule for __dlpack__"))?;
    let (tensor, is_writable) = open(capsule)?;
    if !HOST.contains(&tensor.device_type) {
        return Err(on_device());
    }
    let Some(dtype) = Dtype::from_dlpack(tensor.code, tensor.bits, tensor.lanes) else {
        return Err(wrong("has elements that are no whole bytes"));
    };
    let dimensions = usize::try_from(tensor.ndim).unwrap_or_default();
    let numbers = |first: *const i64| {
        (!first.is_null() && dimensions > 0)
            // SAFETY: there is one for each dimension, as long as the capsule lives.
            .then(|| unsafe { slice::from_raw_parts(first, dimensions) })
    };
    let shape = numbers(tensor.shape).unwrap_or_default();
    let shape: Vec<usize> = shape.iter().map(|n| usize::try_from(*n).unwrap_or_default()).collect();
    let size = dtype.size() as i64;
    let strides = numbers(tensor.strides)
        .map(|all| all.iter().map(|stride| stride.saturating_mul(size) as isize).collect());
    let first = tensor.data.cast::<u8>().wrapping_add(tensor.byte_offset as usize);
    let keeper = Keeper::Object(given.clone().unbind());
    Ok(Some(Described { first, dtype: Ok(dtype), shape, strides, is_writable, keeper }))
}

/// Objects that do not know versions refuse the argument.
fn ask<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = object.py();
    let arguments = PyDict::new(py);
    arguments.set_item("max_version", (1, 0))?;
    match object.call_method("__dlpack__", (), Some(&arguments)) {
        Err(error) if error.is_instance_of::<PyTypeError>(py) => object.call_method0("__dlpack__"),
        given => given,
    }
}

/// The tensor in a capsule, and whether it may be written.
fn open<'a>(capsule: &'a Bound<'_, PyCapsule>) -> PyResult<(&'a Tensor, bool)> {
    if !capsule.is_valid_checked(Some(c"dltensor_versioned")) {
        let first = capsule.pointer_checked(Some(c"dltensor"))?.cast::<Tensor>();
        // SAFETY: a capsule of this name has a `DLManagedTensor`, which begins with the tensor, and
        // frees it when it is dropped.
        return Ok((unsafe { first.as_ref() }, true));
    }
    let first = capsule.pointer_checked(Some(c"dltensor_versioned"))?;
    // SAFETY: every version begins with its number.
    let major = unsafe { first.cast::<u32>().read() };
    if major != 1 {
        return Err(PyTypeError::new_err(format!("DLPack {major} is not known here, 1 is")));
    }
    // SAFETY: version 1 has this layout.
    let versioned = unsafe { first.cast::<Versioned>().as_ref() };
    let is_writable = versioned.flags & (READ_ONLY | IS_COPIED) == 0;
    Ok((&versioned.tensor, is_writable))
}
