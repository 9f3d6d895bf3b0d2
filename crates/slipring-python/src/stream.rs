//! The stream of a GPU that a caller names.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use slipring::Error;
use slipring::error::CudaFault;

use crate::error::raise;
use crate::integer::Integer;
use crate::metadata::type_name;

/// A stream as `__dlpack__` has it for CUDA: 1 is the legacy default stream, 2 that of a thread, -1 asks for no order, and others
/// are addresses. `None` is 1, and 0 is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamNumber(i64);

/// The legacy default stream.
const DEFAULT: i64 = 1;

impl StreamNumber {
    /// Returns the stream of a number.
    ///
    /// # Errors
    ///
    /// `CudaFault::StreamNumber`: the number is 0, or below -1.
    pub fn new(number: Option<i64>) -> Result<Self, Error> {
        match number {
            None => Ok(Self(DEFAULT)),
            Some(number) if number == 0 || number < -1 => {
                Err(CudaFault::StreamNumber { number }.into())
            }
            Some(number) => Ok(Self(number)),
        }
    }

    /// Returns the stream that an object is: a number as in `__dlpack__`, or a stream of PyTorch, CuPy or another library, whose
    /// address may be 0, that of the default stream.
    ///
    /// # Errors
    ///
    /// `TypeError`: it is neither. `ValueError`: as [`new`](Self::new), or its `__cuda_stream__` has another version than 0.
    pub fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let address: i64 = if let Some(method) = object.getattr_opt("__cuda_stream__")? {
            let (version, address): (i64, i64) = method.call0()?.extract()?;
            if version != 0 {
                let text = format!("version {version} of __cuda_stream__, 0 is known");
                return Err(PyValueError::new_err(text));
            }
            address
        } else if let Some(address) = object.getattr_opt("cuda_stream")? {
            address.extract()?
        } else if let Some(address) = cupy_stream(object)? {
            address
        } else {
            let Integer(number) = object.extract().map_err(|error: PyErr| {
                if !error.is_instance_of::<PyTypeError>(object.py()) {
                    return error;
                }
                let text =
                    format!("a stream is int, or a stream of CUDA, not {}", type_name(object));
                PyTypeError::new_err(text)
            })?;
            return Self::new(Some(number)).map_err(raise);
        };
        Self::new(Some(if address == 0 { DEFAULT } else { address })).map_err(raise)
    }

    /// Returns the number.
    pub fn number(self) -> i64 {
        self.0
    }

    /// Returns whether the caller wants no order.
    pub fn is_unordered(self) -> bool {
        self.0 == -1
    }

    /// Returns whether it is the stream of one GPU.
    pub fn is_address(self) -> bool {
        self.0 > 2
    }
}

/// Returns the address of a stream as CuPy has it. CuPy's memory and events have `ptr`, too, and only a stream waits for events.
fn cupy_stream(object: &Bound<'_, PyAny>) -> PyResult<Option<i64>> {
    match object.getattr_opt("ptr")? {
        Some(address) if object.hasattr("wait_event")? => address.extract().map(Some),
        _ => Ok(None),
    }
}
