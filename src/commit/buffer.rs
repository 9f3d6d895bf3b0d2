//! Buffers of a client: memory that the client allocates, imports, or only names.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use crate::commit::memory::{Memory, View};
use crate::commit::wire::message::Object;
use crate::error::{CommitFault, Error, ErrorKind, RegionFault, Result};
use crate::region::{Opened, Source};
use crate::shm::fork::Generation;
use crate::shm::{Bytes, BytesMut};

/// Memory for a model's regions: the document's `EnnBuffer`.
///
/// A session into which a buffer is [set](crate::commit::Session::set) does not keep it alive. A commit does, until the
/// client releases the commit.
///
/// # Examples
///
/// ```
/// use slipring::commit::Buffer;
///
/// let buffer = Buffer::alloc(4000)?;
/// buffer.write_at(0, &[7; 4000])?;
/// let tail = buffer.view(3000, 1000)?;
/// assert_eq!(tail.to_vec()?, [7; 1000]);
/// # Ok::<(), slipring::Error>(())
/// ```
#[derive(Debug)]
pub struct Buffer {
    handle: Arc<Handle>,
}

/// The part of a buffer that commits keep alive, and that sessions watch.
#[derive(Debug)]
pub(super) struct Handle {
    root: Arc<Root>,
    /// The buffer's start, in bytes of the root.
    offset: u64,
    len: u64,
    /// The user has released the buffer.
    released: AtomicBool,
}

/// A range of memory that a session sets for a tensor or a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    /// The number of the root that it is a part of.
    pub root: u64,
    /// The root's length in bytes.
    pub root_len: u64,
    /// The start of the piece, in bytes of the root.
    pub offset: u64,
    /// The length of the piece in bytes.
    pub len: u64,
}

/// The memory object that a buffer and its views share.
#[derive(Debug)]
struct Root {
    /// Unique within this process.
    number: u64,
    fd: OwnedFd,
    object: Object,
    is_cached: bool,
    /// The root's start, in bytes of the object behind `fd`.
    base: u64,
    len: u64,
    /// `None`: the buffer is wrapped, and not mapped.
    memory: Option<Memory>,
    generation: Generation,
}

impl Root {
    fn new_buffer(
        fd: OwnedFd,
        object: Object,
        is_cached: bool,
        (base, len): (u64, u64),
        memory: Option<Memory>,
    ) -> Result<Buffer> {
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let generation = Generation::current()?;
        let root = Self { number, fd, object, is_cached, base, len, memory, generation };
        Ok(Buffer::of(Arc::new(root), 0, len))
    }
}

impl Buffer {
    fn of(root: Arc<Root>, offset: u64, len: u64) -> Self {
        let released = AtomicBool::new(false);
        Self { handle: Arc::new(Handle { root, offset, len, released }) }
    }

    /// Allocates `len` zero bytes, in a memfd that is sealed against shrinking and growing. `EnnCreateBufferCache`.
    ///
    /// # Errors
    ///
    /// [`CommitFault::EmptyBuffer`], [`ErrorKind::OutOfMemory`], [`ErrorKind::FileSizeLimit`],
    /// [`ErrorKind::DescriptorLimit`].
    pub fn alloc(len: u64) -> Result<Self> {
        Self::make(len, true)
    }

    /// As [`alloc`](Self::alloc), with the hint that processors must not cache the bytes. The library remembers the hint,
    /// for services that make device memory of a buffer. `EnnCreateBuffer`.
    ///
    /// # Errors
    ///
    /// As for [`alloc`](Self::alloc).
    pub fn alloc_uncached(len: u64) -> Result<Self> {
        Self::make(len, false)
    }

    fn make(len: u64, is_cached: bool) -> Result<Self> {
        check_len(len)?;
        let bytes = usize::try_from(len).ok().filter(|bytes| *bytes <= isize::MAX as usize);
        let bytes = bytes.ok_or(ErrorKind::OutOfMemory { bytes: len })?;
        let fd = crate::shm::create_common(bytes)?;
        let opened = Opened::new(Source::Memfd(fd.as_fd()), 0, len)?;
        let memory = Memory::of(opened, true)?;
        Root::new_buffer(fd, Object::Memfd, is_cached, (0, len), Some(memory))
    }

    /// Imports the first `len` bytes of a memfd or dmabuf, and maps them. The caller keeps its descriptor.
    /// `EnnCreateBufferFromFd`.
    ///
    /// The buffer can be read only, if the descriptor is open for reading only or the memory is sealed against writing
    /// at this moment. Writes then return [`RegionFault::ReadOnly`], and [`View::is_writable`] returns false.
    ///
    /// # Errors
    ///
    /// As for [`import_at`](Self::import_at).
    pub fn import(fd: impl AsFd, len: u64) -> Result<Self> {
        Self::import_at(fd, len, 0)
    }

    /// As [`import`](Self::import), from byte `offset` on. Byte 0 of the buffer is byte `offset` of the object.
    /// `EnnCreateBufferFromFdWithOffset`.
    ///
    /// # Errors
    ///
    /// - [`CommitFault::EmptyBuffer`], [`CommitFault::Range`]: the object lacks some of these bytes.
    /// - [`CommitFault::Unsupported`]: the descriptor is one of a pipe or a directory, or cannot be read at an offset.
    /// - [`ErrorKind::Os`]: the descriptor is closed. [`ErrorKind::DescriptorLimit`]
    pub fn import_at(fd: impl AsFd, len: u64, offset: u64) -> Result<Self> {
        check_len(len)?;
        let fd = fd.as_fd();
        let object = object_of(fd)?;
        let opened = open(fd, object, offset, len)?;
        let memory = Memory::of(opened, true)?;
        Root::new_buffer(duplicate(fd)?, object, true, (offset, len), Some(memory))
    }

    /// Names `len` bytes at `offset` of the object behind a descriptor, without checks: the service checks them at the
    /// commit. The caller keeps its descriptor. `EnnCreateBufferObject`.
    ///
    /// # Errors
    ///
    /// [`CommitFault::EmptyBuffer`], [`CommitFault::Range`], [`ErrorKind::DescriptorLimit`].
    pub fn wrap(fd: impl AsFd, len: u64, offset: u64) -> Result<Self> {
        check_len(len)?;
        if offset.checked_add(len).is_none() {
            return Err(CommitFault::Range { region: None, offset, len, size: u64::MAX }.into());
        }
        let fd = fd.as_fd();
        let object = match object_of(fd) {
            Err(error) if matches!(error.kind(), ErrorKind::Os { .. }) => return Err(error),
            object => object.unwrap_or(Object::Memfd),
        };
        Root::new_buffer(duplicate(fd)?, object, true, (offset, len), None)
    }

    /// Returns a part of this buffer, for a tensor that shares a region with others.
    ///
    /// # Errors
    ///
    /// [`CommitFault::EmptyBuffer`], [`CommitFault::Range`]
    pub fn view(&self, offset: u64, len: u64) -> Result<Self> {
        check_len(len)?;
        let Handle { root, offset: start, len: size, .. } = &*self.handle;
        if offset.checked_add(len).is_none_or(|end| end > *size) {
            return Err(CommitFault::Range { region: None, offset, len, size: *size }.into());
        }
        Ok(Self::of(root.clone(), start + offset, len))
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> u64 {
        self.handle.len
    }

    /// Returns false: every buffer has bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the buffer's start, in bytes of its object.
    pub fn offset(&self) -> u64 {
        self.handle.root.base + self.handle.offset
    }

    /// Returns whether processors may cache the bytes: `false` only of a buffer from
    /// [`alloc_uncached`](Self::alloc_uncached).
    pub fn is_cached(&self) -> bool {
        self.handle.root.is_cached
    }

    /// Releases the buffer: sessions into which it is set lack it from now on. Commits go on. Dropping the buffer does
    /// the same. `EnnReleaseBuffer`.
    pub fn release(self) {}

    /// Returns the bytes, which the service may change at any moment.
    ///
    /// # Errors
    ///
    /// [`CommitFault::NotMapped`], [`ErrorKind::Forked`] in a forked child.
    pub fn as_view(&self) -> Result<View<'_>> {
        let Handle { root, offset, len, .. } = &*self.handle;
        root.generation.check()?;
        let memory = root.memory.as_ref().ok_or(CommitFault::NotMapped)?;
        Ok(View::new(memory, *offset, *len, true))
    }

    /// As [`View::bytes`].
    ///
    /// # Errors
    ///
    /// Those of [`as_view`](Self::as_view), and as there.
    pub fn bytes(&self) -> Result<Bytes<'_>> {
        self.as_view()?.bytes()
    }

    /// As [`View::bytes_mut`].
    ///
    /// # Errors
    ///
    /// Those of [`as_view`](Self::as_view), and as there.
    pub fn bytes_mut(&self) -> Result<BytesMut<'_>> {
        self.as_view()?.bytes_mut()
    }

    /// As [`View::read_at`].
    ///
    /// # Errors
    ///
    /// Those of [`as_view`](Self::as_view), and as there.
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.as_view()?.read_at(offset, out)
    }

    /// As [`View::write_at`].
    ///
    /// # Errors
    ///
    /// Those of [`as_view`](Self::as_view), and as there.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.as_view()?.write_at(offset, bytes)
    }

    /// Returns a copy of all bytes.
    ///
    /// # Errors
    ///
    /// Those of [`as_view`](Self::as_view), and of [`View::read_at`].
    pub fn to_vec(&self) -> Result<Vec<u8>> {
        self.as_view()?.to_vec()
    }

    /// Returns the range that a session sets, and a handle that tells the session whether the buffer still exists.
    pub(super) fn piece(&self) -> (Piece, Weak<Handle>) {
        let Handle { root, offset, len, .. } = &*self.handle;
        let piece = Piece { root: root.number, root_len: root.len, offset: *offset, len: *len };
        (piece, Arc::downgrade(&self.handle))
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.handle.released.store(true, Ordering::Relaxed);
    }
}

impl Handle {
    /// Returns whether the user has released the buffer. Relaxed: the flag guards nothing.
    pub(super) fn is_released(&self) -> bool {
        self.released.load(Ordering::Relaxed)
    }

    /// Returns the descriptor of the memory object.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.root.fd.as_fd()
    }

    /// Returns the root's number, which all views of one buffer share.
    pub(super) fn root(&self) -> u64 {
        self.root.number
    }

    pub(super) fn object(&self) -> Object {
        self.root.object
    }

    /// Returns the byte of the object at `offset` bytes of the root.
    pub(super) fn object_offset(&self, offset: u64) -> u64 {
        self.root.base + offset
    }
}

fn check_len(len: u64) -> Result<()> {
    if len == 0 { Err(CommitFault::EmptyBuffer.into()) } else { Ok(()) }
}

/// Returns the kind of the object behind a descriptor.
///
/// # Errors
///
/// [`ErrorKind::Os`]: the descriptor is closed. [`CommitFault::Unsupported`]
fn object_of(fd: BorrowedFd<'_>) -> Result<Object> {
    rustix::io::fcntl_getfd(fd).map_err(|errno| Error::os("F_GETFD", errno))?;
    match crate::region::is_dmabuf(fd) {
        Ok(true) => Ok(Object::Dmabuf),
        Ok(false) => Ok(Object::Memfd),
        Err(error) => Err(CommitFault::Unsupported { why: format!("{error:#}") }.into()),
    }
}

fn duplicate(fd: BorrowedFd<'_>) -> Result<OwnedFd> {
    rustix::io::fcntl_dupfd_cloexec(fd, 0).map_err(|errno| Error::os("F_DUPFD_CLOEXEC", errno))
}

/// Opens a range of an object. Errors are those of this module.
pub(super) fn open(fd: BorrowedFd<'_>, object: Object, offset: u64, len: u64) -> Result<Opened> {
    let source = match object {
        Object::Memfd => Source::Memfd(fd),
        Object::Dmabuf => Source::Dmabuf(fd),
    };
    Opened::new(source, offset, len).map_err(|error| match error.kind() {
        ErrorKind::Region(RegionFault::Overflow { offset, len }) => {
            CommitFault::Range { region: None, offset: *offset, len: *len, size: u64::MAX }.into()
        }
        ErrorKind::Region(RegionFault::Offset { offset, size }) => {
            CommitFault::Range { region: None, offset: *offset, len, size: *size }.into()
        }
        ErrorKind::Region(RegionFault::Range { offset, len, size }) => {
            CommitFault::Range { region: None, offset: *offset, len: *len, size: *size }.into()
        }
        ErrorKind::Region(_) => CommitFault::Unsupported { why: format!("{error:#}") }.into(),
        _ => error,
    })
}

#[cfg(test)]
mod tests;
