//! BYTES tensors: elements of any length, each behind its length as a little-endian `u32`.

use std::borrow::Cow;

use zerocopy::FromZeros;

use crate::refusal::Refusal;

/// Returns `len` zero bytes. The client has chosen `len`, so a lack of memory is a refusal.
pub(crate) fn zeros(len: usize) -> Result<Vec<u8>, Refusal> {
    u8::new_vec_zeroed(len).map_err(|_| Refusal::no_memory(len))
}

/// The elements of a BYTES tensor.
#[derive(Debug, Clone)]
pub struct Strings<'a> {
    bytes: Cow<'a, [u8]>,
}

impl<'a> Strings<'a> {
    /// Validates that `bytes` hold exactly `count` elements. `input` names the tensor in a refusal.
    pub(crate) fn new(input: &str, bytes: Cow<'a, [u8]>, count: usize) -> Result<Self, Refusal> {
        let mut walk = StringsValidator::new(count);
        walk.feed(input, &bytes)?;
        walk.finish(input)?;
        Ok(Self { bytes })
    }

    /// Returns the elements in order.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = &*self.bytes;
        std::iter::from_fn(move || {
            let (len, behind) = rest.split_first_chunk::<4>()?;
            let (element, behind) = behind.split_at_checked(u32::from_le_bytes(*len) as usize)?;
            rest = behind;
            Some(element)
        })
    }
}

/// Validates elements that arrive in pieces.
#[derive(Debug)]
pub(crate) struct StringsValidator {
    expected: usize,
    seen: usize,
    /// The bytes of a length prefix that is still incomplete.
    partial: [u8; 4],
    have: usize,
    /// The length of the current element, and its bytes still to come.
    len: usize,
    left: usize,
}

impl StringsValidator {
    pub(crate) fn new(expected: usize) -> Self {
        Self { expected, seen: 0, partial: [0; 4], have: 0, len: 0, left: 0 }
    }

    pub(crate) fn feed(&mut self, input: &str, mut bytes: &[u8]) -> Result<(), Refusal> {
        loop {
            let skipped = self.left.min(bytes.len());
            self.left -= skipped;
            bytes = &bytes[skipped..];
            if bytes.is_empty() {
                return Ok(());
            }
            if self.seen == self.expected {
                return Err(Refusal::strings_count(input, self.expected, self.seen + 1));
            }
            let taken = (4 - self.have).min(bytes.len());
            self.partial[self.have..][..taken].copy_from_slice(&bytes[..taken]);
            self.have += taken;
            bytes = &bytes[taken..];
            if self.have < 4 {
                return Ok(());
            }
            self.have = 0;
            self.seen += 1;
            self.len = u32::from_le_bytes(self.partial) as usize;
            self.left = self.len;
        }
    }

    pub(crate) fn finish(&self, input: &str) -> Result<(), Refusal> {
        if self.have > 0 {
            return Err(Refusal::strings_length(input, self.have));
        }
        if self.left > 0 {
            return Err(Refusal::strings_data(input, self.len, self.len - self.left));
        }
        if self.seen != self.expected {
            return Err(Refusal::strings_count(input, self.expected, self.seen));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(bytes: &[u8], count: usize) -> Result<Vec<Vec<u8>>, Refusal> {
        let strings = Strings::new("I", Cow::Borrowed(bytes), count)?;
        Ok(strings.iter().map(<[u8]>::to_vec).collect())
    }

    #[test]
    fn elements_are_split_by_their_lengths() {
        let bytes = b"\x03\0\0\0abc\0\0\0\0\x01\0\0\0z";
        assert_eq!(strings(bytes, 3).unwrap(), [&b"abc"[..], b"", b"z"]);
        assert!(strings(b"", 0).unwrap().is_empty());
    }

    #[test]
    fn what_is_not_whole_is_refused_wherever_it_is_cut() {
        let bytes = b"\x03\0\0\0abc\0\0\0\0\x01\0\0\0z";
        for cut in 0..bytes.len() {
            assert!(strings(&bytes[..cut], 3).is_err(), "{cut}");
        }
        assert!(strings(bytes, 2).is_err());
        assert!(strings(bytes, 4).is_err());
        assert!(strings(b"\xff\xff\xff\xffabc", 1).is_err());
    }

    #[test]
    fn pieces_are_judged_as_the_whole_is() {
        let bytes = b"\x03\0\0\0abc\0\0\0\0\x01\0\0\0z";
        for piece in 1..bytes.len() {
            let mut walk = StringsValidator::new(3);
            bytes.chunks(piece).for_each(|part| walk.feed("I", part).unwrap());
            walk.finish("I").unwrap();
        }
    }
}
