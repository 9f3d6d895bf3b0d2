//! The encoded form of a tensor: name, data type, shape, and the location of its bytes. No I/O.
//!
//! ```text
//!   0      1     2      3          4             (dims)
//!   │dtype │rank │flags │name_len  │ dim … u32 or u64 │ place … │ name … │
//! ```
//!
//! The description of a message is a sequence of these, little-endian, without padding. `docs/wire.md` has the
//! bytes. The version stands in the record's header.

use crate::channel::SINGLE;
use crate::error::{Result, TensorFault};
use crate::tensor::dtype::DType;
use crate::tensor::gpu::GpuPlace;
use crate::tensor::shape::{MAX_RANK, Shape};

/// The longest name in bytes.
pub(super) const MAX_NAME: usize = 255;

/// Flag: dimensions take 8 bytes instead of 4.
const WIDE: u8 = 1;
/// The location of the bytes: two bits of the flags.
const PLACE: u8 = 6;
const ATTACHED: u8 = 0 << 1;
const INLINE: u8 = 1 << 1;
const REGION: u8 = 2 << 1;
const GPU: u8 = 3 << 1;
/// Flag, of a tensor on a GPU: it shares the allocation and the loans of an earlier one.
const PART: u8 = 8;

const HEAD: usize = 4;

/// The location of a tensor's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Location<'a> {
    /// The message's next attachment: a block of a pool, or frozen memory.
    Attached,
    /// The description itself.
    Inline(&'a [u8]),
    /// A region that the receiver finds by its name.
    Region {
        /// The region's name.
        name: &'a str,
        /// The start in bytes from the region's start.
        offset: u64,
        /// The length in bytes.
        len: u64,
    },
    /// Memory of a GPU: the encoded [`GpuPlace`]. The message's next two attachments are the loan of these
    /// bytes and that of their mapping.
    Gpu(&'a [u8; GpuPlace::LEN]),
    /// Memory of a GPU in the allocation of an earlier tensor of the message, with whose loans this one goes back.
    GpuPart {
        /// The index of that tensor, which has loans of its own.
        of: u32,
        /// The range and the word, as [`GpuPlace::encode_part`] returns them.
        part: &'a [u8; GpuPlace::PART_LEN],
    },
}

/// The encoded form of a tensor: name, data type, shape, and the location of its bytes. Connections encode and
/// check it; `docs/wire.md` has the bytes.
///
/// # Examples
///
/// ```
/// use slipring::{DType, Shape};
/// use slipring::tensor::{Descriptor, Location};
///
/// let (dtype, shape) = (DType::Fp32, Shape::from([1, 3, 224, 224]));
/// let descriptor = Descriptor { name: "", dtype, shape, place: Location::Attached };
/// let bytes = descriptor.encode()?;
/// assert_eq!(bytes.len(), 20);
/// assert_eq!(Descriptor::decode(&bytes)?, (descriptor, &[][..]));
/// # Ok::<(), slipring::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Descriptor<'a> {
    /// The name, up to 255 bytes. It is empty if the tensor has none.
    pub name: &'a str,
    /// The data type of the elements.
    pub dtype: DType,
    /// The lengths of the dimensions.
    pub shape: Shape,
    /// The location of the bytes.
    pub place: Location<'a>,
}

impl<'a> Descriptor<'a> {
    /// The version of this layout. The header of a message of tensors carries it.
    pub const VERSION: u8 = 1;

    /// Returns the encoded bytes.
    ///
    /// # Errors
    ///
    /// [`TensorFault::NameTooLong`], and [`TensorFault::Len`] for inline bytes of 4 GiB or more.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.encoded_len()];
        self.encode_to(&mut bytes)?;
        Ok(bytes)
    }

    /// Decodes the descriptor at the start of `bytes`. Returns it and the bytes after it.
    ///
    /// # Errors
    ///
    /// [`TensorFault`], with the impossible field and its value.
    pub fn decode(bytes: &'a [u8]) -> Result<(Self, &'a [u8])> {
        Ok(Self::decode_at(bytes, 0)?)
    }
}

impl<'a> Descriptor<'a> {
    /// Returns whether the dimensions need 8 bytes each.
    #[inline]
    fn is_wide(&self) -> bool {
        self.shape.dims().iter().any(|dim| *dim > u32::MAX as usize)
    }

    /// Returns the encoded length in bytes.
    #[inline]
    pub(crate) fn encoded_len(&self) -> usize {
        let dims = self.shape.rank() * if self.is_wide() { 8 } else { 4 };
        let place = match self.place {
            Location::Attached => 0,
            Location::Inline(bytes) => 4 + bytes.len(),
            Location::Region { name, .. } => 17 + name.len(),
            Location::Gpu(place) => place.len(),
            Location::GpuPart { part, .. } => 4 + part.len(),
        };
        HEAD + dims + place + self.name.len()
    }

    /// Encodes to the start of `out`, which has room. Returns the rest of `out`.
    ///
    /// # Errors
    ///
    /// [`TensorFault::NameTooLong`], and [`TensorFault::Len`] for inline bytes of 4 GiB or more.
    #[inline]
    pub(crate) fn encode_to<'b>(&self, out: &'b mut [u8]) -> Result<&'b mut [u8], TensorFault> {
        let own_name = name_len(self.name)?;
        let is_wide = self.is_wide();
        let place = match self.place {
            Location::Attached => ATTACHED,
            Location::Inline(_) => INLINE,
            Location::Region { .. } => REGION,
            Location::Gpu(_) => GPU,
            Location::GpuPart { .. } => GPU | PART,
        };
        let flags = place | if is_wide { WIDE } else { 0 };
        let mut out = Unwritten(out);
        out.put(&[self.dtype.code(), self.shape.rank() as u8, flags, own_name]);
        for dim in self.shape.dims() {
            if is_wide {
                out.put(&(*dim as u64).to_le_bytes());
            } else {
                out.put(&(*dim as u32).to_le_bytes());
            }
        }
        match self.place {
            Location::Attached => {}
            Location::Inline(bytes) => {
                let len = bytes.len() as u64;
                let short = u32::try_from(len);
                let short =
                    short.map_err(|_| TensorFault::Len { len, expected: u32::MAX.into() })?;
                out.put(&short.to_le_bytes());
                out.put(bytes);
            }
            Location::Region { name, offset, len } => {
                out.put(&offset.to_le_bytes());
                out.put(&len.to_le_bytes());
                out.put(&[name_len(name)?]);
                out.put(name.as_bytes());
            }
            Location::Gpu(place) => out.put(place),
            Location::GpuPart { of, part } => {
                out.put(&of.to_le_bytes());
                out.put(part);
            }
        }
        out.put(self.name.as_bytes());
        Ok(out.0)
    }

    /// Decodes the descriptor at the start of a private copy of a peer's bytes. Returns it and the rest.
    /// `index` counts the tensors of the description.
    #[inline]
    pub(crate) fn decode_at(
        bytes: &'a [u8],
        index: usize,
    ) -> Result<(Self, &'a [u8]), TensorFault> {
        let mut left = Undecoded { bytes, len: bytes.len(), index };
        let [code, rank, flags, name_len] = left.take()?;
        let dtype = DType::from_code(code)?;
        let rank = usize::from(rank);
        if rank > MAX_RANK {
            return Err(TensorFault::Rank { rank, max: MAX_RANK });
        }
        let field = |value: u8| TensorFault::Field { field: "tensor.flags", value: value.into() };
        let is_part = flags & PART != 0;
        if flags & !(WIDE | PLACE | PART) != 0 || is_part && flags & PLACE != GPU {
            return Err(field(flags));
        }
        let mut dims = [0; MAX_RANK];
        for dim in dims.iter_mut().take(rank) {
            *dim = if flags & WIDE != 0 {
                u64::from_le_bytes(left.take()?) as usize
            } else {
                u32::from_le_bytes(left.take()?) as usize
            };
        }
        let shape = Shape::of(dims.get(..rank).unwrap_or(&dims))?;
        let place = match flags & PLACE {
            ATTACHED => Location::Attached,
            INLINE => {
                let len = u32::from_le_bytes(left.take()?);
                Location::Inline(left.slice(len as usize)?)
            }
            REGION => {
                let (offset, len) =
                    (u64::from_le_bytes(left.take()?), u64::from_le_bytes(left.take()?));
                let [name_len] = left.take()?;
                Location::Region { name: left.name(name_len)?, offset, len }
            }
            _ if is_part => {
                Location::GpuPart { of: u32::from_le_bytes(left.take()?), part: left.array()? }
            }
            // Two bits have no other value.
            _ => Location::Gpu(left.array()?),
        };
        let name = left.name(name_len)?;
        Ok((Self { name, dtype, shape, place }, left.bytes))
    }

    /// Checks that data type and shape need `len` bytes.
    #[inline]
    pub(crate) fn check_len(&self, len: usize) -> Result<(), TensorFault> {
        check_len(self.dtype, &self.shape, len)
    }
}

/// Encodes a short description as little-endian words: one attached tensor without a name and with at most
/// seven dimensions of 4 bytes. Returns the words and their length in bytes.
#[inline(always)]
pub(super) fn to_words(dtype: DType, shape: &Shape) -> Option<([u64; SINGLE], usize)> {
    let dims = shape.dims();
    let mut halves = [0; 2 * SINGLE];
    halves[0] = u32::from(dtype.code()) | (dims.len() as u32) << 8;
    if dims.len() >= halves.len() {
        return None;
    }
    for (half, dim) in halves[1..].iter_mut().zip(dims) {
        *half = u32::try_from(*dim).ok()?;
    }
    let word =
        |at: usize| (u64::from(halves[2 * at]) | u64::from(halves[2 * at + 1]) << 32).to_le();
    Some((core::array::from_fn(word), HEAD + 4 * dims.len()))
}

/// Decodes a short description of a tensor of `bytes` bytes. Returns `None` if it has another form or is impossible, as
/// [`Descriptor::decode`] and [`check_len`] find. Each half of a word has an index that the compiler knows, so that none of
/// them goes through memory.
#[inline(always)]
pub(super) fn of_words(words: [u64; SINGLE], len: usize, bytes: u64) -> Option<(DType, Shape)> {
    const MOST: usize = 2 * SINGLE - 1;
    let words = words.map(u64::from_le);
    let head = words[0] as u32;
    let rank = (head >> 8) as usize;
    // The flags and the length of the name lie above the rank, so they must be 0.
    if rank > MOST || len != HEAD + 4 * rank {
        return None;
    }
    let dtype = DType::from_code(head as u8).ok()?;
    // Most tensors have few dimensions, and each one takes a dozen instructions.
    let dims = match rank {
        0..=2 => dims_of::<2>(words, rank, dtype, bytes),
        3..=4 => dims_of::<4>(words, rank, dtype, bytes),
        _ => dims_of::<MOST>(words, rank, dtype, bytes),
    };
    Some((dtype, Shape::of_parts(dims?, rank)))
}

/// Decodes the dimensions of a short description, at most `N`, and checks that they and the data type need so many bytes.
#[inline(always)]
fn dims_of<const N: usize>(
    words: [u64; SINGLE],
    rank: usize,
    dtype: DType,
    bytes: u64,
) -> Option<[usize; MAX_RANK]> {
    let half = |at: usize| (words[at / 2] >> (32 * (at % 2))) & 0xFFFF_FFFF;
    let (mut dims, mut product, mut is_empty) = ([0; MAX_RANK], 1u64, false);
    for (pair, of_pair) in dims.chunks_mut(2).take(N.div_ceil(2)).enumerate() {
        // The product of two of them fits into a word.
        let mut of_both = 1;
        for (second, to) in of_pair.iter_mut().enumerate() {
            let at = 2 * pair + second;
            if at < rank {
                let dim = half(at + 1);
                *to = dim as usize;
                of_both *= dim.max(1);
                is_empty |= dim == 0;
            }
        }
        product = if pair == 0 { of_both } else { product.checked_mul(of_both)? };
    }
    let count = if is_empty { 0 } else { product };
    let is_right = match dtype.size() {
        Some(size) => count.checked_mul(size as u64)? == bytes && bytes <= isize::MAX as u64,
        None => count > 0 || bytes == 0,
    };
    is_right.then_some(dims)
}

/// Checks that data type and shape need `len` bytes. It does not read BYTES elements.
#[inline]
pub(super) fn check_len(dtype: DType, shape: &Shape, len: usize) -> Result<(), TensorFault> {
    match shape.len(dtype)? {
        Some(expected) if expected != len => {
            Err(TensorFault::Len { len: len as u64, expected: expected as u64 })
        }
        _ => Ok(()),
    }
}

#[inline]
fn name_len(name: &str) -> Result<u8, TensorFault> {
    let len = name.len();
    u8::try_from(len).map_err(|_| TensorFault::NameTooLong { len, max: MAX_NAME })
}

/// The unwritten rest of a buffer.
struct Unwritten<'a>(&'a mut [u8]);

impl Unwritten<'_> {
    #[inline(always)]
    fn put(&mut self, bytes: &[u8]) {
        let (to, rest) = std::mem::take(&mut self.0).split_at_mut(bytes.len());
        to.copy_from_slice(bytes);
        self.0 = rest;
    }
}

/// The undecoded rest of a description.
struct Undecoded<'a> {
    bytes: &'a [u8],
    /// The length of the whole description in bytes.
    len: usize,
    /// The index of this tensor.
    index: usize,
}

impl<'a> Undecoded<'a> {
    #[inline(always)]
    fn take<const N: usize>(&mut self) -> Result<[u8; N], TensorFault> {
        let Some((taken, rest)) = self.bytes.split_first_chunk() else { return Err(self.cut(N)) };
        self.bytes = rest;
        Ok(*taken)
    }

    fn array<const N: usize>(&mut self) -> Result<&'a [u8; N], TensorFault> {
        let Some((taken, rest)) = self.bytes.split_first_chunk() else { return Err(self.cut(N)) };
        self.bytes = rest;
        Ok(taken)
    }

    #[inline(always)]
    fn slice(&mut self, len: usize) -> Result<&'a [u8], TensorFault> {
        let Some((taken, rest)) = self.bytes.split_at_checked(len) else {
            return Err(self.cut(len));
        };
        self.bytes = rest;
        Ok(taken)
    }

    #[inline(always)]
    fn name(&mut self, len: u8) -> Result<&'a str, TensorFault> {
        let name = self.slice(len.into())?;
        std::str::from_utf8(name).map_err(|_| TensorFault::NameUtf8)
    }

    #[cold]
    fn cut(&self, wanted: usize) -> TensorFault {
        let needed = self.len - self.bytes.len() + wanted;
        TensorFault::Description { len: self.len, index: self.index, needed }
    }
}

#[cfg(test)]
mod tests;
