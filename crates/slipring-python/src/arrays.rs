//! Tensors out of the arrays of other libraries: one copy, into the pool.

use std::time::Instant;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use slipring::{Context, DType, Error, ErrorKind, Shape, Tensor, TensorMut};

use crate::buffer::View;
use crate::deadline::Deadline;
use crate::dlpack;
use crate::dtype;
use crate::error::{raise, timed_out};
use crate::memory::Memory;
use crate::metadata::type_name;

/// What to allocate.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    pub dtype: DType,
    pub shape: Shape,
    pub is_zeroed: bool,
    pub is_frozen: bool,
}

impl Wanted {
    /// Allocates, and waits for memory that other tensors hold until the deadline. `None`: it does not wait.
    ///
    /// # Errors
    ///
    /// As `Context::alloc`. `TimedOut`. What a handler of a signal raised.
    pub fn allocate(
        &self,
        py: Python<'_>,
        context: &Context,
        deadline: Option<&Deadline>,
    ) -> PyResult<TensorMut<u8>> {
        let waits = match self.try_allocate(context, None) {
            Err(error) if matches!(error.kind(), ErrorKind::PoolExhausted { .. }) => {
                deadline.ok_or_else(|| raise(error))?
            }
            done => return done.map_err(raise),
        };
        loop {
            match py.detach(|| self.try_allocate(context, Some(waits.slice()))) {
                Err(error) if error.is_timeout() && waits.has_passed() => {
                    return Err(timed_out(waits.waited(), &error));
                }
                Err(error) if error.is_timeout() => py.check_signals()?,
                done => return done.map_err(raise),
            }
        }
    }

    /// Allocates, and waits until a time.
    ///
    /// # Errors
    ///
    /// As `Context::alloc`.
    pub fn try_allocate(
        &self,
        context: &Context,
        until: Option<Instant>,
    ) -> Result<TensorMut<u8>, Error> {
        let mut allocation = context.allocation();
        if self.is_zeroed {
            allocation = allocation.zeroed();
        }
        if self.is_frozen {
            allocation = allocation.frozen();
        }
        if let Some(until) = until {
            allocation = allocation.until(until);
        }
        allocation.dtype(self.dtype, self.shape)
    }
}

/// Returns a tensor in the pool with a copy of an object's elements: of a buffer of any strides, or of a contiguous tensor of
/// DLPack.
///
/// # Errors
///
/// `TypeError`: the object is neither, or its elements have no dtype. Otherwise as [`Wanted::allocate`].
pub fn copy_in(
    object: &Bound<'_, PyAny>,
    context: &Context,
    deadline: &Deadline,
) -> PyResult<Tensor> {
    let py = object.py();
    let wanted = |dtype, dims: &[usize]| {
        let shape = Shape::new(dims).map_err(raise)?;
        Ok::<_, PyErr>(Wanted { dtype, shape, is_zeroed: false, is_frozen: false })
    };
    let draft = match View::of(object) {
        Ok(Some(view)) => {
            let (format, size) = view.format();
            let wanted = wanted(dtype::of_format(format, size)?, &view.dims())?;
            let mut draft = wanted.allocate(py, context, Some(deadline))?;
            view.copy_to(py, &mut draft)?;
            draft
        }
        // An array may have elements without a format, such as bfloat16, and yet DLPack.
        refused => match dlpack::import(object) {
            Ok(Some(tensor)) => {
                let wanted = wanted(tensor.dtype(), tensor.shape().dims())?;
                let mut draft = wanted.allocate(py, context, Some(deadline))?;
                tensor.copy_to(&mut draft);
                draft
            }
            Ok(None) => {
                refused?;
                let text = format!(
                    "{} is no tensor: pass a slipring.Tensor, an array with the buffer protocol, or one with DLPack",
                    type_name(object)
                );
                return Err(PyTypeError::new_err(text));
            }
            Err(error) => return Err(refused.err().unwrap_or(error)),
        },
    };
    draft.share().map_err(raise)
}

/// Returns a tensor in the pool with a copy of another one's bytes, which are on loan.
///
/// # Errors
///
/// As [`Wanted::allocate`] and [`Memory::read`]. `LoanRevoked`.
pub fn copy_loan(
    py: Python<'_>,
    memory: &Memory,
    context: &Context,
    deadline: &Deadline,
) -> PyResult<Tensor> {
    let (dtype, shape) = (memory.dtype(), *memory.shape());
    if dtype == DType::Bytes {
        return memory.read(slipring::Tensor::to_private);
    }
    let wanted = Wanted { dtype, shape, is_zeroed: false, is_frozen: false };
    let mut draft = wanted.allocate(py, context, Some(deadline))?;
    memory.read(|tensor| {
        tensor.bytes()?.copy_to(&mut draft);
        // What was copied is what was sent.
        tensor.bytes().map(drop)
    })?;
    draft.share().map_err(raise)
}
