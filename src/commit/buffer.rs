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
    /// - [`ErrorKind::DescriptorLimit`]
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
            return Err(CommitFault::Range { offset, len, size: u64::MAX }.into());
        }
        let fd = fd.as_fd();
        let object = object_of(fd).unwrap_or(Object::Memfd);
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
            return Err(CommitFault::Range { offset, len, size: *size }.into());
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

/// Opens a range of an object. Errors are those of this module.
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
        let buffer = Buffer::alloc_uncached(5000).unwrap();
        assert_eq!((buffer.len(), buffer.offset()), (5000, 0));
        assert!(!buffer.is_cached());
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
    fn memory_that_its_owner_can_truncate_is_copied() {
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
    fn an_import_that_cannot_be_written_says_so() {
        use rustix::fs::{Mode, OFlags, SealFlags};
        use std::os::fd::AsRawFd;
        let write_seals = [SealFlags::FUTURE_WRITE, SealFlags::WRITE];
        let sealed = write_seals.map(|seal| memfd(4096, SealFlags::SHRINK | seal));
        let reopened = [SealFlags::SHRINK, SealFlags::empty()].map(|seals| {
            let fd = memfd(4096, seals);
            let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
            rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).unwrap()
        });
        for fd in sealed.iter().chain(&reopened) {
            let buffer = Buffer::import(fd, 4096).unwrap();
            assert!(!buffer.as_view().unwrap().is_writable());
            assert!(!buffer.view(8, 8).unwrap().as_view().unwrap().is_writable());
            let refused = ErrorKind::Region(RegionFault::ReadOnly);
            assert_eq!(kind(buffer.write_at(0, b"x")), refused);
            assert_eq!(kind(buffer.bytes_mut().map(drop)), refused);
            assert_eq!(kind(buffer.as_view().unwrap().in_place_mut(|_| ())), refused);
            let text = buffer.write_at(0, b"x").unwrap_err().to_string();
            assert!(text.contains("sealed") && text.contains("open for reading"), "{text}");
            assert_eq!(buffer.to_vec().unwrap(), [0; 4096]);
        }
        // A seal that comes later takes no mapping away.
        let fd = memfd(4096, SealFlags::SHRINK);
        let buffer = Buffer::import(&fd, 4096).unwrap();
        rustix::fs::fcntl_add_seals(&fd, SealFlags::FUTURE_WRITE).unwrap();
        buffer.write_at(0, b"x").unwrap();
        assert!(rustix::fs::fcntl_add_seals(&fd, SealFlags::WRITE).is_err());
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
    fn a_descriptor_of_no_memory_is_not_supported() {
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
