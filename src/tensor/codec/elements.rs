//! Reading BYTES elements.

use std::iter::FusedIterator;

use crate::error::{Result, TensorFault, memory};
use crate::tensor::codec::check::check_tensor;
use crate::tensor::dtype::DType;
use crate::tensor::shape::Shape;

/// Bytes of the length field before each element.
pub(super) const LENGTH: usize = size_of::<u32>();

/// An iterator over the elements of a BYTES tensor in the order of their bytes. It checks each element as it comes.
///
/// An error is the last item. The number of elements is unknown before the last one;
/// [`decode`](Self::decode) takes a tensor whose shape is known.
///
/// # Examples
///
/// ```
/// use slipring::tensor::BytesElements;
///
/// let mut elements = BytesElements::new(&[2, 0, 0, 0, b'h', b'i', 9, 0, 0, 0, b'x']);
/// assert_eq!(elements.next().unwrap()?, b"hi");
/// let error = elements.next().unwrap().unwrap_err();
/// assert_eq!(error.to_string(), "element 1 at byte 10 of BYTES has 9 bytes, 1 are left");
/// assert!(elements.next().is_none());
/// # Ok::<(), slipring::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct BytesElements<'a> {
    /// Unread bytes. Empty after an error.
    rest: &'a [u8],
    /// Bytes before `rest`.
    at: usize,
    /// Elements before `rest`.
    index: usize,
}

impl<'a> BytesElements<'a> {
    /// Returns an iterator over the elements in `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes, at: 0, index: 0 }
    }

    /// Returns the elements of a BYTES tensor of this shape, in row-major order.
    ///
    /// The whole tensor is checked before the list is allocated, so the list is at most four times as long as
    /// `bytes`.
    ///
    /// # Examples
    ///
    /// ```
    /// use slipring::Shape;
    /// use slipring::tensor::{BytesBuilder, BytesElements};
    ///
    /// let bytes = BytesBuilder::encode(["hello", ""])?;
    /// assert_eq!(BytesElements::decode(&Shape::from([2, 1]), &bytes)?, [&b"hello"[..], b""]);
    /// # Ok::<(), slipring::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`DType::check`].
    pub fn decode(shape: &Shape, bytes: &'a [u8]) -> Result<Vec<&'a [u8]>> {
        check_tensor(DType::Bytes, shape, bytes)?;
        let mut list = Vec::new();
        memory::reserve(&mut list, shape.count()?)?;
        for element in Self::new(bytes) {
            list.push(element?);
        }
        Ok(list)
    }

    /// Returns the next element, as [`next`](Iterator::next) does, or the bare fault.
    #[inline]
    fn advance(&mut self) -> Option<Result<&'a [u8], TensorFault>> {
        if self.rest.is_empty() {
            return None;
        }
        let element = self.split();
        match element {
            Ok(element) => {
                let taken = LENGTH + element.len();
                self.rest = &self.rest[taken..];
                self.at += taken;
                self.index += 1;
            }
            Err(_) => self.rest = &[],
        }
        Some(element)
    }

    /// Returns the element that `rest` starts with.
    #[inline]
    fn split(&self) -> Result<&'a [u8], TensorFault> {
        let (index, at, left) = (self.index as u64, self.at as u64, self.rest.len() as u64);
        let Some((len, behind)) = self.rest.split_first_chunk::<LENGTH>() else {
            return Err(TensorFault::ElementLength { index, at, left });
        };
        let len = u32::from_le_bytes(*len);
        behind.get(..len as usize).ok_or(TensorFault::Element {
            index,
            at: at + LENGTH as u64,
            len: len.into(),
            left: left - LENGTH as u64,
        })
    }
}

impl<'a> Iterator for BytesElements<'a> {
    type Item = Result<&'a [u8]>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.advance()?.map_err(Into::into))
    }

    /// Returns 1 if bytes are left, and the number of length fields that fit into them.
    fn size_hint(&self) -> (usize, Option<usize>) {
        (usize::from(!self.rest.is_empty()), Some(self.rest.len().div_ceil(LENGTH)))
    }
}

impl FusedIterator for BytesElements<'_> {}

/// Checks that `bytes` are exactly `expected` elements.
pub(super) fn check_elements(expected: usize, bytes: &[u8]) -> Result<(), TensorFault> {
    let mut elements = BytesElements::new(bytes);
    while elements.index < expected {
        match elements.advance() {
            Some(element) => element?,
            None => {
                let count = elements.index as u64;
                return Err(TensorFault::ElementCount { count, expected: expected as u64 });
            }
        };
    }
    if !elements.rest.is_empty() {
        let (at, left) = (elements.at as u64, elements.rest.len() as u64);
        return Err(TensorFault::Trailing { count: expected as u64, at, left });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
