//! Subscribers of a loop share its time with links: a publisher that gives its subscriber much to do does not keep the loop from
//! another link. The tests drive the loop by hand and count turns, not time.

use std::ops::ControlFlow;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use slipring::broadcast::{SubscribeOptions, Subscriber};
use slipring::error::TryRecvError;
use slipring::{Connection, Context, EventLoop, Reactor};

use crate::hostile::{NEWEST_WORD, SPILLED, joins};
use crate::support::pair_of;
use crate::support::raw::{self, Lent, MESSAGE, Memory, POOLED, RawPeer, header, page};

const SLOT: u64 = 64;

/// A publisher made by hand.
struct Topic {
    memory: Memory,
    peer: RawPeer,
    slots: u64,
}

impl Topic {
    /// A topic in which `newest` messages were published, which are all history.
    fn new(options: SubscribeOptions, slots: u32, newest: u64) -> (Subscriber, Self) {
        let (fd, memory) =
            raw::segment(page() + (u64::from(slots) * SLOT).next_multiple_of(page()));
        memory.store(NEWEST_WORD, newest);
        let packet = raw::topic_packet(slots, SLOT as u32, 4, newest as u32);
        let (subscriber, peer) = joins(options, |socket: &OwnedFd| {
            raw::send(socket, &packet, &[fd.as_fd()]).unwrap();
        });
        (subscriber.unwrap(), Self { memory, peer, slots: slots.into() })
    }

    fn slot(&self, message: u64) -> usize {
        (page() + message % self.slots * SLOT) as usize
    }

    fn publish(&self, message: u64, word: u64, payload: &[u8]) {
        let slot = self.slot(message);
        self.memory.store(slot + 8, word);
        self.memory.write(slot + 16, payload);
        self.memory.store(slot, message << 1);
        self.memory.store(NEWEST_WORD, message);
    }
}

/// A loop that echoes to an honest peer, and has a subscriber.
struct Scene {
    events: EventLoop,
    reactor: Reactor,
    honest: Connection,
    came: Arc<AtomicUsize>,
}

impl Scene {
    fn new() -> Self {
        let context = Context::new().unwrap();
        let mut events = EventLoop::new(&context).unwrap();
        let reactor = events.reactor();
        let (near, honest) = pair_of(&context, &context);
        reactor.adopt(near).unwrap().on_message(|link, message| link.write(message.to_vec()));
        let mut scene = Self { events, reactor, honest, came: Arc::default() };
        scene.trip();
        scene
    }

    fn subscribe(&mut self, subscriber: Subscriber) {
        let came = self.came.clone();
        self.reactor
            .subscribe(subscriber, move |sample| {
                came.fetch_add(usize::from(matches!(sample, Ok(Some(_)))), Ordering::Relaxed);
                ControlFlow::Continue(())
            })
            .unwrap();
    }

    fn came(&self) -> usize {
        self.came.load(Ordering::Relaxed)
    }

    /// Has the loop run until the honest peer has its echo.
    fn trip(&mut self) {
        self.honest.send(b"there?").unwrap();
        for calls in 1.. {
            self.events.poll_once(64).unwrap();
            match self.honest.receiver().try_recv() {
                Ok(Some(echo)) => return assert_eq!(echo, b"there?"),
                Err(TryRecvError::Empty) => assert!(calls < 100_000, "no echo"),
                other => panic!("{other:?}"),
            }
        }
    }

    /// Returns how many round trips fit in until the subscriber has its message.
    fn trips(&mut self) -> usize {
        let mut trips = 0;
        while self.came() == 0 {
            self.trip();
            trips += 1;
            assert!(trips < 1_000_000, "it never comes");
        }
        trips
    }
}

/// A subscriber whose message comes behind many that are gone.
fn behind_withdrawn_messages() -> (Subscriber, Topic) {
    const LAST: u64 = 65_000;
    let (subscriber, topic) = Topic::new(SubscribeOptions::newest(LAST as u32), 1 << 16, LAST);
    (1..LAST).for_each(|message| topic.memory.store(topic.slot(message), message << 1 | 1));
    topic.publish(LAST, header(MESSAGE, 2), b"ok");
    (subscriber, topic)
}

/// A subscriber whose message comes behind many packets.
fn behind_packets() -> (Subscriber, Topic) {
    const LEN: u64 = 64 << 20;
    const LAST: u32 = 60;
    let (subscriber, topic) = Topic::new(SubscribeOptions::every(), 16, 0);
    let (fd, _memory) = raw::segment(LEN);
    for number in 0..=LAST {
        let packet = raw::segment_packet(number, LEN);
        raw::send(&topic.peer.socket, &packet, &[fd.as_fd()]).unwrap();
        if number != LAST {
            raw::send(&topic.peer.socket, &raw::retire_packet(number), &[]).unwrap();
        }
    }
    let lent = Lent { segment: LAST, slot: 0, offset: 0, len: 1000, generation: 0 };
    topic.publish(1, header(MESSAGE | POOLED, 32), &lent.encode());
    (subscriber, topic)
}

/// Returns how many turns of a loop by descriptor it takes until the subscriber has its message.
fn turns(subscriber: &mut Subscriber) -> usize {
    assert!(subscriber.descriptor().is_some());
    subscriber.take_turns();
    for turns in 0..1_000_000 {
        match subscriber.try_recv() {
            Ok(Some(_)) => return turns,
            Err(TryRecvError::Empty) => {
                std::thread::sleep(subscriber.rest().expect("more is left"))
            }
            other => panic!("{other:?}"),
        }
    }
    panic!("it never comes");
}

#[test]
fn a_loop_by_descriptor_has_other_turns_between_what_a_publisher_has_it_do() {
    let (mut subscriber, topic) = behind_withdrawn_messages();
    // 8192 of them a look.
    let count = turns(&mut subscriber);
    assert!(count >= 6, "{count} turns");
    assert_eq!(subscriber.rest(), None, "nothing is left");
    drop(topic);
    let (mut subscriber, _topic) = behind_packets();
    // The kernel counts the pages of 64 MiB in some 0.6 ms, and a look ends after 1 ms.
    let count = turns(&mut subscriber);
    assert!(count > 8, "{count} turns");
}

#[test]
fn messages_that_are_gone_are_passed_over_between_round_trips_of_another_link() {
    let mut scene = Scene::new();
    let (subscriber, _topic) = behind_withdrawn_messages();
    scene.subscribe(subscriber);
    let trips = scene.trips();
    // 8192 of them a look.
    assert!(trips >= 6, "{trips} round trips");
}

#[test]
fn packets_are_read_between_round_trips_of_another_link() {
    let mut scene = Scene::new();
    let (subscriber, _topic) = behind_packets();
    scene.subscribe(subscriber);
    let trips = scene.trips();
    // The kernel counts the pages of 64 MiB in some 0.6 ms, and a look ends after 1 ms.
    assert!(trips > 8, "{trips} round trips");
}

#[test]
fn a_turn_of_a_subscriber_ends_after_the_copy_of_a_long_payload() {
    const LEN: u64 = 1 << 20;
    let mut scene = Scene::new();
    let (subscriber, mut topic) = Topic::new(SubscribeOptions::every(), 16, 0);
    topic.peer.send_segment(0, 4 * LEN);
    for message in 1..=4 {
        let offset = (message - 1) * LEN;
        let lent = Lent { segment: 0, slot: 0, offset, len: LEN, generation: 0 };
        topic.publish(message, header(MESSAGE | SPILLED, LEN), &lent.encode());
    }
    scene.subscribe(subscriber);
    for calls in 1.. {
        let before = scene.came();
        scene.events.poll_once(64).unwrap();
        assert!(scene.came() <= before + 1, "{} messages in a turn", scene.came() - before);
        if scene.came() == 4 {
            break;
        }
        assert!(calls < 1000, "they do not come");
    }
}
