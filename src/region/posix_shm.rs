//! A POSIX shared memory object that this process creates.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::error::{Error, RegionFault, Result};
use crate::region::extent::Extent;
use crate::region::key::Key;
use crate::region::object::Object;
use crate::shm::allocate;
use crate::shm::fork::Generation;

/// A POSIX shared memory object that this process has created. Other processes register it by its key.
/// Dropping it removes the name; existing mappings keep the memory.
///
/// # Examples
///
/// ```
/// use slipring::region::PosixShm;
///
/// # let key = format!("/slipring-shm-{}", std::process::id());
/// let object = PosixShm::create(&key, 64)?;
/// object.write_at(8, b"hello")?;
/// object.unlink()?;
/// # Ok::<(), slipring::Error>(())
/// ```
#[derive(Debug)]
pub struct PosixShm {
    key: Key,
    object: Object,
    len: u64,
    /// A forked child inherits the descriptor and leaves the name alone.
    generation: Generation,
}

impl PosixShm {
    /// Creates an object of `len` zero bytes, all of them allocated, for this user alone.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Region`](crate::ErrorKind::Region) with [`Create`](RegionFault::Create) (the source says why: the key may be in
    /// use), [`Empty`](RegionFault::Empty), or the fault of the key; [`ErrorKind::OutOfMemory`](crate::ErrorKind::OutOfMemory);
    /// [`ErrorKind::FileSizeLimit`](crate::ErrorKind::FileSizeLimit); [`ErrorKind::DescriptorLimit`](crate::ErrorKind::DescriptorLimit).
    pub fn create(key: &str, len: u64) -> Result<Self> {
        let key = Key::parse(key)?;
        if len == 0 {
            return Err(RegionFault::Empty.into());
        }
        let generation = Generation::current()?;
        let flags =
            OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let fd = rustix::fs::open(key.path(), flags, Mode::RUSR | Mode::WUSR);
        let fd = fd.map_err(|errno| create_error(&key, errno))?;
        // From here on its drop removes the name, whichever call fails.
        let created = Self { object: Object::created(fd), key, len, generation };
        // A page without memory raises `SIGBUS` at its first access.
        allocate(&created.object, len)?;
        Ok(created)
    }

    /// Returns the key as the caller gave it.
    pub fn key(&self) -> &str {
        self.key.given()
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns `false`: an object has at least one byte.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies the bytes at `offset` to `out`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Region`](crate::ErrorKind::Region) with [`Overflow`](RegionFault::Overflow), [`Offset`](RegionFault::Offset),
    /// [`Range`](RegionFault::Range), or [`Truncated`](RegionFault::Truncated), because other processes of
    /// this user can truncate the object; [`ErrorKind::Forked`](crate::ErrorKind::Forked) in a forked child.
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.generation.check()?;
        Extent::new(offset, out.len() as u64)?.inside(self.len)?;
        self.object.read_at(offset, out)
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Errors
    ///
    /// As [`read_at`](Self::read_at).
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.generation.check()?;
        let part = Extent::new(offset, bytes.len() as u64)?.inside(self.len)?;
        self.object.write_at(part, bytes)
    }

    /// Removes the name. Processes that have opened or registered the object keep its memory.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Os`](crate::ErrorKind::Os), such as for a name that another process has removed; [`ErrorKind::Forked`](crate::ErrorKind::Forked) in a
    /// forked child.
    pub fn unlink(mut self) -> Result<()> {
        self.generation.check()?;
        let removed = self.remove();
        self.len = 0;
        removed.map_err(|errno| Error::os("unlink", errno))
    }

    /// Removes the name if it is still this object's.
    fn remove(&self) -> Result<(), Errno> {
        let path = self.key.path();
        let own = rustix::fs::fstat(&self.object)?;
        let named = rustix::fs::statat(rustix::fs::CWD, &path, AtFlags::SYMLINK_NOFOLLOW)?;
        if (own.st_dev, own.st_ino) != (named.st_dev, named.st_ino) {
            return Err(Errno::NOENT);
        }
        rustix::fs::unlink(&path)
    }
}

impl AsFd for PosixShm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.object.as_fd()
    }
}

impl Drop for PosixShm {
    fn drop(&mut self) {
        // `unlink` sets it to 0. A child leaves its parent's name alone.
        if self.len > 0 && self.generation.is_current() {
            let _ = self.remove();
        }
    }
}

fn create_error(key: &Key, errno: Errno) -> Error {
    match errno {
        Errno::MFILE | Errno::NFILE => Error::os("open", errno),
        _ => Error::with_source(RegionFault::Create { key: key.given().to_owned() }.into(), errno),
    }
}
