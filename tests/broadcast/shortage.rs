//! A publisher that lacks descriptors: it says so, and no subscriber loses its place. A subscriber cannot make it lack them.

use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit};
use slipring::broadcast::{EventKind, PublishOptions, SubscribeOptions};
use slipring::error::{Eviction, TryRecvError};
use slipring::{ErrorKind, Options};

use crate::hostile::{EVERY, LATEST, join};
use crate::support::census::leave_descriptors;
use crate::support::in_flight::{become_nobody, crowd};
use crate::support::other::{Other, alone, say};
use crate::support::raw::{self, Hello};
use crate::support::{HANG, wait_until};
use crate::{Stage, next};

/// Each one takes a segment of the pool.
const LONG: usize = 3 << 20;

/// Calls `publish` in a process of a user that may have 512 descriptors. `crowder` is another process of that user, which takes
/// them when it is told to crowd, and gives them back when it is told to go.
fn crowded(test: &str, publish: impl FnOnce(&mut Other)) {
    let mut other = Other::start(test, "publisher", |argument| {
        if argument != "publisher" {
            return crowd(argument);
        }
        // Started while this process may still start one as another user.
        let mut crowder = Other::spawn(test, "crowded");
        let limit = Rlimit { current: Some(512), maximum: Some(512) };
        rustix::process::setrlimit(Resource::Nofile, limit).unwrap();
        become_nobody();
        publish(&mut crowder);
        crowder.tell("end");
        say("done");
    });
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: another user needs root to become one");
        return;
    }
    other.expect("done");
    other.succeeds();
}

#[test]
fn a_segment_that_cannot_be_sent_costs_its_message_and_nobody_their_place() {
    let test = "a_segment_that_cannot_be_sent_costs_its_message_and_nobody_their_place";
    crowded(test, |crowder| {
        let options = PublishOptions::new().history(1).stall_after(Duration::from_millis(30));
        let mut stage = Stage::with(Options::new().pool_quota(64 << 20), options);
        let mut lossy = stage.subscribe(SubscribeOptions::newest(4));
        crowder.tell("crowd");
        crowder.expect("crowded");

        // Those that may miss messages do.
        stage.publisher.send(&[1; LONG]).unwrap();
        stage.publisher.send(b"short").unwrap();
        assert_eq!(next(&mut lossy), (b"short".to_vec(), 1));
        // A newcomer cannot be told of the history, and hears why.
        let every = SubscribeOptions::every().reconnect(false);
        let refused = stage.context.subscribe(&stage.name, every).unwrap_err();
        let (lacks, hears) =
            (ErrorKind::DescriptorLimit { limit: 512 }, ErrorKind::RefusedByPeer { code: 4 });
        assert!([lacks, hears].contains(refused.kind()), "{refused:?}");
        crowder.tell("go");
        crowder.expect("gone");

        let mut every = stage.subscribe(SubscribeOptions::every());
        assert_eq!(next(&mut every).0, b"short");
    });
}

#[test]
fn a_subscriber_that_wants_all_is_not_evicted_for_what_the_publisher_lacks() {
    let test = "a_subscriber_that_wants_all_is_not_evicted_for_what_the_publisher_lacks";
    crowded(test, |crowder| {
        let options = PublishOptions::new().stall_after(Duration::from_millis(30));
        let mut stage = Stage::with(Options::new().pool_quota(64 << 20), options);
        let mut every = stage.subscribe(SubscribeOptions::every());
        crowder.tell("crowd");
        crowder.expect("crowded");

        let error = stage.publisher.send(&[1; LONG]).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::DescriptorLimit { limit: 512 }), "{error:?}");
        stage.publisher.send(b"short").unwrap();
        assert_eq!(next(&mut every), (b"short".to_vec(), 0));
        crowder.tell("go");
        crowder.expect("gone");

        stage.publisher.send(&[2; LONG]).unwrap();
        assert!(next(&mut every) == (vec![2; LONG], 0));
        let kinds: Vec<_> =
            stage.publisher.take_events().iter().map(|event| event.kind()).collect();
        assert_eq!(kinds, [EventKind::Joined]);
    });
}

#[test]
fn a_publisher_without_descriptors_sees_who_leaves_and_admits_others_later() {
    let test = "a_publisher_without_descriptors_sees_who_leaves_and_admits_others_later";
    alone(test, || {
        let mut stage = Stage::new(PublishOptions::default());
        let mut stays = stage.subscribe(SubscribeOptions::every());
        let leaves = stage.subscribe(SubscribeOptions::latest());
        let dialled: Vec<_> = (0..8).map(|_| crate::support::raw::dial(&stage.name)).collect();
        let before = leave_descriptors(0);
        stage.publisher.send(b"one").unwrap();
        assert_eq!(next(&mut stays).0, b"one");
        drop(leaves);
        wait_until("its end", || stage.publisher.subscribers().len() == 1);
        drop(dialled);
        rustix::process::setrlimit(Resource::Nofile, before).unwrap();
        let mut late = stage.subscribe(SubscribeOptions::latest());
        stage.publisher.send(b"two").unwrap();
        assert_eq!(next(&mut late).0, b"two");
        assert_eq!(next(&mut stays).0, b"two");
        assert!(matches!(stays.try_recv(), Err(TryRecvError::Empty)));
    });
}

#[test]
fn a_subscriber_that_reads_no_packets_collects_few_descriptors() {
    const FRAMES: u8 = 70;
    // The history keeps every frame, so each one takes a segment of the pool.
    let options = PublishOptions::new().slots(128).history(FRAMES.into());
    let options = options.stall_after(Duration::from_millis(30));
    let mut stage = Stage::with(Options::new().pool_quota(256 << 20), options);
    let mut honest = stage.subscribe(SubscribeOptions::every());
    // One reads nothing, one says that it has read all, and one may miss messages.
    let liars = [(EVERY, 0), (EVERY, u64::MAX), (LATEST, 0)].map(|(policy, position)| {
        let liar = join(&stage, Hello::subscriber(policy, 0));
        liar.position(position);
        liar
    });
    for number in 0..FRAMES {
        let frame = vec![number; 1 << 20];
        stage.publisher.send(&frame).unwrap();
        assert!(next(&mut honest) == (frame, 0), "frame {number}");
    }
    let events = stage.publisher.take_events();
    let is_stalled = |kind| kind == EventKind::Evicted(Eviction::Stalled);
    assert_eq!(events.iter().filter(|event| is_stalled(event.kind())).count(), 2);
    drop(stage);
    for liar in liars {
        let packets = std::iter::from_fn(|| raw::receive(&liar.socket));
        let count: usize = packets.map(|(_, descriptors)| descriptors.len()).sum();
        // 32 where the kernel counts a packet as this library takes it to.
        assert!((16..=40).contains(&count), "{count} descriptors were in flight");
    }
}

#[test]
fn a_subscriber_that_reads_its_packets_late_is_waited_for_and_not_evicted() {
    const FRAMES: u8 = 70;
    let options = PublishOptions::new().slots(128).history(FRAMES.into()).stall_after(HANG / 2);
    let mut stage = Stage::with(Options::new().pool_quota(256 << 20), options);
    let late = join(&stage, Hello::subscriber(EVERY, 0));
    // It says that it has read all, so no position tells that it reads packets.
    late.position(u64::MAX);
    let start = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Long enough for the publisher to wait.
            std::thread::sleep(Duration::from_millis(300));
            let mut segments = 0;
            while segments < usize::from(FRAMES) {
                let (_, descriptors) = raw::receive(&late.socket).expect("a packet");
                segments += descriptors.len();
            }
        });
        for number in 0..FRAMES {
            stage.publisher.send(&vec![number; 1 << 20]).unwrap();
        }
    });
    assert!(start.elapsed() < HANG / 2, "a send has waited for {:?}", start.elapsed());
    let is_evicted = |kind| matches!(kind, EventKind::Evicted(_));
    let events = stage.publisher.take_events();
    assert!(!events.iter().any(|event| is_evicted(event.kind())), "{events:?}");
}
