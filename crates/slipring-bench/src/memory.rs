//! Memory that the two processes share, for the floors and for commands to the peer.
//!
//! Raw mappings become words and bytes here. Both processes run the same program, so a floor trusts its peer. A subject
//! brings the library's own memory and uses none of this.
//!
//! Two kinds of memory:
//! - *shared*: both processes may write it (`line`, `rotate`, `memcpy`, `futex`, `ring`, commands);
//! - *one writer*: its creator maps it, seals it `SHRINK|GROW|FUTURE_WRITE|SEAL`, and the reader maps it `PROT_READ`
//!   (`line-ro`), as every segment of the library is.

#![allow(unsafe_code)]

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

use crate::Outcome;

/// Bytes of a page.
pub const PAGE: usize = 4096;

/// A `MAP_SHARED` mapping of a whole memfd, with every page present.
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
    writable: bool,
}

// SAFETY: the mapping is not tied to the thread that made it, and `Mapping` owns it alone.
unsafe impl Send for Mapping {}
// SAFETY: a shared `Mapping` gives out atomics only. The callers of `bytes` and `bytes_mut` promise to keep others away.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Creates a segment of `len` bytes and returns its mapping and its descriptor. All memory is allocated, the mapping is
    /// writable, and a segment with one writer is sealed.
    pub fn create(len: usize, one_writer: bool) -> Outcome<(Mapping, OwnedFd)> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create("slipring-bench", flags)?;
        rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, len as u64)?;
        let mapping = Mapping::map(fd.as_fd(), len, true)?;
        if one_writer {
            let seals =
                SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
            rustix::fs::fcntl_add_seals(&fd, seals)?;
        }
        Ok((mapping, fd))
    }

    /// Maps fresh memory with every page present, and unmaps it.
    pub fn populate(len: usize) -> Outcome<()> {
        let fd = rustix::fs::memfd_create("slipring-bench", MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&fd, len as u64)?;
        Mapping::map(fd.as_fd(), len, true).map(drop)
    }

    /// Maps a segment that the peer created.
    pub fn attach(fd: &OwnedFd, len: usize, writable: bool) -> Outcome<Mapping> {
        let size = rustix::fs::fstat(fd)?.st_size;
        if size != len as i64 {
            return Err(format!("the peer's segment has {size} bytes, expected {len}").into());
        }
        Mapping::map(fd.as_fd(), len, writable)
    }

    fn map(fd: BorrowedFd<'_>, len: usize, writable: bool) -> Outcome<Mapping> {
        let protection =
            if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a new mapping at an address that the kernel chooses overlaps nothing.
        let base = unsafe { rustix::mm::mmap(ptr::null_mut(), len, protection, flags, fd, 0)? };
        let base = NonNull::new(base.cast()).ok_or("mmap returned null")?;
        Ok(Mapping { base, len, writable })
    }

    /// Returns a word that this process may store to.
    ///
    /// # Panics
    /// If the mapping is read-only, or the word is not inside of it.
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(self.writable, "a read-only mapping has no words to store to");
        self.at(offset)
    }

    /// Returns a word that this process only loads.
    ///
    /// # Panics
    /// If the word is not inside of the mapping.
    pub fn watch(&self, offset: usize) -> Watched<'_> {
        Watched(self.at(offset))
    }

    /// Returns the low half of a word, for a futex.
    ///
    /// # Panics
    /// As [`Mapping::word`].
    pub fn futex(&self, offset: usize) -> &AtomicU32 {
        assert!(self.writable, "a read-only mapping has no words to store to");
        assert!(offset.is_multiple_of(4) && offset < self.len, "futex outside of the mapping");
        // SAFETY: `offset` lies inside the mapping, asserted above.
        let address = unsafe { self.base.add(offset) };
        // SAFETY: aligned to 4, mapped writable for as long as `self` lives, touched only as an atomic.
        unsafe { AtomicU32::from_ptr(address.as_ptr().cast()) }
    }

    fn at(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset < self.len, "word outside of the mapping");
        // SAFETY: `offset` lies inside the mapping (a multiple of 8 bytes), asserted above.
        let address = unsafe { self.base.add(offset) };
        // SAFETY: aligned to 8, mapped for as long as `self` lives, touched only as an atomic. `word` refuses read-only
        // mappings, and `watch` returns a type that only loads.
        unsafe { AtomicU64::from_ptr(address.as_ptr().cast()) }
    }

    /// Returns a part of the mapping as bytes.
    ///
    /// # Safety
    /// - Neither process writes the range while the slice lives.
    pub unsafe fn bytes(&self, range: Range<usize>) -> &[u8] {
        assert!(range.start <= range.end && range.end <= self.len, "bytes outside of the mapping");
        // SAFETY: the range's start lies inside the mapping, asserted above.
        let start = unsafe { self.base.add(range.start) };
        // SAFETY: the range is mapped while `self` lives, and the caller keeps writers away.
        unsafe { slice::from_raw_parts(start.as_ptr(), range.len()) }
    }

    /// Returns a part of the mapping as bytes that the caller may write.
    ///
    /// # Safety
    /// - No other code, in either process, reads or writes the range while the slice lives.
    #[expect(clippy::mut_from_ref, reason = "one side at a time has the range")]
    pub unsafe fn bytes_mut(&self, range: Range<usize>) -> &mut [u8] {
        assert!(self.writable, "a read-only mapping has no bytes to write");
        assert!(range.start <= range.end && range.end <= self.len, "bytes outside of the mapping");
        // SAFETY: the range's start lies inside the mapping, asserted above.
        let start = unsafe { self.base.add(range.start) };
        // SAFETY: the range is mapped writable while `self` lives, and the caller has it alone.
        unsafe { slice::from_raw_parts_mut(start.as_ptr(), range.len()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `map` made it with this length, and no borrow of it outlives `self`. A failure leaks the mapping until
        // the process ends.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// A word that the peer writes. Rust defines no acquire load of read-only memory, so the load is relaxed and a fence
/// follows.
pub struct Watched<'a>(&'a AtomicU64);

impl Watched<'_> {
    /// Loads the word, without ordering.
    pub fn load(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Polls until `done` accepts the word, and returns it. The watchdog ends a run that waits too long.
    pub fn until(&self, done: impl Fn(u64) -> bool) -> u64 {
        loop {
            let word = self.load();
            if done(word) {
                // Pairs with the peer's Release store of the word: all that the peer wrote before is visible.
                fence(Ordering::Acquire);
                return word;
            }
        }
    }
}
