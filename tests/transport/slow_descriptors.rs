//! A peer may send a descriptor whose `close` waits: for the daemon that serves the file, or, as here, for a connection
//! that lingers. The receiver continues at once.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use crate::support::callbacks::{diary, hear};
use crate::support::raw::{self, Hello, Lent, RawPeer, segment_packet};
use crate::support::{Stage, wait_until};
use rustix::net::sockopt;
use slipring::{Options, Reactor};

/// How long a close waits, and how soon the receiver must continue.
const LINGER: Duration = Duration::from_secs(12);
const SOON: Duration = Duration::from_secs(4);

/// A connection whose last close waits: there is something to send that nobody reads.
struct Lingering {
    near: TcpStream,
    _far: TcpStream,
}

impl Lingering {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let far = listener.accept().unwrap().0;
        near.set_nonblocking(true).unwrap();
        while near.write(&[0; 1 << 16]).is_ok() {}
        near.set_nonblocking(false).unwrap();
        sockopt::set_socket_linger(&near, Some(LINGER)).unwrap();
        Self { near, _far: far }
    }

    /// Leaves the last close to the receiver.
    fn hand_over(self, send: impl FnOnce(BorrowedFd<'_>)) -> TcpStream {
        send(self.near.as_fd());
        drop(self.near);
        self._far
    }
}

/// Asserts that this takes no time.
fn at_once<T>(what: &str, act: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let done = act();
    assert!(start.elapsed() < SOON, "{what} took {:?}", start.elapsed());
    done
}

#[test]
fn a_close_that_waits_does_so_where_it_is_tried() {
    let lingering = Lingering::new();
    let (near, far) = raw::socketpair();
    let _far = lingering.hand_over(|fd| raw::send(&near, b"here", &[fd]).unwrap());
    let (_, received) = raw::receive(&far).unwrap();
    let start = Instant::now();
    let closing = std::thread::spawn(move || drop(received));
    std::thread::sleep(Duration::from_millis(200));
    assert!(!closing.is_finished(), "this machine closes at once: {:?}", start.elapsed());
}

#[test]
fn a_listener_and_its_links_go_on_whatever_a_hello_carries() {
    let mut stage = Stage::new(Options::new());
    for count in [1, 2, 3, 4] {
        let socket = raw::dial(&stage.name);
        let memory = raw::segment(Hello::honest().segment_len());
        let _far = Lingering::new().hand_over(|fd| {
            // The last of them, so that it is the one too many.
            let mut fds = vec![memory.0.as_fd(); count - 1];
            fds.push(fd);
            raw::send(&socket, &Hello::honest().encode(), &fds).unwrap();
        });
        at_once("a refusal", || {
            wait_until("the refusal", || {
                assert!(stage.listener.try_accept().unwrap().is_none());
                stage.listener.stats().refused >= count as u64
            });
        });
    }
    // Behind an honest Hello, where nobody reads it before the end.
    let (link, peer) = stage.link();
    let _far = Lingering::new().hand_over(|fd| {
        raw::send(&peer.socket, &segment_packet(1, 4096), &[fd]).unwrap();
    });
    drop(peer);
    at_once("the end of a link", || drop(link));
    // Of a peer that says nothing else.
    let socket = raw::dial(&stage.name);
    let _other = Lingering::new().hand_over(|fd| {
        for _ in 0..2 {
            raw::send(&socket, b"no hello", &[fd]).unwrap();
        }
    });
    at_once("a refusal", || {
        wait_until("the refusal", || {
            assert!(stage.listener.try_accept().unwrap().is_none());
            stage.listener.stats().refused >= 5
        });
    });
    at_once("an honest peer", || stage.is_undisturbed());
}

fn lends(peer: &mut RawPeer) {
    peer.lend(Lent { segment: 1, slot: 0, offset: 0, len: 4096, generation: 5 });
}

#[test]
fn a_link_and_a_reactor_go_on_whatever_a_segment_is() {
    let mut stage = Stage::new(Options::new());
    let reactor = Reactor::spawn(&stage.context).unwrap();
    for served in [false, true] {
        for count in [1, 2, 9] {
            let (mut link, mut peer) = stage.link();
            let _far = Lingering::new().hand_over(|fd| {
                let fds = vec![fd; count];
                raw::send(&peer.socket, &segment_packet(1, 4096), &fds).unwrap();
            });
            lends(&mut peer);
            at_once("the end of a link", || {
                if served {
                    let link = reactor.adopt(link).unwrap();
                    let (say, said) = diary();
                    link.on_closed(move |_, result| say(result));
                    link.on_message(|_, _| ());
                    assert!(hear(&said).is_err());
                } else {
                    link.recv().unwrap_err();
                    drop(link);
                }
            });
            at_once("another link", || stage.witness.check());
            at_once("the reactor", || crate::support::callbacks::settle(&reactor));
        }
    }
    at_once("an honest peer", || stage.is_undisturbed());
}
