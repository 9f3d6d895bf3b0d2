//! loom models of sleep and wake-up: no wake-up is lost.
//!
//! ```text
//! RUSTFLAGS="--cfg slipring_loom" cargo test --release --lib models
//! ```
//!
//! They run [`Sleeper`], [`Waker`] and the ring's ends as they ship, over [`LoomWords`]; the loop
//! around a sleep is that of `link/waiter.rs`. The futex is modelled by what the kernel promises:
//! it compares the bell and queues the sleeper under a lock that the waker takes, too. A sleeper
//! that nobody wakes is a deadlock, which loom reports.
//!
//! `membarrier`, which loom does not know, is modelled by what it promises ([`interrupts`](crate::wake::interrupts)).
//! Not modelled: the other reasons to wake up, which are deadlines, signals, and the link's health.

mod crowd;
mod eager;
mod hot;

use std::sync::Arc;

use loom::sync::{Condvar, Mutex};
use loom::thread;

use crate::ring::{Consumer, Header, Kind, Producer};
use crate::shm::{LoomWords, OwnWords, PeerWords};
use crate::sync::{Edge, failure_without};
use crate::wake::{Attention, Sleeper, Waker, before_last_look, is_gone};

/// Bytes of the ring, at the start of the sender's segment. Two records fill it.
const CAPACITY: u64 = 256;
/// Words of the sender's segment behind the ring, in bytes.
const DATA_BELL: usize = 256;
const SENDER_STATE: usize = 264;
/// Words of the receiver's segment, in bytes.
const POSITION: usize = 0;
const RECEIVER_STATE: usize = 8;
const ROOM_BELL: usize = 16;
const RETURNED: usize = 24;

/// The message of loom when all threads sleep.
const DEADLOCK: &str = "deadlock";

/// A record of one line.
fn header() -> Header {
    Header::new(Kind::Message, 0)
}

/// The kernel's queue of threads that sleep on one bell.
#[derive(Default)]
struct Futex {
    queue: Mutex<()>,
    woken: Condvar,
}

impl Futex {
    /// Sleeps if the bell's low half still is `value`.
    fn wait(&self, peer: &LoomWords, bell: usize, value: u32) {
        let queue = self.queue.lock().unwrap();
        if peer.load(bell) as u32 == value {
            drop(self.woken.wait(queue).unwrap());
        }
    }

    fn wake(&self) {
        let _queue = self.queue.lock().unwrap();
        self.woken.notify_all();
    }
}

/// The receiver's end of the socket: wake-ups that have come.
#[derive(Default)]
struct Socket {
    packets: Mutex<u32>,
    arrived: Condvar,
}

impl Socket {
    fn call(&self) {
        *self.packets.lock().unwrap() += 1;
        self.arrived.notify_all();
    }

    /// Takes what has come. Returns whether there was something.
    fn take(&self) -> bool {
        std::mem::take(&mut *self.packets.lock().unwrap()) > 0
    }

    /// Sleeps until something comes.
    fn sleep(&self) {
        let mut packets = self.packets.lock().unwrap();
        while *packets == 0 {
            packets = self.arrived.wait(packets).unwrap();
        }
    }
}

/// The words of a link that both sides see.
#[derive(Clone)]
struct Link {
    /// The sender's segment.
    sending: LoomWords,
    /// The receiver's segment.
    receiving: LoomWords,
    data: Arc<Futex>,
    room: Arc<Futex>,
    socket: Arc<Socket>,
}

impl Link {
    fn new() -> Self {
        Self {
            sending: LoomWords::new(280),
            receiving: LoomWords::new(32),
            data: Arc::default(),
            room: Arc::default(),
            socket: Arc::default(),
        }
    }

    fn sender(&self) -> Sender {
        let (own, peer) = (self.sending.clone(), self.receiving.clone());
        Sender {
            producer: Producer::new(own, peer, 0, POSITION, CAPACITY, 0),
            data: Waker::new(RECEIVER_STATE, DATA_BELL),
            room: Sleeper::new(SENDER_STATE, ROOM_BELL),
            link: self.clone(),
        }
    }

    fn receiver(&self) -> Receiver {
        let (own, peer) = (self.receiving.clone(), self.sending.clone());
        Receiver {
            consumer: Consumer::new(own, peer, 0, POSITION, CAPACITY, 0),
            data: Sleeper::new(RECEIVER_STATE, DATA_BELL),
            room: Waker::new(SENDER_STATE, ROOM_BELL),
            link: self.clone(),
        }
    }
}

/// The loop of `Waiter::wait`, after its polls.
fn wait(
    sleeper: &mut Sleeper,
    own: &LoomWords,
    peer: &LoomWords,
    futex: &Futex,
    mut ready: impl FnMut() -> bool,
) {
    loop {
        let bell = sleeper.bell();
        sleeper.sleep(own, peer, &mut ready, |rung| futex.wait(peer, bell, rung));
        if ready() {
            sleeper.unpark(own);
            return;
        }
    }
}

struct Sender {
    producer: Producer<LoomWords, LoomWords>,
    data: Waker,
    room: Sleeper,
    link: Link,
}

impl Sender {
    /// Sends a record, after a wait for room if there is none.
    fn send(&mut self) {
        while self.producer.reserve(header()).expect("the receiver is honest").is_err() {
            let Self { producer, room, link: Link { sending, receiving, room: futex, .. }, .. } =
                self;
            wait(room, sending, receiving, futex, || {
                producer.refresh().is_ok_and(|free| free >= 64)
            });
        }
        self.producer.publish(header());
        self.announce();
    }

    fn announce(&mut self) {
        let Link { sending, receiving, data, socket, .. } = &self.link;
        let attention = self.data.look(sending, receiving);
        match attention.expect("the receiver is honest") {
            Some(Attention::Wake) => data.wake(),
            Some(Attention::Call) => socket.call(),
            Some(Attention::Gone) | None => {}
        }
    }
}

struct Receiver {
    consumer: Consumer<LoomWords, LoomWords>,
    data: Sleeper,
    room: Waker,
    link: Link,
}

impl Receiver {
    /// Receives a record, after a wait if there is none.
    fn receive(&mut self) {
        let record = loop {
            if let Some(record) = self.consumer.peek().expect("the sender is honest") {
                break record;
            }
            if self.consumer.publish() {
                self.offer_room();
            }
            let Self { consumer, data, link: Link { sending, receiving, data: futex, .. }, .. } =
                self;
            wait(data, receiving, sending, futex, || consumer.is_ready());
        };
        if self.consumer.release(record.header) {
            self.offer_room();
        }
    }

    fn offer_room(&mut self) {
        offer_room(&mut self.room, &self.link);
    }

    /// Receives `count` records inside of an event loop: the arming of `Inbox::arm`. Each time it
    /// looks until there is nothing, takes what has come on the socket, arms if it is not armed or was
    /// woken, looks once more, and sleeps on the socket.
    fn receive_in_loop(&mut self, count: u32) {
        let mut armed = false;
        let mut received = 0;
        while received < count {
            if let Some(record) = self.consumer.peek().expect("the sender is honest") {
                if armed {
                    armed = false;
                    self.data.unpark(&self.link.receiving);
                }
                self.consumer.release(record.header);
                received += 1;
                continue;
            }
            let woken = self.link.socket.take();
            if !armed || woken {
                armed = true;
                before_last_look(self.data.arm(&self.link.receiving));
            }
            if !self.consumer.is_ready() {
                self.link.socket.sleep();
            }
        }
    }
}

/// Wakes a sender that sleeps for want of room.
fn offer_room(waker: &mut Waker, link: &Link) {
    let attention = waker.look(&link.receiving, &link.sending);
    if attention.expect("the sender is honest") == Some(Attention::Wake) {
        link.room.wake();
    }
}

/// Every execution with at most `preemptions` switches of threads that could have gone on: with
/// all of them two sleeps take minutes.
fn bounded(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut bounded = loom::model::Builder::new();
    bounded.preemption_bound = Some(preemptions);
    bounded.check(model);
}

/// A receiver that sleeps for want of a record: every execution.
fn record() {
    loom::model(|| {
        let link = Link::new();
        let (mut sender, mut receiver) = (link.sender(), link.receiver());
        let sending = thread::spawn(move || sender.send());
        receiver.receive();
        sending.join().unwrap();
    });
}

#[test]
fn a_receiver_never_sleeps_past_a_record() {
    record();
}

#[test]
fn a_receiver_fails_without_park() {
    assert!(failure_without(Edge::Park, record).contains(DEADLOCK));
}

#[test]
fn a_receiver_fails_without_wake() {
    assert!(failure_without(Edge::Wake, record).contains(DEADLOCK));
}

/// A sender that sleeps for want of room: every execution.
fn room() {
    loom::model(|| {
        let link = Link::new();
        let (mut sender, mut receiver) = (link.sender(), link.receiver());
        (0..2).for_each(|_| sender.send());
        let receiving = thread::spawn(move || receiver.receive());
        sender.send();
        receiving.join().unwrap();
    });
}

#[test]
fn a_sender_never_sleeps_past_room() {
    room();
}

#[test]
fn a_sender_fails_without_park() {
    assert!(failure_without(Edge::Park, room).contains(DEADLOCK));
}

#[test]
fn a_sender_fails_without_wake() {
    assert!(failure_without(Edge::Wake, room).contains(DEADLOCK));
}

/// The waker rings once an epoch, and each sleep is a new one.
#[test]
fn every_sleep_is_woken_anew() {
    bounded(5, || {
        let link = Link::new();
        let (mut sender, mut receiver) = (link.sender(), link.receiver());
        let sending = thread::spawn(move || (0..2).for_each(|_| sender.send()));
        (0..2).for_each(|_| receiver.receive());
        sending.join().unwrap();
    });
}

/// Both sleep: the sender for room in a full ring, the receiver for what the sender has yet to
/// send.
#[test]
fn two_ends_never_wait_for_each_other() {
    bounded(3, || {
        let link = Link::new();
        let (mut sender, mut receiver) = (link.sender(), link.receiver());
        (0..2).for_each(|_| sender.send());
        let sending = thread::spawn(move || (0..2).for_each(|_| sender.send()));
        (0..4).for_each(|_| receiver.receive());
        sending.join().unwrap();
    });
}

/// An event loop that sleeps on its socket: every execution.
fn armed() {
    loom::model(|| {
        let link = Link::new();
        let (mut sender, mut receiver) = (link.sender(), link.receiver());
        let sending = thread::spawn(move || sender.send());
        receiver.receive_in_loop(1);
        sending.join().unwrap();
    });
}

#[test]
fn a_loop_never_sleeps_past_a_record() {
    armed();
}

#[test]
fn a_loop_fails_without_park() {
    assert!(failure_without(Edge::Park, armed).contains(DEADLOCK));
}

#[test]
fn a_loop_fails_without_wake() {
    assert!(failure_without(Edge::Wake, armed).contains(DEADLOCK));
}

/// Returns two links whose wake-ups come to one epoll.
fn share_epoll() -> [Link; 2] {
    let (first, mut second) = (Link::new(), Link::new());
    second.socket = first.socket.clone();
    [first, second]
}

/// The reactor receives a record of each link: it arms both with one barrier, looks at both once more, and sleeps on what
/// both sockets bring.
fn serve_both(mut links: [Receiver; 2]) {
    let mut received = [false; 2];
    while received != [true; 2] {
        let mut was_hot = false;
        for (receiver, received) in links.iter_mut().zip(&mut received) {
            if let Some(record) = receiver.consumer.peek().expect("the sender is honest") {
                receiver.consumer.release(record.header);
                *received = true;
            }
            was_hot |= receiver.data.arm(&receiver.link.receiving);
        }
        before_last_look(was_hot);
        let ready = links.iter().any(|receiver| receiver.consumer.is_ready());
        if !ready && received != [true; 2] {
            links[0].link.socket.sleep();
            links[0].link.socket.take();
        }
    }
}

fn armed_together() {
    bounded(3, || {
        let links = share_epoll();
        let receivers = [links[0].receiver(), links[1].receiver()];
        let sending = links.map(|link| {
            let mut sender = link.sender();
            thread::spawn(move || sender.send())
        });
        serve_both(receivers);
        sending.into_iter().for_each(|sender| sender.join().unwrap());
    });
}

#[test]
fn a_reactor_never_sleeps_past_a_record() {
    armed_together();
}

#[test]
fn a_reactor_fails_without_park() {
    assert!(failure_without(Edge::Park, armed_together).contains(DEADLOCK));
}

#[test]
fn a_reactor_fails_without_wake() {
    assert!(failure_without(Edge::Wake, armed_together).contains(DEADLOCK));
}

/// A half asks once more for a wake-up that it took in vain, or that came late.
#[test]
fn every_arming_is_answered() {
    bounded(6, || {
        let link = Link::new();
        let (mut sender, mut receiver) = (link.sender(), link.receiver());
        let sending = thread::spawn(move || (0..2).for_each(|_| sender.send()));
        receiver.receive_in_loop(2);
        sending.join().unwrap();
    });
}

/// The end of `Receiver::drop`: a waker that has attended to nothing yet looks once more.
fn leaving() {
    loom::model(|| {
        let link = Link::new();
        let (sender, mut receiver) = (link.sender(), link.receiver());
        let waiting = thread::spawn(move || {
            let Sender { mut room, link, .. } = sender;
            let Link { sending, receiving, room: futex, .. } = &link;
            wait(&mut room, sending, receiving, futex, || is_gone(receiving.load(RECEIVER_STATE)));
        });
        receiver.offer_room();
        receiver.data.leave(&receiver.link.receiving);
        receiver.room = Waker::new(SENDER_STATE, ROOM_BELL);
        receiver.offer_room();
        waiting.join().unwrap();
    });
}

#[test]
fn a_sleeper_hears_that_its_peer_left() {
    leaving();
}

#[test]
fn leaving_fails_without_park() {
    assert!(failure_without(Edge::Park, leaving).contains(DEADLOCK));
}

#[test]
fn leaving_fails_without_wake() {
    assert!(failure_without(Edge::Wake, leaving).contains(DEADLOCK));
}

/// `Session::return_loan` on a thread of its own rings the same bell as the receiver does: a sender
/// that waits for both hears both.
#[test]
fn two_wakers_wake_one_sleeper() {
    bounded(3, || {
        let link = Link::new();
        let (mut sender, mut receiver) = (link.sender(), link.receiver());
        (0..2).for_each(|_| sender.send());
        let receiving = thread::spawn(move || receiver.receive());
        let returning = {
            let (link, mut waker) = (link.clone(), Waker::new(SENDER_STATE, ROOM_BELL));
            thread::spawn(move || {
                link.receiving.store(RETURNED, 1, Edge::Return.store());
                offer_room(&mut waker, &link);
            })
        };
        let Sender { producer, room, link, .. } = &mut sender;
        wait(room, &link.sending, &link.receiving, &link.room, || {
            producer.refresh().is_ok_and(|free| free >= 64) && link.receiving.load(RETURNED) == 1
        });
        receiving.join().unwrap();
        returning.join().unwrap();
    });
}
