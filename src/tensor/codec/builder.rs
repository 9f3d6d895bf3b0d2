//! BYTES elements, written.

use crate::error::{Result, TensorFault};
use crate::tensor::codec::elements::LENGTH;

/// A BYTES tensor in the making: its elements are pushed in row-major order.
///
/// # Examples
///
/// ```
/// use slipring::codec::BytesBuilder;
///
/// let mut builder = BytesBuilder::new();
/// builder.push(b"hi")?;
/// builder.push(b"")?;
/// assert_eq!(builder.count(), 2);
/// assert_eq!(builder.finish(), [2, 0, 0, 0, b'h', b'i', 0, 0, 0, 0]);
/// # Ok::<(), slipring::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct BytesBuilder {
    bytes: Vec<u8>,
    /// Elements in `bytes`.
    count: usize,
}

impl BytesBuilder {
    /// One without elements.
    pub fn new() -> Self {
        Self::default()
    }

    /// One without elements, with room for `len` bytes; see [`encoded_len`].
    pub fn with_capacity(len: usize) -> Self {
        Self { bytes: Vec::with_capacity(len), count: 0 }
    }

    /// Writes an element behind the others.
    ///
    /// # Errors
    ///
    /// [`TensorFault::ElementTooLong`]: its length is no `u32`. Nothing was written then.
    pub fn push(&mut self, element: &[u8]) -> Result<()> {
        let len = length(self.count, element.len())?;
        self.bytes.reserve(LENGTH + element.len());
        self.bytes.extend_from_slice(&len.to_le_bytes());
        self.bytes.extend_from_slice(element);
        self.count += 1;
        Ok(())
    }

    /// How many elements were pushed.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The bytes of the tensor.
    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }
}

/// The bytes of a BYTES tensor of these elements, in row-major order.
///
/// # Errors
///
/// [`TensorFault::ElementTooLong`]: the length of an element is no `u32`.
pub fn encode_bytes<E: AsRef<[u8]>>(elements: impl IntoIterator<Item = E>) -> Result<Vec<u8>> {
    let mut builder = BytesBuilder::new();
    for element in elements {
        builder.push(element.as_ref())?;
    }
    Ok(builder.finish())
}

/// How many bytes a BYTES tensor of these elements has.
///
/// # Errors
///
/// - [`TensorFault::ElementTooLong`]: the length of an element is no `u32`.
/// - [`TensorFault::Overflow`]: they are more than can be addressed.
pub fn encoded_len<E: AsRef<[u8]>>(elements: impl IntoIterator<Item = E>) -> Result<usize> {
    let mut total = 0usize;
    for (index, element) in elements.into_iter().enumerate() {
        total = grown(total, index, element.as_ref().len())?;
    }
    Ok(total)
}

/// The length that stands before element `index` of `len` bytes.
fn length(index: usize, len: usize) -> Result<u32, TensorFault> {
    let too_long = TensorFault::ElementTooLong { index: index as u64, len: len as u64 };
    u32::try_from(len).map_err(|_| too_long)
}

/// What `total` bytes become with element `index` of `len` bytes.
fn grown(total: usize, index: usize, len: usize) -> Result<usize, TensorFault> {
    length(index, len)?;
    let sum = total.checked_add(LENGTH + len).filter(|sum| *sum <= isize::MAX as usize);
    sum.ok_or(TensorFault::Overflow)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    #[test]
    fn a_length_that_is_no_u32_is_refused() {
        assert_eq!(length(7, u32::MAX as usize), Ok(u32::MAX));
        let too_long = TensorFault::ElementTooLong { index: 7, len: 1 << 32 };
        assert_eq!(length(7, 1 << 32), Err(too_long));
    }

    #[test]
    fn a_sum_beyond_what_can_be_addressed_is_refused() {
        let most = isize::MAX as usize;
        assert_eq!(grown(most - 6, 0, 2), Ok(most));
        assert_eq!(grown(most - 6, 0, 3), Err(TensorFault::Overflow));
        assert_eq!(grown(usize::MAX, 0, 0), Err(TensorFault::Overflow));
    }

    proptest! {
        #[test]
        fn the_length_is_known_before(list in vec(vec(any::<u8>(), 0..40), 0..20)) {
            let bytes = encode_bytes(&list).unwrap();
            prop_assert_eq!(encoded_len(&list).unwrap(), bytes.len());
        }
    }
}
