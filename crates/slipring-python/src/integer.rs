//! An `int` that a caller gives.

use pyo3::conversion::FromPyObjectOwned;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyBool;

/// An integer. A `bool` is none: `True` would count as 1.
#[derive(Debug, Clone, Copy)]
pub struct Integer<T>(pub T);

impl<'py, T: FromPyObjectOwned<'py>> FromPyObject<'_, 'py> for Integer<T> {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if object.is_instance_of::<PyBool>() {
            return Err(PyTypeError::new_err("bool is no int here"));
        }
        object.extract().map(Self).map_err(Into::into)
    }
}
