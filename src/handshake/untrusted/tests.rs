//! Unit tests of `handshake::untrusted`.

use std::net::TcpStream;
use std::time::Duration;

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::*;
use crate::handshake::socket;

#[path = "../../../tests/support/lingering.rs"]
mod lingering;

/// Returns a TCP socket whose last `close` lingers, and its other end, which does not read.
pub(crate) fn lingering(time: Duration) -> (OwnedFd, TcpStream) {
    let (near, far) = lingering::lingering(time);
    (near.into(), far)
}

/// Returns a Unix socket with these descriptors in its queue, which have no other reference.
pub(crate) fn socket_with(fds: impl IntoIterator<Item = OwnedFd>) -> OwnedFd {
    let kind = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let (near, far) = rustix::net::socketpair(kind.0, kind.1, SocketFlags::CLOEXEC, None).unwrap();
    for fd in fds {
        assert!(socket::send(&near, b"here", &[fd.as_fd()]).unwrap());
    }
    far
}

/// Returns a memfd of `len` bytes with `behind` bytes of blocks behind its end.
fn memfd(len: u64, behind: u64, seals: SealFlags) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memfd = rustix::fs::memfd_create("untrusted", flags).unwrap();
    let allocate = |flags, offset, len| {
        if len > 0 {
            rustix::fs::fallocate(&memfd, flags, offset, len).unwrap();
        }
    };
    allocate(FallocateFlags::empty(), 0, len);
    allocate(FallocateFlags::KEEP_SIZE, len, behind);
    rustix::fs::fcntl_add_seals(&memfd, seals).unwrap();
    memfd
}

#[test]
fn memfds_of_a_known_length_close_here_and_files_of_other_filesystems_do_not() {
    let sealed = memfd(4096, 0, SealFlags::GROW);
    assert!(bytes_of(&sealed) == Some(4096) && closes_at_exit(&sealed));
    assert_eq!(bytes_of(&memfd(4096, ROOM, SealFlags::GROW)), Some(4096 + ROOM));
    // Another process can lengthen it.
    let unsealed = memfd(4096, 0, SealFlags::SHRINK);
    assert!(bytes_of(&unsealed).is_none() && closes_at_exit(&unsealed));
    // Another process can fill it.
    let hollow = memfd(0, 0, SealFlags::empty());
    rustix::fs::ftruncate(&hollow, ROOM).unwrap();
    rustix::fs::fcntl_add_seals(&hollow, SealFlags::GROW).unwrap();
    assert_eq!(bytes_of(&hollow), Some(ROOM));
    let file: OwnedFd = std::fs::File::open("/proc/self/status").unwrap().into();
    assert!(bytes_of(&file).is_none() && !closes_at_exit(&file));
    let socket: OwnedFd = std::os::unix::net::UnixStream::pair().unwrap().0.into();
    assert!(bytes_of(&socket).is_none() && closes_at_exit(&socket));
}

#[test]
fn a_thread_frees_little_for_a_packet_however_many_memfds_it_brings() {
    const EACH: u64 = 128 << 10;
    let memfds: Vec<_> = (0..16).map(|_| memfd(EACH, 0, SealFlags::GROW)).collect();
    let mut room = ROOM;
    let rest = close_within(memfds, &mut room);
    assert_eq!((rest.len() as u64, room), (16 - ROOM / EACH, 0));
    // The descriptors of a packet that are dropped one by one free no more.
    let mut room = SHARE;
    assert_eq!(close_within(rest, &mut room).len() as u64, 16 - ROOM / EACH);
    assert!(SHARE * MOST as u64 <= ROOM);
}
