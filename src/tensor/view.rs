//! A tensor as it is read: ours after it was written, or a peer's.

#![allow(unsafe_code)]

use std::fmt;
use std::sync::Arc;

use zerocopy::IntoBytes;

use crate::error::{ErrorKind, GpuUuid, Result, TensorFault};
use crate::pool::{FrozenBlock, SharedBlock};
use crate::region::{Lease, Registry};
use crate::shm::Bytes;
use crate::tensor::descriptor::{MAX_NAME, check_len};
use crate::tensor::dtype::DType;
use crate::tensor::element::{self, Element};
use crate::tensor::gpu::{GpuPlace, OnGpu};
use crate::tensor::shape::Shape;
use crate::transport::LentRange;

/// Elements of a chunk that is copied out at a time, in bytes.
const CHUNK: usize = 16 << 10;

/// A tensor that is read: row-major, little-endian, without gaps.
///
/// | made by | its bytes | can change |
/// |---|---|---|
/// | [`TensorMut::share`](crate::TensorMut::share) | in our pool | no: only we could, and do not |
/// | [`Context::alloc_frozen`](crate::Context::alloc_frozen), by whomever | sealed against writing | no |
/// | [`Tensor::from_slice`], [`to_private`](Self::to_private) | private | no |
/// | [`Receiver::recv_tensor`](crate::Receiver::recv_tensor) | in the sender's pool, on loan | the sender can, an honest one does not |
/// | [`Tensor::in_region`], [`resolve`](Self::resolve) | in a region | whoever has the region can |
/// | `cuda::Draft::share`, `recv_tensor` | on a GPU, where the processor does not reach | whoever has mapped it can |
///
/// What cannot change is had as a slice. What is on loan is copied out, wholly or in chunks, or looked at by
/// [`bytes`](Self::bytes); dropping it gives the loan back. It stays readable when the sender dies.
#[derive(Debug)]
pub struct Tensor {
    pub(super) dtype: DType,
    pub(super) shape: Shape,
    pub(super) storage: Storage,
}

/// Where a tensor's bytes are.
#[derive(Debug)]
pub(super) enum Storage {
    /// In a block of our pool.
    Shared(SharedBlock),
    Frozen {
        memory: Arc<FrozenBlock>,
        offset: usize,
        len: usize,
    },
    /// In a peer's pool.
    Lent(LentRange),
    /// In memory of ours that is not shared.
    Private(Private),
    /// In a region, looked up.
    Region(Lease),
    /// In a region that a peer has named.
    Named(Named),
    /// In memory of a GPU.
    Gpu(OnGpu),
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

impl fmt::Debug for Private {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Private({} bytes)", self.len)
    }
}

impl Private {
    /// `len` bytes, written by `fill`.
    fn new(len: usize, fill: impl FnOnce(&mut [u8]) -> Result<()>) -> Result<Self> {
        let mut words: Vec<u64> = zeros(len.div_ceil(8))?;
        fill(&mut words.as_mut_bytes()[..len])?;
        Ok(Self { words: Arc::new(words), len })
    }

    /// A copy of bytes that are there already, so that twice as many fit, or nothing goes on.
    pub(super) fn copy_of(bytes: Bytes<'_>) -> Self {
        let len = bytes.len();
        let mut words = vec![0; len.div_ceil(8)];
        bytes.copy_to(&mut words.as_mut_bytes()[..len]);
        Self { words: Arc::new(words), len }
    }

    #[inline]
    fn bytes(&self) -> &[u8] {
        &self.words.as_bytes()[..self.len]
    }
}

impl Tensor {
    /// A private tensor with these elements, row-major. It is copied when it is sent.
    ///
    /// # Errors
    ///
    /// [`TensorFault::Len`]: the shape has another number of elements.
    pub fn from_slice<T: Element>(shape: impl Into<Shape>, elements: &[T]) -> Result<Self> {
        Self::from_bytes(T::DTYPE, shape, elements.as_bytes())
    }

    /// A private tensor with these bytes: row-major, little-endian, BYTES elements as `u32` length and bytes.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Tensor`](crate::ErrorKind::Tensor): the bytes are none of this data type and shape. BYTES
    /// elements are not looked at.
    pub fn from_bytes(dtype: DType, shape: impl Into<Shape>, bytes: &[u8]) -> Result<Self> {
        let shape = shape.into();
        check_len(dtype, &shape, bytes.len())?;
        if dtype == DType::Bool {
            element::check_bools(bytes)?;
        }
        let storage = Storage::Private(Private::copy_of(Bytes::of(bytes)));
        Ok(Self { dtype, shape, storage })
    }

    /// A tensor that lies in a region: the whole of the lease. Sent, it travels by the region's name, offset
    /// and length, and the receiver [resolves](Self::resolve) it with a registry of its own.
    ///
    /// # Errors
    ///
    /// [`TensorFault::Len`]: the lease has another length. [`TensorFault::NameTooLong`]: names travel up to 255
    /// bytes.
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

    /// The region that its bytes lie in, if they lie in one.
    pub fn region(&self) -> Option<&str> {
        match &self.storage {
            Storage::Region(lease) => Some(lease.name()),
            Storage::Named(named) => Some(&named.name),
            _ => None,
        }
    }

    /// Looks up the region that a peer has named. A tensor whose bytes are at hand stays as it is.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Region`](crate::ErrorKind::Region): there is no such region, or not such a part of it.
    pub fn resolve(self, registry: &Registry) -> Result<Self> {
        match &self.storage {
            Storage::Named(named) => {
                let lease = registry.lease(&named.name, named.offset, named.len)?;
                Ok(Self { storage: Storage::Region(lease), ..self })
            }
            _ => Ok(self),
        }
    }

    /// A tensor in memory of a GPU.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    pub(crate) fn on_gpu(dtype: DType, shape: Shape, on: OnGpu) -> Self {
        Self { dtype, shape, storage: Storage::Gpu(on) }
    }

    /// Where its bytes lie on a GPU, if they lie on one.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    pub(crate) fn on(&self) -> Option<&OnGpu> {
        match &self.storage {
            Storage::Gpu(on) => Some(on),
            _ => None,
        }
    }

    /// The UUID of the GPU that its bytes lie on, if they lie on one.
    pub fn gpu(&self) -> Option<GpuUuid> {
        match &self.storage {
            Storage::Gpu(on) => Some(on.device()),
            _ => None,
        }
    }

    /// What a peer told of its memory on a GPU, for whoever opens it otherwise than by `cuda::Device::open`. `None`: it
    /// does not lie on a peer's GPU.
    pub fn gpu_place(&self) -> Option<&GpuPlace> {
        match &self.storage {
            Storage::Gpu(OnGpu::Lent(loan)) => Some(&loan.place),
            _ => None,
        }
    }

    /// What its elements are.
    #[inline]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The lengths of its dimensions.
    #[inline]
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Its length in bytes.
    #[inline]
    pub fn byte_len(&self) -> usize {
        match &self.storage {
            Storage::Lent(range) => range.bytes().len(),
            Storage::Frozen { len, .. } => *len,
            Storage::Shared(block) => block.bytes().len(),
            Storage::Private(private) => private.len,
            // Judged against data type and shape, so it fits.
            Storage::Region(lease) => lease.len() as usize,
            Storage::Named(named) => named.len as usize,
            Storage::Gpu(on) => on.len(),
        }
    }

    /// Whether its bytes are on loan from a peer, which gets them back when this is dropped.
    #[inline]
    pub fn is_loaned(&self) -> bool {
        matches!(self.storage, Storage::Lent(_) | Storage::Gpu(OnGpu::Lent(_)))
    }

    /// Whether its bytes are sealed against writing, so that it is sent on without a copy.
    #[inline]
    pub fn is_frozen(&self) -> bool {
        matches!(self.storage, Storage::Frozen { .. })
    }

    /// A view of its bytes, whoever could change them.
    ///
    /// # Errors
    ///
    /// Of tensors in regions only: [`TensorFault::Unresolved`], [`TensorFault::Alignment`] where they do not start
    /// at a multiple of 8, and those of [`Lease::bytes`](crate::region::Lease::bytes), which gives views of sealed memory
    /// alone. Every other tensor has its bytes at hand.
    #[inline]
    pub fn bytes(&self) -> Result<Bytes<'_>> {
        match &self.storage {
            Storage::Lent(range) => Ok(range.bytes()),
            Storage::Region(lease) => {
                let bytes = lease.bytes()?;
                // Who named the region has said where it starts.
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

    /// Before room is made for as many bytes as a peer has said.
    fn check_resolved(&self) -> Result<()> {
        match self.storage {
            Storage::Named(_) => Err(TensorFault::Unresolved.into()),
            Storage::Gpu(_) => Err(TensorFault::OnGpu.into()),
            _ => Ok(()),
        }
    }

    /// Copies `to.len()` bytes from `offset` on out, wherever they are. They are inside.
    fn copy_bytes(&self, offset: usize, to: &mut [u8]) -> Result<()> {
        match &self.storage {
            Storage::Region(lease) => lease.read_at(offset as u64, to),
            _ => {
                self.bytes()?.slice(offset, to.len()).copy_to(to);
                Ok(())
            }
        }
    }

    /// Its bytes, if they cannot change or the peer is trusted.
    #[inline]
    fn stable(&self) -> Option<&[u8]> {
        match &self.storage {
            Storage::Shared(block) => Some(block.bytes()),
            Storage::Frozen { memory, offset, len } => Some(memory.memory().bytes(*offset, *len)),
            Storage::Private(private) => Some(private.bytes()),
            Storage::Lent(range) if range.is_trusted() => {
                let bytes = range.bytes();
                // SAFETY: whoever called `Connection::trust` vouches that this peer leaves alone what it
                // has lent.
                Some(unsafe { bytes.as_slice() })
            }
            Storage::Lent(_) | Storage::Region(_) | Storage::Named(_) | Storage::Gpu(_) => None,
        }
    }

    /// Its bytes, without a copy.
    ///
    /// # Errors
    ///
    /// [`TensorFault::Unstable`]: they are on loan, and the peer is not [trusted](crate::Connection::trust), or
    /// lie in a region.
    #[inline]
    pub fn as_bytes(&self) -> Result<&[u8]> {
        self.stable().ok_or_else(|| self.unstable().into())
    }

    #[cold]
    fn unstable(&self) -> TensorFault {
        match self.storage {
            Storage::Gpu(_) => TensorFault::OnGpu,
            _ => TensorFault::Unstable,
        }
    }

    /// Its elements, without a copy.
    ///
    /// # Errors
    ///
    /// - [`TensorFault::DataType`]: it has others.
    /// - [`TensorFault::Unstable`] as for [`as_bytes`](Self::as_bytes).
    /// - [`TensorFault::Bool`]: an element is neither 0 nor 1.
    #[inline]
    pub fn as_slice<T: Element>(&self) -> Result<&[T]> {
        element::check::<T>(self.dtype)?;
        Ok(element::slice_of(self.as_bytes()?)?)
    }

    /// Its elements, without a copy, also while they are on loan.
    ///
    /// # Errors
    ///
    /// As [`as_slice`](Self::as_slice), but for [`TensorFault::Unstable`].
    ///
    /// # Safety
    ///
    /// - Nobody writes these bytes while the slice lives. The sender's process can, if they are on loan: its
    ///   user must be trusted not to keep a pointer to what it has sent, and its code not to be hostile.
    pub unsafe fn as_slice_unchecked<T: Element>(&self) -> Result<&[T]> {
        element::check::<T>(self.dtype)?;
        let bytes = self.bytes()?;
        // SAFETY: the caller vouches that the bytes stand still.
        let bytes = unsafe { bytes.as_slice() };
        Ok(element::slice_of(bytes)?)
    }

    /// A copy of its elements.
    ///
    /// # Errors
    ///
    /// [`TensorFault::DataType`], [`TensorFault::Bool`]
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        element::check::<T>(self.dtype)?;
        self.check_resolved()?;
        let mut elements = zeros(self.byte_len() / size_of::<T>())?;
        self.copy_to(&mut elements)?;
        Ok(elements)
    }

    /// Copies its elements out.
    ///
    /// # Errors
    ///
    /// - [`TensorFault::Len`]: `to` has another number of elements.
    /// - [`TensorFault::DataType`], [`TensorFault::Bool`]
    pub fn copy_to<T: Element>(&self, to: &mut [T]) -> Result<()> {
        element::check::<T>(self.dtype)?;
        if let Storage::Region(lease) = &self.storage {
            let mut bytes: Vec<u8> = zeros(self.byte_len())?;
            lease.read_at(0, &mut bytes)?;
            return Ok(element::copy(Bytes::of(&bytes), to)?);
        }
        Ok(element::copy(self.bytes()?, to)?)
    }

    /// Gives its elements to `each`, in order, a private copy of some KiB at a time.
    ///
    /// # Errors
    ///
    /// [`TensorFault::DataType`], [`TensorFault::Bool`]
    pub fn for_each_chunk<T: Element>(&self, mut each: impl FnMut(&[T])) -> Result<()> {
        element::check::<T>(self.dtype)?;
        let whole = self.byte_len();
        let mut chunk: Vec<T> = zeros(CHUNK.min(whole) / size_of::<T>())?;
        let mut read = Vec::new();
        let mut at = 0;
        while at < whole {
            let len = (whole - at).min(CHUNK);
            let part = &mut chunk[..len / size_of::<T>()];
            let bytes = if let Storage::Region(lease) = &self.storage {
                read.resize(len, 0);
                lease.read_at(at as u64, &mut read)?;
                Bytes::of(&read)
            } else {
                self.bytes()?.slice(at, len)
            };
            element::copy(bytes, part)?;
            each(part);
            at += len;
        }
        Ok(())
    }

    /// Another handle of the same bytes. `None`: they are on loan or on lease, which one handle gives back;
    /// see [`to_private`](Self::to_private).
    pub fn try_clone(&self) -> Option<Self> {
        match self.storage {
            Storage::Lent(_) | Storage::Region(_) | Storage::Gpu(OnGpu::Lent(_)) => None,
            _ => Some(self.another()),
        }
    }

    /// What is sent in its place later: another handle, of what is on loan a private copy, of what is on
    /// lease its region's name.
    pub(super) fn another(&self) -> Self {
        let storage = match &self.storage {
            Storage::Shared(block) => Storage::Shared(block.clone()),
            Storage::Frozen { memory, offset, len } => {
                Storage::Frozen { memory: memory.clone(), offset: *offset, len: *len }
            }
            Storage::Private(private) => Storage::Private(private.clone()),
            Storage::Named(named) => Storage::Named(named.clone()),
            Storage::Lent(range) => Storage::Private(Private::copy_of(range.bytes())),
            Storage::Region(lease) => Storage::Named(Named::of(lease)),
            // A loan of a GPU's memory is refused when it is to be sent on.
            Storage::Gpu(on) => Storage::Gpu(on.clone()),
        };
        Self { storage, ..*self }
    }

    /// Bytes of private memory that it holds.
    pub(super) fn private_len(&self) -> usize {
        match &self.storage {
            Storage::Private(private) => private.len,
            _ => 0,
        }
    }

    /// A private copy, which is on loan from nobody.
    ///
    /// # Errors
    ///
    /// Of tensors in regions only: [`TensorFault::Unresolved`], and those of
    /// [`Lease::read_at`](crate::region::Lease::read_at).
    pub fn to_private(&self) -> Result<Self> {
        self.check_resolved()?;
        let private = Private::new(self.byte_len(), |to| self.copy_bytes(0, to))?;
        Ok(Self { storage: Storage::Private(private), ..*self })
    }
}

/// So many elements, or the error of a process that has no room for them: how many there are, a peer may
/// have said.
fn zeros<T: Element>(count: usize) -> Result<Vec<T>> {
    let mut elements = Vec::new();
    let reserved = elements.try_reserve_exact(count);
    reserved.map_err(|_| ErrorKind::OutOfMemory { bytes: (count * size_of::<T>()) as u64 })?;
    elements.resize_with(count, T::new_zeroed);
    Ok(elements)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use half::f16;

    #[test]
    fn a_private_tensor_gives_back_its_elements() {
        let halves: Vec<f16> = (0..6u8).map(f16::from).collect();
        let tensor = Tensor::from_slice([2, 3], &halves).unwrap();
        assert_eq!((tensor.dtype(), tensor.byte_len()), (DType::Fp16, 12));
        assert_eq!(tensor.as_slice::<f16>().unwrap(), halves);
        assert_eq!(tensor.to_vec::<f16>().unwrap(), halves);
        let wrong = tensor.as_slice::<f32>().unwrap_err();
        assert_eq!(wrong.to_string(), "data type is FP16, not FP32");
        let short = Tensor::from_slice([2, 2], &halves).unwrap_err();
        let fault = TensorFault::Len { len: 12, expected: 8 };
        assert_eq!(*short.kind(), ErrorKind::Tensor(fault));
    }

    #[test]
    fn chunks_come_in_order_and_whole() {
        let elements: Vec<u32> = (0..10_000).collect();
        let tensor = Tensor::from_slice([10_000], &elements).unwrap();
        let mut seen = Vec::new();
        tensor.for_each_chunk::<u32>(|chunk| seen.extend_from_slice(chunk)).unwrap();
        assert_eq!(seen, elements);
        let empty = Tensor::from_slice::<u32>([0, 7], &[]).unwrap();
        empty.for_each_chunk::<u32>(|_| panic!("there is nothing")).unwrap();
    }

    #[test]
    fn bools_are_checked_wherever_they_come_from() {
        assert!(Tensor::from_bytes(DType::Bool, [2], &[0, 2]).is_err());
        let tensor = Tensor::from_slice([3], &[true, false, true]).unwrap();
        assert_eq!(tensor.to_vec::<bool>().unwrap(), [true, false, true]);
        assert_eq!(tensor.as_bytes().unwrap(), [1, 0, 1]);
    }
}
