//! A peer may send a descriptor whose `close` waits: for the daemon that serves the file, or, as here, for a connection
//! that lingers. The receiver continues at once.

use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::RecvFlags;

use crate::support::callbacks::{diary, hear, settle};
use crate::support::census::descriptors;
use crate::support::hanging::HangingFile;
use crate::support::lingering::lingering;
use crate::support::other::{alone, as_user};
use crate::support::raw::{self, Hello, Lent, RawPeer, segment_packet};
use crate::support::{Stage, wait_until};
use slipring::options::PeerPolicy;
use slipring::{Connection, Options, Reactor};

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
        let (near, far) = lingering(LINGER);
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

/// Returns a Unix socket in whose queue a connection lingers, and the end of that connection that does not read.
fn nested() -> (OwnedFd, TcpStream) {
    let (near, far) = raw::socketpair();
    let reader = Lingering::new().hand_over(|fd| raw::send(&near, b"here", &[fd]).unwrap());
    (far, reader)
}

#[test]
fn strangers_cost_a_listener_no_descriptor_whatever_lingers_in_their_queues() {
    const STRANGERS: u64 = 12;
    let test = "strangers_cost_a_listener_no_descriptor_whatever_lingers_in_their_queues";
    alone(test, || {
        // The policy admits who made a socket, and then not who sent the Hello.
        let asked = AtomicU32::new(0);
        let admits = move |_: &_| asked.fetch_add(1, Ordering::Relaxed).is_multiple_of(2);
        let options = Options::new().peer_policy(PeerPolicy::Custom(Arc::new(admits)));
        let context = slipring::Context::with_options(options).unwrap();
        let name = crate::support::unique_name();
        let mut listener = context.listen(&name).unwrap();
        let peers: Vec<_> = (0..STRANGERS).map(|_| (raw::dial(&name), nested())).collect();
        let before = descriptors();
        let mut readers = Vec::new();
        for (socket, (nested, reader)) in peers {
            for _ in 0..2 {
                raw::send(&socket, &Hello::honest().encode(), &[nested.as_fd()]).unwrap();
            }
            readers.push(reader);
        }
        at_once("the refusals", || {
            wait_until("the refusals", || {
                assert!(listener.try_accept().unwrap().is_none());
                listener.stats().refused == STRANGERS
            });
        });
        at_once("the closes", || {
            // The listener has made its side of the next link.
            wait_until("the closes", || descriptors() <= before + 1 - 2 * STRANGERS as usize);
        });
        // Those that still wait when the listener ends.
        let waiting: Vec<_> = (0..STRANGERS).map(|_| (raw::dial(&name), nested())).collect();
        for (socket, (nested, reader)) in waiting {
            raw::send(&socket, b"no hello", &[nested.as_fd()]).unwrap();
            readers.push(reader);
        }
        at_once("the end of the listener", || drop(listener));
    });
}

#[test]
fn a_listener_goes_on_when_a_stranger_ends_at_the_refusal() {
    const STRANGERS: u64 = 100;
    let name = crate::support::unique_name();
    let nobody = PeerPolicy::Custom(Arc::new(|_: &_| false));
    let context = slipring::Context::with_options(Options::new().peer_policy(nobody)).unwrap();
    let mut listener = context.listen(&name).unwrap();
    let mut readers = Vec::new();
    for stranger in 1..=STRANGERS {
        let (nested, reader) = nested();
        readers.push(reader);
        let socket = raw::dial(&name);
        raw::send(&socket, &Hello::honest().encode(), &[nested.as_fd()]).unwrap();
        drop(nested);
        let ends = std::thread::spawn(move || {
            // The refusal comes, and stays unread.
            let peek = RecvFlags::PEEK | RecvFlags::DONTWAIT;
            while rustix::net::recv(&socket, &mut [0; 1], peek) == Err(Errno::AGAIN) {}
        });
        at_once("a refusal", || {
            wait_until("the refusal", || {
                assert!(listener.try_accept().unwrap().is_none());
                listener.stats().refused == stranger
            });
        });
        ends.join().unwrap();
    }
}

fn lends(peer: &mut RawPeer) {
    peer.lend(Lent { segment: 1, slot: 0, offset: 0, len: 4096, generation: 5 });
}

/// Asserts that a link ends at once, which the reactor or this thread serves, and that others go on.
fn ends_at_once(stage: &mut Stage, (reactor, is_served): (&Reactor, bool), mut link: Connection) {
    at_once("the end of a link", || {
        if is_served {
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
    at_once("the reactor", || settle(reactor));
}

#[test]
fn a_link_and_a_reactor_go_on_whatever_a_segment_is() {
    let mut stage = Stage::new(Options::new());
    let reactor = Reactor::spawn(&stage.context).unwrap();
    for served in [false, true] {
        for count in [1, 2, 9] {
            let (link, mut peer) = stage.link();
            let _far = Lingering::new().hand_over(|fd| {
                let fds = vec![fd; count];
                raw::send(&peer.socket, &segment_packet(1, 4096), &fds).unwrap();
            });
            lends(&mut peer);
            ends_at_once(&mut stage, (&reactor, served), link);
        }
    }
    at_once("an honest peer", || stage.is_undisturbed());
}

#[test]
fn a_listener_a_link_and_a_reactor_go_on_beside_a_file_that_hangs() {
    let Some(file) = HangingFile::open() else { return };
    let mut stage = Stage::new(Options::new());
    for count in [1, 2] {
        let socket = raw::dial(&stage.name);
        raw::send(&socket, &Hello::honest().encode(), &vec![file.as_fd(); count]).unwrap();
        at_once("a refusal", || {
            wait_until("the refusal", || {
                assert!(stage.listener.try_accept().unwrap().is_none());
                stage.listener.stats().refused >= count as u64
            });
        });
    }
    let reactor = Reactor::spawn(&stage.context).unwrap();
    for served in [false, true] {
        // More than there are threads that close.
        for count in [1, 2, 100] {
            let (link, mut peer) = stage.link();
            let fds = vec![file.as_fd(); count];
            raw::send(&peer.socket, &segment_packet(1, 4096), &fds).unwrap();
            lends(&mut peer);
            ends_at_once(&mut stage, (&reactor, served), link);
        }
    }
    at_once("an honest peer", || stage.is_undisturbed());
}

#[test]
fn a_user_of_files_that_hang_cannot_use_up_the_descriptors() {
    const LIMIT: u64 = 1024;
    let test = "a_user_of_files_that_hang_cannot_use_up_the_descriptors";
    alone(test, || {
        let Some(file) = HangingFile::open() else { return };
        let limit = rustix::process::Rlimit { current: Some(LIMIT), maximum: Some(LIMIT) };
        rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
        let mut stage = Stage::new(Options::new());
        let links: Vec<_> = (0..8).map(|_| stage.link()).collect();
        for (mut link, mut peer) in links {
            let fds = vec![file.as_fd(); 200];
            raw::send(&peer.socket, &segment_packet(1, 4096), &fds).unwrap();
            lends(&mut peer);
            at_once("the end of a link", || link.recv().unwrap_err());
        }
        assert!(descriptors() < LIMIT as usize * 3 / 4, "{} are open", descriptors());
        // A long message could need a descriptor of this user's.
        let longest = std::mem::replace(&mut stage.witness.longest, 300);
        stage.witness.check();
        stage.witness.longest = longest;
        // Of this user nobody joins, until the file hangs no more.
        let socket = raw::dial(&stage.name);
        raw::send(&socket, &Hello::honest().encode(), &[]).unwrap();
        stage.refuses_one();
        assert!(raw::refusal_code(&raw::receive(&socket).unwrap().0).is_some());
        drop(file);
        wait_until("the closes", || descriptors() < 200);
        stage.is_undisturbed();
    });
}

/// Returns how many threads close descriptors of peers.
fn closing_threads() -> usize {
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    let name = |thread: std::fs::DirEntry| std::fs::read_to_string(thread.path().join("comm")).ok();
    threads
        .filter_map(|thread| name(thread.ok()?))
        .filter(|name| name.starts_with("slipring-close"))
        .count()
}

#[test]
fn sockets_end_at_once_when_a_file_has_hung() {
    alone("sockets_end_at_once_when_a_file_has_hung", || {
        // The application has a peer's file, under a low number.
        let Some(file) = HangingFile::open() else { return };
        assert!(file.as_fd().as_raw_fd() < 64);
        let mut stage = Stage::new(Options::new());
        let mut refused = 0;
        let mut brings = |fd: OwnedFd| {
            let socket = raw::dial(&stage.name);
            raw::send(&socket, b"no hello", &[fd.as_fd()]).unwrap();
            refused += 1;
            at_once("a refusal", || {
                wait_until("the refusal", || {
                    assert!(stage.listener.try_accept().unwrap().is_none());
                    stage.listener.stats().refused >= refused
                });
            });
        };
        let before = descriptors();
        brings(raw::socketpair().0);
        // The thread that makes the first table waits for the file. Other threads close sockets meanwhile.
        std::thread::sleep(Duration::from_millis(1500));
        (0..4).for_each(|_| brings(raw::socketpair().0));
        at_once("the closes", || wait_until("the closes", || descriptors() <= before + 4));
        drop(file);
        at_once("the end of the threads", || {
            wait_until("the end of the threads", || closing_threads() == 0)
        });
        let _readers: Vec<_> = (0..4)
            .map(|_| {
                let (nested, reader) = nested();
                brings(nested);
                reader
            })
            .collect();
        at_once("the end of the threads", || {
            wait_until("the end of the threads", || closing_threads() == 0)
        });
        stage.is_undisturbed();
    });
}

#[test]
fn descriptors_count_for_the_user_that_made_their_socket() {
    const LIMIT: u64 = 1024;
    const MAKER: u32 = 65533;
    /// The code of `NoResources`.
    const NO_RESOURCES: Option<u32> = Some(4);
    alone("descriptors_count_for_the_user_that_made_their_socket", || {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: only root can be two users");
            return;
        }
        let Some(file) = HangingFile::open() else { return };
        let limit = rustix::process::Rlimit { current: Some(LIMIT), maximum: Some(LIMIT) };
        rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
        let mut stage = Stage::new(Options::new().peer_policy(PeerPolicy::Anyone));
        // The kernel takes the effective user of a socket's maker, and the real user of a packet's sender.
        let dial = |name: &str| as_user(MAKER, || raw::dial(name));
        let name = stage.name.clone();
        let links: Vec<_> = (0..8)
            .map(|_| {
                let mut peer = RawPeer::greet(dial(&name), Hello::honest());
                let link = stage.listener.accept_deadline(crate::support::soon()).unwrap();
                assert_eq!(link.peer().uid(), 0, "the user of its Hello");
                peer.meet();
                (link, peer)
            })
            .collect();
        for (mut link, mut peer) in links {
            raw::send(&peer.socket, &segment_packet(1, 4096), &[file.as_fd(); 200]).unwrap();
            lends(&mut peer);
            at_once("the end of a link", || link.recv().unwrap_err());
        }
        let peer = RawPeer::greet(dial(&name), Hello::honest());
        stage.refuses_one();
        assert_eq!(raw::refusal_code(&raw::receive(&peer.socket).unwrap().0), NO_RESOURCES);
        // The user of the Hellos has sent nothing that hangs.
        stage.is_undisturbed();
    });
}
