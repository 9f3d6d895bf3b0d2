//! Which segments of the pool a subscriber is told of, and which ones it may unmap: when it joins those of the messages that it
//! may read alone, and at most 16 retired ones in front of a new one.

use std::collections::BTreeSet;

use slipring::broadcast::{PublishOptions, SubscribeOptions};
use slipring::error::{Fault, TryRecvError};
use slipring::{Context, Options};

use crate::hostile::{EVERY, LATEST, Topic, goes_on, join, quick};
use crate::support::census::mappings;
use crate::support::other::alone;
use crate::support::raw::{self, Hello, Lent, MESSAGE, Memory, POOLED, RawPeer, header, page};
use crate::support::{fault, soon, unique_name, wait_until};
use crate::{Stage, next};

const FRAME: usize = 1 << 20;

/// The most segments that one announcement retires.
const RETIRES: usize = 16;

/// The most packets that a subscriber takes for one message.
const PACKETS: u32 = 128;

const SLOTS: u32 = 128;

fn frame(stage: &mut Stage, byte: u8) {
    stage.publisher.send(&vec![byte; FRAME]).unwrap();
}

/// Returns the kind and the segment of a packet that is no Topic.
fn told(packet: &[u8]) -> (u16, u32) {
    let kind = u16::from_le_bytes([packet[8], packet[9]]);
    (kind, u32::from_le_bytes(packet[16..20].try_into().unwrap()))
}

#[test]
fn a_newcomer_is_told_of_the_segments_of_what_it_may_read_alone() {
    const FRAMES: u64 = 9;
    const HISTORY: u64 = 2;
    let options = PublishOptions::new().slots(SLOTS).history(HISTORY as u32);
    let mut stage = Stage::with(Options::new().pool_quota(256 << 20), options);
    // It reads nothing, so the publisher keeps all of them.
    let _slow = stage.subscribe(SubscribeOptions::every());
    (0..FRAMES as u8).for_each(|byte| frame(&mut stage, byte));
    for policy in [EVERY, LATEST] {
        let mut peer = RawPeer::greet(raw::dial(&stage.name), Hello::subscriber(policy, 0));
        peer.meet();
        let mut segments = Vec::new();
        let (topic, fds) = loop {
            let (packet, fds) = raw::receive(&peer.socket).expect("a Topic");
            match told(&packet) {
                (raw::TOPIC, _) => break (packet, fds),
                (raw::SEGMENT, segment) => segments.push(segment),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(topic[40..48], (FRAMES - HISTORY + 1).to_le_bytes());
        let len = page() + u64::from(SLOTS) * 256;
        let slots = Memory::map(&fds[0], len as usize, false);
        // The descriptor stands behind the slot's state and header.
        let segment = |message: u64| slots.load((page() + 256 * message + 16) as usize) as u32;
        let of_all: BTreeSet<u32> = (1..=FRAMES).map(segment).collect();
        assert_eq!(of_all.len() as u64, FRAMES, "each frame has a segment of its own");
        let expected: Vec<u32> = (FRAMES - HISTORY + 1..=FRAMES).map(segment).collect();
        segments.sort_unstable();
        assert_eq!(segments, expected);
    }
}

/// A publisher whose pool has just dropped `frames` segments, of which `subscribers` were told.
fn drop_segments(
    (context, stage): (&Context, &mut Stage),
    frames: usize,
    mut goes_on: impl FnMut(&mut Stage),
) {
    for number in 0..frames {
        frame(stage, number as u8);
        goes_on(stage);
    }
    // The history is of short messages.
    for _ in 0..frames {
        stage.publisher.send(b"short").unwrap();
        goes_on(stage);
    }
    assert_eq!(stage.kept_bytes(), 0);
    let trimmed = context.trim();
    assert!(trimmed >= (frames * FRAME) as u64, "{} MiB", trimmed >> 20);
}

/// A publisher with a history of as many messages, and its context.
fn with_history(messages: usize) -> (Context, Stage) {
    let context = Context::with_options(Options::new().pool_quota(256 << 20)).unwrap();
    let name = unique_name();
    let options = PublishOptions::new().slots(SLOTS).history(messages as u32);
    let publisher = context.publish(&name, options).unwrap();
    (context, Stage { context: Context::new().unwrap(), publisher, name })
}

#[test]
fn a_subscriber_is_told_of_all_retired_segments_a_few_at_a_time() {
    const FRAMES: usize = 40;
    let (context, mut stage) = with_history(FRAMES);
    let peer = join(&stage, Hello::subscriber(LATEST, 0));
    let mut announced = BTreeSet::new();
    let mut taken = 0;
    drop_segments((&context, &mut stage), FRAMES, |_| {
        taken += 1;
        if taken > FRAMES {
            return;
        }
        let (packet, _) = raw::receive(&peer.socket).expect("a Segment");
        let (kind, segment) = told(&packet);
        assert_eq!(kind, raw::SEGMENT);
        announced.insert(segment);
    });
    assert_eq!(announced.len(), FRAMES);
    let mut retired = Vec::new();
    for (round, left) in [24, 8, 0].into_iter().enumerate() {
        frame(&mut stage, round as u8);
        loop {
            let (packet, fds) = raw::receive(&peer.socket).expect("a Segment");
            match told(&packet) {
                (raw::RETIRE, segment) => {
                    assert!(announced.remove(&segment), "segment {segment} was not announced");
                    retired.push(segment);
                }
                (raw::SEGMENT, _) => break assert_eq!(fds.len(), 1),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(announced.len(), left, "at most {RETIRES} in front of a segment");
    }
    assert!(retired.is_sorted(), "the oldest first: {retired:?}");
}

#[test]
fn a_subscriber_unmaps_all_retired_segments() {
    const FRAMES: usize = 40;
    alone("a_subscriber_unmaps_all_retired_segments", || {
        let (context, mut stage) = with_history(FRAMES);
        let mut every = stage.subscribe(SubscribeOptions::every());
        let before = mappings();
        drop_segments((&context, &mut stage), FRAMES, |_| drop(next(&mut every)));
        assert!(mappings() >= before + FRAMES, "it has mapped each of them");
        for byte in 0..3u8 {
            frame(&mut stage, byte);
            assert!(next(&mut every) == (vec![byte; FRAME], 0));
        }
        // Both sides map the three new ones.
        wait_until("the unmapping", || mappings() <= before + 6);
    });
}

#[test]
fn a_publisher_that_retires_too_much_before_a_segment_is_refused_by_name() {
    let mut stage = Stage::new(quick());
    let mut honest = stage.subscribe(SubscribeOptions::every());
    let lent = Lent { segment: 900, slot: 0, offset: 64, len: 1000, generation: 0 };
    let publish = |options, retires| {
        let (subscriber, mut topic) = Topic::new(options, 0);
        for segment in 0..retires {
            raw::send(&topic.peer.socket, &raw::retire_packet(segment), &[]).unwrap();
        }
        topic.peer.send_segment(lent.segment, page());
        topic.publish(1, header(MESSAGE | POOLED, 32), &lent.encode());
        (subscriber, topic)
    };
    let (mut subscriber, _topic) = publish(SubscribeOptions::every(), PACKETS - 1);
    assert_eq!(next(&mut subscriber).0, [0; 1000]);
    let (mut subscriber, _topic) = publish(SubscribeOptions::every(), PACKETS);
    for _ in 0..2 {
        let met = fault(subscriber.recv_deadline(soon()).map(drop));
        assert_eq!(met, Fault::UnknownSegment { segment: lent.segment });
    }
    // One that may miss messages misses this one, and knows the segment for the next one.
    let (mut subscriber, topic) = publish(SubscribeOptions::latest(), PACKETS);
    assert!(matches!(subscriber.try_recv(), Err(TryRecvError::Empty)));
    topic.publish(2, header(MESSAGE | POOLED, 32), &lent.encode());
    assert_eq!(next(&mut subscriber), (vec![0; 1000], 1));
    goes_on(&mut stage, &mut honest, 20);
}
