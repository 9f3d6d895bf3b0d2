//! Views of bytes that another process may write.

#![allow(unsafe_code)]

use core::fmt;
use core::marker::PhantomData;
use core::ptr::NonNull;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

use crate::error::{Result, memory};
use crate::shm::copy::{Origin, copy_across, copy_in, copy_out, load_byte, load_line, load_word};

/// A view of bytes in a peer's memory. An honest peer does not write them. A hostile one can change them at
/// any moment.
///
/// See [`Received::bytes`](crate::Received::bytes), [`Tensor::bytes`](crate::Tensor::bytes) and
/// [`Lease::bytes`](crate::region::Lease::bytes).
///
/// # Examples
///
/// ```
/// use slipring::Tensor;
///
/// let tensor = Tensor::from_slice([4], &[1u8, 2, 3, 4])?;
/// let bytes = tensor.bytes()?;
/// assert_eq!((bytes.len(), bytes.byte(3)), (4, 4));
/// assert_eq!(bytes.slice(1, 2).to_vec(), [2, 3]);
/// # Ok::<(), slipring::Error>(())
/// ```
///
/// Every safe method copies. A copy is private, so it can be checked and then used. Two reads of the same
/// place may return two values.
#[derive(Clone, Copy)]
pub struct Bytes<'a> {
    start: NonNull<u8>,
    len: usize,
    origin: Origin,
    mapped: PhantomData<&'a ()>,
}

// SAFETY: a view only loads, and its memory stays mapped for `'a` whichever thread reads.
unsafe impl Send for Bytes<'_> {}
// SAFETY: as above.
unsafe impl Sync for Bytes<'_> {}

impl<'a> Bytes<'a> {
    /// # Safety
    ///
    /// `start..start + len` stays mapped readable for `'a`.
    #[inline(always)]
    pub(crate) unsafe fn new(start: NonNull<u8>, len: usize) -> Self {
        Self { start, len, origin: Origin::SHARED, mapped: PhantomData }
    }

    /// Returns a view of bytes that nobody writes.
    #[inline(always)]
    pub fn of(bytes: &'a [u8]) -> Self {
        let (start, len) = (NonNull::from(bytes).cast(), bytes.len());
        Self { start, len, origin: Origin::FROZEN, mapped: PhantomData }
    }

    /// Returns the length in bytes.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no bytes.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the address of the first byte, for code in another language. It may be read during `'a`. A peer may write
    /// the bytes at any moment, so Rust code that reads them there does not get around this type's copies.
    ///
    /// # Examples
    ///
    /// ```
    /// use slipring::message::Bytes;
    ///
    /// let bytes = [1, 2, 3];
    /// assert_eq!(Bytes::of(&bytes).as_ptr(), bytes.as_ptr());
    /// ```
    #[inline(always)]
    pub fn as_ptr(&self) -> *const u8 {
        self.start.as_ptr()
    }

    /// Returns the `len` bytes from `offset` on.
    ///
    /// # Panics
    ///
    /// If the part does not lie inside of this view.
    #[inline(always)]
    pub fn slice(&self, offset: usize, len: usize) -> Bytes<'a> {
        assert!(
            offset <= self.len && len <= self.len - offset,
            "{len} bytes at {offset} of a view of {} bytes",
            self.len
        );
        // SAFETY: just checked to lie inside of this view.
        let start = unsafe { self.start.add(offset) };
        Bytes { start, len, ..*self }
    }

    /// Copies all bytes to `out`.
    ///
    /// # Panics
    ///
    /// If `out` has another length than this view.
    #[inline(always)]
    pub fn copy_to(&self, out: &mut [u8]) {
        assert!(out.len() == self.len, "{} bytes into a buffer of {}", self.len, out.len());
        // SAFETY: `self.len` bytes from `self.start` are mapped; `out` is a private buffer, because
        // no `&mut [u8]` to a peer's memory exists.
        unsafe { copy_out(self.origin, self.start, out) }
    }

    /// Appends a copy of all bytes to `out`.
    ///
    /// # Panics
    ///
    /// As [`to_vec`](Self::to_vec).
    pub fn append_to(&self, out: &mut Vec<u8>) {
        self.try_append_to(out).unwrap_or_else(|error| panic!("{error}"));
    }

    /// Returns a private copy.
    ///
    /// # Panics
    ///
    /// If the allocator has no memory for it, which [`try_to_vec`](Self::try_to_vec) returns as an error. It never
    /// aborts, whatever length the peer chose.
    pub fn to_vec(&self) -> Vec<u8> {
        self.try_to_vec().unwrap_or_else(|error| panic!("{error}"))
    }

    /// Returns a private copy.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfMemory`](crate::ErrorKind::OutOfMemory): the allocator has no memory for it.
    ///
    /// # Examples
    ///
    /// ```
    /// use slipring::message::Bytes;
    ///
    /// assert_eq!(Bytes::of(b"hello").try_to_vec()?, b"hello");
    /// # Ok::<(), slipring::Error>(())
    /// ```
    pub fn try_to_vec(&self) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        self.try_append_to(&mut out)?;
        Ok(out)
    }

    fn try_append_to(&self, out: &mut Vec<u8>) -> Result<()> {
        let before = out.len();
        memory::reserve(out, self.len)?;
        out.resize(before + self.len, 0);
        self.copy_to(&mut out[before..]);
        Ok(())
    }

    /// Returns whether the view starts at a multiple of 8 bytes.
    pub(crate) fn is_aligned(&self) -> bool {
        self.start.addr().get().is_multiple_of(8)
    }

    /// Returns the first `N` words of 8 bytes, in native order. Returns `None` if there are fewer, or they are
    /// not aligned.
    #[inline(always)]
    pub(crate) fn words<const N: usize>(&self) -> Option<[u64; N]> {
        if self.len < N * 8 || !self.start.addr().get().is_multiple_of(8) {
            return None;
        }
        Some(core::array::from_fn(|index| {
            // SAFETY: just checked to lie inside of this view.
            let word = unsafe { self.start.add(index * 8) };
            // SAFETY: as above.
            unsafe { load_word(self.origin, word) }
        }))
    }

    /// Returns the byte at `offset`.
    ///
    /// # Panics
    ///
    /// If `offset` lies outside of this view.
    #[inline(always)]
    pub fn byte(&self, offset: usize) -> u8 {
        assert!(offset < self.len, "byte {offset} of a view of {} bytes", self.len);
        // SAFETY: just checked to lie inside of this view.
        let byte = unsafe { self.start.add(offset) };
        // SAFETY: as above.
        unsafe { load_byte(self.origin, byte) }
    }

    /// Returns an iterator over lines of eight words, read in place, for sums and searches over long payloads.
    /// Each array is a private copy of 64 bytes in native order. [`Lines::remainder`] has the rest.
    ///
    /// # Examples
    ///
    /// ```
    /// fn sum(bytes: slipring::message::Bytes<'_>) -> u64 {
    ///     let lines = bytes.lines();
    ///     let rest = lines.remainder();
    ///     let mut lanes = [0u64; 8];
    ///     for line in lines {
    ///         for (lane, word) in lanes.iter_mut().zip(line) {
    ///             *lane = lane.wrapping_add(word);
    ///         }
    ///     }
    ///     let tail: u64 = rest.to_vec().iter().map(|byte| u64::from(*byte)).sum();
    ///     lanes.iter().fold(tail, |sum, lane| sum.wrapping_add(*lane))
    /// }
    /// ```
    ///
    /// # Panics
    ///
    /// If the view does not start at a multiple of 8 bytes. A message's payload and a tensor's bytes always
    /// do.
    #[inline(always)]
    pub fn lines(&self) -> Lines<'a> {
        assert!(self.start.align_offset(8) == 0, "lines start at a multiple of 8 bytes");
        let whole = self.len / 64 * 64;
        Lines { whole: self.slice(0, whole), rest: self.slice(whole, self.len - whole) }
    }

    /// Returns the bytes as a slice, without a copy.
    ///
    /// # Safety
    ///
    /// - Nobody writes these bytes during `'a`. The sender's process can: its code is not hostile and keeps no
    ///   pointer to what it has sent.
    #[inline(always)]
    pub unsafe fn as_slice(&self) -> &'a [u8] {
        // SAFETY: mapped for `'a`; the caller vouches that nobody writes the bytes.
        unsafe { core::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl fmt::Debug for Bytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bytes({} bytes)", self.len)
    }
}

/// A view of bytes that this process may write, and that other processes may read and write at the same time.
///
/// [`Lease::in_place_mut`](crate::region::Lease::in_place_mut) passes it on.
///
/// Every safe method copies, as those of [`Bytes`] do. Two writers at once, of this process or of others, mix their bytes
/// and do nothing worse: each byte gets the value of one of them.
#[derive(Debug, Clone, Copy)]
pub struct BytesMut<'a> {
    bytes: Bytes<'a>,
}

impl<'a> BytesMut<'a> {
    /// # Safety
    ///
    /// `start..start + len` stays mapped writable for `'a`, and nobody in this process has a
    /// reference to any of it.
    pub(super) unsafe fn new(start: NonNull<u8>, len: usize) -> Self {
        // SAFETY: the caller's promise is that function's.
        Self { bytes: unsafe { Bytes::new(start, len) } }
    }

    /// Returns a view of bytes that nobody else touches.
    pub fn of(bytes: &'a mut [u8]) -> Self {
        let len = bytes.len();
        // SAFETY: the exclusive borrow keeps the bytes for `'a`, for the views made of this one alone.
        unsafe { Self::new(NonNull::from(bytes).cast(), len) }
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.bytes.len
    }

    /// Returns whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes.len == 0
    }

    /// Returns the same bytes for reading.
    pub fn as_bytes(&self) -> Bytes<'a> {
        self.bytes
    }

    /// Returns the `len` bytes from `offset` on.
    ///
    /// # Panics
    ///
    /// If the part does not lie inside of this view.
    pub fn slice(&self, offset: usize, len: usize) -> BytesMut<'a> {
        BytesMut { bytes: self.bytes.slice(offset, len) }
    }

    /// Overwrites all bytes with a copy of `from`.
    ///
    /// # Panics
    ///
    /// If `from` has another length than this view.
    pub fn copy_from(&self, from: &[u8]) {
        assert!(from.len() == self.len(), "{} bytes into a view of {}", from.len(), self.len());
        // SAFETY: as many bytes are mapped writable there; `from` is private memory, because no
        // `&[u8]` to memory that others write exists.
        unsafe { copy_in(self.bytes.start, from) }
    }

    /// Overwrites the first bytes with those of a file at `offset`, by one system call, and returns their
    /// number. Where the mapping has no page the kernel returns an error and raises no signal.
    ///
    /// # Errors
    ///
    /// Those of the kernel.
    pub fn read_from(&self, fd: impl AsFd, offset: u64) -> io::Result<usize> {
        let (fd, start) = (fd.as_fd().as_raw_fd(), self.bytes.start.as_ptr().cast());
        let offset = libc::off64_t::try_from(offset).map_err(io::Error::other)?;
        // SAFETY: the kernel writes at most `len` bytes from `start` on, which are mapped to write; nobody in
        // this process has a reference to any of them.
        let done = unsafe { libc::pread64(fd, start, self.bytes.len, offset) };
        usize::try_from(done).map_err(|_| io::Error::last_os_error())
    }

    /// Overwrites all bytes with those of a view, which other processes may write, too. Where the two overlap,
    /// each byte gets its old value or one that is already copied.
    ///
    /// # Panics
    ///
    /// If `from` has another length than this view.
    pub fn copy_from_bytes(&self, from: Bytes<'_>) {
        assert!(from.len == self.len(), "{} bytes into a view of {}", from.len, self.len());
        // SAFETY: as many bytes are mapped there to read, and here to write.
        unsafe { copy_across(from.origin, from.start, self.bytes.start, from.len) }
    }

    /// Returns the bytes as a writable slice, without a copy.
    ///
    /// # Safety
    ///
    /// - Nobody else reads or writes these bytes during `'a`: no other process that has them mapped, and no
    ///   other view of this process.
    #[inline(always)]
    pub unsafe fn as_mut_slice(&mut self) -> &'a mut [u8] {
        // SAFETY: mapped writable for `'a`; the caller vouches that nobody else touches the bytes.
        unsafe { core::slice::from_raw_parts_mut(self.bytes.start.as_ptr(), self.bytes.len) }
    }
}

/// The whole 64-byte lines of a view, each as eight words. [`Bytes::lines`] makes it.
#[derive(Debug, Clone)]
pub struct Lines<'a> {
    whole: Bytes<'a>,
    rest: Bytes<'a>,
}

impl<'a> Lines<'a> {
    /// Returns the bytes after the last whole line: fewer than 64.
    #[inline(always)]
    pub fn remainder(&self) -> Bytes<'a> {
        self.rest
    }
}

impl Iterator for Lines<'_> {
    type Item = [u64; 8];

    #[inline(always)]
    fn next(&mut self) -> Option<[u64; 8]> {
        if self.whole.len == 0 {
            return None;
        }
        let start = self.whole.start;
        // SAFETY: `whole.len` is a multiple of 64 and not 0.
        let line = unsafe { load_line(self.whole.origin, start) };
        // SAFETY: 64 bytes on is inside of the view or its end.
        self.whole.start = unsafe { start.add(64) };
        self.whole.len -= 64;
        Some(line)
    }

    #[inline(always)]
    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.whole.len / 64, Some(self.whole.len / 64))
    }
}

impl ExactSizeIterator for Lines<'_> {}

#[cfg(test)]
mod tests;
