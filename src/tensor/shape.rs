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
    rank: u8,
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
    pub(crate) fn of_parts(dims: [usize; MAX_RANK], rank: u8) -> Self {
        Self { dims, rank }
    }

    #[inline]
    pub(crate) fn of(dims: &[usize]) -> Result<Self, TensorFault> {
        let mut shape = Self { dims: [0; MAX_RANK], rank: dims.len() as u8 };
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
        self.rank as usize
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
        Self { dims, rank: N as u8 }
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
        Ok(Self { dims, rank: from.len() as u8 })
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
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_scalar_has_one_element_and_an_empty_dimension_none() {
        assert_eq!(Shape::from([]).elements().unwrap(), 1);
        assert_eq!(Shape::from([3, 0, 5]).elements().unwrap(), 0);
        assert_eq!(Shape::from([]).len(DType::Bytes), Ok(None));
        assert_eq!(Shape::from([0]).len(DType::Bytes), Ok(Some(0)));
    }

    #[test]
    fn products_that_wrap_are_refused_also_behind_a_zero() {
        for dims in [vec![1 << 32, 1 << 32], vec![0, usize::MAX, 2], vec![usize::MAX, 0, 3]] {
            assert_eq!(Shape::of(&dims).unwrap().count(), Err(TensorFault::Overflow), "{dims:?}");
        }
        let shape = Shape::from([1 << 62]);
        assert_eq!(shape.len(DType::Uint8), Ok(Some(1 << 62)));
        assert_eq!(shape.len(DType::Uint16), Err(TensorFault::Overflow));
        assert_eq!(shape.len(DType::Fp64), Err(TensorFault::Overflow));
    }

    #[test]
    fn a_shape_has_at_most_eight_dimensions() {
        assert_eq!(Shape::of(&[1; 8]).unwrap().rank(), 8);
        assert_eq!(Shape::of(&[1; 9]), Err(TensorFault::Rank { rank: 9, max: 8 }));
        assert!(Shape::try_from(&[1i64; 300][..]).is_err());
        let error = Shape::try_from(&[2i64, -1][..]).unwrap_err();
        assert_eq!(error.to_string(), "dimension 1 is -1");
    }

    proptest! {
        #[test]
        fn the_bytes_are_the_exact_product(dims in proptest::collection::vec(any::<usize>(), 0..9)) {
            let exact = dims.iter().try_fold(1u128, |product, dim| product.checked_mul(*dim as u128));
            let len = Shape::of(&dims).unwrap().len(DType::Fp32);
            match len {
                Ok(len) => prop_assert_eq!(len.unwrap() as u128, 4 * exact.unwrap_or(0)),
                Err(fault) => prop_assert_eq!(fault, TensorFault::Overflow),
            }
        }
    }
}
