//! The stream of a GPU that a caller names.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use slipring::Error;
use slipring::error::CudaFault;

use crate::error::raise;
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
    /// `TypeError`: it is neither. `ValueError`: as [`new`](Self::new).
    pub fn of(object: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let Some(object) = object else { return Ok(Self(DEFAULT)) };
        let address: i64 = if let Some(method) = object.getattr_opt("__cuda_stream__")? {
            let (_version, address): (i64, i64) = method.call0()?.extract()?;
            address
        } else if let Some(address) = object.getattr_opt("cuda_stream")? {
            address.extract()?
        } else if let Some(address) = object.getattr_opt("ptr")? {
            address.extract()?
        } else {
            let number = object.extract().map_err(|_| {
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
