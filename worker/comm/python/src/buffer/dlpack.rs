//! DLPack, the protocol by which torch and other libraries share tensors.
//!
//! An object returns its tensor in a capsule. This module keeps the capsule and does not mark it as
//! used. So the capsule frees the tensor when the capsule is dropped.
#![expect(unsafe_code, reason = "access to the structure in a capsule")]

use super::{ArrayDescription, Exporter};
use crate::dtype::Dtype;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};
use std::ffi::c_void;
use std::slice;

/// C structure `DLTensor`.
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
    /// Strides in elements; null if the tensor is C-contiguous.
    strides: *const i64,
    byte_offset: u64,
}

/// C structure `DLManagedTensorVersioned` of major version 1.
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

/// Device types with memory that the CPU can access: CPU, and host memory pinned by CUDA or ROCm.
const HOST: [i32; 3] = [1, 3, 11];

/// Describes an object's memory by DLPack; `None` if the object has no `__dlpack__`.
pub(super) fn describe(
    object: &Bound<'_, PyAny>,
    call: &str,
) -> PyResult<Option<ArrayDescription>> {
    if !object.hasattr("__dlpack__")? {
        return Ok(None);
    }
    let kind = object.get_type().name()?;
    let wrong = |what: &str| PyTypeError::new_err(format!("{call}: {kind} {what}"));
    let on_device = || wrong("is in the memory of a device; copy it to the host first");
    if object.hasattr("__dlpack_device__")? {
        let (device, _): (i32, i32) = object.call_method0("__dlpack_device__")?.extract()?;
        if !HOST.contains(&device) {
            return Err(on_device());
        }
    }
    let returned = call_dlpack(object)?;
    let capsule = returned
        .cast::<PyCapsule>()
        .map_err(|_| wrong("does not return a capsule from __dlpack__"))?;
    let (tensor, is_writable) = tensor_in(capsule)?;
    if !HOST.contains(&tensor.device_type) {
        return Err(on_device());
    }
    let Some(dtype) = Dtype::from_dlpack(tensor.code, tensor.bits, tensor.lanes) else {
        return Err(wrong("has elements that are not whole bytes"));
    };
    let dimensions = usize::try_from(tensor.ndim).unwrap_or_default();
    let numbers = |first: *const i64| {
        (!first.is_null() && dimensions > 0)
            // SAFETY: the array has one value for each dimension, and is valid as long as the
            // capsule.
            .then(|| unsafe { slice::from_raw_parts(first, dimensions) })
    };
    let shape = numbers(tensor.shape).unwrap_or_default();
    let shape: Vec<usize> = shape.iter().map(|n| usize::try_from(*n).unwrap_or_default()).collect();
    let size = dtype.size() as i64;
    let strides = numbers(tensor.strides)
        .map(|all| all.iter().map(|stride| stride.saturating_mul(size) as isize).collect());
    let first = tensor.data.cast::<u8>().wrapping_add(tensor.byte_offset as usize);
    let exporter = Exporter::Object(returned.clone().unbind());
    Ok(Some(ArrayDescription { first, dtype: Ok(dtype), shape, strides, is_writable, exporter }))
}

/// Calls `__dlpack__` with the supported version as an argument, or without the argument if the
/// object does not accept it.
fn call_dlpack<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = object.py();
    let arguments = PyDict::new(py);
    arguments.set_item("max_version", (1, 0))?;
    match object.call_method("__dlpack__", (), Some(&arguments)) {
        Err(error) if error.is_instance_of::<PyTypeError>(py) => object.call_method0("__dlpack__"),
        returned => returned,
    }
}

/// Returns the tensor in a capsule, and whether its memory is writable.
fn tensor_in<'a>(capsule: &'a Bound<'_, PyCapsule>) -> PyResult<(&'a Tensor, bool)> {
    if !capsule.is_valid_checked(Some(c"dltensor_versioned")) {
        let first = capsule.pointer_checked(Some(c"dltensor"))?.cast::<Tensor>();
        // SAFETY: a capsule of this name has a `DLManagedTensor`, which begins with the tensor and
        // is valid until the capsule is dropped.
        return Ok((unsafe { first.as_ref() }, true));
    }
    let first = capsule.pointer_checked(Some(c"dltensor_versioned"))?;
    // SAFETY: the structure of every version begins with its major version.
    let major = unsafe { first.cast::<u32>().read() };
    if major != 1 {
        return Err(PyTypeError::new_err(format!(
            "DLPack version {major} is not supported, only 1"
        )));
    }
    // SAFETY: the structure of major version 1 has this layout.
    let versioned = unsafe { first.cast::<Versioned>().as_ref() };
    let is_writable = versioned.flags & (READ_ONLY | IS_COPIED) == 0;
    Ok((&versioned.tensor, is_writable))
}
