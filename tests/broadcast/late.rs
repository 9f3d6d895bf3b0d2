//! Liars that join late, behind thousands of messages in many segments, and lie about what they were never given. The publisher
//! evicts them or counts their words as nothing, and nobody else notices.

use slipring::Options;
use slipring::broadcast::{EventKind, PublishOptions, SubscribeOptions, SubscriberInfo};
use slipring::error::Eviction;

use crate::hostile::{EVERY, LATEST, NEWEST, evictions, goes_on, join, quick};
use crate::support::raw::{self, Hello, RECEIVER_STATE, RETURNS, RawPeer};
use crate::support::wait_until;
use crate::{Stage, next};

const FRAME: usize = 1 << 20;

/// Messages before the liar comes.
const MESSAGES: usize = 4000;

/// A publisher that has sent thousands of messages in segments of many lengths, with one who reads all of them.
fn old_stage(options: PublishOptions) -> (Stage, slipring::broadcast::Subscriber) {
    let mut stage = Stage::with(Options::new().pool_quota(64 << 20), options);
    let mut honest = stage.subscribe(SubscribeOptions::every());
    for number in 0..MESSAGES {
        let len = match number % 40 {
            0 => (number % 9 + 1) * FRAME,
            1..=5 => 20_000,
            _ => 9,
        };
        let message = vec![number as u8; len];
        stage.publisher.send(&message).unwrap();
        assert!(next(&mut honest) == (message, 0), "message {number}");
    }
    (stage, honest)
}

/// Returns the newest subscriber.
fn newest(stage: &Stage) -> SubscriberInfo {
    stage.publisher.subscribers().into_iter().max_by_key(SubscriberInfo::id).unwrap()
}

#[test]
fn positions_before_the_first_message_and_beyond_the_last_one() {
    let (mut stage, mut honest) = old_stage(quick());
    for (policy, depth) in [(EVERY, 0), (NEWEST, 8), (LATEST, 0)] {
        // Of messages that were overwritten long ago, of the next one, and of such as never come.
        for position in [1, 2, 3900, stage.publisher.sent() + 2, 1 << 40, u64::MAX] {
            let sent = stage.publisher.sent();
            let liar = join(&stage, Hello::subscriber(policy, depth));
            liar.position(position);
            // It was given none of the messages before, so it is not behind.
            let lag = newest(&stage).lag();
            assert_eq!(lag, 0, "{position} of {sent}");
            goes_on(&mut stage, &mut honest, 40);
            let is_behind = position < stage.publisher.sent() - 40;
            let expected = usize::from(policy == EVERY && is_behind);
            assert_eq!(evictions(&stage), expected, "{policy} {position}");
            drop(liar);
            wait_until("its end", || stage.publisher.subscribers().len() == 1);
        }
    }
    wait_until("the memory", || stage.kept_bytes() == 0);
}

#[test]
fn holds_of_messages_that_it_was_never_given_hold_nothing() {
    let options = PublishOptions::new().slots(64).newest_limit(8).hold_limit(64);
    let (mut stage, mut honest) = old_stage(options);
    let mut slow = stage.subscribe(SubscribeOptions::every());
    let first = stage.publisher.sent() + 1;
    for number in 0..8u8 {
        stage.publisher.send(&vec![number; FRAME]).unwrap();
        assert!(next(&mut honest) == (vec![number; FRAME], 0));
    }
    for policy in [EVERY, LATEST] {
        // The publisher has all of these for one who has yet to read them.
        let liar = join(&stage, Hello::subscriber(policy, 0));
        for word in 0..8 {
            liar.own.store(RETURNS + 8 * word, first + word as u64);
        }
        (8..64).for_each(|word| liar.own.store(RETURNS + 8 * word, word as u64));
        liar.position(u64::MAX);
        assert_eq!(newest(&stage).held(), 0);
        drop(liar);
        wait_until("its end", || stage.publisher.subscribers().len() == 2);
    }
    let liar = join(&stage, Hello::subscriber(EVERY, 0));
    liar.position(u64::MAX);
    for word in 0..8 {
        liar.own.store(RETURNS + 8 * word, first + word as u64);
    }
    for number in 0..8u8 {
        assert!(next(&mut slow) == (vec![number; FRAME], 0));
    }
    // Both honest ones have read them.
    assert_eq!(stage.kept_bytes(), 0, "the liar holds what it was never given");
    drop(slow);
    goes_on(&mut stage, &mut honest, 40);
}

#[test]
fn holds_that_are_given_back_twice_or_too_early() {
    let (mut stage, mut honest) = old_stage(quick().hold_limit(3).history(4));
    let mut viewer = stage.subscribe(SubscribeOptions::newest(4));
    for (policy, depth) in [(EVERY, 0), (NEWEST, 8), (LATEST, 0)] {
        let liar = join(&stage, Hello::subscriber(policy, depth));
        for number in 0..10u8 {
            let frame = vec![number; FRAME];
            stage.publisher.send(&frame).unwrap();
            let sent = stage.publisher.sent();
            // It says that it has read the message, holds it in every word, and gives back what others hold, too.
            liar.position(sent + 1);
            (0..3).for_each(|word| liar.own.store(RETURNS + 8 * word, sent));
            let held = viewer.recv().unwrap().unwrap().into_owned().unwrap();
            (0..256).for_each(|word| liar.own.store(RETURNS + 8 * word, 0));
            assert!(next(&mut honest) == (frame, 0));
            stage.publisher.reclaim();
            for byte in 0..4 {
                stage.publisher.send(&vec![byte; FRAME]).unwrap();
                assert!(next(&mut honest) == (vec![byte; FRAME], 0));
            }
            liar.position(u64::MAX);
            // What another one holds stays as it is.
            let bytes = held.to_vec().unwrap();
            assert!(bytes.iter().all(|byte| *byte == bytes[0]), "message {}", held.sequence());
            drop(held);
            while viewer.try_recv().is_ok() {}
        }
        assert_eq!(evictions(&stage), 0);
        drop(liar);
        wait_until("its end", || stage.publisher.subscribers().len() == 2);
    }
}

/// Packets that a publisher sends and that no subscriber may send.
fn packets_of_a_publisher() -> [Vec<u8>; 4] {
    let segment = raw::retire_packet(3);
    [segment, raw::wake_packet(1), raw::wake_packet(2), raw::topic_packet(16, 256, 4, 0)]
}

#[test]
fn states_and_packets_of_one_that_was_given_nothing() {
    let (mut stage, mut honest) = old_stage(quick());
    for policy in [EVERY, LATEST] {
        let mut liars: Vec<RawPeer> = Vec::new();
        for state in [1, 2, 3, 4, 6, u64::MAX, 1 << 63 | 2] {
            let liar = join(&stage, Hello::subscriber(policy, 0));
            liar.position(u64::MAX);
            liar.own.store(RECEIVER_STATE, state);
            for packet in packets_of_a_publisher() {
                // A Topic without its descriptor: it lies unread in the queue.
                let _ = raw::send(&liar.socket, &packet, &[]);
            }
            liars.push(liar);
        }
        goes_on(&mut stage, &mut honest, 100);
        assert_eq!(stage.publisher.subscribers().len(), 1 + liars.len(), "nothing of it ends one");
        drop(liars);
        wait_until("their end", || stage.publisher.subscribers().len() == 1);
        let events = stage.publisher.take_events();
        let is_eviction = |kind| matches!(kind, EventKind::Evicted(_));
        assert!(!events.iter().any(|event| is_eviction(event.kind())), "{events:?}");
        let left = events.iter().filter(|event| event.kind() == EventKind::Left).count();
        // One of the states says that its subscriber has left.
        assert_eq!(left, 1, "{events:?}");
    }
    assert!(stage.publisher.evict(newest(&stage).id()));
    let events = stage.publisher.take_events();
    assert_eq!(events[0].kind(), EventKind::Evicted(Eviction::Asked));
}
