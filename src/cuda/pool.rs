//! Memory of a GPU for tensors that are sent.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::cuda::closer;
use crate::cuda::device::Device;
use crate::cuda::draft::Draft;
use crate::cuda::library::is_ours;
use crate::cuda::options::{Order, PoolOptions};
use crate::cuda::pinned;
use crate::cuda::retired::Retired;
use crate::cuda::returner;
use crate::cuda::store::Store;
use crate::cuda::stream::Stream;
use crate::error::{CudaFault, ErrorKind, Result, TensorFault};
use crate::shm::Bytes;
use crate::tensor::{DType, Element, Settled, Shape, Tensor};

/// The sleep between two checks for returned memory.
const PAUSE: Duration = Duration::from_micros(100);

/// Memory of a GPU in chunks that other processes open once. A peer that gets one tensor of a chunk can read
/// and write all of the chunk, because CUDA has no narrower handle. A process that trusts its peers to
/// different degrees makes a pool for each degree.
///
/// The memory of a dropped pool stays until all its loans are back.
///
/// See the [module's example](crate::cuda).
#[derive(Debug)]
pub struct Pool {
    store: Arc<Store>,
}

impl Device {
    /// Returns a pool on this GPU without a quota. The pool takes 64 MiB from the driver at a time, and more for a longer
    /// tensor.
    pub fn pool(&self) -> Pool {
        let terms =
            PoolOptions::new().judge(self).expect("the default options ask nothing of a GPU");
        Pool { store: Arc::new(Store::new(self, terms)) }
    }

    /// Returns a pool on this GPU with these options.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::InvalidOption`]: a chunk has no bytes, or more than the quota.
    /// - [`CudaFault::NoDescriptors`]: the GPU exports no memory as file descriptors. [`CudaFault::NoWords`]: its streams
    ///   cannot wait for words.
    pub fn pool_with(&self, options: PoolOptions) -> Result<Pool> {
        Ok(Pool { store: Arc::new(Store::new(self, options.judge(self)?)) })
    }

    /// Frees the returned memory of dropped pools, as every operation on a GPU does, and unpins memory of the host that nobody
    /// else uses. Returns the number of dropped pools that still have memory on loan, and the number of chunks of any GPU that
    /// are still being freed or closed, of segments that are being unpinned, and of loans from peers that go back when their
    /// last use is over.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Forked`] in a forked child.
    pub fn trim(&self) -> Result<usize> {
        self.driver().check_fork()?;
        pinned::sweep();
        let retired = Retired::of(self).sweep();
        // A loan that goes back may leave memory to be closed, and counts until it has.
        let returning = returner::left();
        Ok(retired + returning + closer::left())
    }
}

impl Pool {
    /// Returns the GPU.
    pub fn device(&self) -> &Device {
        self.store.device()
    }

    /// Returns how the work of its borrowers comes after that of its writers.
    pub fn order(&self) -> Order {
        self.store.order()
    }

    /// Returns memory for a tensor that `stream` will write. It holds old bytes of this pool.
    ///
    /// # Errors
    ///
    /// - [`CudaFault::Exhausted`]: the quota is used up, perhaps by freed chunks that peers still have mapped, and no free
    ///   range is long enough.
    /// - [`CudaFault::Driver`]: the GPU has no memory left or is broken.
    /// - [`CudaFault::OtherStream`]: the stream belongs to another GPU.
    /// - [`ErrorKind::Tensor`]: the shape is impossible.
    pub fn alloc<T: Element>(&self, shape: impl Into<Shape>, stream: &Stream) -> Result<Draft<T>> {
        self.make(T::DTYPE, shape.into(), stream)
    }

    /// Returns memory as [`alloc`](Self::alloc) does, for this data type, to be written as bytes.
    ///
    /// # Errors
    ///
    /// As [`alloc`](Self::alloc), and [`TensorFault::BytesLen`]: elements of BYTES have no fixed length.
    pub fn alloc_dtype(
        &self,
        dtype: DType,
        shape: impl Into<Shape>,
        stream: &Stream,
    ) -> Result<Draft<u8>> {
        self.make(dtype, shape.into(), stream)
    }

    /// Returns memory as [`alloc_dtype`](Self::alloc_dtype) does. It waits until `deadline` for memory that
    /// other tensors hold.
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

    /// Returns a copy of a tensor of the host. `stream` has made it when the call returns. The driver reads the tensor where it
    /// lies, at the speed of pinned memory if that is [pinned](Device::pin).
    ///
    /// # Errors
    ///
    /// As [`alloc_dtype`](Self::alloc_dtype), [`Draft::write`] and [`Tensor::to_private`].
    pub fn copy_of(&self, tensor: &Tensor, stream: &Stream) -> Result<Draft<u8>> {
        let source = Readable::of(tensor)?;
        let mut draft: Draft<u8> = self.make(tensor.dtype(), *tensor.shape(), stream)?;
        draft.write_bytes(source.bytes()?)?;
        // What was copied is what was sent.
        source.bytes()?;
        Ok(draft)
    }

    /// Returns a copy as [`copy_of`](Self::copy_of) does. It waits until `deadline`: for memory, as
    /// [`alloc_deadline`](Self::alloc_deadline) does, and for the stream and the copy, as
    /// [`Draft::write_deadline`] does.
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
        let source = Readable::of(tensor)?;
        let mut draft = self.alloc_deadline(tensor.dtype(), *tensor.shape(), stream, deadline)?;
        draft.write_bytes_deadline(source.bytes()?, deadline)?;
        source.bytes()?;
        Ok(draft)
    }

    /// Returns the bytes that the pool has taken from the driver, and those of freed chunks that peers still have mapped.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Forked`] in a forked child.
    pub fn bytes(&self) -> Result<u64> {
        self.store.used()
    }

    /// Returns chunks to the driver that nobody uses and, where they travel as handles, no peer has open.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Forked`] in a forked child.
    pub fn trim(&self) -> Result<()> {
        self.store.trim()
    }

    fn make<T: Element>(&self, dtype: DType, shape: Shape, stream: &Stream) -> Result<Draft<T>> {
        stream.check_device(self.device())?;
        let len = shape.len(dtype)?.ok_or(TensorFault::BytesLen)?;
        self.device().driver().check_fork()?;
        Retired::of(self.device()).look();
        let hold = self.store.hold(len)?;
        Ok(Draft::new(hold, dtype, shape, stream.clone()))
    }
}

/// A tensor of the host whose bytes the driver can read.
enum Readable<'a> {
    Here(&'a Tensor),
    /// A copy of a tensor in a region, which a load may not reach.
    Copied(Tensor),
}

impl<'a> Readable<'a> {
    fn of(tensor: &'a Tensor) -> Result<Self> {
        match tensor.bytes() {
            Ok(_) => Ok(Self::Here(tensor)),
            Err(_) => tensor.to_private().map(Self::Copied),
        }
    }

    fn bytes(&self) -> Result<Bytes<'_>> {
        match self {
            Self::Here(tensor) => tensor.bytes(),
            Self::Copied(tensor) => tensor.bytes(),
        }
    }
}

/// Returns whether memory becomes free when other tensors are returned.
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
        let retired = Retired::of(self.device());
        if !self.store.is_over(&mut Settled::default()) {
            retired.add(self.store.clone());
        }
        retired.look();
    }
}
