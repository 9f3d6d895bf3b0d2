//! Tensors out of the arrays of other libraries: one copy, into the pool.

use std::time::{Duration, Instant};

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use slipring::broadcast::Publisher;
use slipring::error::TensorFault;
use slipring::{Context, DType, Error, ErrorKind, Shape, Tensor, TensorMut};

use crate::buffer::View;
use crate::deadline::Deadline;
use crate::dlpack;
use crate::dtype;
use crate::error::{raise, timed_out};
use crate::gpu;
use crate::handle::Handle;
use crate::memory::Memory;
use crate::metadata::type_name;

/// Where memory for tensors comes from.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    context: &'a Context,
    /// The publisher whose messages keep memory of the context's pool.
    publisher: Option<&'a Handle<Publisher>>,
}

impl<'a> Source<'a> {
    /// Returns a context's pool.
    pub fn of(context: &'a Context) -> Self {
        Self { context, publisher: None }
    }

    /// Returns a context's pool, from which a publisher takes back what subscribers no longer read.
    pub fn of_publisher(context: &'a Context, publisher: &'a Handle<Publisher>) -> Self {
        Self { context, publisher: Some(publisher) }
    }
}

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
    /// As `Context::alloc`, and as `Publisher::alloc` if a publisher takes memory back. `TimedOut`. What a handler of a signal
    /// raised.
    pub fn allocate(
        &self,
        py: Python<'_>,
        source: Source<'_>,
        deadline: Option<&Deadline>,
    ) -> PyResult<TensorMut<u8>> {
        let Source { context, publisher } = source;
        let waits = match self.try_allocate(context, None) {
            Err(error) if matches!(error.kind(), ErrorKind::PoolExhausted { .. }) => {
                deadline.ok_or_else(|| raise(error))?
            }
            done => return done.map_err(raise),
        };
        loop {
            let slice = waits.slice();
            let allocated = match publisher {
                None => py.detach(|| self.try_allocate(context, Some(slice))),
                Some(publisher) => {
                    let mut publisher = publisher.lock(py)?;
                    let publisher = &mut *publisher;
                    py.detach(|| self.allocate_after(context, publisher, slice))
                }
            };
            match allocated {
                Err(error) if error.is_timeout() && waits.has_passed() => {
                    return Err(timed_out(waits.waited(), &error));
                }
                Err(error) if error.is_timeout() => py.check_signals()?,
                done => return done.map_err(raise),
            }
        }
    }

    /// Allocates after a publisher has taken as much memory back, for which it waits until a time.
    fn allocate_after(
        &self,
        context: &Context,
        publisher: &mut Publisher,
        until: Instant,
    ) -> Result<TensorMut<u8>, Error> {
        // As many bytes, whatever their type.
        let len = self.shape.byte_len(self.dtype)?.unwrap_or(0);
        publisher.alloc_deadline::<u8>([len], until).map(drop)?;
        match self.try_allocate(context, None) {
            // Another thread was faster.
            Err(error) if matches!(error.kind(), ErrorKind::PoolExhausted { .. }) => {
                Err(ErrorKind::TimedOut { after: Duration::ZERO }.into())
            }
            done => done,
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
/// DLPack. One on a GPU is not copied.
///
/// # Errors
///
/// `TypeError`: the object is neither, or its elements have no dtype. Otherwise as [`Wanted::allocate`] and [`gpu::adopt`].
pub fn copy_in(
    object: &Bound<'_, PyAny>,
    source: Source<'_>,
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
            let mut draft = wanted.allocate(py, source, Some(deadline))?;
            view.copy_to(py, &mut draft)?;
            draft
        }
        // An array may have elements without a format, such as bfloat16, and yet DLPack.
        refused => {
            if let Some(tensor) = gpu::adopt(object, deadline)? {
                return Ok(tensor);
            }
            match dlpack::import(object) {
                Ok(Some(tensor)) => {
                    let wanted = wanted(tensor.dtype(), tensor.shape().dims())?;
                    let mut draft = wanted.allocate(py, source, Some(deadline))?;
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
                Err(error) => {
                    let Some((dtype, view)) = bits_of(object)? else {
                        return Err(refused.err().unwrap_or(error));
                    };
                    let mut draft =
                        wanted(dtype, &view.dims())?.allocate(py, source, Some(deadline))?;
                    view.copy_to(py, &mut draft)?;
                    draft
                }
            }
        }
    };
    draft.share().map_err(raise)
}

/// Returns the dtype of an array whose elements have no format, and its memory as elements that have one: NumPy has arrays of
/// the types of `ml_dtypes`, and gives them neither a buffer nor DLPack. `None`: the object is no such array.
fn bits_of(object: &Bound<'_, PyAny>) -> PyResult<Option<(DType, View)>> {
    let dtype = object.getattr_opt("dtype")?.and_then(|dtype| dtype::parse(&dtype).ok());
    let Some(dtype) = dtype.filter(|dtype| dtype::format(*dtype).is_none()) else {
        return Ok(None);
    };
    let bits = match dtype.size() {
        Some(1) => "uint8",
        Some(2) => "uint16",
        _ => return Ok(None),
    };
    match object.call_method1("view", (bits,)) {
        Ok(bits) => Ok(View::of(&bits)?.map(|view| (dtype, view))),
        Err(_) => Ok(None),
    }
}

/// Returns a tensor in the pool with a copy of another one's bytes, which are on loan.
///
/// # Errors
///
/// As [`Wanted::allocate`] and [`Memory::read`]. `LoanRevoked`. `InvalidTensor`: they lie on a GPU.
pub fn copy_loan(
    py: Python<'_>,
    memory: &Memory,
    source: Source<'_>,
    deadline: &Deadline,
) -> PyResult<Tensor> {
    let (dtype, shape) = (memory.dtype(), *memory.shape());
    if memory.gpu()?.is_some() {
        return Err(raise(TensorFault::GpuLoan.into()));
    }
    if dtype == DType::Bytes {
        return memory.read(slipring::Tensor::to_private);
    }
    let wanted = Wanted { dtype, shape, is_zeroed: false, is_frozen: false };
    let mut draft = wanted.allocate(py, source, Some(deadline))?;
    memory.read(|tensor| {
        tensor.bytes()?.copy_to(&mut draft);
        // What was copied is what was sent.
        tensor.bytes().map(drop)
    })?;
    draft.share().map_err(raise)
}
