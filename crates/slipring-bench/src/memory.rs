//! Memory that the two processes share, for the floors and the command mailbox.
//!
//! The one place where raw mappings become words and bytes. Both processes run this same program, so
//! a floor trusts its peer; a subject brings the library's own memory and none of this.
//!
//! Two kinds:
//! - *shared*: writable by both (mailbox, `line`, `rotate`, `memcpy`, `futex`, `ring`);
//! - *one writer*: sealed `SHRINK|GROW|FUTURE_WRITE|SEAL` after the creator's mapping was made and
//!   mapped `PROT_READ` by the reader (`line-ro`), as every segment of the library is.

#![allow(unsafe_code)]

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

use crate::Outcome;

pub const PAGE: usize = 4096;

/// One `MAP_SHARED` mapping of a whole memfd, populated.
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
    writable: bool,
}

// SAFETY: the mapping is not tied to the thread that made it, and `Mapping` owns it alone.
unsafe impl Send for Mapping {}
// SAFETY: shared, it gives out atomics only; whoever takes slices keeps others away.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Creates a segment of `len` bytes, allocated, mapped writable, and sealed if it has one writer.
    pub fn create(len: usize, one_writer: bool) -> Outcome<(Mapping, OwnedFd)> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create("ping_pong", flags)?;
        rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, len as u64)?;
        let mapping = Mapping::map(fd.as_fd(), len, true)?;
        if one_writer {
            let seals =
                SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
            rustix::fs::fcntl_add_seals(&fd, seals)?;
        }
        Ok((mapping, fd))
    }

    /// Fresh memory, every page of it present, and gone again.
    pub fn populate(len: usize) -> Outcome<()> {
        let fd = rustix::fs::memfd_create("ping_pong", MemfdFlags::CLOEXEC)?;
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

    /// A word that this process may store to.
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(self.writable, "a read-only mapping has no words to store to");
        self.at(offset)
    }

    /// A word that this process only loads.
    pub fn watch(&self, offset: usize) -> Watched<'_> {
        Watched(self.at(offset))
    }

    /// The low half of a word, as a futex wants it.
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
        // SAFETY: aligned to 8, mapped for as long as `self` lives, touched only as an atomic; `word`
        // and `watch` see to it that a read-only word is only loaded.
        unsafe { AtomicU64::from_ptr(address.as_ptr().cast()) }
    }

    /// # Safety
    /// - Neither process writes the range while the slice lives.
    pub unsafe fn bytes(&self, range: Range<usize>) -> &[u8] {
        assert!(range.start <= range.end && range.end <= self.len, "bytes outside of the mapping");
        // SAFETY: the range's start lies inside the mapping, asserted above.
        let start = unsafe { self.base.add(range.start) };
        // SAFETY: the range is mapped while `self` lives, and the caller keeps writers away.
        unsafe { slice::from_raw_parts(start.as_ptr(), range.len()) }
    }

    /// # Safety
    /// - Nobody else, in either process, reads or writes the range while the slice lives.
    #[expect(
        clippy::mut_from_ref,
        reason = "the caller's protocol hands the range from turn to turn"
    )]
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
        // SAFETY: made by `map` with this length; no borrow of it outlives `self`. A failure would
        // leak the mapping until the process ends, which is harmless.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// A word that the peer writes: loaded relaxed and fenced, since Rust defines no acquire load of
/// read-only memory.
pub struct Watched<'a>(&'a AtomicU64);

impl Watched<'_> {
    pub fn load(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Polls until `done` likes the word. Has no deadline of its own: the watchdog ends the run.
    pub fn until(&self, done: impl Fn(u64) -> bool) -> u64 {
        loop {
            let word = self.load();
            if done(word) {
                // Pairs with the Release store of the word by the peer: what it wrote before is visible.
                fence(Ordering::Acquire);
                return word;
            }
        }
    }
}
