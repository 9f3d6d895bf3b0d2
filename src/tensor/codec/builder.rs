//! Writing BYTES elements.

use crate::error::{Result, TensorFault};
use crate::tensor::codec::elements::LENGTH;

/// A BYTES tensor under construction. The caller pushes its elements in row-major order.
///
/// # Examples
///
/// ```
/// use slipring::tensor::BytesBuilder;
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
    /// Returns a builder without elements.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns a builder without elements, with room for `len` bytes. [`encoded_len`](Self::encoded_len) computes
    /// them.
    pub fn with_capacity(len: usize) -> Self {
        Self { bytes: Vec::with_capacity(len), count: 0 }
    }

    /// Appends an element.
    ///
    /// # Errors
    ///
    /// [`TensorFault::ElementTooLong`]: the element's length does not fit into a `u32`. The builder is unchanged.
    pub fn push(&mut self, element: &[u8]) -> Result<()> {
        let len = length(self.count, element.len())?;
        self.bytes.reserve(LENGTH + element.len());
        self.bytes.extend_from_slice(&len.to_le_bytes());
        self.bytes.extend_from_slice(element);
        self.count += 1;
        Ok(())
    }

    /// Returns the number of elements.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns the bytes of the tensor.
    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }

    /// Returns the bytes of a BYTES tensor of these elements, in row-major order.
    ///
    /// # Errors
    ///
    /// [`TensorFault::ElementTooLong`]: an element's length does not fit into a `u32`.
    pub fn encode<E: AsRef<[u8]>>(elements: impl IntoIterator<Item = E>) -> Result<Vec<u8>> {
        let mut builder = Self::new();
        for element in elements {
            builder.push(element.as_ref())?;
        }
        Ok(builder.finish())
    }

    /// Returns the length in bytes of a BYTES tensor of these elements.
    ///
    /// # Errors
    ///
    /// - [`TensorFault::ElementTooLong`]: an element's length does not fit into a `u32`.
    /// - [`TensorFault::Overflow`]: the elements need more bytes than the address space has.
    pub fn encoded_len<E: AsRef<[u8]>>(elements: impl IntoIterator<Item = E>) -> Result<usize> {
        let mut total = 0usize;
        for (index, element) in elements.into_iter().enumerate() {
            total = grown(total, index, element.as_ref().len())?;
        }
        Ok(total)
    }
}

/// Returns the length field of element `index` of `len` bytes.
fn length(index: usize, len: usize) -> Result<u32, TensorFault> {
    let too_long = TensorFault::ElementTooLong { index: index as u64, len: len as u64 };
    u32::try_from(len).map_err(|_| too_long)
}

/// Returns the length of `total` bytes and element `index` of `len` bytes.
fn grown(total: usize, index: usize, len: usize) -> Result<usize, TensorFault> {
    length(index, len)?;
    let sum = total.checked_add(LENGTH + len).filter(|sum| *sum <= isize::MAX as usize);
    sum.ok_or(TensorFault::Overflow)
}

#[cfg(test)]
mod tests;
