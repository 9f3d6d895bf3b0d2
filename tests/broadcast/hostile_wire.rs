//! `tests/subscriber.py` lies without end (`tests/lies.py`), to a publisher with honest subscribers. Nothing fails but
//! the liars: each message arrives, and what they held comes back.

use std::time::{Duration, Instant};

use slipring::Options;
use slipring::broadcast::{EventKind, PublishOptions, SubscribeOptions, Subscriber};

use crate::driven::Driven;
use crate::support::census::{Census, processor_time};
use crate::support::other::alone;
use crate::support::python::body;
use crate::support::sample::is_whole;
use crate::support::{HANG, soon, wait_until};
use crate::{Stage, next};

/// The longest message. Of those the pool has room for 64.
const LONG: usize = 60_000;

/// How often three of them lie, and how long.
fn measure() -> (usize, Duration) {
    if is_whole() { (5, Duration::from_secs(1)) } else { (2, Duration::from_millis(100)) }
}

/// A publisher and its honest subscribers.
struct Siege {
    stage: Stage,
    every: Subscriber,
    latest: Subscriber,
}

impl Siege {
    fn new() -> Self {
        let options = PublishOptions::new()
            .slots(32)
            .newest_limit(8)
            .hold_limit(3)
            .stall_after(Duration::from_millis(30));
        let stage = Stage::with(Options::new().pool_quota(4 << 20), options);
        let every = stage.subscribe(SubscribeOptions::every());
        let latest = stage.subscribe(SubscribeOptions::latest());
        let mut siege = Self { stage, every, latest };
        siege.goes_on(50);
        siege
    }

    /// Returns how many subscribers have joined after the last call.
    fn joins(&mut self) -> usize {
        let events = self.stage.publisher.take_events();
        events.iter().filter(|event| event.kind() == EventKind::Joined).count()
    }

    /// Publishes messages, which arrive.
    fn goes_on(&mut self, count: usize) {
        let Stage { publisher, .. } = &mut self.stage;
        for _ in 0..count {
            let number = publisher.sent() as usize + 1;
            let message = body([9, 3000, LONG][number % 3], number);
            if number.is_multiple_of(2) {
                publisher.send(&message).unwrap();
            } else {
                let mut tensor = publisher.alloc::<u8>([message.len()]).unwrap();
                tensor.copy_from_slice(&message);
                publisher.send_tensor(tensor).unwrap();
            }
            for one in [&mut self.every, &mut self.latest] {
                let sample = one.recv_deadline(soon()).unwrap().expect("a message");
                assert_eq!((sample.sequence(), sample.missed()), (number as u64, 0));
                let met = match sample.tensors().next() {
                    Some((_, tensor)) => tensor.to_vec::<u8>().unwrap(),
                    None => sample.to_vec().unwrap(),
                };
                assert!(met == message, "message {number}");
            }
        }
    }

    /// Waits until none is there but the honest ones. What the others had kept is free again.
    fn is_over(&mut self) {
        wait_until("the liars' end", || self.stage.publisher.subscribers().len() == 2);
        self.goes_on(30);
        self.stage.publisher.send(b"short").unwrap();
        assert_eq!(next(&mut self.every).0, b"short");
        assert_eq!(next(&mut self.latest).0, b"short");
        wait_until("its memory", || {
            self.stage.publisher.try_send(b"short").unwrap();
            let sent = (next(&mut self.every).0, next(&mut self.latest).0);
            assert_eq!(sent, (b"short".to_vec(), b"short".to_vec()));
            self.stage.kept_bytes() == 0
        });
    }
}

/// Lets a subscriber of each policy tell the lie, again and again.
fn lies(test: &str, lie: &str) {
    lies_and_joins(test, lie, 1);
}

/// As [`lies`]. There are at least so many joins, in all, for each liar.
fn lies_and_joins(test: &str, lie: &str, joins: usize) {
    alone(test, || {
        let mut siege = Siege::new();
        let (rounds, time) = measure();
        let before = Census::take();
        let mut joined = 0;
        for round in 0..rounds {
            let mut liars = Vec::new();
            for policy in ["every", "newest:8", "latest"] {
                let Some(mut liar) = Driven::join(&siege.stage, policy) else { return };
                assert_eq!(liar.ask(&format!("lie {lie}")), "lying");
                liars.push(liar);
            }
            let start = Instant::now();
            // On a busy machine it may take longer until there were enough joins.
            while start.elapsed() < time || joined < 3 * (round + 1) * joins {
                siege.goes_on(20);
                joined += siege.joins();
                assert!(start.elapsed() < HANG, "{joined} joins");
            }
            // Later they die in the middle of it.
            if round == 0 {
                for liar in &mut liars {
                    assert_eq!(liar.ask("stop"), "stopped after some steps");
                }
                siege.goes_on(20);
                idles();
            }
            drop(liars);
            siege.is_over();
        }
        wait_until("what they cost", || {
            // The pool may have two segments more, which both honest ones map. Links of theirs would be more than that.
            let now = Census::take();
            now.descriptors <= before.descriptors + 2
                && now.mappings <= before.mappings + 6
                && now.threads <= before.threads
        });
    });
}

/// Checks that the publisher's threads have nothing to do when nobody publishes, whatever lies unread.
fn idles() {
    let (start, time) = (processor_time(), Instant::now());
    std::thread::sleep(Duration::from_millis(200));
    let (used, time) = (processor_time() - start, time.elapsed());
    assert!(used < time / 4, "{used:?} of {time:?}");
}

#[test]
fn positions_at_random() {
    lies("positions_at_random", "positions");
}

#[test]
fn positions_at_random_that_ring() {
    lies("positions_at_random_that_ring", "positions_ring");
}

#[test]
fn holds_at_random() {
    lies("holds_at_random", "holds");
}

#[test]
fn holds_of_whatever_comes() {
    lies("holds_of_whatever_comes", "holds_one");
}

#[test]
fn epochs_without_end() {
    lies("epochs_without_end", "epochs");
}

#[test]
fn words_at_random() {
    lies("words_at_random", "words");
}

#[test]
fn packets_that_nobody_asked_for() {
    lies("packets_that_nobody_asked_for", "packets");
}

#[test]
fn sockets_that_take_no_packet() {
    lies("sockets_that_take_no_packet", "deaf");
}

#[test]
fn joins_that_end_in_lies() {
    lies_and_joins("joins_that_end_in_lies", "joins", 10);
}

#[test]
fn hellos_with_some_wrong_bytes() {
    lies_and_joins("hellos_with_some_wrong_bytes", "hellos", 3);
}
