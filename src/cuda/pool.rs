//! Memory of a GPU for tensors that are sent.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::cuda::device::Device;
use crate::cuda::draft::Draft;
use crate::cuda::library::is_ours;
use crate::cuda::memory::PAGE;
use crate::cuda::store::Store;
use crate::cuda::stream::Stream;
use crate::error::{CudaFault, ErrorKind, Result, TensorFault};
use crate::tensor::{DType, Element, Shape, Tensor};

/// How long to sleep between two looks whether memory has come back.
const PAUSE: Duration = Duration::from_micros(100);

/// How a pool takes memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolOptions {
    /// What it takes from the driver at once, in bytes, rounded up to 2 MiB. A longer tensor gets as much as it needs.
    /// Default: 64 MiB.
    pub chunk: u64,
    /// What it takes at most, in bytes. Default: all there is.
    pub quota: u64,
}

impl Default for PoolOptions {
    fn default() -> Self {
        Self { chunk: 64 << 20, quota: u64::MAX }
    }
}

impl PoolOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets what it takes from the driver at once, in bytes.
    pub fn chunk(mut self, bytes: u64) -> Self {
        self.chunk = bytes;
        self
    }

    /// Sets what it takes at most, in bytes.
    pub fn quota(mut self, bytes: u64) -> Self {
        self.quota = bytes;
        self
    }
}

/// Memory of a GPU, in chunks that other processes open once. A peer that gets one tensor of a chunk can read and write
/// all of it, as CUDA has no narrower handle: who trusts peers differently makes a pool for each.
///
/// Dropped, it stays until all that is lent of it is back.
#[derive(Debug)]
pub struct Pool {
    store: Arc<Store>,
}

impl Device {
    /// A pool on this GPU.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidOption`]: a chunk of no bytes, or of more than the quota.
    pub fn pool(&self, options: PoolOptions) -> Result<Pool> {
        let PoolOptions { chunk, quota } = options;
        let rounded = chunk.checked_next_multiple_of(PAGE).filter(|_| chunk > 0);
        let Some(rounded) = rounded.filter(|rounded| *rounded <= quota) else {
            let must = "over 0 bytes, and rounded up to 2 MiB no more than the quota";
            return Err(ErrorKind::InvalidOption { name: "chunk", value: chunk, must }.into());
        };
        let options = PoolOptions { chunk: rounded, quota };
        Ok(Pool { store: Arc::new(Store::new(self, options)) })
    }
}

impl Pool {
    /// The GPU.
    pub fn device(&self) -> &Device {
        self.store.device()
    }

    /// Memory for a tensor, which `stream` will write. It holds what it held before.
    ///
    /// # Errors
    ///
    /// - [`CudaFault::Exhausted`]: the quota is spent, and nothing that is free is long enough.
    /// - [`CudaFault::Driver`]: the GPU has no memory left, or is broken.
    /// - [`CudaFault::OtherStream`]
    /// - [`ErrorKind::Tensor`]: there is no such tensor.
    pub fn alloc<T: Element>(&self, shape: impl Into<Shape>, stream: &Stream) -> Result<Draft<T>> {
        self.make(T::DTYPE, shape.into(), stream)
    }

    /// As [`alloc`](Self::alloc), of this data type, as bytes.
    ///
    /// # Errors
    ///
    /// As [`alloc`](Self::alloc), and [`TensorFault::BytesLen`]: BYTES elements have no length of their own.
    pub fn alloc_dtype(
        &self,
        dtype: DType,
        shape: impl Into<Shape>,
        stream: &Stream,
    ) -> Result<Draft<u8>> {
        self.make(dtype, shape.into(), stream)
    }

    /// As [`alloc_dtype`](Self::alloc_dtype), but waits until `deadline` for memory that others hold.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TimedOut`], and as [`alloc_dtype`](Self::alloc_dtype).
    pub fn alloc_deadline(
        &self,
        dtype: DType,
        shape: impl Into<Shape>,
        stream: &Stream,
        deadline: Instant,
    ) -> Result<Draft<u8>> {
        let (shape, start) = (shape.into(), Instant::now());
        loop {
            match self.make(dtype, shape, stream) {
                Err(error) if waits(&error) => {}
                answer => return answer,
            }
            let now = Instant::now();
            if now >= deadline {
                let late = crate::Error::new(ErrorKind::TimedOut { after: now - start });
                return Err(late.waiting_for("others hold the pool's quota (PoolOptions::quota)"));
            }
            std::thread::sleep(PAUSE.min(deadline - now));
        }
    }

    /// A copy of a tensor of the host's, which `stream` has made when this returns.
    ///
    /// # Errors
    ///
    /// As [`alloc_dtype`](Self::alloc_dtype), and those of [`Tensor::to_private`].
    pub fn copy_of(&self, tensor: &Tensor, stream: &Stream) -> Result<Draft<u8>> {
        let private = tensor.to_private()?;
        let mut draft = self.make(tensor.dtype(), *tensor.shape(), stream)?;
        draft.write(private.as_bytes()?)?;
        Ok(draft)
    }

    /// As [`copy_of`](Self::copy_of), but waits only until `deadline`: for memory that others hold, as
    /// [`alloc_deadline`](Self::alloc_deadline) does, and for the stream and the copy, as [`Draft::write_deadline`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TimedOut`], and as [`copy_of`](Self::copy_of).
    pub fn copy_of_deadline(
        &self,
        tensor: &Tensor,
        stream: &Stream,
        deadline: Instant,
    ) -> Result<Draft<u8>> {
        let private = tensor.to_private()?;
        let mut draft = self.alloc_deadline(tensor.dtype(), *tensor.shape(), stream, deadline)?;
        draft.write_deadline(private.as_bytes()?, deadline)?;
        Ok(draft)
    }

    /// Bytes that it has taken from the driver.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Forked`]
    pub fn bytes(&self) -> Result<u64> {
        self.store.used()
    }

    /// Has freed what nobody uses, and no peer has open.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Forked`]
    pub fn trim(&self) -> Result<()> {
        self.store.trim()
    }

    fn make<T: Element>(&self, dtype: DType, shape: Shape, stream: &Stream) -> Result<Draft<T>> {
        stream.check_device(self.device())?;
        let len = shape.len(dtype)?.ok_or(TensorFault::BytesLen)?;
        let hold = self.store.hold(len)?;
        Ok(Draft { hold: Some(hold), dtype, shape, stream: stream.clone(), element: PhantomData })
    }
}

/// Whether there will be memory when others give some back.
fn waits(error: &crate::Error) -> bool {
    let ErrorKind::Cuda(CudaFault::Exhausted { needed, quota, .. }) = error.kind() else {
        return false;
    };
    needed <= quota
}

impl Drop for Pool {
    fn drop(&mut self) {
        if !is_ours() {
            return;
        }
        let device = self.store.device().clone();
        device.retired().add(self.store.clone());
        device.retired().sweep();
    }
}
