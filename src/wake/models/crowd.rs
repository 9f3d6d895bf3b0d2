//! One waker and two sleepers that wait for the same thing, each with a state word in its own segment.

use std::sync::Arc;

use loom::thread;

use super::hot::heat;
use super::{DEADLOCK, Futex, Socket, bounded, wait};
use crate::shm::{LoomWords, OwnWords, PeerWords};
use crate::sync::{Edge, Ordering, failure_without};
use crate::wake::interrupts::interruptible;
use crate::wake::{Crowd, Sleeper, before_last_look};

/// Words of the waker's segment, in bytes.
const BELL: usize = 0;
const MESSAGE: usize = 8;
/// The state word of each sleeper's segment.
const STATE: usize = 0;

/// How a sleeper waits.
#[derive(Clone, Copy)]
enum Wait {
    /// Asleep on the bell.
    Parked,
    /// Asleep on the bell, after it was hot.
    Hot,
    /// Asleep on its socket.
    Armed,
}

#[derive(Clone)]
struct Topic {
    words: LoomWords,
    futex: Arc<Futex>,
}

impl Topic {
    fn is_there(&self) -> bool {
        self.words.load(MESSAGE) == 1
    }

    /// `Publisher::wake`, behind a message.
    fn publish(&self, crowd: &mut Crowd<LoomWords>, sockets: &[Arc<Socket>; 2]) {
        self.words.store(MESSAGE, 1, Ordering::Relaxed);
        if crowd.look(|index| sockets[index].call()) == Some(true) {
            self.words.add(BELL, 1);
            self.futex.wake();
        }
    }

    fn receive(&self, mut sleeper: Sleeper, own: &LoomWords, socket: &Socket, how: Wait) {
        if matches!(how, Wait::Parked | Wait::Hot) {
            wait(&mut sleeper, own, &self.words, &self.futex, || self.is_there());
            return;
        }
        while !self.is_there() {
            socket.take();
            before_last_look(sleeper.arm(own));
            if !self.is_there() {
                socket.sleep();
            }
        }
    }
}

/// Two sleepers wait for one message.
fn together(preemptions: usize, ways: [Wait; 2]) {
    bounded(preemptions, move || {
        let topic = Topic { words: LoomWords::new(16), futex: Arc::default() };
        let owns = ways.map(|_| LoomWords::new(8));
        let sockets: [Arc<Socket>; 2] = Default::default();
        let sleepers = [0, 1].map(|index: usize| {
            let sleeper = Sleeper::new(STATE, BELL);
            match ways[index] {
                Wait::Hot => heat(sleeper, &owns[index]),
                _ => sleeper,
            }
        });
        let mut crowd = Crowd::new(STATE);
        crowd.replace(owns.iter().cloned());
        let waking = {
            let (topic, sockets) = (topic.clone(), sockets.clone());
            thread::spawn(move || interruptible(|| topic.publish(&mut crowd, &sockets)))
        };
        let [first, second] = sleepers;
        let sleeping = {
            let (topic, own, socket) = (topic.clone(), owns[1].clone(), sockets[1].clone());
            thread::spawn(move || topic.receive(second, &own, &socket, ways[1]))
        };
        topic.receive(first, &owns[0], &sockets[0], ways[0]);
        sleeping.join().unwrap();
        waking.join().unwrap();
    });
}

fn parked() {
    together(2, [Wait::Parked, Wait::Parked]);
}

fn armed() {
    together(2, [Wait::Parked, Wait::Armed]);
}

fn hot() {
    together(2, [Wait::Hot, Wait::Hot]);
}

fn one_hot() {
    together(2, [Wait::Hot, Wait::Parked]);
}

#[test]
fn a_bell_wakes_all_that_are_parked() {
    parked();
}

#[test]
fn a_crowd_fails_without_park() {
    assert!(failure_without(Edge::Park, parked).contains(DEADLOCK));
}

#[test]
fn a_crowd_fails_without_wake() {
    assert!(failure_without(Edge::Wake, parked).contains(DEADLOCK));
}

#[test]
fn a_crowd_wakes_one_that_is_parked_and_one_that_is_armed() {
    armed();
}

#[test]
fn an_armed_crowd_fails_without_park() {
    assert!(failure_without(Edge::Park, armed).contains(DEADLOCK));
}

#[test]
fn an_armed_crowd_fails_without_wake() {
    assert!(failure_without(Edge::Wake, armed).contains(DEADLOCK));
}

#[test]
fn a_hot_crowd_never_sleeps_past_a_message() {
    hot();
}

#[test]
fn a_hot_crowd_fails_without_interrupt() {
    assert!(failure_without(Edge::Interrupt, hot).contains(DEADLOCK));
}

#[test]
fn a_crowd_of_one_hot_sleeper_never_sleeps_past_a_message() {
    one_hot();
}

#[test]
fn a_crowd_of_one_hot_sleeper_fails_without_wake() {
    assert!(failure_without(Edge::Wake, one_hot).contains(DEADLOCK));
}
