//! Segments: memfds, their seals, and the checks of a peer's.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use memfd::MemfdOptions;
use rustix::fs::{FallocateFlags, OFlags, SealFlags};
use rustix::io::Errno;

use crate::error::{DescriptorFault, Error, ErrorKind, Result};
use crate::shm::{Area, Mapping, PeerMapping, page_size, present_pages};

/// The seals of every segment: its size is fixed, and no new writable mapping can be made.
/// `FUTURE_WRITE` needs Linux 5.1.
const SEALS: SealFlags =
    SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::FUTURE_WRITE).union(SealFlags::SEAL);

/// `TMPFS_MAGIC` of `statfs(2)`: what a memfd without huge pages lives on.
pub(crate) const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;

/// How the memory of a segment is provided.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Backing {
    pub(crate) huge_pages: bool,
    pub(crate) prefault: bool,
    pub(crate) node: Option<u32>,
}

/// Memory of ours: allocated, mapped read-write, then sealed.
#[derive(Debug)]
pub(crate) struct Segment {
    mapping: Mapping,
    fd: OwnedFd,
    len: usize,
}

impl Segment {
    /// Creates a segment of `len` bytes, mapped with its part from `mirror` on twice; both are
    /// multiples of the page size. All bytes are zero.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::OutOfMemory`]: the kernel cannot back all of `len` now.
    /// - [`ErrorKind::DescriptorLimit`]: no descriptor is free.
    pub(crate) fn create(len: usize, mirror: usize, backing: Backing) -> Result<Self> {
        let fd = create_memfd()?;
        if backing.huge_pages {
            truncate(&fd, len)?;
            // Shared memory gets huge pages only where a mapping with the advice faults them in,
            // so that comes before fallocate, which then finds every page present. Where the
            // kernel has no MADV_POPULATE_WRITE (before 5.14), pages stay small.
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
        Ok(Self { mapping, fd, len })
    }

    /// Bytes in this segment, without its mirror.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The parts of this segment that follow `control`, and its descriptor, which its receiver
    /// closes once it is sent.
    pub(crate) fn into_parts(self, control: usize) -> (Mapping, Area, OwnedFd) {
        let area = self.mapping.take_area(control);
        (self.mapping, area, self.fd)
    }

    /// Cuts an unmirrored segment into `count` blocks of `len` bytes.
    pub(crate) fn split(&self, len: usize, count: usize) -> Vec<Area> {
        self.mapping.split(len, count)
    }

    /// The descriptor to hand to a peer.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Memory that both sides write: of a fixed size, all of it there, and no seal can be added.
///
/// # Errors
///
/// As for [`Segment::create`].
pub(crate) fn create_common(len: usize) -> Result<OwnedFd> {
    const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);
    let fd = create_memfd()?;
    fill(&fd, len)?;
    rustix::fs::fcntl_add_seals(&fd, SEALS).map_err(|errno| Error::os("F_ADD_SEALS", errno))?;
    Ok(fd)
}

/// Makes a memfd `len` bytes long, and every block of it present: a page that could not be allocated
/// later would raise SIGBUS when it is touched.
pub(super) fn fill(fd: &OwnedFd, len: usize) -> Result<()> {
    truncate(fd, len)?;
    let (none, bytes) = (FallocateFlags::empty(), len as u64);
    rustix::io::retry_on_intr(|| rustix::fs::fallocate(fd, none, 0, bytes))
        .map_err(|errno| out_of_memory(len, errno))
}

fn truncate(fd: &OwnedFd, len: usize) -> Result<()> {
    rustix::fs::ftruncate(fd, len as u64).map_err(|errno| out_of_memory(len, errno))
}

fn out_of_memory(len: usize, errno: Errno) -> Error {
    Error::with_source(ErrorKind::OutOfMemory { bytes: len as u64 }, errno)
}

pub(super) fn create_memfd() -> Result<OwnedFd> {
    const NAME: &str = "slipring";
    match MemfdOptions::default().allow_sealing(true).close_on_exec(true).create(NAME) {
        Ok(memfd) => Ok(memfd.into_file().into()),
        Err(memfd::Error::Create(error)) if error.raw_os_error() == Some(libc::EACCES) => {
            // vm.memfd_noexec=2 demands this flag (Linux 6.3), which the crate does not have.
            let flags = rustix::fs::MemfdFlags::CLOEXEC
                | rustix::fs::MemfdFlags::ALLOW_SEALING
                | rustix::fs::MemfdFlags::NOEXEC_SEAL;
            rustix::fs::memfd_create(NAME, flags).map_err(|errno| Error::os("memfd_create", errno))
        }
        Err(
            memfd::Error::Create(error)
            | memfd::Error::AddSeals(error)
            | memfd::Error::GetSeals(error),
        ) => Err(Error::os("memfd_create", error)),
    }
}

/// Memory of a peer: checked, then mapped read-only.
#[derive(Debug)]
pub(crate) struct PeerSegment {
    mapping: PeerMapping,
    len: usize,
}

impl PeerSegment {
    /// Checks a descriptor that a peer sent as a segment of `len` bytes, maps it, and closes it.
    ///
    /// # Errors
    ///
    /// [`Fault::Descriptor`](crate::error::Fault::Descriptor) with the first check that failed.
    pub(crate) fn attach(fd: impl AsFd, len: usize, mirror: usize, prefault: bool) -> Result<Self> {
        check(fd.as_fd(), len as u64, SEALS)?;
        let known = is_whole(fd.as_fd(), len)?;
        let mapping = PeerMapping::map(&fd, len, mirror).map_err(|error| {
            // Linux before 6.7 shares nothing that is sealed against writing by a descriptor that could write: that
            // is the peer's doing.
            let refused = matches!(error.os_code(), Some(libc::EPERM | libc::EACCES));
            if refused { DescriptorFault::AccessMode.into() } else { error }
        })?;
        if !known {
            fill_holes(&mapping, fd.as_fd(), len as u64)?;
        } else if prefault {
            mapping.prefault()?;
        }
        Ok(Self { mapping, len })
    }

    pub(crate) fn mapping(&self) -> &PeerMapping {
        &self.mapping
    }

    /// Bytes in this segment, without its mirror.
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

/// Whether `fd` is memory that can neither shrink nor fail when it is touched.
pub(super) fn check(fd: BorrowedFd<'_>, expected: u64, required: SealFlags) -> Result<()> {
    // O_PATH descriptors answer F_GETFL and nothing else; a memfd opened for writing only cannot
    // be mapped.
    let flags = rustix::fs::fcntl_getfl(fd).map_err(|errno| Error::os("F_GETFL", errno))?;
    if flags.contains(OFlags::PATH) || flags & OFlags::RWMODE == OFlags::WRONLY {
        return Err(DescriptorFault::AccessMode.into());
    }
    let seals = match rustix::fs::fcntl_get_seals(fd) {
        Ok(seals) => seals,
        Err(_) => return Err(DescriptorFault::NotMemfd.into()),
    };
    // Huge-page memfds know seals too, but raise SIGBUS on touch when their pool runs dry.
    let on_tmpfs = rustix::fs::fstatfs(fd).is_ok_and(|filesystem| filesystem.f_type == TMPFS_MAGIC);
    if !on_tmpfs {
        return Err(DescriptorFault::NotMemfd.into());
    }
    if !seals.contains(required) {
        let fault = DescriptorFault::Seals { seals: seals.bits(), required: required.bits() };
        return Err(fault.into());
    }
    let stat = rustix::fs::fstat(fd).map_err(|errno| Error::os("fstat", errno))?;
    let size = stat.st_size.unsigned_abs();
    if size != expected {
        return Err(DescriptorFault::Size { size, expected }.into());
    }
    // Reading a hole would allocate its page on our account, or fail with SIGBUS. This is what every
    // kernel tells; blocks beyond the end count, too.
    let allocated = stat.st_blocks.unsigned_abs().saturating_mul(512);
    if allocated < size {
        return Err(DescriptorFault::Sparse { allocated, size }.into());
    }
    Ok(())
}

/// Refuses a segment with pages that are not allocated. False: this kernel does not tell.
pub(super) fn is_whole(fd: BorrowedFd<'_>, len: usize) -> Result<bool> {
    let present = present_pages(fd, len as u64);
    let pages = (len / page_size()) as u64;
    if let Some(present) = present.filter(|present| *present < pages) {
        let (allocated, size) = (present * page_size() as u64, len as u64);
        return Err(DescriptorFault::Sparse { allocated, size }.into());
    }
    Ok(present.is_some())
}

/// For kernels that cannot count the pages of a file: reads every page, which allocates what is
/// missing, and refuses a segment of which something was.
pub(super) fn fill_holes(mapping: &PeerMapping, fd: BorrowedFd<'_>, size: u64) -> Result<()> {
    let blocks = || rustix::fs::fstat(fd).map_or(0, |stat| stat.st_blocks.unsigned_abs());
    let before = blocks();
    // Kernels before 5.14 cannot do this either; there a hole is found by whoever reads it.
    let _ = mapping.prefault();
    if blocks() > before {
        return Err(DescriptorFault::Sparse { allocated: before * 512, size }.into());
    }
    Ok(())
}
