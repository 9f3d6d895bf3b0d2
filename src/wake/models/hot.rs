//! A sleeper that is hot: its wakers do not fence, and its first sleep interrupts all of them.

use loom::thread;

use super::{
    CAPACITY, DEADLOCK, Link, RECEIVER_STATE, RETURNED, Receiver, SENDER_STATE, Sender, bounded,
    offer_room, serve_both, share_epoll, wait,
};
use crate::shm::{OwnWords, PeerWords};
use crate::sync::{Edge, failure, failure_without};
use crate::wake::interrupts::interruptible;
use crate::wake::{Sleeper, Waker, state};

/// Returns a sleeper that has been awake for long enough.
pub(super) fn heat(sleeper: Sleeper, own: &impl OwnWords) -> Sleeper {
    let mut sleeper = sleeper.with_interrupts(true);
    sleeper.progress(own, CAPACITY << 20);
    sleeper
}

impl Link {
    fn hot_receiver(&self) -> Receiver {
        let receiver = self.receiver();
        Receiver { data: heat(receiver.data, &self.receiving), ..receiver }
    }

    /// Returns a hot sender, and the receiver of its full ring.
    fn hot_sender(&self) -> (Sender, Receiver) {
        let (mut sender, receiver) = (self.sender(), self.receiver());
        (0..2).for_each(|_| sender.send());
        (Sender { room: heat(sender.room, &self.sending), ..sender }, receiver)
    }
}

/// A receiver that is hot sleeps, and then sleeps without an interrupt.
fn sleeps(count: u32, preemptions: usize) {
    bounded(preemptions, move || {
        let link = Link::new();
        let (mut sender, mut receiver) = (link.sender(), link.hot_receiver());
        let sending =
            thread::spawn(move || interruptible(|| (0..count).for_each(|_| sender.send())));
        (0..count).for_each(|_| receiver.receive());
        sending.join().unwrap();
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
        let (mut sender, mut receiver) = (link.sender(), link.hot_receiver());
        let sending = thread::spawn(move || interruptible(|| sender.send()));
        receiver.receive_in_loop(1);
        sending.join().unwrap();
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

/// A hot receiver that is rung for what is under way, and sleeps once more until the record comes.
fn eager() {
    bounded(4, || {
        let link = Link::new();
        let (mut sender, mut receiver) = (link.sender(), link.hot_receiver());
        let sending = thread::spawn(move || {
            interruptible(|| {
                sender.tell();
                sender.send();
            });
        });
        receiver.receive_eagerly();
        sending.join().unwrap();
    });
}

#[test]
fn a_hot_eager_receiver_never_sleeps_past_a_record() {
    eager();
}

#[test]
fn a_hot_eager_receiver_fails_without_interrupt() {
    assert!(failure_without(Edge::Interrupt, eager).contains(DEADLOCK));
}

#[test]
fn a_hot_eager_receiver_fails_without_wake() {
    assert!(failure_without(Edge::Wake, eager).contains(DEADLOCK));
}

/// A sender that is hot when the ring is full.
fn room() {
    bounded(5, || {
        let link = Link::new();
        let (mut sender, mut receiver) = link.hot_sender();
        let receiving = thread::spawn(move || interruptible(|| receiver.receive()));
        sender.send();
        receiving.join().unwrap();
    });
}

#[test]
fn a_hot_sender_never_sleeps_past_room() {
    room();
}

#[test]
fn a_hot_sender_fails_without_interrupt() {
    assert!(failure_without(Edge::Interrupt, room).contains(DEADLOCK));
}

/// Runs a waker's program. A waker that is out of reach of the interrupt neither fences nor is interrupted.
fn run(is_in_reach: bool, program: impl FnOnce()) {
    if is_in_reach { interruptible(program) } else { program() }
}

/// A hot sender with two wakers: the receiver, and a thread that returns a loan.
fn two_wakers_in(reach: [bool; 2]) {
    bounded(3, move || {
        let link = Link::new();
        let (sender, mut receiver) = link.hot_sender();
        let receiving = thread::spawn(move || run(reach[0], || receiver.receive()));
        let returning = {
            let (link, mut waker) = (link.clone(), Waker::new(SENDER_STATE, super::ROOM_BELL));
            thread::spawn(move || {
                run(reach[1], || {
                    link.receiving.store(RETURNED, 1, Edge::Return.store());
                    offer_room(&mut waker, &link);
                });
            })
        };
        let Sender { mut producer, mut room, link, .. } = sender;
        wait(&mut room, &link.sending, &link.receiving, &link.room, || {
            producer.refresh().is_ok_and(|free| free >= 64) && link.receiving.load(RETURNED) == 1
        });
        receiving.join().unwrap();
        returning.join().unwrap();
    });
}

fn two_wakers() {
    two_wakers_in([true, true]);
}

#[test]
fn two_wakers_wake_one_hot_sleeper() {
    two_wakers();
}

#[test]
fn two_wakers_fail_without_interrupt() {
    assert!(failure_without(Edge::Interrupt, two_wakers).contains(DEADLOCK));
}

#[test]
fn two_wakers_fail_where_the_interrupt_reaches_one() {
    for reach in [[true, false], [false, true]] {
        let failure = failure(move || two_wakers_in(reach)).expect("both are to be interrupted");
        assert!(failure.contains(DEADLOCK), "{failure}");
    }
}

/// A reactor that arms two hot links, with one interrupt for both wakers.
fn together_in(reach: [bool; 2]) {
    bounded(2, move || {
        let links = share_epoll();
        let receivers = [0, 1].map(|link: usize| links[link].hot_receiver());
        let sending = [0, 1].map(|link: usize| {
            let mut sender = links[link].sender();
            thread::spawn(move || run(reach[link], || sender.send()))
        });
        serve_both(receivers);
        sending.into_iter().for_each(|sender| sender.join().unwrap());
    });
}

fn together() {
    together_in([true, true]);
}

#[test]
fn a_hot_reactor_never_sleeps_past_a_record() {
    together();
}

#[test]
fn a_hot_reactor_fails_without_interrupt() {
    assert!(failure_without(Edge::Interrupt, together).contains(DEADLOCK));
}

#[test]
fn a_hot_reactor_fails_where_the_interrupt_reaches_one() {
    let failure = failure(|| together_in([true, false])).expect("both are to be interrupted");
    assert!(failure.contains(DEADLOCK), "{failure}");
}
