//! Publishers and subscribers that are killed at random moments. The others go on: they hang nowhere, read no wrong byte, and
//! keep nothing of the dead.
//!
//! `cargo test` kills some. `SLIPRING_TESTS=whole` kills 10,000 subscribers and 1,000 publishers. `SLIPRING_SEED` repeats a run.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use slipring::broadcast::{EventKind, PublishOptions, Publisher, SubscribeOptions, Subscriber};
use slipring::{Context, Options};

use crate::Stage;
use crate::support::census::{Census, threads};
use crate::support::other::{self, Other, run_here};
use crate::support::published::{self, bytes_of};
use crate::support::{sample, soon, unique_name, wait_until};

/// Processes that subscribe and are killed.
const VICTIMS: usize = 8;

const LENS: [usize; 4] = [24, 200, 6_000, 70_000];

/// A generator of numbers: splitmix64, https://prng.di.unimi.it/splitmix64.c
struct Random(u64);

impl Random {
    /// Returns the generator of this run.
    fn new() -> Self {
        let seed = std::env::var("SLIPRING_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = seed.unwrap_or_else(|| u64::from(std::process::id()));
        println!("SLIPRING_SEED={seed}");
        Self(seed)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % end
    }
}

/// Returns message `number`.
fn message(number: u64) -> Vec<u8> {
    published::message(number, LENS[number as usize % LENS.len()])
}

/// Returns the number of a message, whose bytes must all be right.
fn number_of(bytes: &[u8]) -> u64 {
    let number = published::number_of(bytes);
    assert_eq!(bytes.len(), LENS[number as usize % LENS.len()], "message {number}");
    number
}

fn send(publisher: &mut Publisher, number: u64) {
    if number % 5 == 4 {
        let bytes = message(number);
        let mut tensor = publisher.alloc::<u8>([bytes.len()]).unwrap();
        tensor.copy_from_slice(&bytes);
        publisher.send_tensor(tensor).unwrap();
    } else {
        publisher.send(&message(number)).unwrap();
    }
}

fn policy(number: u64) -> SubscribeOptions {
    match number % 3 {
        0 => SubscribeOptions::every(),
        1 => SubscribeOptions::newest(8),
        _ => SubscribeOptions::latest(),
    }
}

/// Subscribes again and again, reads, and holds some of what it reads, until it is killed.
fn subscribe_until_killed(name: &str, number: u64) {
    let context = Context::new().unwrap();
    let mut random = Random(number);
    loop {
        let subscribed = context.subscribe(name, policy(number).wait_for_publisher(Duration::MAX));
        let Ok(mut subscriber) = subscribed else { continue };
        let mut held = Vec::new();
        while let Ok(Some(sample)) = subscriber.recv_deadline(soon()) {
            let Ok(sample) = sample.into_owned() else { continue };
            held.push(sample);
            if held.len() > random.below(4) as usize {
                let sample = held.swap_remove(random.below(held.len() as u64) as usize);
                bytes_of(&sample).map(|bytes| number_of(&bytes));
            }
        }
    }
}

/// Reads every message, in order and without a gap, up to the publisher's end. Returns how many there were.
fn read_all(mut subscriber: Subscriber) -> u64 {
    let mut next = 0;
    while let Some(sample) = subscriber.recv_deadline(soon()).unwrap() {
        assert_eq!(sample.missed(), 0);
        assert_eq!(number_of(&bytes_of(&sample.into_owned().unwrap()).unwrap()), next);
        next += 1;
    }
    next
}

/// Waits for the end of a process that says after each kill that it goes on.
fn accompany(mut process: Other) {
    while process.hear() == "on" {}
    process.succeeds();
}

/// Kills a process and starts it again.
fn renew(victim: &mut Other, test: &str, argument: &str) {
    victim.kill();
    let status = victim.wait();
    assert_eq!(status.code(), None, "it found something wrong: {status}");
    *victim = Other::spawn(test, argument);
}

/// Returns what a process holds that has published and subscribed once.
fn census() -> Census {
    let mut stage = Stage::new(PublishOptions::default());
    let mut subscriber = stage.subscribe(SubscribeOptions::every());
    send(&mut stage.publisher, 4);
    assert!(subscriber.recv_deadline(soon()).unwrap().is_some());
    drop((subscriber, stage));
    wait_until("the end of the publisher's thread", || threads() <= 3);
    Census::take()
}

fn kill_subscribers(test: &str) {
    let before = census();
    // The honest one reads what is left at the end for as long as it takes.
    let grace = Options::new().release_grace(Duration::MAX);
    let (context, name) = (Context::with_options(grace).unwrap(), unique_name());
    let options = PublishOptions::default().stall_after(Duration::from_secs(20));
    let mut publisher = context.publish(&name, options).unwrap();
    let subscribe = SubscribeOptions::every().reconnect(false);
    let honest = Context::new().unwrap().subscribe(&name, subscribe).unwrap();
    let (over, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let honest = scope.spawn(|| read_all(honest));
        let (over, sent) = (&over, &sent);
        let publishing = scope.spawn(move || {
            let (mut died, mut joined) = (0, 0);
            loop {
                let number = sent.fetch_add(1, Ordering::Relaxed);
                send(&mut publisher, number);
                // The last one keeps no memory in the pool.
                if over.load(Ordering::Relaxed) && number.is_multiple_of(20) {
                    break;
                }
                for event in publisher.take_events() {
                    died += u64::from(event.kind() == EventKind::Died);
                    joined += u64::from(event.kind() == EventKind::Joined);
                }
            }
            println!("{joined} have joined, {died} have died");
            assert!(died > 0, "nobody was killed who had joined");
            publisher
        });
        let argument = |number: usize| format!("subscribe {name} {number}");
        let mut victims: Vec<Other> =
            (0..VICTIMS).map(|number| Other::spawn(test, &argument(number))).collect();
        let mut random = Random::new();
        for kill in 0..if sample::is_whole() { 10_000 } else { 60 } {
            thread::sleep(Duration::from_micros(random.below(10_000)));
            let number = random.below(VICTIMS as u64) as usize;
            let then = sent.load(Ordering::Relaxed);
            renew(&mut victims[number], test, &argument(number));
            wait_until("a message", || sent.load(Ordering::Relaxed) > then + 1);
            other::say("on");
            if kill % 1000 == 999 {
                println!("{} killed, {then} sent", kill + 1);
            }
        }
        drop(victims);
        over.store(true, Ordering::Relaxed);
        let mut publisher = publishing.join().unwrap();
        wait_until("the end of the dead", || publisher.subscribers().len() == 1);
        wait_until("their memory", || {
            publisher.reclaim();
            publisher.kept_bytes() == 0
        });
        drop(publisher);
        assert_eq!(honest.join().unwrap(), sent.load(Ordering::Relaxed));
    });
    drop(context);
    before.comes_back();
    other::say("over");
}

#[test]
fn subscribers_that_are_killed_cost_the_others_nothing() {
    let test = "subscribers_that_are_killed_cost_the_others_nothing";
    run_here(test, |argument| match argument.split_once(' ') {
        Some((_, subscriber)) => {
            let (name, number) = subscriber.split_once(' ').unwrap();
            subscribe_until_killed(name, number.parse().unwrap());
        }
        None => kill_subscribers(test),
    });
    accompany(Other::spawn(test, ""));
}

/// Publishes until it is killed.
fn publish_until_killed(name: &str) {
    let context = Context::new().unwrap();
    let options = PublishOptions::default().history(4).stall_after(Duration::from_secs(20));
    let mut publisher = context.publish(name, options).unwrap();
    other::say("published");
    for number in 0.. {
        send(&mut publisher, number);
    }
}

/// Reads messages of one publisher after the other. Says so once it has read one of each.
fn follow(name: &str, number: usize, said: &mpsc::Sender<usize>, over: &AtomicBool) {
    let context = Context::new().unwrap();
    let options = policy(number as u64).wait_for_publisher(Duration::MAX);
    let mut subscriber = context.subscribe(name, options).unwrap();
    let (mut last, mut is_next) = (None, true);
    while !over.load(Ordering::Relaxed) {
        let sample = subscriber.recv_deadline(soon()).unwrap().expect("a publisher comes again");
        is_next |= sample.restarted();
        let Some(bytes) = sample.into_owned().ok().and_then(|sample| bytes_of(&sample)) else {
            continue;
        };
        let message = number_of(&bytes);
        assert!(is_next || last.is_none_or(|last| message > last), "{message} after {last:?}");
        if std::mem::take(&mut is_next) {
            said.send(number).unwrap();
        }
        last = Some(message);
    }
}

fn kill_publishers(test: &str) {
    let (name, over) = (unique_name(), AtomicBool::new(false));
    let before = census();
    let (said, heard) = mpsc::channel();
    let mut random = Random::new();
    thread::scope(|scope| {
        let follow_one = |number| {
            let (said, name, over) = (said.clone(), &name, &over);
            scope.spawn(move || follow(name, number, &said, over))
        };
        let followers: Vec<_> = (0..VICTIMS).map(follow_one).collect();
        let argument = format!("publish {name}");
        let mut publisher = Other::spawn(test, &argument);
        for _ in 0..if sample::is_whole() { 1_000 } else { 12 } {
            publisher.expect("published");
            let mut reached = [false; VICTIMS];
            while reached.contains(&false) {
                let number = heard.recv_timeout(crate::support::HANG);
                reached[number.expect("a subscriber finds the publisher")] = true;
            }
            other::say("on");
            thread::sleep(Duration::from_micros(random.below(5_000)));
            renew(&mut publisher, test, &argument);
        }
        over.store(true, Ordering::Relaxed);
        // The last publisher goes on for them.
        followers.into_iter().for_each(|follower| follower.join().unwrap());
    });
    before.comes_back();
    other::say("over");
}

#[test]
fn subscribers_of_publishers_that_are_killed_find_each_next_one() {
    let test = "subscribers_of_publishers_that_are_killed_find_each_next_one";
    run_here(test, |argument| match argument.split_once(' ') {
        Some((_, name)) => publish_until_killed(name),
        None => kill_publishers(test),
    });
    accompany(Other::spawn(test, ""));
}
