//! A receiver for which the sender rings while a record is under way.

use loom::thread;

use super::{DEADLOCK, Link, Receiver, Sender, bounded, wait};
use crate::shm::{OwnWords, PeerWords};
use crate::sync::{Edge, failure_without};

/// What is told, in the sender's segment, in bytes.
const FILLED: usize = 272;

impl Sender {
    /// Tells of a record that is under way: `Sender::fill`.
    pub(super) fn tell(&mut self) {
        let Link { sending, receiving, data, .. } = &self.link;
        sending.store(FILLED, 1, Edge::Fill.store());
        if self.data.look_ahead(sending, receiving) {
            data.wake();
        }
    }
}

impl Receiver {
    /// Receives a record of which it is told before: `Inbox::await_record`, eagerly until the telling was seen.
    pub(super) fn receive_eagerly(&mut self) {
        self.data.set_eager(true);
        let mut seen = 0;
        loop {
            if let Some(record) = self.consumer.peek().expect("the sender is honest") {
                self.consumer.release(record.header);
                return self.data.set_eager(false);
            }
            let Self { consumer, data, link: Link { sending, receiving, data: futex, .. }, .. } =
                self;
            wait(data, receiving, sending, futex, || {
                consumer.is_ready() || sending.load(FILLED) != seen
            });
            seen = sending.load(FILLED);
            data.set_eager(seen == 0);
        }
    }
}

/// A receiver that is rung for what is under way, sleeps again, and is rung for the record.
fn eager() {
    bounded(5, || {
        let link = Link::new();
        let (mut sender, mut receiver) = (link.sender(), link.receiver());
        let sending = thread::spawn(move || {
            sender.tell();
            sender.send();
        });
        receiver.receive_eagerly();
        sending.join().unwrap();
    });
}

#[test]
fn an_eager_receiver_never_sleeps_past_a_record() {
    eager();
}

#[test]
fn an_eager_receiver_fails_without_park() {
    assert!(failure_without(Edge::Park, eager).contains(DEADLOCK));
}

#[test]
fn an_eager_receiver_fails_without_wake() {
    assert!(failure_without(Edge::Wake, eager).contains(DEADLOCK));
}
