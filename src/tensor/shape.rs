//! Shapes.

use std::fmt;

use crate::error::{Result, TensorFault};
use crate::tensor::dtype::DType;

/// The most dimensions of a shape.
pub(crate) const MAX_RANK: usize = 8;

/// The lengths of a tensor's dimensions, the outermost first. A scalar has none. A dimension may be 0.
///
/// # Examples
///
/// ```
/// use slipring::Shape;
///
/// let shape = Shape::from([1, 3, 224, 224]);
/// assert_eq!(shape.rank(), 4);
/// assert_eq!(shape.elements()?, 150528);
/// # Ok::<(), slipring::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    /// All entries past `rank` are 0.
    dims: [usize; MAX_RANK],
    /// A whole word: a move of a shorter field waits for its store.
    rank: usize,
}

impl Shape {
    /// The most dimensions of a shape.
    pub const MAX_RANK: usize = MAX_RANK;

    /// Returns a shape of these dimensions.
    ///
    /// # Errors
    ///
    /// [`TensorFault::Rank`]: there are more than [`MAX_RANK`](Self::MAX_RANK) of them.
    pub fn new(dims: &[usize]) -> Result<Self> {
        Ok(Self::of(dims)?)
    }

    /// Builds a shape from its fields. `rank` is at most `MAX_RANK`, and all of `dims` past it are 0.
    #[inline(always)]
    pub(crate) fn of_parts(dims: [usize; MAX_RANK], rank: usize) -> Self {
        Self { dims, rank }
    }

    #[inline]
    pub(crate) fn of(dims: &[usize]) -> Result<Self, TensorFault> {
        let mut shape = Self { dims: [0; MAX_RANK], rank: dims.len() };
        let Some(to) = shape.dims.get_mut(..dims.len()) else {
            return Err(TensorFault::Rank { rank: dims.len(), max: MAX_RANK });
        };
        to.copy_from_slice(dims);
        Ok(shape)
    }

    /// Returns the lengths, the outermost first.
    #[inline(always)]
    pub fn dims(&self) -> &[usize] {
        self.dims.get(..self.rank()).unwrap_or(&self.dims)
    }

    /// Returns the number of dimensions.
    #[inline(always)]
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Returns the number of elements: the product of all lengths, 1 for a scalar.
    ///
    /// # Errors
    ///
    /// [`TensorFault::Overflow`]: the product does not fit into a `usize`.
    pub fn elements(&self) -> Result<usize> {
        Ok(self.count()?)
    }

    /// Returns the bytes of a tensor of this shape. Returns `None` for BYTES, whose elements have no fixed length,
    /// unless there are no elements.
    ///
    /// # Errors
    ///
    /// [`TensorFault::Overflow`]: the bytes do not fit into the address space.
    pub fn byte_len(&self, dtype: DType) -> Result<Option<usize>> {
        Ok(self.len(dtype)?)
    }

    /// Returns the number of elements, as [`elements`](Self::elements) does. A dimension of 0 does not excuse
    /// an overflow of the others.
    #[inline]
    pub(crate) fn count(&self) -> Result<usize, TensorFault> {
        let mut product = 1usize;
        let mut empty = false;
        for dim in self.dims() {
            empty |= *dim == 0;
            product = product.checked_mul((*dim).max(1)).ok_or(TensorFault::Overflow)?;
        }
        Ok(if empty { 0 } else { product })
    }

    /// Returns the bytes of a tensor of this shape. Returns `None` for BYTES, unless there are no elements.
    #[inline]
    pub(crate) fn len(&self, dtype: DType) -> Result<Option<usize>, TensorFault> {
        let count = self.count()?;
        let Some(size) = dtype.size() else { return Ok((count == 0).then_some(0)) };
        let len = count.checked_mul(size).filter(|len| *len <= isize::MAX as usize);
        Ok(Some(len.ok_or(TensorFault::Overflow)?))
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    #[inline]
    fn from(from: [usize; N]) -> Self {
        const { assert!(N <= MAX_RANK, "a shape has at most 8 dimensions") };
        let mut dims = [0; MAX_RANK];
        for (to, from) in dims.iter_mut().zip(from) {
            *to = from;
        }
        Self { dims, rank: N }
    }
}

impl TryFrom<&[usize]> for Shape {
    type Error = crate::error::Error;

    fn try_from(dims: &[usize]) -> Result<Self> {
        Self::new(dims)
    }
}

/// Some protocols write -1 for a dimension of any length. This conversion refuses it.
impl TryFrom<&[i64]> for Shape {
    type Error = crate::error::Error;

    fn try_from(from: &[i64]) -> Result<Self> {
        if from.len() > MAX_RANK {
            return Err(TensorFault::Rank { rank: from.len(), max: MAX_RANK }.into());
        }
        let mut dims = [0; MAX_RANK];
        for (at, (to, value)) in dims.iter_mut().zip(from).enumerate() {
            let dim = usize::try_from(*value);
            *to = dim.map_err(|_| TensorFault::Dimension { at, value: *value })?;
        }
        Ok(Self { dims, rank: from.len() })
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.dims(), f)
    }
}

/// Prints `[1, 3, 224, 224]`.
impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.dims(), f)
    }
}

#[cfg(test)]
mod tests;
