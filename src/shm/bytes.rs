//! Bytes that somebody else may still write.

#![allow(unsafe_code)]

use core::fmt;
use core::marker::PhantomData;
use core::ptr::NonNull;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

use crate::shm::copy::{copy_across, copy_in, copy_out, load_byte, load_line, load_word};

/// A view of bytes in a peer's memory, which an honest peer leaves alone and another one may change
/// at any moment.
///
/// Everything safe here copies: what was copied is private and can be judged. Reading the same
/// place twice may give two answers.
#[derive(Clone, Copy)]
pub struct Bytes<'a> {
    start: NonNull<u8>,
    len: usize,
    mapped: PhantomData<&'a ()>,
}

// SAFETY: a view only loads, and its memory stays mapped for `'a` whichever thread looks.
unsafe impl Send for Bytes<'_> {}
// SAFETY: as above.
unsafe impl Sync for Bytes<'_> {}

impl<'a> Bytes<'a> {
    /// # Safety
    ///
    /// `start..start + len` stays mapped readable for `'a`.
    #[inline(always)]
    pub(super) unsafe fn new(start: NonNull<u8>, len: usize) -> Self {
        Self { start, len, mapped: PhantomData }
    }

    /// Returns a view of bytes that nobody writes.
    pub fn of(bytes: &'a [u8]) -> Self {
        Self { start: NonNull::from(bytes).cast(), len: bytes.len(), mapped: PhantomData }
    }

    /// Length in bytes.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The part from byte `offset` on, `len` bytes long.
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
        Bytes { start, len, mapped: PhantomData }
    }

    /// Copies all bytes out.
    ///
    /// # Panics
    ///
    /// If `out` has another length than this view.
    #[inline(always)]
    pub fn copy_to(&self, out: &mut [u8]) {
        assert!(out.len() == self.len, "{} bytes into a buffer of {}", self.len, out.len());
        // SAFETY: `self.len` bytes from `self.start` are mapped; `out` is a private buffer, because
        // no `&mut [u8]` to a peer's memory exists.
        unsafe { copy_out(self.start, out) }
    }

    /// Copies all bytes to the end of `out`.
    pub fn append_to(&self, out: &mut Vec<u8>) {
        let before = out.len();
        out.resize(before + self.len, 0);
        self.copy_to(&mut out[before..]);
    }

    /// A private copy.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.append_to(&mut out);
        out
    }

    /// Whether the view starts at a multiple of 8 bytes.
    pub(crate) fn is_aligned(&self) -> bool {
        self.start.addr().get().is_multiple_of(8)
    }

    /// The first `N` words of 8 bytes, in native order. `None`: there are not so many, or they are not
    /// aligned.
    #[inline(always)]
    pub(crate) fn words<const N: usize>(&self) -> Option<[u64; N]> {
        if self.len < N * 8 || !self.start.addr().get().is_multiple_of(8) {
            return None;
        }
        // SAFETY: just checked to be aligned and inside of this view.
        Some(core::array::from_fn(|index| unsafe { load_word(self.start, index * 8) }))
    }

    /// The byte at `offset`.
    ///
    /// # Panics
    ///
    /// If `offset` lies outside of this view.
    #[inline(always)]
    pub fn byte(&self, offset: usize) -> u8 {
        assert!(offset < self.len, "byte {offset} of a view of {} bytes", self.len);
        // SAFETY: just checked to lie inside of this view.
        unsafe { load_byte(self.start, offset) }
    }

    /// Eight words of 8 bytes at a time, read in place, for sums and searches over long payloads:
    /// each array is a private copy of 64 bytes in native order. [`Lines::remainder`] has the rest.
    ///
    /// # Examples
    ///
    /// ```
    /// fn sum(bytes: slipring::Bytes<'_>) -> u64 {
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
    /// If the view does not start at a multiple of 8 bytes. A message's payload and a tensor's bytes always do.
    #[inline(always)]
    pub fn lines(&self) -> Lines<'a> {
        assert!(self.start.align_offset(8) == 0, "lines start at a multiple of 8 bytes");
        let whole = self.len / 64 * 64;
        Lines { whole: self.slice(0, whole), rest: self.slice(whole, self.len - whole) }
    }

    /// The bytes as a slice, without a copy.
    ///
    /// # Safety
    ///
    /// - Nobody writes these bytes for `'a`. The sender's process can: its user must be trusted not
    ///   to keep a pointer to what it has sent, and its code not to be hostile.
    #[inline(always)]
    pub unsafe fn as_slice(&self) -> &'a [u8] {
        // SAFETY: mapped for `'a`; the caller vouches that the bytes stand still.
        unsafe { core::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl fmt::Debug for Bytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bytes({} bytes)", self.len)
    }
}

/// A view of bytes that this process may write, and others may read and write at the same time.
///
/// As with [`Bytes`], everything safe here copies. Two writers at once mix their bytes, and nothing
/// worse.
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
        Self { bytes: Bytes { start, len, mapped: PhantomData } }
    }

    /// A view of bytes that nobody else touches.
    pub fn of(bytes: &'a mut [u8]) -> Self {
        let len = bytes.len();
        Self { bytes: Bytes { start: NonNull::from(bytes).cast(), len, mapped: PhantomData } }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.bytes.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes.len == 0
    }

    /// The same bytes, to read.
    pub fn as_bytes(&self) -> Bytes<'a> {
        self.bytes
    }

    /// The part from byte `offset` on, `len` bytes long.
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

    /// Overwrites the first bytes with those of a file at `offset`, by one system call: how many. The kernel
    /// answers with an error where the mapping has no page, and no signal is raised.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn read_from(&self, fd: impl AsFd, offset: u64) -> io::Result<usize> {
        let (fd, start) = (fd.as_fd().as_raw_fd(), self.bytes.start.as_ptr().cast());
        let offset = libc::off64_t::try_from(offset).map_err(io::Error::other)?;
        // SAFETY: the kernel writes at most `len` bytes from `start` on, which are mapped to write; nobody in
        // this process has a reference to any of them.
        let done = unsafe { libc::pread64(fd, start, self.bytes.len, offset) };
        usize::try_from(done).map_err(|_| io::Error::last_os_error())
    }

    /// Overwrites all bytes with those of a view, which others may write, too. Where the two overlap, every byte
    /// is one that was there before or one that was copied already.
    ///
    /// # Panics
    ///
    /// If `from` has another length than this view.
    pub fn copy_from_bytes(&self, from: Bytes<'_>) {
        assert!(from.len == self.len(), "{} bytes into a view of {}", from.len, self.len());
        // SAFETY: as many bytes are mapped there to read, and here to write.
        unsafe { copy_across(from.start, self.bytes.start, from.len) }
    }

    /// The bytes as a slice to write, without a copy.
    ///
    /// # Safety
    ///
    /// - Nobody else reads or writes these bytes for `'a`: no other process that has them mapped, and nobody
    ///   in this one by another view.
    #[inline(always)]
    pub unsafe fn as_mut_slice(&mut self) -> &'a mut [u8] {
        // SAFETY: mapped writable for `'a`; the caller vouches that nobody else touches the bytes.
        unsafe { core::slice::from_raw_parts_mut(self.bytes.start.as_ptr(), self.bytes.len) }
    }
}

/// The whole 64-byte lines of a view, each as eight words. Made by [`Bytes::lines`].
#[derive(Debug, Clone)]
pub struct Lines<'a> {
    whole: Bytes<'a>,
    rest: Bytes<'a>,
}

impl<'a> Lines<'a> {
    /// The bytes after the last whole line: fewer than 64.
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
        // SAFETY: `whole.len` is a multiple of 64 and not 0, and `start` is aligned to 8.
        let line = unsafe { load_line(start) };
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
