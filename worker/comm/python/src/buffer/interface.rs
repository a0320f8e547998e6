//! Access to memory by `__array_interface__`, a dictionary with the address, shape and type of an
//! array.

use super::{ArrayDescription, Exporter};
use crate::dtype::Dtype;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::ptr::with_exposed_provenance_mut;

/// Describes an object's memory by `__array_interface__`; `None` if the object does not have that
/// attribute, or if the attribute does not contain an address.
pub(super) fn describe(object: &Bound<'_, PyAny>) -> PyResult<Option<ArrayDescription>> {
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
