//! Segments: memfds, their seals, and the checks of a peer's segments.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use memfd::MemfdOptions;
use rustix::fs::{FallocateFlags, OFlags, SealFlags};
use rustix::io::Errno;

use crate::error::{Error, ErrorKind, Fault, Result};
use crate::shm::mapping::Charge;
use crate::shm::{Area, Mapping, PeerMapping, page_size, present_pages};

/// The seals of every segment: its size is fixed, and nobody can make a new writable mapping. `FUTURE_WRITE`
/// needs Linux 5.1.
const SEALS: SealFlags =
    SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::FUTURE_WRITE).union(SealFlags::SEAL);

/// `TMPFS_MAGIC` of `statfs(2)`: the filesystem of memfds without huge pages.
pub(crate) const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;

/// The kind of pages of a segment.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Backing {
    pub(crate) huge_pages: bool,
    pub(crate) prefault: bool,
    pub(crate) node: Option<u32>,
}

/// A segment of this process: allocated, mapped read-write, then sealed.
#[derive(Debug)]
pub(crate) struct Segment {
    /// Dropped before the mapping, which frees large memory on another thread.
    fd: OwnedFd,
    mapping: Mapping,
    len: usize,
}

impl Segment {
    /// Creates a segment of `len` bytes, with a name for `/proc`. The part from `mirror` on is mapped twice. Both are
    /// multiples of the page size. All bytes are zero.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::OutOfMemory`]: the kernel has no memory for all of `len`.
    /// - [`ErrorKind::FileSizeLimit`]: the process may not make files of this length.
    /// - [`ErrorKind::DescriptorLimit`]: no descriptor is free.
    pub(crate) fn create(
        name: &str,
        (len, mirror): (usize, usize),
        backing: Backing,
    ) -> Result<Self> {
        let fd = create_memfd(name)?;
        if backing.huge_pages {
            truncate(&fd, len)?;
            // The kernel gives shared memory huge pages only where a mapping with the advice faults them in.
            // That comes before `fallocate`, which then finds every page present. Without
            // `MADV_POPULATE_WRITE` (before Linux 5.14) pages stay small.
            let advised = Mapping::map(&fd, len, len)?;
            advised.prefer_huge_pages()?;
            let _ = advised.prefault();
        }
        fill(&fd, len)?;
        let mapping = Mapping::map(&fd, len, mirror)?;
        if let Some(node) = backing.node {
            mapping.bind_to_node(node)?;
        }
        if backing.prefault {
            mapping.prefault()?;
        }
        rustix::fs::fcntl_add_seals(&fd, SEALS).map_err(|errno| Error::os("F_ADD_SEALS", errno))?;
        Ok(Self { fd, mapping, len })
    }

    /// Returns the bytes of this segment, without its mirror.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the segment's inode, by which tools tell segments apart; 0 if the kernel does not say.
    pub(crate) fn inode(&self) -> u64 {
        rustix::fs::fstat(&self.fd).map_or(0, |stat| stat.st_ino)
    }

    /// Returns the parts of this segment that follow `control`, and its descriptor, which the caller closes
    /// after sending it.
    pub(crate) fn into_parts(self, control: usize) -> (Mapping, Area, OwnedFd) {
        let area = self.mapping.take_area(control);
        (self.mapping, area, self.fd)
    }

    /// Cuts an unmirrored segment into `count` blocks of `len` bytes.
    pub(crate) fn split(&self, len: usize, count: usize) -> Vec<Area> {
        self.mapping.split(len, count)
    }

    /// Returns the descriptor for a peer.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Memory that both sides write. Its size is fixed, all of it is allocated, and nobody can add a seal.
///
/// # Errors
///
/// [`ErrorKind::OutOfMemory`], [`ErrorKind::FileSizeLimit`], [`ErrorKind::DescriptorLimit`]
pub fn create_common(len: usize) -> Result<OwnedFd> {
    const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);
    let fd = create_memfd("slipring.common")?;
    fill(&fd, len)?;
    rustix::fs::fcntl_add_seals(&fd, SEALS).map_err(|errno| Error::os("F_ADD_SEALS", errno))?;
    Ok(fd)
}

/// Allocates every block of a new memfd of `len` bytes: a page that cannot be allocated later raises SIGBUS at its first
/// access.
pub(super) fn fill(fd: &OwnedFd, len: usize) -> Result<()> {
    allocate(fd, len as u64)
}

/// Allocates every block of the first `len` bytes of a file, and lengthens the file to them.
///
/// # Errors
///
/// [`ErrorKind::FileSizeLimit`], [`ErrorKind::OutOfMemory`]
pub(crate) fn allocate(fd: impl AsFd, len: u64) -> Result<()> {
    check_file_size(len)?;
    let none = FallocateFlags::empty();
    rustix::io::retry_on_intr(|| rustix::fs::fallocate(&fd, none, 0, len))
        .map_err(|errno| Error::with_source(ErrorKind::OutOfMemory { bytes: len }, errno))
}

/// Checks that this process may write the first `len` bytes of a file, a memfd included. The kernel ends a process that
/// tries to without being allowed to (`SIGXFSZ`).
///
/// # Errors
///
/// [`ErrorKind::FileSizeLimit`]
pub(crate) fn check_file_size(len: u64) -> Result<()> {
    match rustix::process::getrlimit(rustix::process::Resource::Fsize).current {
        Some(limit) if len > limit => Err(ErrorKind::FileSizeLimit { bytes: len, limit }.into()),
        _ => Ok(()),
    }
}

fn truncate(fd: &OwnedFd, len: usize) -> Result<()> {
    check_file_size(len as u64)?;
    rustix::fs::ftruncate(fd, len as u64).map_err(|errno| out_of_memory(len, errno))
}

fn out_of_memory(len: usize, errno: Errno) -> Error {
    Error::with_source(ErrorKind::OutOfMemory { bytes: len as u64 }, errno)
}

/// Creates an empty memfd. `/proc` shows its name, which nothing depends on but tools.
///
/// # Errors
///
/// [`ErrorKind::DescriptorLimit`], [`ErrorKind::Os`]
pub(crate) fn create_memfd(name: &str) -> Result<OwnedFd> {
    match MemfdOptions::default().allow_sealing(true).close_on_exec(true).create(name) {
        Ok(memfd) => Ok(memfd.into_file().into()),
        Err(memfd::Error::Create(error)) if error.raw_os_error() == Some(libc::EACCES) => {
            // `vm.memfd_noexec=2` demands this flag (Linux 6.3), which the crate does not have.
            let flags = rustix::fs::MemfdFlags::CLOEXEC
                | rustix::fs::MemfdFlags::ALLOW_SEALING
                | rustix::fs::MemfdFlags::NOEXEC_SEAL;
            rustix::fs::memfd_create(name, flags).map_err(|errno| Error::os("memfd_create", errno))
        }
        Err(
            memfd::Error::Create(error)
            | memfd::Error::AddSeals(error)
            | memfd::Error::GetSeals(error),
        ) => Err(Error::os("memfd_create", error)),
    }
}

/// Returns the device number of memfds without huge pages, which no other file has, or `None` if none can be made.
pub(crate) fn memfd_device() -> Option<u64> {
    let stat = rustix::fs::fstat(create_memfd("slipring.probe").ok()?).ok()?;
    Some(stat.st_dev)
}

/// A peer's segment: checked, then mapped read-only.
#[derive(Debug)]
pub(crate) struct PeerSegment {
    mapping: PeerMapping,
    len: usize,
    /// Its inode if it was [attached](Self::attach), otherwise 0.
    inode: u64,
    /// What it counts for beside the one that was mapped first.
    _charge: Option<Charge>,
}

/// What no other memory has as long as this one lives: its device and its inode.
pub(super) type Identity = (u64, u64);

impl PeerSegment {
    /// Checks a peer's descriptor as a segment of `len` bytes, and maps it. `is_counted`: its pages were counted before.
    ///
    /// # Errors
    ///
    /// [`Fault`](crate::error::Fault) with the first check that fails.
    pub(crate) fn attach(
        fd: impl AsFd,
        (len, is_counted): (usize, bool),
        mirror: usize,
        prefault: bool,
    ) -> Result<Self> {
        let (_, inode) = check(fd.as_fd(), len as u64, SEALS)?;
        let segment = Self::map(fd, (len, is_counted), mirror, prefault)?;
        Ok(Self { inode, ..segment })
    }

    /// Returns the identity of a peer's segment of `len` bytes.
    ///
    /// # Errors
    ///
    /// [`Fault`](crate::error::Fault) with the first check that fails.
    pub(super) fn identify(fd: impl AsFd, len: usize) -> Result<Identity> {
        check(fd.as_fd(), len as u64, SEALS)
    }

    /// Returns another reference to a segment, which counts for an account of its own.
    pub(super) fn shared(mapping: PeerMapping, len: usize, charge: Charge) -> Self {
        Self { mapping, len, inode: 0, _charge: Some(charge) }
    }

    /// Maps a segment that was [identified](Self::identify).
    ///
    /// # Errors
    ///
    /// As [`attach`](Self::attach).
    pub(super) fn map(
        fd: impl AsFd,
        (len, is_counted): (usize, bool),
        mirror: usize,
        prefault: bool,
    ) -> Result<Self> {
        let known = is_counted || is_whole(fd.as_fd(), len, 0..len)?;
        let mapping = PeerMapping::map(&fd, len, mirror).map_err(|error| {
            // Linux before 6.7 refuses a shared mapping of a sealed file by a descriptor that is open for
            // writing. The peer sent that descriptor.
            let refused = matches!(error.os_code(), Some(libc::EPERM | libc::EACCES));
            if refused { Fault::AccessMode.into() } else { error }
        })?;
        if !known {
            fill_holes(&mapping, fd.as_fd(), len as u64)?;
        } else if prefault {
            mapping.prefault()?;
        }
        Ok(Self { mapping, len, inode: 0, _charge: None })
    }

    /// Counts the pages of a part of a peer's segment of `len` bytes. Returns `false` if this kernel does not report them.
    ///
    /// # Errors
    ///
    /// As [`attach`](Self::attach).
    pub(crate) fn count_pages(fd: BorrowedFd<'_>, len: usize, part: Range<usize>) -> Result<bool> {
        check(fd, len as u64, SEALS)?;
        is_whole(fd, len, part)
    }

    pub(crate) fn mapping(&self) -> &PeerMapping {
        &self.mapping
    }

    /// Returns the inode of a segment that was [attached](Self::attach), otherwise 0.
    pub(crate) fn inode(&self) -> u64 {
        self.inode
    }

    /// Returns the bytes of this segment, without its mirror.
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

/// Checks that `fd` is memory that cannot shrink and whose accesses cannot fail. Returns its identity.
pub(super) fn check(fd: BorrowedFd<'_>, expected: u64, required: SealFlags) -> Result<Identity> {
    // `O_PATH` descriptors answer `F_GETFL` and nothing else. A memfd that is open for writing only cannot be
    // mapped.
    let flags = rustix::fs::fcntl_getfl(fd).map_err(|errno| Error::os("F_GETFL", errno))?;
    if flags.contains(OFlags::PATH) || flags & OFlags::RWMODE == OFlags::WRONLY {
        return Err(Fault::AccessMode.into());
    }
    // Only memory answers this, and no filesystem hears of it. The server of another file's filesystem could leave the
    // questions below without an answer.
    let seals = match rustix::fs::fcntl_get_seals(fd) {
        Ok(seals) => seals,
        Err(_) => return Err(Fault::NotMemfd.into()),
    };
    // Huge-page memfds know seals, too, but an access raises SIGBUS when their pool runs dry.
    let on_tmpfs = rustix::fs::fstatfs(fd).is_ok_and(|filesystem| filesystem.f_type == TMPFS_MAGIC);
    if !on_tmpfs {
        return Err(Fault::NotMemfd.into());
    }
    if !seals.contains(required) {
        let fault = Fault::Seals { seals: seals.bits(), required: required.bits() };
        return Err(fault.into());
    }
    let stat = rustix::fs::fstat(fd).map_err(|errno| Error::os("fstat", errno))?;
    let size = stat.st_size.unsigned_abs();
    if size != expected {
        return Err(Fault::MemorySize { size, expected }.into());
    }
    // A read of a hole would allocate its page on this process's account, or raise SIGBUS. Every kernel
    // reports the blocks. Blocks past the end count, too.
    let allocated = stat.st_blocks.unsigned_abs().saturating_mul(512);
    if allocated < size {
        return Err(Fault::Sparse { allocated, size }.into());
    }
    // Memory counts as small by its length, and the blocks behind its end are freed with it. The seal against growing
    // keeps their number.
    let most = most_blocks(size);
    if allocated > most {
        return Err(Fault::Excess { allocated, most }.into());
    }
    Ok((stat.st_dev, stat.st_ino))
}

/// Returns the most bytes that the kernel allocates for memory of `size` bytes: the last page may be a huge one, which has
/// as many pages as a page has pointers.
fn most_blocks(size: u64) -> u64 {
    let page = page_size() as u64;
    let huge = page * (page / size_of::<u64>() as u64);
    size.checked_next_multiple_of(huge).unwrap_or(u64::MAX).saturating_add(page)
}

/// Returns how many bytes the end of the last reference to a peer's memory frees at most. `None`: not known, as it is no
/// memory, or another process can lengthen it.
pub(crate) fn most_freed(fd: impl AsFd) -> Option<u64> {
    // Only memory answers this, and no filesystem hears of it.
    let seals = rustix::fs::fcntl_get_seals(&fd).ok()?;
    let stat = rustix::fs::fstat(&fd).ok().filter(|_| seals.contains(SealFlags::GROW))?;
    Some(stat.st_size.unsigned_abs().max(stat.st_blocks.unsigned_abs().saturating_mul(512)))
}

/// Refuses a segment of `len` bytes with unallocated pages in a part. Returns `false` if this kernel does not report them.
pub(super) fn is_whole(fd: BorrowedFd<'_>, len: usize, part: Range<usize>) -> Result<bool> {
    let present = present_pages(fd, part.start as u64, part.len() as u64);
    let pages = (part.len() / page_size()) as u64;
    if let Some(present) = present.filter(|present| *present < pages) {
        // The parts before this one are allocated.
        let (allocated, size) = (part.start as u64 + present * page_size() as u64, len as u64);
        return Err(Fault::Sparse { allocated, size }.into());
    }
    Ok(present.is_some())
}

/// Reads every page, for kernels that cannot count the pages of a file. The reads allocate missing pages, and
/// a segment with missing pages is refused.
pub(super) fn fill_holes(mapping: &PeerMapping, fd: BorrowedFd<'_>, size: u64) -> Result<()> {
    let blocks = || rustix::fs::fstat(fd).map_or(0, |stat| stat.st_blocks.unsigned_abs());
    let before = blocks();
    // Kernels before 5.14 cannot do this, either. There a reader finds the hole.
    let _ = mapping.prefault();
    if blocks() > before {
        return Err(Fault::Sparse { allocated: before * 512, size }.into());
    }
    Ok(())
}
