//! A tensor as it is read: ours after it was written, or a peer's.

#![allow(unsafe_code)]

use std::fmt;
use std::sync::Arc;

use zerocopy::IntoBytes;

use crate::error::{Result, TensorFault};
use crate::pool::{FrozenBlock, SharedBlock};
use crate::shm::Bytes;
use crate::tensor::descriptor::judge_len;
use crate::tensor::dtype::DType;
use crate::tensor::element::{self, Element};
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
}

/// Bytes that start at a multiple of 8.
#[derive(Clone)]
pub(super) struct Private {
    words: Arc<[u64]>,
    len: usize,
}

impl fmt::Debug for Private {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Private({} bytes)", self.len)
    }
}

impl Private {
    /// `len` bytes, written by `fill`.
    fn new(len: usize, fill: impl FnOnce(&mut [u8])) -> Self {
        let mut words: Box<[u64]> = vec![0; len.div_ceil(8)].into();
        fill(&mut words.as_mut_bytes()[..len]);
        Self { words: words.into(), len }
    }

    pub(super) fn copy_of(bytes: Bytes<'_>) -> Self {
        Self::new(bytes.len(), |to| bytes.copy_to(to))
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
        judge_len(dtype, &shape, bytes.len())?;
        if dtype == DType::Bool {
            element::check_bools(bytes)?;
        }
        let storage = Storage::Private(Private::copy_of(Bytes::of(bytes)));
        Ok(Self { dtype, shape, storage })
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
        }
    }

    /// Whether its bytes are on loan from a peer, which gets them back when this is dropped.
    #[inline]
    pub fn is_loaned(&self) -> bool {
        matches!(self.storage, Storage::Lent(_))
    }

    /// Whether its bytes are sealed against writing, so that it is sent on without a copy.
    #[inline]
    pub fn is_frozen(&self) -> bool {
        matches!(self.storage, Storage::Frozen { .. })
    }

    /// A view of its bytes, whoever could change them.
    #[inline]
    pub fn bytes(&self) -> Bytes<'_> {
        match &self.storage {
            Storage::Lent(range) => range.bytes(),
            _ => Bytes::of(self.stable().unwrap_or(&[])),
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
            Storage::Lent(_) => None,
        }
    }

    /// Its bytes, without a copy.
    ///
    /// # Errors
    ///
    /// [`TensorFault::Unstable`]: they are on loan, and the peer is not
    /// [trusted](crate::Connection::trust).
    #[inline]
    pub fn as_bytes(&self) -> Result<&[u8]> {
        Ok(self.stable().ok_or(TensorFault::Unstable)?)
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
        let bytes = self.bytes();
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
        let mut elements = zeros(self.byte_len() / size_of::<T>());
        element::copy(self.bytes(), &mut elements)?;
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
        Ok(element::copy(self.bytes(), to)?)
    }

    /// Gives its elements to `each`, in order, a private copy of some KiB at a time.
    ///
    /// # Errors
    ///
    /// [`TensorFault::DataType`], [`TensorFault::Bool`]
    pub fn for_each_chunk<T: Element>(&self, mut each: impl FnMut(&[T])) -> Result<()> {
        element::check::<T>(self.dtype)?;
        let bytes = self.bytes();
        let mut chunk: Vec<T> = zeros((CHUNK / size_of::<T>()).min(bytes.len() / size_of::<T>()));
        let mut at = 0;
        while at < bytes.len() {
            let len = (bytes.len() - at).min(CHUNK);
            let part = &mut chunk[..len / size_of::<T>()];
            element::copy(bytes.slice(at, len), part)?;
            each(part);
            at += len;
        }
        Ok(())
    }

    /// Another handle of the same memory; of what is on loan, a private copy.
    pub(super) fn another(&self) -> Self {
        let storage = match &self.storage {
            Storage::Shared(block) => Storage::Shared(block.clone()),
            Storage::Frozen { memory, offset, len } => {
                Storage::Frozen { memory: memory.clone(), offset: *offset, len: *len }
            }
            Storage::Private(private) => Storage::Private(private.clone()),
            Storage::Lent(_) => return self.to_private(),
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
    pub fn to_private(&self) -> Self {
        let storage = Storage::Private(Private::copy_of(self.bytes()));
        Self { storage, ..*self }
    }
}

fn zeros<T: Element>(count: usize) -> Vec<T> {
    let mut elements = Vec::with_capacity(count);
    elements.resize_with(count, T::new_zeroed);
    elements
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
