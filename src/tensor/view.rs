//! A tensor that can be read: this process's own, or a peer's.

#![allow(unsafe_code)]

use std::fmt;
use std::sync::Arc;

use zerocopy::IntoBytes;

use crate::channel::LentRange;
use crate::error::{GpuUuid, Result, TensorFault};
use crate::pool::{FrozenBlock, SharedBlock};
use crate::region::{Lease, Registry};
use crate::shm::{Bytes, SegmentMemory};
use crate::tensor::copies::{for_each_chunk, zeros};
use crate::tensor::descriptor::{MAX_NAME, check_len};
use crate::tensor::dtype::DType;
use crate::tensor::element::{self, Element};
use crate::tensor::gpu::{GpuPlace, OnGpu};
use crate::tensor::shape::Shape;

/// A tensor that can be read: row-major, little-endian, contiguous.
///
/// | made by | its bytes | can change |
/// |---|---|---|
/// | [`TensorMut::share`](crate::TensorMut::share) | in this context's pool | no: only this process can write them, and does not |
/// | [`Context::alloc_frozen`](crate::Context::alloc_frozen) of any process | sealed against writing | no |
/// | [`Tensor::from_slice`], [`to_private`](Self::to_private) | private | no |
/// | [`Receiver::recv_tensor`](crate::Receiver::recv_tensor) | in the sender's pool, on loan | yes, by the sender; an honest one does not |
/// | [`Tensor::in_region`], [`resolve`](Self::resolve) | in a region | yes, by every process that has the region |
/// | `cuda::Draft::share`, `recv_tensor` | on a GPU, out of the processor's reach | yes, by every process that has mapped it |
///
/// Bytes that cannot change are read as a slice. Bytes on loan are copied, wholly or in chunks, or read
/// through [`bytes`](Self::bytes). Dropping the tensor gives the loan back. The tensor stays readable when the
/// sender dies.
///
/// # Examples
///
/// ```
/// use slipring::{DType, Tensor};
///
/// let scores = Tensor::from_slice([2, 2], &[0.1f32, 0.2, 0.3, 0.4])?;
/// assert_eq!((scores.dtype(), scores.byte_len()), (DType::Fp32, 16));
/// assert_eq!(scores.as_slice::<f32>()?[3], 0.4); // private: nobody else can write it
/// assert_eq!(scores.to_vec::<f32>()?.len(), 4); // works for every tensor of the host
/// # Ok::<(), slipring::Error>(())
/// ```
pub struct Tensor {
    pub(super) dtype: DType,
    pub(super) shape: Shape,
    pub(super) storage: Storage,
}

/// The location of a tensor's bytes.
pub(super) enum Storage {
    /// A block of this context's pool.
    Shared(SharedBlock),
    Frozen {
        memory: Arc<FrozenBlock>,
        offset: usize,
        len: usize,
    },
    /// A peer's pool.
    Lent(LentRange),
    /// Memory of this process that is not shared.
    Private(Private),
    /// A region that is looked up.
    Region(Lease),
    /// A region that a peer has named.
    Named(Named),
    /// Memory of a GPU.
    Gpu(OnGpu),
}

/// Shows data type, shape, length, and the location of the bytes.
impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let memory = match &self.storage {
            Storage::Shared(_) => "pool",
            Storage::Frozen { .. } => "frozen",
            Storage::Lent(_) => "on loan",
            Storage::Private(_) => "private",
            Storage::Region(_) => "region",
            Storage::Named(_) => "unresolved region",
            Storage::Gpu(OnGpu::Own(_)) => "GPU",
            Storage::Gpu(OnGpu::Lent(_)) => "GPU, on loan",
        };
        let mut out = f.debug_struct("Tensor");
        out.field("dtype", &self.dtype).field("shape", &self.shape);
        out.field("len", &self.byte_len()).field("memory", &memory);
        if let Some(name) = self.region() {
            out.field("region", &name);
        }
        out.finish()
    }
}

/// A range of a region, by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) name: Box<str>,
    /// In bytes from the region's start.
    pub(super) offset: u64,
    pub(super) len: u64,
}

impl Named {
    pub(super) fn of(lease: &Lease) -> Self {
        Self { name: lease.name().into(), offset: lease.offset(), len: lease.len() }
    }
}

/// Bytes that start at a multiple of 8.
#[derive(Clone)]
pub(super) struct Private {
    words: Arc<Vec<u64>>,
    len: usize,
}

impl Private {
    /// Returns `len` bytes, written by `fill`.
    fn new(len: usize, fill: impl FnOnce(&mut [u8]) -> Result<()>) -> Result<Self> {
        let mut words: Vec<u64> = zeros(len.div_ceil(8))?;
        fill(&mut words.as_mut_bytes()[..len])?;
        Ok(Self { words: Arc::new(words), len })
    }

    /// Returns a copy of existing bytes.
    pub(super) fn copy_of(bytes: Bytes<'_>) -> Result<Self> {
        Self::new(bytes.len(), |to| {
            bytes.copy_to(to);
            Ok(())
        })
    }

    /// Returns no bytes.
    pub(super) fn nothing() -> Self {
        Self { words: Arc::default(), len: 0 }
    }

    #[inline]
    fn bytes(&self) -> &[u8] {
        &self.words.as_bytes()[..self.len]
    }
}

impl Tensor {
    /// Returns a private tensor with these elements, row-major. Sending it copies it.
    ///
    /// # Errors
    ///
    /// [`TensorFault::Len`]: the shape has another number of elements.
    pub fn from_slice<T: Element>(shape: impl Into<Shape>, elements: &[T]) -> Result<Self> {
        Self::from_bytes(T::DTYPE, shape, elements.as_bytes())
    }

    /// Returns a private tensor with these bytes: row-major, little-endian, BYTES elements as `u32` length and
    /// bytes.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Tensor`](crate::ErrorKind::Tensor): the bytes do not fit data type and shape. The call
    /// does not check BYTES elements; [`DType::check`] does.
    pub fn from_bytes(dtype: DType, shape: impl Into<Shape>, bytes: &[u8]) -> Result<Self> {
        let shape = shape.into();
        check_len(dtype, &shape, bytes.len())?;
        if dtype == DType::Bool {
            element::check_bools(bytes)?;
        }
        let storage = Storage::Private(Private::copy_of(Bytes::of(bytes))?);
        Ok(Self { dtype, shape, storage })
    }

    /// Returns a tensor over the whole of a lease. It travels by the region's name, offset and length, and the
    /// receiver [resolves](Self::resolve) it with its own registry.
    ///
    /// # Errors
    ///
    /// [`TensorFault::Len`]: the lease has another length. [`TensorFault::NameTooLong`]: the region's name has
    /// more than 255 bytes.
    pub fn in_region(lease: Lease, dtype: DType, shape: impl Into<Shape>) -> Result<Self> {
        let shape = shape.into();
        let (len, name) = (lease.name().len(), MAX_NAME);
        if len > name {
            return Err(TensorFault::NameTooLong { len, max: name }.into());
        }
        let len = usize::try_from(lease.len()).map_err(|_| TensorFault::Overflow)?;
        check_len(dtype, &shape, len)?;
        Ok(Self { dtype, shape, storage: Storage::Region(lease) })
    }

    /// Returns the name of the region that the bytes lie in, if they lie in one.
    pub fn region(&self) -> Option<&str> {
        match &self.storage {
            Storage::Region(lease) => Some(lease.name()),
            Storage::Named(named) => Some(&named.name),
            _ => None,
        }
    }

    /// Looks up the region that a peer has named. Other tensors stay as they are.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Region`](crate::ErrorKind::Region): the registry has no such region or no such range of
    /// it.
    pub fn resolve(self, registry: &Registry) -> Result<Self> {
        match &self.storage {
            Storage::Named(named) => {
                let lease = registry.lease(&named.name, named.offset, named.len)?;
                Ok(Self { storage: Storage::Region(lease), ..self })
            }
            _ => Ok(self),
        }
    }

    /// Returns a tensor in memory of a GPU.
    #[doc(hidden)]
    pub fn on_gpu(dtype: DType, shape: Shape, on: OnGpu) -> Self {
        Self { dtype, shape, storage: Storage::Gpu(on) }
    }

    /// Returns the memory of the GPU that the bytes lie on, if they lie on one.
    #[doc(hidden)]
    pub fn on(&self) -> Option<&OnGpu> {
        match &self.storage {
            Storage::Gpu(on) => Some(on),
            _ => None,
        }
    }

    /// Returns the UUID of the GPU that the bytes lie on, if they lie on one.
    pub fn gpu(&self) -> Option<GpuUuid> {
        match &self.storage {
            Storage::Gpu(on) => Some(on.device()),
            _ => None,
        }
    }

    /// Returns the place of a peer's memory on a GPU, for callers that open it without `cuda::Device::open`.
    /// Returns `None` if the tensor does not lie on a peer's GPU.
    pub fn gpu_place(&self) -> Option<&GpuPlace> {
        match &self.storage {
            Storage::Gpu(OnGpu::Lent(loan)) => Some(&loan.place),
            _ => None,
        }
    }

    /// Returns the data type of the elements.
    #[inline]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the lengths of the dimensions.
    #[inline]
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Returns the length in bytes.
    #[inline]
    pub fn byte_len(&self) -> usize {
        match &self.storage {
            Storage::Lent(range) => range.bytes().len(),
            Storage::Frozen { len, .. } => *len,
            Storage::Shared(block) => block.bytes().len(),
            Storage::Private(private) => private.len,
            // The length is checked against data type and shape, so it fits.
            Storage::Region(lease) => lease.len() as usize,
            Storage::Named(named) => named.len as usize,
            Storage::Gpu(on) => on.len(),
        }
    }

    /// Returns whether the bytes are on loan from a peer. Dropping the tensor gives them back.
    #[inline]
    pub fn is_loaned(&self) -> bool {
        matches!(self.storage, Storage::Lent(_) | Storage::Gpu(OnGpu::Lent(_)))
    }

    /// Returns the memory of the peer that bytes on loan are part of, for callers that register it with a device. Returns
    /// `None` if the bytes are not on loan, or not in memory of the host.
    #[doc(hidden)]
    pub fn peer_memory(&self) -> Option<SegmentMemory> {
        match &self.storage {
            Storage::Lent(range) => Some(range.memory()),
            _ => None,
        }
    }

    /// Returns the segment that the bytes lie in: of this process's pool, or of a peer's. Returns `None` if they lie elsewhere,
    /// or are frozen.
    #[doc(hidden)]
    pub fn segment_memory(&self) -> Option<SegmentMemory> {
        match &self.storage {
            Storage::Shared(block) => block.memory(),
            _ => self.peer_memory(),
        }
    }

    /// Returns whether the bytes are sealed against writing, so that the tensor is sent on without a copy.
    #[inline]
    pub fn is_frozen(&self) -> bool {
        matches!(self.storage, Storage::Frozen { .. })
    }

    /// Returns a view of the bytes, even of those that others can change.
    ///
    /// # Errors
    ///
    /// - [`TensorFault::Unresolved`], [`TensorFault::OnGpu`].
    /// - [`ErrorKind::LoanRevoked`](crate::ErrorKind::LoanRevoked): the peer has taken the bytes back. A view that was made
    ///   before shows other bytes then. A caller that gets `Ok` from another call, behind its last read of the view, has read
    ///   what was sent.
    /// - Of a tensor in a region: [`TensorFault::Alignment`] if it does not start at a multiple of 8, and
    ///   those of [`Lease::bytes`](crate::region::Lease::bytes), which returns views of sealed memory only.
    #[inline]
    pub fn bytes(&self) -> Result<Bytes<'_>> {
        match &self.storage {
            Storage::Lent(range) => {
                range.check()?;
                Ok(range.bytes())
            }
            Storage::Region(lease) => {
                let bytes = lease.bytes()?;
                // The peer that named the region chose the start.
                if !bytes.is_aligned() {
                    return Err(TensorFault::Alignment { alignment: 8 }.into());
                }
                Ok(bytes)
            }
            Storage::Named(_) => Err(TensorFault::Unresolved.into()),
            Storage::Gpu(_) => Err(TensorFault::OnGpu.into()),
            _ => Ok(Bytes::of(self.as_bytes()?)),
        }
    }

    /// Checks that what was read of the bytes until now is what was sent.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::LoanRevoked`](crate::ErrorKind::LoanRevoked)
    #[inline]
    fn check_loan(&self) -> Result<()> {
        match &self.storage {
            Storage::Lent(range) => range.check(),
            _ => Ok(()),
        }
    }

    /// Checks that the bytes can be read, before room is allocated for a length that a peer chose.
    fn check_resolved(&self) -> Result<()> {
        match self.storage {
            Storage::Named(_) => Err(TensorFault::Unresolved.into()),
            Storage::Gpu(_) => Err(TensorFault::OnGpu.into()),
            _ => Ok(()),
        }
    }

    /// Copies bytes from `offset` on to `to`. The range lies inside of the tensor.
    fn copy_bytes(&self, offset: usize, to: &mut [u8]) -> Result<()> {
        match &self.storage {
            Storage::Region(lease) => lease.read_at(offset as u64, to),
            _ => {
                self.bytes()?.slice(offset, to.len()).copy_to(to);
                self.check_loan()
            }
        }
    }

    /// Returns the bytes, if they cannot change or the peer is trusted.
    #[inline]
    fn stable(&self) -> Option<&[u8]> {
        match &self.storage {
            Storage::Shared(block) => Some(block.bytes()),
            Storage::Frozen { memory, offset, len } => Some(memory.memory().bytes(*offset, *len)),
            Storage::Private(private) => Some(private.bytes()),
            Storage::Lent(range) if range.is_trusted() => {
                let bytes = range.bytes();
                // SAFETY: the caller of `Connection::trust` vouches that this peer does not write memory
                // that it has lent.
                Some(unsafe { bytes.as_slice() })
            }
            Storage::Lent(_) | Storage::Region(_) | Storage::Named(_) | Storage::Gpu(_) => None,
        }
    }

    /// Returns the bytes without a copy.
    ///
    /// # Errors
    ///
    /// - [`TensorFault::Unstable`]: the bytes are on loan from a peer that is not
    ///   [trusted](crate::Connection::trust), or lie in a region.
    /// - [`TensorFault::OnGpu`]: they lie on a GPU.
    /// - [`ErrorKind::LoanRevoked`](crate::ErrorKind::LoanRevoked): the peer has taken them back.
    #[inline]
    pub fn as_bytes(&self) -> Result<&[u8]> {
        self.check_loan()?;
        self.stable().ok_or_else(|| self.unstable().into())
    }

    #[cold]
    fn unstable(&self) -> TensorFault {
        match self.storage {
            Storage::Gpu(_) => TensorFault::OnGpu,
            _ => TensorFault::Unstable,
        }
    }

    /// Returns the elements without a copy.
    ///
    /// # Errors
    ///
    /// - [`TensorFault::DataType`]: the tensor has another data type.
    /// - [`TensorFault::Unstable`], [`TensorFault::OnGpu`]: as [`as_bytes`](Self::as_bytes).
    /// - [`TensorFault::Bool`]: an element is neither 0 nor 1.
    #[inline]
    pub fn as_slice<T: Element>(&self) -> Result<&[T]> {
        element::check::<T>(self.dtype)?;
        Ok(element::slice_of(self.as_bytes()?)?)
    }

    /// Returns the elements without a copy, even while they are on loan.
    ///
    /// # Errors
    ///
    /// As [`as_slice`](Self::as_slice), but for [`TensorFault::Unstable`].
    ///
    /// # Safety
    ///
    /// - Nobody writes these bytes while the slice lives. If they are on loan, the sender's process can write
    ///   them: its code is not hostile and keeps no pointer to what it has sent.
    pub unsafe fn as_slice_unchecked<T: Element>(&self) -> Result<&[T]> {
        element::check::<T>(self.dtype)?;
        let bytes = self.bytes()?;
        // SAFETY: the caller vouches that nobody writes the bytes.
        let bytes = unsafe { bytes.as_slice() };
        Ok(element::slice_of(bytes)?)
    }

    /// Returns a copy of the elements.
    ///
    /// # Errors
    ///
    /// - [`TensorFault::DataType`]: the tensor has another data type.
    /// - [`TensorFault::Bool`]: an element is neither 0 nor 1.
    /// - [`TensorFault::Unresolved`], [`TensorFault::OnGpu`]: the processor cannot read it yet.
    /// - [`ErrorKind::LoanRevoked`](crate::ErrorKind::LoanRevoked): the peer has ended the link and taken the bytes back. What
    ///   was copied until then may be other bytes.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        element::check::<T>(self.dtype)?;
        self.check_resolved()?;
        let mut elements = zeros(self.byte_len() / size_of::<T>())?;
        self.copy_to(&mut elements)?;
        Ok(elements)
    }

    /// Copies the elements to `to`.
    ///
    /// # Errors
    ///
    /// - [`TensorFault::Len`]: `to` has another number of elements.
    /// - Otherwise as [`to_vec`](Self::to_vec).
    pub fn copy_to<T: Element>(&self, to: &mut [T]) -> Result<()> {
        element::check::<T>(self.dtype)?;
        if let Storage::Region(lease) = &self.storage {
            let mut bytes: Vec<u8> = zeros(self.byte_len())?;
            lease.read_at(0, &mut bytes)?;
            return Ok(element::copy(Bytes::of(&bytes), to)?);
        }
        let copied = element::copy(self.bytes()?, to);
        // Other bytes are no fault of the elements that the peer has sent.
        self.check_loan()?;
        Ok(copied?)
    }

    /// Passes the elements to `each` in order, in private copies of 16 KiB.
    ///
    /// # Errors
    ///
    /// As [`to_vec`](Self::to_vec). The chunks that `each` has seen are what the peer has sent.
    pub fn for_each_chunk<T: Element>(&self, mut each: impl FnMut(&[T])) -> Result<()> {
        element::check::<T>(self.dtype)?;
        let Storage::Region(lease) = &self.storage else {
            let bytes = self.bytes()?;
            let copy = |at: usize, part: &mut [T]| {
                let copied = element::copy(bytes.slice(at, size_of_val(part)), part);
                self.check_loan()?;
                Ok(copied?)
            };
            return for_each_chunk(self.byte_len(), copy, &mut each);
        };
        let mut read = Vec::new();
        let copy = |at: usize, part: &mut [T]| {
            read.resize(size_of_val(part), 0);
            lease.read_at(at as u64, &mut read)?;
            Ok(element::copy(Bytes::of(&read), part)?)
        };
        for_each_chunk(self.byte_len(), copy, &mut each)
    }

    /// Returns another handle of the same bytes. Returns `None` if they are on loan or on lease, which one
    /// handle gives back. [`to_private`](Self::to_private) copies them.
    pub fn try_clone(&self) -> Option<Self> {
        match self.storage {
            Storage::Lent(_) | Storage::Region(_) | Storage::Gpu(OnGpu::Lent(_)) => None,
            _ => self.another().ok(),
        }
    }

    /// Returns a tensor that can be sent later in this one's place: another handle, a private copy of a loan,
    /// or the name of a lease's region.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfMemory`](crate::ErrorKind::OutOfMemory): the allocator has no memory for the copy of a loan.
    pub(super) fn another(&self) -> Result<Self> {
        let storage = match &self.storage {
            Storage::Shared(block) => Storage::Shared(block.clone()),
            Storage::Frozen { memory, offset, len } => {
                Storage::Frozen { memory: memory.clone(), offset: *offset, len: *len }
            }
            Storage::Private(private) => Storage::Private(private.clone()),
            Storage::Named(named) => Storage::Named(named.clone()),
            Storage::Lent(range) => {
                let private = Private::copy_of(range.bytes())?;
                range.check()?;
                Storage::Private(private)
            }
            Storage::Region(lease) => Storage::Named(Named::of(lease)),
            // Sending a loan of a GPU's memory is refused later.
            Storage::Gpu(on) => Storage::Gpu(on.clone()),
        };
        Ok(Self { storage, ..*self })
    }

    /// Returns the bytes of private memory that the tensor holds.
    pub(super) fn private_len(&self) -> usize {
        match &self.storage {
            Storage::Private(private) => private.len,
            _ => 0,
        }
    }

    /// Returns the bytes of this process's pool that the tensor keeps.
    pub(super) fn pool_len(&self) -> usize {
        match &self.storage {
            Storage::Shared(block) => block.block_len() as usize,
            _ => 0,
        }
    }

    /// Returns a private copy, which holds no loan.
    ///
    /// # Errors
    ///
    /// [`TensorFault::Unresolved`], [`TensorFault::OnGpu`], and of a tensor in a region those of
    /// [`Lease::read_at`](crate::region::Lease::read_at).
    pub fn to_private(&self) -> Result<Self> {
        self.check_resolved()?;
        let private = Private::new(self.byte_len(), |to| self.copy_bytes(0, to))?;
        Ok(Self { storage: Storage::Private(private), ..*self })
    }
}

#[cfg(test)]
mod tests;
