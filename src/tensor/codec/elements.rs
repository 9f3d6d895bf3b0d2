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
mod tests {
    use super::*;
    use crate::tensor::codec::BytesBuilder;
    use proptest::collection::vec;
    use proptest::prelude::*;

    /// The items, their errors as faults.
    fn walk(bytes: &[u8]) -> Vec<Result<&[u8], TensorFault>> {
        let mut elements = BytesElements::new(bytes);
        std::iter::from_fn(|| elements.advance()).take(bytes.len() + 1).collect()
    }

    #[test]
    fn a_length_that_lies_is_refused_where_it_stands() {
        for len in [2, 0x7fff_ffff, 0x8000_0000, 0xffff_fffb, 0xffff_fffc, u32::MAX] {
            let mut bytes = BytesBuilder::encode(["ab", ""]).unwrap();
            bytes.extend(len.to_le_bytes());
            bytes.push(b'x');
            let lie = TensorFault::Element { index: 2, at: 14, len: len.into(), left: 1 };
            assert_eq!(walk(&bytes), [Ok(&b"ab"[..]), Ok(b""), Err(lie)]);
            assert_eq!(check_elements(3, &bytes), Err(lie));
            assert_eq!(check_elements(4, &bytes), Err(lie));
        }
    }

    #[test]
    fn lengths_whose_sum_wraps_are_refused_at_the_first() {
        let mut bytes = Vec::new();
        for len in [u32::MAX - 3, 0, u32::MAX - 3, 0] {
            bytes.extend(len.to_le_bytes());
        }
        let lie = TensorFault::Element { index: 0, at: 4, len: 0xffff_fffc, left: 12 };
        assert_eq!(walk(&bytes), [Err(lie)]);
        assert_eq!(check_elements(4, &bytes), Err(lie));
    }

    #[test]
    fn more_and_fewer_elements_than_the_shape_says_are_refused() {
        let bytes = BytesBuilder::encode(["ab", "", "c"]).unwrap();
        assert_eq!(check_elements(3, &bytes), Ok(()));
        let more = TensorFault::Trailing { count: 2, at: 10, left: 5 };
        assert_eq!(check_elements(2, &bytes), Err(more));
        assert_eq!(more.to_string(), "2 elements of BYTES end at byte 10, 5 bytes are left");
        let fewer = TensorFault::ElementCount { count: 3, expected: 4 };
        assert_eq!(check_elements(4, &bytes), Err(fewer));
    }

    #[test]
    fn hints_hold_and_do_not_trust_lengths() {
        let mut elements = BytesElements::new(&[255; 9]);
        assert_eq!(elements.size_hint(), (1, Some(3)));
        assert!(elements.next().unwrap().is_err());
        assert_eq!(elements.size_hint(), (0, Some(0)));
        assert!(elements.next().is_none());
    }

    proptest! {
        #[test]
        fn elements_survive_their_bytes(list in vec(vec(any::<u8>(), 0..40), 1..20)) {
            let bytes = BytesBuilder::encode(&list).unwrap();
            prop_assert_eq!(BytesElements::decode(&Shape::from([list.len()]), &bytes).unwrap(), list);
        }

        #[test]
        fn every_truncation_is_refused_where_the_bytes_end(
            list in vec(vec(any::<u8>(), 0..9), 1..9)
        ) {
            let bytes = BytesBuilder::encode(&list).unwrap();
            for end in 0..bytes.len() {
                // The whole elements before the end, and their end.
                let (mut index, mut at) = (0, 0);
                while at + 4 + list[index].len() <= end {
                    at += 4 + list[index].len();
                    index += 1;
                }
                let (left, expected) = ((end - at) as u64, list.len() as u64);
                let (len, index, at) = (list[index].len() as u64, index as u64, at as u64);
                let fault = match left {
                    0 => TensorFault::ElementCount { count: index, expected },
                    1..4 => TensorFault::ElementLength { index, at, left },
                    _ => TensorFault::Element { index, at: at + 4, len, left: left - 4 },
                };
                prop_assert_eq!(check_elements(list.len(), &bytes[..end]), Err(fault));
            }
        }

        #[test]
        fn any_bytes_are_walked_within_their_hints(
            bytes in vec(prop_oneof![3 => 0u8..3, 1 => any::<u8>()], 0..100)
        ) {
            let items = walk(&bytes);
            let mut elements = BytesElements::new(&bytes);
            for (at, item) in items.iter().enumerate() {
                let (left, (lower, upper)) = (items.len() - at, elements.size_hint());
                prop_assert!(lower <= left && left <= upper.unwrap());
                prop_assert_eq!(elements.next().unwrap().is_ok(), item.is_ok());
                prop_assert!(item.is_ok() || left == 1, "an error is the last item");
            }
            prop_assert!(elements.next().is_none());
        }
    }
}
