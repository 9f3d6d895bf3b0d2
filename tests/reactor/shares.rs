//! Links of one loop share its time: one that has much to copy, to map or to read does it in turns, and the others are
//! served in between. The tests drive the loop by hand and count turns, not time.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::support::raw::{self, Lent, Memory, RawPeer};
use crate::support::{Stage, pair_of};
use slipring::error::{Fault, TryRecvError};
use slipring::{Connection, Context, ErrorKind, EventLoop, Link, Options, Reactor};

/// Slices of 256 KiB.
const SLICES: usize = 64;
const LEN: usize = SLICES * (256 << 10);

/// A loop, and a peer that it echoes to.
struct Scene {
    context: Context,
    events: EventLoop,
    reactor: Reactor,
    honest: Connection,
}

impl Scene {
    fn new(context: Context) -> Self {
        let mut events = EventLoop::new(&context).unwrap();
        let reactor = events.reactor();
        let (near, honest) = pair_of(&context, &context);
        reactor.adopt(near).unwrap().on_message(|link, message| link.write(message.to_vec()));
        Self { context, events, reactor, honest }
    }

    fn link(&mut self) -> (Link, Connection) {
        let (near, far) = pair_of(&self.context, &self.context);
        (self.reactor.adopt(near).unwrap(), far)
    }

    /// Has the loop run until the honest peer has its echo. Returns the count of calls.
    fn trip(&mut self) -> usize {
        self.honest.send(b"there?").unwrap();
        for calls in 1.. {
            self.events.poll_once(64).unwrap();
            match self.honest.receiver().try_recv() {
                Ok(Some(echo)) => {
                    assert_eq!(echo, b"there?");
                    return calls;
                }
                Err(TryRecvError::Empty) => assert!(calls < 100_000, "no echo"),
                other => panic!("{other:?}"),
            }
        }
        unreachable!()
    }

    /// Returns how many round trips fit in until `is_done`.
    fn trips_until(&mut self, is_done: impl Fn() -> bool) -> usize {
        let mut trips = 0;
        while !is_done() {
            self.trip();
            trips += 1;
            assert!(trips < 1_000_000, "it is never done");
        }
        trips
    }
}

fn counter() -> (Arc<AtomicUsize>, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    (count.clone(), count)
}

#[test]
fn a_long_message_that_is_read_is_copied_between_round_trips_of_another_link() {
    let mut scene = Scene::new(Context::new().unwrap());
    let (link, mut far) = scene.link();
    let long: Vec<u8> = (0..LEN).map(|at| (at >> 10) as u8).collect();
    let ((read, came), expected) = (counter(), long.clone());
    link.read_with(move |_, message| {
        assert!(message.unwrap().unwrap() == expected);
        read.fetch_add(1, Ordering::Relaxed);
    });
    scene.trip();
    far.send(&long).unwrap();
    let trips = scene.trips_until(|| came.load(Ordering::Relaxed) == 1);
    assert!(trips >= SLICES / 2, "{trips} round trips");
}

#[test]
fn a_long_response_and_the_message_before_it_are_copied_between_round_trips_of_another_link() {
    let mut scene = Scene::new(Context::new().unwrap());
    let (link, mut far) = scene.link();
    let ((answered, answers), (read, reads)) = (counter(), counter());
    link.call_with(*b"question", move |_, response| {
        answered.fetch_add(response.unwrap().len(), Ordering::Relaxed);
    });
    scene.trip();
    let request = far.recv_request().unwrap().unwrap();
    // Nobody wants it yet, so the loop sets it aside.
    far.send(&vec![1; LEN]).unwrap();
    far.respond(request.id, &vec![2; LEN]).unwrap();
    let trips = scene.trips_until(|| answers.load(Ordering::Relaxed) == LEN);
    assert!(trips >= SLICES, "{trips} round trips");
    link.read_with(move |_, message| {
        read.fetch_add(message.unwrap().unwrap().len(), Ordering::Relaxed);
    });
    scene.trips_until(|| reads.load(Ordering::Relaxed) == LEN);
    assert!(link.is_open());
}

#[test]
fn a_copy_that_has_begun_ends_with_its_link() {
    let mut scene = Scene::new(Context::new().unwrap());
    let (link, mut far) = scene.link();
    let (closed, ends) = counter();
    link.read_with(|_, message| assert!(message.is_err()));
    link.on_closed(move |_, _| {
        closed.fetch_add(1, Ordering::Relaxed);
    });
    scene.trip();
    far.send(&vec![1; LEN]).unwrap();
    scene.trip();
    link.abort();
    scene.trips_until(|| ends.load(Ordering::Relaxed) == 1);
}

/// A peer that announces and retires one memory again and again.
struct Announcer {
    peer: RawPeer,
    memory: (OwnedFd, Memory),
    len: u64,
    /// The packets that were sent: a Segment, its Retire, the next Segment, and so on.
    packets: u32,
}

impl Announcer {
    fn new(peer: RawPeer, len: u64) -> Self {
        rustix::io::ioctl_fionbio(&peer.socket, true).unwrap();
        Self { peer, memory: raw::segment(len), len, packets: 0 }
    }

    /// Sends packets until it has sent `most` in all, or the socket's queue is full.
    fn announce(&mut self, most: u32) {
        while self.packets < most {
            let number = self.packets / 2;
            let sent = if self.packets.is_multiple_of(2) {
                let packet = raw::segment_packet(number, self.len);
                raw::send(&self.peer.socket, &packet, &[self.memory.0.as_fd()])
            } else {
                raw::send(&self.peer.socket, &raw::retire_packet(number), &[])
            };
            if sent.is_err() {
                return;
            }
            self.packets += 1;
        }
    }
}

/// Announces and retires a memory of `len` bytes again and again, each pair with a record that makes the loop read it, and
/// counts the round trips of the honest peer until the last one is read.
fn announce_beside(len: u64, pairs: u32) -> u32 {
    let mut stage = Stage::new(Options::new());
    let (connection, peer) = stage.link();
    let mut scene = Scene::new(stage.context.clone());
    let link = scene.reactor.adopt(connection).unwrap();
    let (heard, came) = counter();
    link.on_message(move |_, message| {
        heard.fetch_add(usize::from(message.len() == 7), Ordering::Relaxed);
    });
    scene.trip();
    let mut announcer = Announcer::new(peer, len);
    let mut trips = 0;
    while came.load(Ordering::Relaxed) == 0 {
        if announcer.packets < 2 * pairs {
            let before = announcer.packets / 2;
            announcer.announce(2 * pairs);
            for _ in before..announcer.packets / 2 {
                announcer.peer.publish(raw::header(raw::PACKETS, 0), &[]);
            }
            if announcer.packets >= 2 * pairs {
                // A message behind all of it comes through.
                announcer.peer.say(b"at last");
            }
            announcer.peer.wake_loop();
        }
        scene.trip();
        trips += 1;
        assert!(trips < 10_000_000, "{} packets", announcer.packets);
        assert!(link.is_open(), "it waits, and that is all");
    }
    println!("{trips} round trips beside {} packets", announcer.packets);
    trips
}

#[test]
fn a_peer_that_announces_memory_without_end_waits_for_its_share_alone() {
    let trips = announce_beside(32 << 20, 200);
    assert!(trips > 8, "{trips} round trips");
}

#[test]
fn the_pages_of_a_long_segment_are_counted_between_round_trips_of_another_link() {
    // Each is counted in five parts.
    let trips = announce_beside(300 << 20, 20);
    assert!(trips > 8, "{trips} round trips");
}

#[test]
fn a_record_that_names_memory_of_a_peer_that_rests_waits_for_it() {
    const LEN: u64 = 96 << 20;
    let mut stage = Stage::new(Options::new());
    let (connection, mut peer) = stage.link();
    let mut scene = Scene::new(stage.context.clone());
    let link = scene.reactor.adopt(connection).unwrap();
    let (heard, came) = counter();
    link.on_message(move |_, message| {
        assert_eq!(message.len(), 5000);
        heard.fetch_add(1, Ordering::Relaxed);
    });
    scene.trip();
    let (fd, _memory) = raw::segment(LEN);
    let lent = |segment, slot| Lent { segment, slot, offset: 0, len: 5000, generation: 1 };
    for number in 0..40 {
        raw::send(&peer.socket, &raw::segment_packet(number, LEN), &[fd.as_fd()]).unwrap();
        peer.lend(lent(number, number));
    }
    peer.wake_loop();
    // Almost 4 GiB: more than the link has saved up. Even where the machine leaves this thread so little of its CPU that
    // the link never rests, a turn serves eight messages.
    let trips = scene.trips_until(|| came.load(Ordering::Relaxed) == 40);
    println!("{trips} round trips beside 40 messages");
    assert!(trips >= 5, "{trips} round trips");
    assert!(link.is_open());
}

#[test]
fn a_loop_sleeps_while_its_only_busy_link_waits_for_its_share() {
    const LEN: u64 = 96 << 20;
    // Where other programs leave this thread less than a quarter of its CPU, no link rests.
    for _ in 0..8 {
        let mut stage = Stage::new(Options::new());
        let (connection, mut peer) = stage.link();
        let mut scene = Scene::new(stage.context.clone());
        let link = scene.reactor.adopt(connection).unwrap();
        let (heard, came) = counter();
        link.on_message(move |_, _| {
            heard.fetch_add(1, Ordering::Relaxed);
        });
        let (fd, _memory) = raw::segment(LEN);
        for number in 0..40 {
            raw::send(&peer.socket, &raw::segment_packet(number, LEN), &[fd.as_fd()]).unwrap();
            peer.lend(Lent { segment: number, slot: number, offset: 0, len: 5000, generation: 1 });
        }
        peer.wake_loop();
        let mut sleeps = 0;
        while came.load(Ordering::Relaxed) < 40 {
            if scene.events.poll_once(64).unwrap() == 0 {
                sleeps += 1;
                // No event ends the rest.
                std::thread::sleep(scene.events.timeout().expect("the link rests"));
            }
        }
        assert!(link.is_open());
        if sleeps > 0 {
            return;
        }
    }
    panic!("the loop polls a link that rests");
}

#[test]
fn a_header_that_its_writer_takes_back_while_its_message_is_copied_ends_the_link() {
    const LEN: u64 = 8 << 20;
    let mut stage = Stage::new(Options::new());
    let (connection, mut peer) = stage.link();
    let mut scene = Scene::new(stage.context.clone());
    let link = scene.reactor.adopt(connection).unwrap();
    link.read_with(|_, message| assert!(message.is_err()));
    let (closed, ends) = counter();
    link.on_closed(move |_, result| {
        let error = result.unwrap_err();
        let fault = ErrorKind::Fault(Fault::RecordHeader { header: 0 });
        assert_eq!(*error.kind(), fault);
        closed.fetch_add(1, Ordering::Relaxed);
    });
    peer.send_segment(0, LEN);
    let start = peer.head;
    peer.lend(Lent { segment: 0, slot: 0, offset: 0, len: LEN, generation: 1 });
    peer.wake_loop();
    // Each call copies a slice at most.
    for _ in 0..4 {
        scene.events.poll_once(64).unwrap();
    }
    peer.write(start, &[0; 8]);
    for calls in 1.. {
        scene.events.poll_once(64).unwrap();
        if ends.load(Ordering::Relaxed) > 0 {
            break;
        }
        assert!(calls < 10_000, "the loop polls a record that is gone");
    }
    assert!(!link.is_open());
}

/// Returns the time that this thread has computed.
fn computed() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn all_links_of_a_peer_process_have_one_share_of_a_loop_s_time() {
    const LEN: u64 = 96 << 20;
    const LINKS: usize = 8;
    const EACH: u32 = 16;
    let mut stage = Stage::new(Options::new());
    let mut scene = Scene::new(stage.context.clone());
    let (fd, _memory) = raw::segment(LEN);
    let mut peers = Vec::new();
    let (heard, came) = counter();
    for _ in 0..LINKS {
        let (connection, peer) = stage.link();
        let heard = heard.clone();
        scene.reactor.adopt(connection).unwrap().on_message(move |_, _| {
            heard.fetch_add(1, Ordering::Relaxed);
        });
        peers.push(peer);
    }
    scene.trip();
    let (start, before) = (Instant::now(), computed());
    for peer in &mut peers {
        for number in 0..EACH {
            raw::send(&peer.socket, &raw::segment_packet(number, LEN), &[fd.as_fd()]).unwrap();
            peer.lend(Lent { segment: number, slot: number, offset: 0, len: 5000, generation: 1 });
        }
        peer.wake_loop();
    }
    while came.load(Ordering::Relaxed) < LINKS * EACH as usize {
        if scene.events.poll_once(64).unwrap() == 0 {
            std::thread::sleep(scene.events.timeout().expect("a link rests"));
        }
    }
    let (passed, computed) = (start.elapsed(), computed() - before);
    println!("the loop has computed for {computed:?} of {passed:?}");
    // The packets have a quarter, and the loop itself needs some.
    assert!(computed < passed / 2, "the loop has computed for {computed:?} of {passed:?}");
}
