//! Shapes as tuples of integers.

use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use slipring::Shape;

use crate::error::raise;
use crate::metadata::type_name;

/// Returns the shape of an integer or a sequence of integers.
///
/// # Errors
///
/// `TypeError`: the object is neither. `ValueError`: a dimension is negative or needs more than 63 bits. `InvalidTensor`: there
/// are too many of them.
pub fn parse(object: &Bound<'_, PyAny>) -> PyResult<Shape> {
    let is_overflow = |error: &PyErr| error.is_instance_of::<PyOverflowError>(object.py());
    let too_large = || PyValueError::new_err("a dimension is too large, at most 2^63 - 1 may be");
    let dims: Vec<i64> = match object.extract::<i64>() {
        Ok(dim) => vec![dim],
        Err(error) if is_overflow(&error) => return Err(too_large()),
        Err(_) => object.extract().map_err(|error| {
            if is_overflow(&error) {
                return too_large();
            }
            let text = format!("a shape is an int or a sequence of int, not {}", type_name(object));
            PyTypeError::new_err(text)
        })?,
    };
    let dims = dims.iter().enumerate().map(|(at, dim)| {
        usize::try_from(*dim).map_err(|_| {
            PyValueError::new_err(format!("dimension {at} is {dim}, must be 0 or more"))
        })
    });
    Shape::new(&dims.collect::<PyResult<Vec<usize>>>()?).map_err(raise)
}
