//! Metadata as a dict of `str` to `bool`, `int`, `float`, `str` or `datetime`.

use std::time::SystemTime;

use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyString};
use slipring::message::{Metadata, Value};

use crate::error::raise;

/// Returns the metadata of a dict.
///
/// # Errors
///
/// `TypeError`: a name is no `str`, or a value has another type. `OverflowError`: an integer needs more than 64 bits.
/// `InvalidTensor`: as `Metadata::insert`.
pub fn from_dict(values: Option<&Bound<'_, PyDict>>) -> PyResult<Option<Metadata>> {
    let Some(values) = values.filter(|values| !values.is_empty()) else { return Ok(None) };
    let mut metadata = Metadata::new();
    for (name, value) in values {
        let name = name.cast::<PyString>().map_err(|_| {
            PyTypeError::new_err(format!("a name in meta is {}, must be str", type_name(&name)))
        })?;
        insert(&mut metadata, &name.to_cow()?, &value)?;
    }
    Ok(Some(metadata))
}

fn insert(metadata: &mut Metadata, name: &str, value: &Bound<'_, PyAny>) -> PyResult<()> {
    if let Ok(text) = value.cast::<PyString>() {
        return metadata.insert(name, &*text.to_cow()?).map_err(raise);
    }
    let value = if let Ok(truth) = value.cast::<PyBool>() {
        Value::Bool(truth.is_true())
    } else if value.is_instance_of::<PyInt>() {
        Value::Integer(value.extract().map_err(|_| {
            PyOverflowError::new_err(format!(
                "meta[{name:?}] needs more than 64 bits: send it as a str"
            ))
        })?)
    } else if value.is_instance_of::<PyFloat>() {
        Value::Float(value.extract()?)
    } else if let Ok(time) = value.extract::<SystemTime>() {
        Value::Time(time)
    } else if let Ok(integer) = value.extract::<i64>() {
        Value::Integer(integer)
    } else if let Ok(float) = value.extract::<f64>() {
        Value::Float(float)
    } else {
        let kind = type_name(value);
        let text = format!(
            "meta[{name:?}] is {kind}, must be bool, int, float, str or a datetime with a time zone"
        );
        return Err(PyTypeError::new_err(text));
    };
    metadata.insert(name, value).map_err(raise)
}

/// Returns metadata as a dict.
pub fn to_dict<'py>(py: Python<'py>, metadata: &Metadata) -> PyResult<Bound<'py, PyDict>> {
    let values = PyDict::new(py);
    for (name, value) in metadata.iter() {
        match value {
            Value::Integer(value) => values.set_item(name, value)?,
            Value::Float(value) => values.set_item(name, value)?,
            Value::String(value) => values.set_item(name, value)?,
            Value::Time(value) => values.set_item(name, value)?,
            Value::Bool(value) => values.set_item(name, value)?,
            // A kind of value that this package does not know is left out.
            _ => {}
        }
    }
    Ok(values)
}

/// Returns the name of an object's type, for error texts.
pub fn type_name(object: &Bound<'_, PyAny>) -> String {
    object.get_type().qualname().map_or_else(|_| "object".into(), |name| name.to_string())
}
