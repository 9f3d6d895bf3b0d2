//! Unit tests of `handshake::owned_socket`.

use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::*;
use crate::handshake::socket::Incoming;
use crate::handshake::untrusted::tests::{lingering, socket_with};

fn address(name: &str) -> SocketAddrUnix {
    let name = format!("slipring-test-{}-{name}", std::process::id());
    SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap()
}

/// Returns a listening socket, and a peer that waits in its queue.
fn awaited(name: &str) -> (OwnedFd, OwnedFd) {
    let (near, far) = (socket::open().unwrap(), socket::open().unwrap());
    socket::bind_and_listen(&near, &address(name)).unwrap();
    socket::connect(&far, &address(name)).unwrap();
    (near, far)
}

#[test]
fn the_peers_of_an_inherited_socket_wait_for_another_process() {
    let (near, far) = awaited("inherited");
    let others = near.try_clone().unwrap();
    drop(ListeningSocket::new(near, false));
    assert_eq!(socket::peek(&far, &mut [0; 1]), None, "the peer was hung up on");
    assert!(socket::accept(others.as_fd()).unwrap().is_some());
    // Others may join its queue.
    let more = socket::open().unwrap();
    socket::connect(&more, &address("inherited")).unwrap();
}

#[test]
fn the_peers_of_a_socket_of_this_process_are_hung_up_on_and_its_address_is_free() {
    let (near, far) = awaited("own");
    let others = near.try_clone().unwrap();
    drop(ListeningSocket::new(near, true));
    assert_eq!(socket::peek(&far, &mut [0; 1]), Some(0));
    drop(others);
    drop(awaited("own"));
}

fn pair() -> (OwnedFd, OwnedFd) {
    let kind = (AddressFamily::UNIX, SocketType::SEQPACKET);
    rustix::net::socketpair(kind.0, kind.1, SocketFlags::CLOEXEC, None).unwrap()
}

#[test]
fn a_socket_whose_peer_left_packets_unread_closes_at_once_whatever_its_queue_holds() {
    let (lingers, _reader) = lingering(Duration::from_secs(5));
    let nested = socket_with([lingers]);
    let (near, far) = pair();
    assert!(socket::send(&near, b"unread", &[]).unwrap());
    assert!(socket::send(&far, b"here", &[nested.as_fd()]).unwrap());
    drop(nested);
    // Leaves ECONNRESET to the next call on the other end.
    drop(far);
    let start = Instant::now();
    drop(Socket::new(near));
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
}

#[test]
fn packets_without_descriptors_leave_the_queue_and_the_first_with_descriptors_stays() {
    let (near, far) = pair();
    let send = |packet: &[u8], fds: &[BorrowedFd<'_>]| {
        assert!(socket::send(&far, packet, fds).unwrap());
    };
    let next = || socket::receive::<8>(&near).unwrap();
    for packet in [&b"bare"[..], b"", b"bare"] {
        send(packet, &[]);
    }
    assert!(!socket::drain(&near, 2));
    assert!(socket::drain(&near, 2));
    send(b"", &[]);
    send(b"brings", &[near.as_fd()]);
    assert!(!socket::drain(&near, 2));
    assert!(matches!(next(), Incoming::Packet(packet) if packet.descriptors.len() == 1));
    assert!(socket::drain(&near, 1));
    drop(far);
    assert!(socket::drain(&near, 1));
}
