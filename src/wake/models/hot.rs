//! A receiver that is hot: its waker does not fence, and its first sleep interrupts the waker.

use loom::thread;

use super::{CAPACITY, DEADLOCK, Link, RECEIVER_STATE, Receiver, bounded};
use crate::shm::PeerWords;
use crate::sync::{Edge, failure_without};
use crate::wake::interrupts::{interruptible, set_interrupted};
use crate::wake::state;

impl Link {
    /// Returns a receiver that has been awake for long enough.
    fn hot_receiver(&self) -> Receiver {
        let mut receiver = self.receiver();
        receiver.data = receiver.data.with_interrupts(true);
        receiver.data.progress(&self.receiving, CAPACITY << 20);
        receiver
    }
}

/// A receiver that is hot sleeps, and then sleeps without an interrupt.
fn sleeps(count: u32, preemptions: usize) {
    bounded(preemptions, move || {
        let link = Link::new();
        set_interrupted(true);
        let (mut sender, mut receiver) = (link.sender(), link.hot_receiver());
        let sending =
            thread::spawn(move || interruptible(|| (0..count).for_each(|_| sender.send())));
        (0..count).for_each(|_| receiver.receive());
        sending.join().unwrap();
        set_interrupted(false);
    });
}

fn first_sleep() {
    sleeps(1, 6);
}

fn second_sleep() {
    sleeps(2, 4);
}

#[test]
fn a_hot_receiver_never_sleeps_past_a_record() {
    first_sleep();
}

#[test]
fn a_receiver_that_was_hot_never_sleeps_past_a_record() {
    second_sleep();
}

#[test]
fn a_hot_receiver_fails_without_interrupt() {
    assert!(failure_without(Edge::Interrupt, first_sleep).contains(DEADLOCK));
}

#[test]
fn a_receiver_that_was_hot_fails_without_wake() {
    assert!(failure_without(Edge::Wake, second_sleep).contains(DEADLOCK));
}

#[test]
fn a_half_that_has_armed_is_not_hot() {
    loom::model(|| {
        let link = Link::new();
        let mut half = link.hot_receiver().data;
        let own = &link.receiving;
        assert!(half.arm(own));
        (1..4).for_each(|turn| half.progress(own, (turn * CAPACITY) << 20));
        assert_eq!(own.load(RECEIVER_STATE) & 7, state::ARMED);
        half.unpark(own);
        (4..6).for_each(|turn| half.progress(own, (turn * CAPACITY) << 20));
        assert_eq!(own.load(RECEIVER_STATE), state::HOT);
    });
}

/// An event loop that is hot when it arms.
fn armed() {
    bounded(5, || {
        let link = Link::new();
        set_interrupted(true);
        let (mut sender, mut receiver) = (link.sender(), link.hot_receiver());
        let sending = thread::spawn(move || interruptible(|| sender.send()));
        receiver.receive_in_loop(1);
        sending.join().unwrap();
        set_interrupted(false);
    });
}

#[test]
fn a_hot_loop_never_sleeps_past_a_record() {
    armed();
}

#[test]
fn a_hot_loop_fails_without_interrupt() {
    assert!(failure_without(Edge::Interrupt, armed).contains(DEADLOCK));
}
