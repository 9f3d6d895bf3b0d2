//! A tensor that this process writes.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use crate::error::Result;
use crate::pool::{Block, FrozenDraft};
use crate::shm::SegmentMemory;
use crate::tensor::dtype::DType;
use crate::tensor::element::{Element, slice_of, slice_of_mut};
use crate::tensor::shape::Shape;
use crate::tensor::view::{Private, Storage, Tensor};

/// A tensor that only this process knows, to be written in place. It derefs to a slice of its elements,
/// row-major. [`Allocation::dtype`](crate::tensor::Allocation::dtype) makes one that derefs to bytes, whatever
/// its data type.
///
/// The memory starts at a multiple of the page size. It holds old bytes of this process, unless it is
/// [frozen](crate::Context::alloc_frozen), BOOL, or [zeroed](crate::tensor::Allocation::zeroed). Dropping the
/// tensor returns the memory to the pool.
///
/// # Examples
///
/// ```
/// let context = slipring::Context::new()?;
/// let mut image = context.alloc::<f32>([1, 3, 224, 224])?;
/// image.fill(0.5);
/// let image = image.share()?; // written no more; to be read here and sent to many
/// assert_eq!(image.as_slice::<f32>()?.len(), 3 * 224 * 224);
/// # Ok::<(), slipring::Error>(())
/// ```
pub struct TensorMut<T: Element = u8> {
    pub(super) dtype: DType,
    pub(super) shape: Shape,
    pub(super) memory: Writable,
    pub(super) element: PhantomData<T>,
}

/// The memory of a tensor that is being written.
pub(super) enum Writable {
    Block(Block),
    /// Boxed: it is rare, and long.
    Draft(Box<FrozenDraft>),
    /// The tensor has no bytes.
    Nothing,
}

impl Writable {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Block(block) => block.bytes(),
            Self::Draft(draft) => draft.bytes(),
            Self::Nothing => &[],
        }
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Block(block) => block.bytes_mut(),
            Self::Draft(draft) => draft.bytes_mut(),
            Self::Nothing => &mut [],
        }
    }
}

impl<T: Element> TensorMut<T> {
    /// Returns the data type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the lengths of the dimensions.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Returns the length in bytes.
    pub fn byte_len(&self) -> usize {
        self.memory.bytes().len()
    }

    /// Returns the pool's segment that holds the bytes. `None`: there are no bytes, or they are to be frozen.
    #[doc(hidden)]
    pub fn segment_memory(&self) -> Option<SegmentMemory> {
        match &self.memory {
            Writable::Block(block) => block.memory(),
            Writable::Draft(_) | Writable::Nothing => None,
        }
    }

    /// Ends the writing. The tensor can then be read and sent over any number of links. Memory of
    /// [`alloc_frozen`](crate::Context::alloc_frozen) is frozen here.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Os`](crate::ErrorKind::Os), [`ErrorKind::Forked`](crate::ErrorKind::Forked): the memory
    /// cannot be frozen.
    pub fn share(self) -> Result<Tensor> {
        let Self { dtype, shape, memory, .. } = self;
        let nothing = || Storage::Private(Private::nothing());
        let storage = match memory {
            Writable::Block(block) => block.share().map_or_else(nothing, Storage::Shared),
            Writable::Draft(draft) => {
                let len = draft.bytes().len();
                Storage::Frozen { memory: draft.freeze()?, offset: 0, len }
            }
            Writable::Nothing => nothing(),
        };
        Ok(Tensor { dtype, shape, storage })
    }
}

/// Shows data type, shape, length, and the kind of memory.
impl<T: Element> fmt::Debug for TensorMut<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let memory = match &self.memory {
            Writable::Block(_) => "pool",
            Writable::Draft(_) => "to be frozen",
            Writable::Nothing => "none",
        };
        let mut out = f.debug_struct("TensorMut");
        out.field("dtype", &self.dtype).field("shape", &self.shape);
        out.field("len", &self.byte_len()).field("memory", &memory).finish()
    }
}

impl<T: Element> Deref for TensorMut<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        slice_of(self.memory.bytes()).expect(WHOLE)
    }
}

impl<T: Element> DerefMut for TensorMut<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        slice_of_mut(self.memory.bytes_mut()).expect(WHOLE)
    }
}

const WHOLE: &str = "memory that was allocated for elements holds whole ones";
