//! Buffers of a client: memory that it allocates, imports, or only names.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use crate::commit::memory::{Memory, View};
use crate::commit::message::Object;
use crate::commit::state::Piece;
use crate::error::{CommitFault, Error, ErrorKind, RegionFault, Result};
use crate::region::{Opened, Source};
use crate::shm::fork::Generation;
use crate::shm::{Bytes, BytesMut};

/// Whether the processor may keep the bytes in its caches: a hint for whoever makes device memory out of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Caching {
    /// `EnnCreateBufferCache`.
    #[default]
    Cached,
    /// `EnnCreateBuffer`.
    Uncached,
}

/// Memory for a model's regions: the document's `EnnBuffer`.
///
/// A session that it is [set](crate::commit::Session::set) into does not keep it; a commit does, until it is released.
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

/// What a session remembers of a buffer. Commits keep it; whatever else it is set for lacks it once the buffer is gone.
#[derive(Debug)]
pub(super) struct Handle {
    root: Arc<Root>,
    /// In bytes of the root.
    offset: u64,
    len: u64,
    /// The user has given the buffer back.
    released: AtomicBool,
}

/// What a buffer and its views share.
#[derive(Debug)]
struct Root {
    /// No other root of this process has it.
    number: u64,
    fd: OwnedFd,
    object: Object,
    caching: Caching,
    /// Where the root starts in its object, in bytes.
    base: u64,
    len: u64,
    /// `None`: wrapped.
    memory: Option<Memory>,
    generation: Generation,
}

impl Root {
    fn buffer(
        fd: OwnedFd,
        object: Object,
        caching: Caching,
        (base, len): (u64, u64),
        memory: Option<Memory>,
    ) -> Result<Buffer> {
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let generation = Generation::current()?;
        let root = Self { number, fd, object, caching, base, len, memory, generation };
        Ok(Buffer::of(Arc::new(root), 0, len))
    }
}

impl Buffer {
    fn of(root: Arc<Root>, offset: u64, len: u64) -> Self {
        let released = AtomicBool::new(false);
        Self { handle: Arc::new(Handle { root, offset, len, released }) }
    }

    /// Allocates `len` bytes, all of them zero: memory that nobody can make shorter. `EnnCreateBufferCache`.
    ///
    /// # Errors
    ///
    /// [`CommitFault::EmptyBuffer`], [`ErrorKind::OutOfMemory`], [`ErrorKind::DescriptorLimit`].
    pub fn alloc(len: u64) -> Result<Self> {
        Self::alloc_with(len, Caching::Cached)
    }

    /// As [`alloc`](Self::alloc), with a hint. `EnnCreateBuffer` is [`Caching::Uncached`].
    ///
    /// # Errors
    ///
    /// As for [`alloc`](Self::alloc).
    pub fn alloc_with(len: u64, caching: Caching) -> Result<Self> {
        is_some(len)?;
        let bytes = usize::try_from(len).ok().filter(|bytes| *bytes <= isize::MAX as usize);
        let bytes = bytes.ok_or(ErrorKind::OutOfMemory { bytes: len })?;
        let fd = crate::shm::create_common(bytes)?;
        let opened = Opened::new(Source::Memfd(fd.as_fd()), 0, len)?;
        let memory = Memory::of(opened, true)?;
        Root::buffer(fd, Object::Memfd, caching, (0, len), Some(memory))
    }

    /// Imports the first `len` bytes of a memfd or dmabuf, and maps them. The descriptor stays the caller's.
    /// `EnnCreateBufferFromFd`.
    ///
    /// # Errors
    ///
    /// As for [`import_at`](Self::import_at).
    pub fn import(fd: impl AsFd, len: u64) -> Result<Self> {
        Self::import_at(fd, len, 0)
    }

    /// As [`import`](Self::import), from any `offset` on, in bytes. The buffer's first byte is the object's byte
    /// `offset`: nothing is to be added. `EnnCreateBufferFromFdWithOffset`.
    ///
    /// # Errors
    ///
    /// - [`CommitFault::EmptyBuffer`], [`CommitFault::Range`]: the object has no such bytes.
    /// - [`CommitFault::Unsupported`]: a pipe, a directory, a descriptor that cannot be read at a place.
    /// - [`ErrorKind::DescriptorLimit`]
    pub fn import_at(fd: impl AsFd, len: u64, offset: u64) -> Result<Self> {
        is_some(len)?;
        let fd = fd.as_fd();
        let object = object_of(fd)?;
        let opened = open(fd, object, offset, len)?;
        let writable = opened.is_writable();
        let memory = Memory::of(opened, writable)?;
        Root::buffer(duplicate(fd)?, object, Caching::Cached, (offset, len), Some(memory))
    }

    /// Names `len` bytes at `offset` of the object behind a descriptor, and looks at nothing: the service does at the
    /// commit. The descriptor stays the caller's. `EnnCreateBufferObject`.
    ///
    /// # Errors
    ///
    /// [`CommitFault::EmptyBuffer`], [`CommitFault::Range`], [`ErrorKind::DescriptorLimit`].
    pub fn wrap(fd: impl AsFd, len: u64, offset: u64) -> Result<Self> {
        is_some(len)?;
        if offset.checked_add(len).is_none() {
            return Err(CommitFault::Range { offset, len, size: u64::MAX }.into());
        }
        let fd = fd.as_fd();
        let object = object_of(fd).unwrap_or(Object::Memfd);
        Root::buffer(duplicate(fd)?, object, Caching::Cached, (offset, len), None)
    }

    /// A part of this buffer, for a tensor that shares a region with others.
    ///
    /// # Errors
    ///
    /// [`CommitFault::EmptyBuffer`], [`CommitFault::Range`]
    pub fn view(&self, offset: u64, len: u64) -> Result<Self> {
        is_some(len)?;
        let Handle { root, offset: start, len: size, .. } = &*self.handle;
        if offset.checked_add(len).is_none_or(|end| end > *size) {
            return Err(CommitFault::Range { offset, len, size: *size }.into());
        }
        Ok(Self::of(root.clone(), start + offset, len))
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.handle.len
    }

    /// Whether there are no bytes. There always are.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where it starts in its object, in bytes.
    pub fn offset(&self) -> u64 {
        self.handle.root.base + self.handle.offset
    }

    /// The hint that it was allocated with.
    pub fn caching(&self) -> Caching {
        self.handle.root.caching
    }

    /// Gives it back: a session that it is set into lacks it from now on. What is committed goes on.
    /// `EnnReleaseBuffer`. Dropping it does the same.
    pub fn release(self) {}

    /// Its bytes, which the service may change at any moment.
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

    /// A copy of all bytes.
    ///
    /// # Errors
    ///
    /// Those of [`as_view`](Self::as_view), and of [`View::read_at`].
    pub fn to_vec(&self) -> Result<Vec<u8>> {
        self.as_view()?.to_vec()
    }

    /// What a session sets, and how it knows whether the buffer is still there.
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
    /// Whether the user has given the buffer back. Relaxed: nothing else is read because of it.
    pub(super) fn is_released(&self) -> bool {
        self.released.load(Ordering::Relaxed)
    }

    /// The descriptor of its object.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.root.fd.as_fd()
    }

    /// Tells one object that several handles are of.
    pub(super) fn root(&self) -> u64 {
        self.root.number
    }

    pub(super) fn object(&self) -> Object {
        self.root.object
    }

    /// Where a place in the root lies in its object, in bytes.
    pub(super) fn place(&self, offset: u64) -> u64 {
        self.root.base + offset
    }
}

/// Something can be in it.
fn is_some(len: u64) -> Result<()> {
    if len == 0 { Err(CommitFault::EmptyBuffer.into()) } else { Ok(()) }
}

fn object_of(fd: BorrowedFd<'_>) -> Result<Object> {
    match crate::region::is_dmabuf(fd) {
        Ok(true) => Ok(Object::Dmabuf),
        Ok(false) => Ok(Object::Memfd),
        Err(error) => Err(CommitFault::Unsupported { why: format!("{error:#}") }.into()),
    }
}

fn duplicate(fd: BorrowedFd<'_>) -> Result<OwnedFd> {
    rustix::io::fcntl_dupfd_cloexec(fd, 0).map_err(|errno| Error::os("F_DUPFD_CLOEXEC", errno))
}

/// Opens a range of an object, in the words of this module.
pub(super) fn open(fd: BorrowedFd<'_>, object: Object, offset: u64, len: u64) -> Result<Opened> {
    let source = match object {
        Object::Memfd => Source::Memfd(fd),
        Object::Dmabuf => Source::Dmabuf(fd),
    };
    Opened::new(source, offset, len).map_err(|error| match error.kind() {
        ErrorKind::Region(RegionFault::Overflow { offset, len }) => {
            CommitFault::Range { offset: *offset, len: *len, size: u64::MAX }.into()
        }
        ErrorKind::Region(RegionFault::Offset { offset, size }) => {
            CommitFault::Range { offset: *offset, len, size: *size }.into()
        }
        ErrorKind::Region(RegionFault::Range { offset, len, size }) => {
            CommitFault::Range { offset: *offset, len: *len, size: *size }.into()
        }
        ErrorKind::Region(_) => CommitFault::Unsupported { why: format!("{error:#}") }.into(),
        _ => error,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind<T: std::fmt::Debug>(answer: Result<T>) -> ErrorKind {
        answer.unwrap_err().kind().clone()
    }

    fn memfd(len: u64, seals: rustix::fs::SealFlags) -> OwnedFd {
        use rustix::fs::{FallocateFlags, MemfdFlags};
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create("slipring-test", flags).unwrap();
        rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, len).unwrap();
        rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
        fd
    }

    #[test]
    fn allocated_memory_is_zero_sealed_and_remembers_its_hint() {
        let buffer = Buffer::alloc_with(5000, Caching::Uncached).unwrap();
        assert_eq!((buffer.len(), buffer.offset()), (5000, 0));
        assert_eq!(buffer.caching(), Caching::Uncached);
        assert!(buffer.to_vec().unwrap().iter().all(|byte| *byte == 0));
        let seals = rustix::fs::fcntl_get_seals(buffer.handle.fd()).unwrap();
        let all = rustix::fs::SealFlags::SHRINK
            | rustix::fs::SealFlags::GROW
            | rustix::fs::SealFlags::SEAL;
        assert_eq!(seals, all);
        let empty = ErrorKind::Commit(CommitFault::EmptyBuffer);
        assert_eq!(kind(Buffer::alloc(0)), empty);
        assert_eq!(kind(buffer.view(0, 0)), empty);
        assert!(matches!(kind(Buffer::alloc(u64::MAX)), ErrorKind::OutOfMemory { .. }));
    }

    #[test]
    fn an_import_starts_at_its_offset_and_closes_nothing() {
        let fd = memfd(10_000, rustix::fs::SealFlags::SHRINK);
        rustix::io::pwrite(&fd, b"first byte", 5001).unwrap();
        let buffer = Buffer::import_at(&fd, 100, 5001).unwrap();
        assert_eq!(&buffer.to_vec().unwrap()[..10], b"first byte");
        buffer.write_at(0, b"First").unwrap();
        let part = buffer.view(6, 4).unwrap();
        assert_eq!((part.to_vec().unwrap().as_slice(), part.offset()), (&b"byte"[..], 5007));
        drop((buffer, part));
        let mut bytes = [0; 5];
        rustix::io::pread(&fd, &mut bytes, 5001).unwrap();
        assert_eq!(&bytes, b"First");
    }

    #[test]
    fn memory_that_can_be_truncated_is_copied() {
        let fd = memfd(4096, rustix::fs::SealFlags::empty());
        let buffer = Buffer::import(&fd, 4096).unwrap();
        buffer.write_at(7, b"loose").unwrap();
        let mut bytes = [0; 5];
        buffer.read_at(7, &mut bytes).unwrap();
        assert_eq!(&bytes, b"loose");
        assert_eq!(kind(buffer.bytes().map(drop)), ErrorKind::Region(RegionFault::Unsealed));
        rustix::fs::ftruncate(&fd, 0).unwrap();
        let gone = kind(buffer.read_at(7, &mut bytes));
        assert!(matches!(gone, ErrorKind::Region(RegionFault::Truncated { .. })), "{gone:?}");
    }

    #[test]
    fn ranges_are_checked_without_wrap() {
        let fd = memfd(4096, rustix::fs::SealFlags::SHRINK);
        for (len, offset) in
            [(4097, 0), (1, 4096), (u64::MAX, 1), (2, u64::MAX), (u64::MAX, u64::MAX)]
        {
            let range = kind(Buffer::import_at(&fd, len, offset));
            assert!(matches!(range, ErrorKind::Commit(CommitFault::Range { .. })), "{range:?}");
        }
        let buffer = Buffer::import(&fd, 4096).unwrap();
        for (offset, len) in [(0, 4097), (4096, 1), (u64::MAX, 2), (1, u64::MAX)] {
            let range = ErrorKind::Commit(CommitFault::Range { offset, len, size: 4096 });
            assert_eq!(kind(buffer.view(offset, len)), range);
        }
        assert!(buffer.read_at(4090, &mut [0; 7]).is_err());
        assert!(buffer.write_at(u64::MAX, &[0; 7]).is_err());
        assert!(buffer.view(10, 10).unwrap().read_at(5, &mut [0; 6]).is_err());
    }

    #[test]
    fn what_is_no_memory_is_not_supported() {
        let (pipe, _other) = std::io::pipe().unwrap();
        let folder = std::fs::File::open("/").unwrap();
        let path =
            rustix::fs::open("/dev/shm", rustix::fs::OFlags::PATH, rustix::fs::Mode::empty())
                .unwrap();
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        for fd in [pipe.as_fd(), folder.as_fd(), path.as_fd(), file.as_fd()] {
            let kind = kind(Buffer::import(fd, 1));
            assert!(matches!(kind, ErrorKind::Commit(CommitFault::Unsupported { .. })), "{kind:?}");
        }
    }

    #[test]
    fn wrapped_memory_has_no_bytes_here() {
        let fd = memfd(4096, rustix::fs::SealFlags::SHRINK);
        let buffer = Buffer::wrap(&fd, 100, 50).unwrap();
        assert_eq!((buffer.len(), buffer.offset()), (100, 50));
        let unmapped = ErrorKind::Commit(CommitFault::NotMapped);
        assert_eq!(kind(buffer.bytes().map(drop)), unmapped);
        assert_eq!(kind(buffer.view(1, 1).unwrap().to_vec()), unmapped);
        assert!(Buffer::wrap(&fd, u64::MAX, 2).is_err());
    }
}
