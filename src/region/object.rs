//! The object behind a region: its descriptor, and the kernel's reads and writes of it.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, SealFlags, SeekFrom};
use rustix::io::Errno;

use crate::error::{Error, RegionFault, Result};
use crate::region::RegionKind;
use crate::region::extent::Extent;
use crate::region::key::Key;
use crate::shm::fork::Generation;
use crate::shm::{LARGE, TMPFS_MAGIC, check_file_size, discard, page_size, present_pages};

/// `DMA_BUF_MAGIC` of `linux/magic.h`: the filesystem of dmabufs alone (Linux 5.3).
const DMA_BUF_MAGIC: rustix::fs::FsWord = 0x444D_4142;

/// A descriptor of this process, checked to be of the kind that the caller said.
#[derive(Debug)]
pub(super) struct Object {
    fd: OwnedFd,
    kind: RegionKind,
    writable: bool,
    /// The process that has the descriptor.
    generation: Option<Generation>,
}

impl Object {
    /// Opens the object of a key, for writing if the permissions allow it.
    pub(super) fn open(key: &Key) -> Result<Self> {
        // As `shm_open` does. `O_NONBLOCK`, because a FIFO or a file lease would block before it is refused.
        let flags = OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        let path = key.path();
        let open = |mode| {
            rustix::io::retry_on_intr(|| rustix::fs::open(&path, flags | mode, Mode::empty()))
        };
        let opened = match open(OFlags::RDWR) {
            Err(Errno::ACCESS | Errno::PERM | Errno::ROFS) => open(OFlags::RDONLY),
            other => other,
        };
        let fd = opened.map_err(|errno| open_error(key, errno))?;
        let (kind, writable) = (RegionKind::Posix, check(fd.as_fd(), RegionKind::Posix)?);
        Ok(Self { fd, kind, writable, generation: Generation::current().ok() })
    }

    /// Duplicates the descriptor of a memfd or dmabuf. Before the checks, nothing asks the filesystem of the file or
    /// closes a copy of the descriptor: a peer may have sent it, and may be the filesystem's server.
    pub(super) fn duplicate(fd: BorrowedFd<'_>, kind: RegionKind) -> Result<Self> {
        let writable = check(fd, kind)?;
        let own = rustix::io::fcntl_dupfd_cloexec(fd, 0);
        let fd = own.map_err(|errno| Error::os("F_DUPFD_CLOEXEC", errno))?;
        Ok(Self { fd, kind, writable, generation: Generation::current().ok() })
    }

    /// Wraps a newly created object: a regular file on tmpfs, open for reading and writing.
    pub(super) fn created(fd: OwnedFd) -> Self {
        let generation = Generation::current().ok();
        Self { fd, kind: RegionKind::Posix, writable: true, generation }
    }

    pub(super) fn kind(&self) -> RegionKind {
        self.kind
    }

    /// Returns whether the descriptor of another object of the same identity does for this one.
    pub(super) fn equals(&self, other: &Self) -> bool {
        (self.kind, self.writable) == (other.kind, other.writable)
    }

    /// Returns its present size in bytes.
    pub(super) fn size(&self) -> Result<u64> {
        if self.kind == RegionKind::Dmabuf {
            let end = rustix::fs::seek(&self.fd, SeekFrom::End(0));
            return end.map_err(|errno| Error::os("lseek", errno));
        }
        let stat = rustix::fs::fstat(&self.fd).map_err(|errno| Error::os("fstat", errno))?;
        Ok(stat.st_size.unsigned_abs())
    }

    /// Returns device and inode.
    pub(super) fn identity(&self) -> Result<(u64, u64)> {
        let stat = rustix::fs::fstat(&self.fd).map_err(|errno| Error::os("fstat", errno))?;
        Ok((stat.st_dev, stat.st_ino))
    }

    fn seals(&self) -> SealFlags {
        rustix::fs::fcntl_get_seals(&self.fd).unwrap_or(SealFlags::empty())
    }

    /// Returns whether mode and seals allow writing.
    pub(super) fn is_writable(&self) -> bool {
        self.writable && !self.seals().intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE)
    }

    /// Returns whether nobody can truncate the object.
    pub(super) fn is_kept_long(&self) -> bool {
        self.seals().contains(SealFlags::SHRINK)
    }

    /// Returns whether an access to the first `end` bytes can raise no signal: nobody can truncate them, and
    /// their pages are allocated.
    pub(super) fn is_sealed(&self, end: u64) -> bool {
        if !self.is_kept_long() {
            return false;
        }
        match present_pages(&self.fd, 0, end) {
            Some(pages) => pages >= end.div_ceil(page_size() as u64),
            // Blocks past the end count, too: older kernels report them so.
            None => rustix::fs::fstat(&self.fd)
                .is_ok_and(|stat| stat.st_blocks.unsigned_abs().saturating_mul(512) >= end),
        }
    }

    /// Checks that the object still has all of `part`.
    pub(super) fn holds(&self, part: Extent) -> Result<()> {
        let size = self.size()?;
        if part.end() > size {
            let there = size.saturating_sub(part.offset());
            return Err(RegionFault::Truncated { there, len: part.len() }.into());
        }
        Ok(())
    }

    /// Copies the bytes at `offset` to `out`, by system calls.
    pub(super) fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let mut done = 0;
        while done < out.len() {
            match rustix::io::pread(&self.fd, &mut out[done..], offset + done as u64) {
                Ok(0) => {
                    let (there, len) = (done as u64, out.len() as u64);
                    return Err(RegionFault::Truncated { there, len }.into());
                }
                Ok(more) => done += more,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(Error::os("pread", errno)),
            }
        }
        Ok(())
    }

    /// Copies `bytes` to `offset`, by system calls. The call does not lengthen an object that was truncated,
    /// unless the truncation happens within the call.
    pub(super) fn write_at(&self, part: Extent, bytes: &[u8]) -> Result<()> {
        if !self.writable {
            return Err(RegionFault::ReadOnly.into());
        }
        self.holds(part)?;
        // The limit counts from the start of the file, also where the file is longer.
        check_file_size(part.offset().saturating_add(bytes.len() as u64))?;
        let mut done = 0;
        while done < bytes.len() {
            match rustix::io::pwrite(&self.fd, &bytes[done..], part.offset() + done as u64) {
                Ok(0) => return Err(Error::os("pwrite", Errno::IO)),
                Ok(more) => done += more,
                Err(Errno::INTR) => {}
                // A seal forbids it (`F_SEAL_WRITE`, or `F_SEAL_GROW` after a truncation).
                Err(Errno::PERM) => {
                    self.holds(part)?;
                    return Err(RegionFault::ReadOnly.into());
                }
                Err(errno) => return Err(Error::os("pwrite", errno)),
            }
        }
        Ok(())
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        // The last `close` of an object without a name frees its pages, if no mapping holds them.
        let frees_much = || {
            rustix::fs::fstat(&self.fd).is_ok_and(|stat| {
                stat.st_nlink == 0
                    && stat.st_blocks.unsigned_abs().saturating_mul(512) > LARGE as u64
            })
        };
        if let Some(generation) = &self.generation
            && self.kind != RegionKind::Dmabuf
            && generation.is_current()
            && frees_much()
            && let Ok(last) = rustix::io::fcntl_dupfd_cloexec(&self.fd, 0)
        {
            discard(last, generation);
        }
    }
}

/// Checks the kind of a descriptor. Returns whether it is open for writing.
fn check(fd: BorrowedFd<'_>, kind: RegionKind) -> Result<bool> {
    let flags = rustix::fs::fcntl_getfl(fd).map_err(|errno| Error::os("F_GETFL", errno))?;
    // `O_PATH` reads nothing. Under `O_APPEND` `pwrite` ignores its offset.
    let refused = OFlags::PATH | OFlags::APPEND;
    if flags.intersects(refused) || flags & OFlags::RWMODE == OFlags::WRONLY {
        return Err(RegionFault::AccessMode { flags: flags.bits() }.into());
    }
    let (is, expected) = match kind {
        RegionKind::Dmabuf => (is_dmabuf(fd)?, "a dmabuf"),
        RegionKind::Memfd => (is_memory(fd)?, "a memfd on tmpfs"),
        _ => (is_memory(fd)?, "a regular file on tmpfs"),
    };
    if !is {
        return Err(RegionFault::NotThat { expected }.into());
    }
    Ok(flags & OFlags::RWMODE == OFlags::RDWR)
}

/// Returns whether a descriptor is a dmabuf's. Without `/proc` none is.
///
/// The kernel writes the entry of `/proc`, with the name of the exporter, and asks no filesystem for it (Linux 5.3).
pub fn is_dmabuf(fd: BorrowedFd<'_>) -> Result<bool> {
    // Most of what is not a dmabuf is memory.
    if rustix::fs::fcntl_get_seals(fd).is_ok() {
        return Ok(false);
    }
    let entry = std::fs::read(format!("/proc/self/fdinfo/{}", fd.as_raw_fd()));
    let says_so = entry.is_ok_and(|entry| {
        entry.split(|byte| *byte == b'\n').any(|line| line.starts_with(b"exp_name:"))
    });
    if !says_so {
        return Ok(false);
    }
    let stat = rustix::fs::fstatfs(fd).map_err(|errno| Error::os("fstatfs", errno))?;
    Ok(stat.f_type == DMA_BUF_MAGIC)
}

impl AsFd for Object {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Returns whether the file's bytes are memory: no device, FIFO or directory, and no filesystem that can block. Only
/// regular files of tmpfs and hugetlbfs answer the first question, and it asks no filesystem.
fn is_memory(fd: BorrowedFd<'_>) -> Result<bool> {
    if rustix::fs::fcntl_get_seals(fd).is_err() {
        return Ok(false);
    }
    let stat = rustix::fs::fstatfs(fd).map_err(|errno| Error::os("fstatfs", errno))?;
    Ok(stat.f_type == TMPFS_MAGIC)
}

/// A descriptor limit keeps its own kind. Every other error gets the key's.
fn open_error(key: &Key, errno: Errno) -> Error {
    match errno {
        Errno::MFILE | Errno::NFILE => Error::os("open", errno),
        _ => {
            let fault = RegionFault::Open { key: key.given().to_owned() };
            Error::with_source(fault.into(), errno)
        }
    }
}
