//! Memory that nobody can write.
//!
//! ```text
//!   Draft: memfd, mapped read-write, ours alone
//!     └ freeze: unmap ─ seal SHRINK|GROW|WRITE|SEAL ─ map read-only
//!                         └ Frozen: slices, here and in every process that it is sent to
//! ```
//!
//! The kernel refuses the WRITE seal while a writable mapping exists, and every writable mapping after it.

#![allow(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::SealFlags;

use crate::error::{Error, Result};
use crate::shm::fork::Generation;
use crate::shm::segment::{check, create_memfd, fill, fill_holes, is_whole};
use crate::shm::{Area, Mapping, PeerMapping};

/// The seals of frozen memory.
const SEALS: SealFlags =
    SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::WRITE).union(SealFlags::SEAL);

/// Memory of this process that will be frozen.
#[derive(Debug)]
pub(crate) struct Draft {
    area: Area,
    fd: OwnedFd,
    len: usize,
}

impl Draft {
    /// Returns memory of `len` bytes, a multiple of the page size. All bytes are zero.
    ///
    /// # Errors
    ///
    /// As [`Segment::create`](crate::shm::Segment::create).
    pub(crate) fn create(len: usize) -> Result<Self> {
        let fd = create_memfd("slipring.frozen")?;
        fill(&fd, len)?;
        let area = Mapping::map_unmapped_at_once(&fd, len)?.take_area(0);
        Ok(Self { area, fd, len })
    }

    pub(crate) fn bytes_mut(&mut self, len: usize) -> &mut [u8] {
        self.area.bytes_mut(0, len)
    }

    pub(crate) fn bytes(&self, len: usize) -> &[u8] {
        self.area.bytes(0, len)
    }

    pub(crate) fn generation(&self) -> &Generation {
        self.area.generation()
    }

    /// Freezes the memory: nobody can write it.
    pub(crate) fn freeze(self) -> Result<Frozen> {
        let Self { area, fd, len } = self;
        // The drop unmaps it.
        drop(area);
        rustix::fs::fcntl_add_seals(&fd, SEALS).map_err(|errno| Error::os("F_ADD_SEALS", errno))?;
        let mapping = PeerMapping::map_frozen(&fd, len)?;
        Ok(Frozen { fd, mapping, len })
    }
}

/// Memory that is sealed against writing, of this process or of a peer.
#[derive(Debug)]
pub(crate) struct Frozen {
    /// Kept for sending it on. Dropped before the mapping, which frees large memory on another thread.
    fd: OwnedFd,
    mapping: PeerMapping,
    len: usize,
}

impl Frozen {
    /// Checks a peer's descriptor as frozen memory of `len` bytes and maps it. `is_counted`: its pages were counted before.
    ///
    /// # Errors
    ///
    /// [`Fault`](crate::error::Fault) with the first check that fails.
    pub(crate) fn attach(
        fd: impl AsFd + Into<OwnedFd>,
        len: usize,
        is_counted: bool,
    ) -> Result<Self> {
        check(fd.as_fd(), len as u64, SEALS)?;
        let known = is_counted || is_whole(fd.as_fd(), len, 0..len)?;
        let mapping = PeerMapping::map_frozen(&fd, len)?;
        if !known {
            fill_holes(&mapping, fd.as_fd(), len as u64)?;
        }
        Ok(Self { fd: fd.into(), mapping, len })
    }

    /// As [`PeerSegment::count_pages`](crate::shm::PeerSegment::count_pages).
    pub(crate) fn count_pages(
        fd: BorrowedFd<'_>,
        len: usize,
        part: std::ops::Range<usize>,
    ) -> Result<bool> {
        check(fd, len as u64, SEALS)?;
        is_whole(fd, len, part)
    }

    /// Returns the length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// As [`PeerMapping::count`].
    pub(crate) fn count(&self, charge: impl std::fmt::Debug + Send + Sync + 'static) {
        self.mapping.count(charge);
    }

    /// Returns the `len` bytes at `offset`.
    ///
    /// # Panics
    ///
    /// If they do not lie inside of this memory.
    #[inline]
    pub(crate) fn bytes(&self, offset: usize, len: usize) -> &[u8] {
        assert!(offset <= self.len && len <= self.len - offset, "inside of the memory");
        let bytes = self.mapping.bytes(offset, len);
        // SAFETY: the memory was sealed with WRITE when it was mapped, so no writable mapping of it exists
        // or can be made, and `write` is refused: these bytes cannot change while they are mapped.
        unsafe { bytes.as_slice() }
    }
}

#[cfg(test)]
mod tests;
