//! Descriptors that `sendfd` sends and receives, in place of this project's own code.
//!
//! `sendfd` cannot send credentials. The library sets `SO_PASSCRED`, and the kernel then adds the credentials of the
//! sender to each packet that has none. A packet that the peer sent before the option was set has none.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::thread;

use crate::support::raw::{self, *};
use crate::support::{Stage, fault, soon, unique_name};
use sendfd::{RecvWithFd, SendWithFd};
use slipring::error::Fault;
use slipring::{Context, ErrorKind, Options};

/// `sendfd` knows stream sockets only; the calls are the same for packets.
fn stream(socket: &OwnedFd) -> UnixStream {
    socket.try_clone().unwrap().into()
}

/// A peer whose Hello `sendfd` has sent.
fn greet(socket: OwnedFd) -> RawPeer {
    let (peer, fd) = RawPeer::prepare(socket, Hello::honest());
    let packet = peer.hello.encode();
    let sent = stream(&peer.socket).send_with_fd(&packet, &[fd.as_raw_fd()]).unwrap();
    assert_eq!(sent, 128);
    peer
}

/// Receives a packet and its descriptors through `sendfd`.
fn receive(socket: &OwnedFd) -> (Vec<u8>, Vec<OwnedFd>) {
    let mut packet = [0; 256];
    let mut fds = [-1; 4];
    let (len, count) = stream(socket).recv_with_fd(&mut packet, &mut fds).unwrap();
    let fds = fds[..count].iter().map(|fd| own(*fd)).collect();
    (packet[..len].to_vec(), fds)
}

#[allow(unsafe_code)]
fn own(fd: i32) -> OwnedFd {
    // SAFETY: the kernel has just opened it for us, and nobody else owns it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

fn exchange(link: &mut slipring::Connection, peer: &mut RawPeer) {
    peer.say(b"by hand");
    assert_eq!(link.receiver().recv_deadline(soon()).unwrap().unwrap(), b"by hand");
    link.send(b"by library").unwrap();
    let data = Hello::honest().control_len as usize;
    assert_eq!(peer.theirs().load(data), message(10));
    assert_eq!(peer.theirs().load(data + 8), u64::from_ne_bytes(*b"by libra"));
}

#[test]
fn a_hello_sent_by_sendfd_is_accepted_with_the_kernels_credentials() {
    let mut stage = Stage::new(Options::new());
    let mut peer = greet(raw::dial(&stage.name));
    let mut link = stage.listener.accept_deadline(soon()).unwrap();
    assert_eq!(link.peer().pid(), Some(std::process::id()));
    assert_eq!(link.peer().uid(), rustix::process::getuid().as_raw());
    assert_eq!(link.peer().gid(), rustix::process::getgid().as_raw());
    let (packet, fds) = receive(&peer.socket);
    assert_eq!((packet.len(), fds.len()), (128, 1));
    peer.heard(&packet, &fds);
    exchange(&mut link, &mut peer);
    stage.is_undisturbed();
}

#[test]
fn an_answer_sent_by_sendfd_is_accepted() {
    let name = unique_name();
    let listener = raw::listen(&name);
    let connector = thread::spawn(move || {
        let context = Context::new().unwrap();
        context.connect_deadline(&name, soon()).unwrap()
    });
    let socket = raw::accept(&listener);
    let (packet, fds) = receive(&socket);
    let mut peer = greet(socket);
    peer.heard(&packet, &fds);
    let mut link = connector.join().unwrap();
    assert_eq!(link.peer().pid(), Some(std::process::id()));
    exchange(&mut link, &mut peer);
}

#[test]
fn a_packet_sent_before_credentials_were_asked_for_admits_nobody() {
    // On a pair nobody has asked for credentials when this Hello is sent, and `sendfd` adds none.
    let (near, far) = raw::socketpair();
    let _peer = greet(near);
    let met = Context::new().unwrap().accept_socket(far).unwrap_err();
    match met.kind() {
        // The kernel names the overflow user for a sender that it did not note.
        ErrorKind::PeerNotAdmitted { uid } => assert_eq!(*uid, 65_534),
        ErrorKind::Fault(fault) => assert_eq!(*fault, Fault::NoCredentials),
        other => panic!("{other:?}"),
    }
}

#[test]
fn pool_segments_travel_by_sendfd_both_ways() {
    let mut stage = Stage::new(Options::new());
    let (mut link, mut peer) = stage.link();
    let (fd, memory) = segment(1 << 20);
    let packet = segment_packet(7, 1 << 20);
    stream(&peer.socket).send_with_fd(&packet, &[fd.as_raw_fd()]).unwrap();
    memory.store(64, u64::from_ne_bytes(*b"in place"));
    peer.lend(Lent { segment: 7, slot: 0, offset: 64, len: 8, generation: 1 });
    assert_eq!(link.receiver().recv_deadline(soon()).unwrap().unwrap(), b"in place");
    // And theirs to us.
    link.send(&[0x5A; 100_000]).unwrap();
    let (packet, fds) = receive(&peer.socket);
    assert_eq!((packet.len(), fds.len()), (128, 1));
    let number = u32::from_le_bytes(packet[16..20].try_into().unwrap());
    let len = u64::from_le_bytes(packet[24..32].try_into().unwrap());
    assert_eq!(packet, segment_packet(number, len));
    let lent = Lent::read(peer.theirs(), Hello::honest().control_len as usize);
    assert_eq!((lent.segment, lent.len), (number, 100_000));
    let theirs = Memory::map(&fds[0], len as usize, false);
    let last = lent.offset as usize + 99_992;
    assert_eq!(theirs.load(last), u64::from_ne_bytes([0x5A; 8]));
    stage.is_undisturbed();
}

#[test]
fn too_many_descriptors_by_sendfd_are_refused() {
    let mut stage = Stage::new(Options::new());
    for count in [0, 2, 3, 10] {
        let socket = raw::dial(&stage.name);
        let (peer, fd) = RawPeer::prepare(socket, Hello::honest());
        let fds = vec![fd.as_raw_fd(); count];
        stream(&peer.socket).send_with_fd(&peer.hello.encode(), &fds).unwrap();
        stage.refuses_one();
        let (packet, fds) = receive(&peer.socket);
        assert_eq!((raw::refusal_code(&packet), fds.len()), (Some(2), 0));
    }
    let (mut link, mut peer) = stage.link();
    let (fd, _memory) = segment(page());
    let fds = [fd.as_raw_fd(); 2];
    stream(&peer.socket).send_with_fd(&segment_packet(1, page()), &fds).unwrap();
    peer.lend(Lent { segment: 1, slot: 0, offset: 0, len: 8, generation: 1 });
    let expected = Fault::DescriptorCount { count: 2, expected: 1 };
    assert_eq!(fault(link.receiver().recv_deadline(soon())), expected);
    stage.is_undisturbed();
}

#[test]
fn a_descriptor_of_ours_arrives_without_a_way_to_write() {
    let mut stage = Stage::new(Options::new());
    let peer = greet(raw::dial(&stage.name));
    let _link = stage.listener.accept_deadline(soon()).unwrap();
    let (_packet, fds) = receive(&peer.socket);
    let fd: BorrowedFd<'_> = fds[0].as_fd();
    let seals = rustix::fs::fcntl_get_seals(fd).unwrap();
    assert!(seals.contains(SEALS), "{seals:?}");
    assert!(rustix::fs::ftruncate(fd, 0).is_err());
    assert!(rustix::io::pwrite(fd, b"x", 0).is_err());
    let punch = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    assert!(rustix::fs::fallocate(fd, punch, 0, page()).is_err());
    assert!(Memory::try_map(fd, page() as usize, true).is_err(), "no writable mapping");
    // Nor by way of a new description of the file.
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let again = rustix::fs::open(path, rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty());
    if let Ok(again) = again {
        assert!(Memory::try_map(&again, page() as usize, true).is_err());
        assert!(rustix::io::pwrite(&again, b"x", 0).is_err());
    }
}
