//! Unit tests of `commit::buffer`.

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
    let all =
        rustix::fs::SealFlags::SHRINK | rustix::fs::SealFlags::GROW | rustix::fs::SealFlags::SEAL;
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
    for (len, offset) in [(4097, 0), (1, 4096), (u64::MAX, 1), (2, u64::MAX), (u64::MAX, u64::MAX)]
    {
        let range = kind(Buffer::import_at(&fd, len, offset));
        assert!(matches!(range, ErrorKind::Commit(CommitFault::Range { .. })), "{range:?}");
    }
    let buffer = Buffer::import(&fd, 4096).unwrap();
    for (offset, len) in [(0, 4097), (4096, 1), (u64::MAX, 2), (1, u64::MAX)] {
        let range = ErrorKind::Commit(CommitFault::Range { region: None, offset, len, size: 4096 });
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
        rustix::fs::open("/dev/shm", rustix::fs::OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
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
