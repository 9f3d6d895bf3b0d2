//! Who keeps which memory of the pool.

use std::time::{Duration, Instant};

use slipring::broadcast::{EventKind, PublishOptions, SubscribeOptions, Subscriber};
use slipring::error::{Eviction, TryRecvError};
use slipring::options::Resource;
use slipring::tensor::Shape;
use slipring::{Context, ErrorKind, Options, TensorSet};

use crate::support::{soon, wait_until};
use crate::{Stage, next};

const FRAME: usize = 1 << 20;

fn frame(stage: &mut Stage, byte: u8) {
    let mut frame = stage.publisher.alloc::<u8>([FRAME]).unwrap();
    frame.fill(byte);
    stage.publisher.send_tensor(frame).unwrap();
}

#[test]
fn memory_that_nobody_may_ask_for_comes_back() {
    let mut stage = Stage::with(Options::new().pool_quota(8 << 20), PublishOptions::default());
    for number in 0..100u8 {
        frame(&mut stage, number);
        assert_eq!(stage.kept_bytes(), 0, "nobody subscribes");
    }
    let mut latest = stage.subscribe(SubscribeOptions::latest());
    for number in 0..100u8 {
        frame(&mut stage, number);
    }
    assert!(stage.kept_bytes() < 2 * FRAME as u64);
    let tensor = latest.recv().unwrap().unwrap().into_tensor().unwrap();
    assert_eq!(tensor.to_vec::<u8>().unwrap(), vec![99; FRAME]);
    // Held by the subscriber, whatever comes later.
    for number in 0..100u8 {
        frame(&mut stage, number);
        assert_eq!(tensor.to_vec::<u8>().unwrap(), vec![99; FRAME]);
    }
    assert!(stage.kept_bytes() < 3 * FRAME as u64);
}

#[test]
fn a_look_at_what_is_kept_changes_nothing() {
    let mut stage = Stage::new(PublishOptions::default());
    let mut every = stage.subscribe(SubscribeOptions::every());
    for number in 0..2u8 {
        frame(&mut stage, number);
    }
    for _ in 0..2 {
        drop(every.recv().unwrap().unwrap());
    }
    let kept = stage.publisher.kept_bytes();
    assert!(kept >= 2 * FRAME as u64, "{kept}");
    let freed = stage.publisher.reclaim();
    assert!(freed >= FRAME as u64, "{freed}");
    assert_eq!(stage.publisher.kept_bytes(), kept - freed);
}

#[test]
fn a_message_that_all_have_read_is_kept_for_nobody() {
    let mut stage = Stage::with(Options::new().pool_quota(2 << 20), PublishOptions::default());
    let mut readers = [(); 2].map(|()| stage.subscribe(SubscribeOptions::every()));
    for number in 0..20u8 {
        frame(&mut stage, number);
        let kept = stage.kept_bytes();
        assert!(kept >= FRAME as u64, "{kept}: nobody has read it");
        let held = readers[0].recv().unwrap().unwrap().into_tensor().unwrap();
        assert_eq!(stage.kept_bytes(), kept, "one of them has yet to read it");
        drop(readers[1].recv().unwrap().unwrap());
        assert_eq!(stage.kept_bytes(), kept, "one of them holds it");
        assert_eq!(held.to_vec::<u8>().unwrap(), vec![number; FRAME]);
        drop(held);
        assert_eq!(stage.kept_bytes(), 0);
        // The whole pool is there for the next one.
        drop(stage.publisher.alloc::<u8>([FRAME * 7 / 4]).unwrap());
    }
}

#[test]
fn a_message_is_kept_while_one_that_may_miss_it_may_ask_for_it() {
    let mut stage = Stage::new(PublishOptions::default());
    let mut every = stage.subscribe(SubscribeOptions::every());
    let mut latest = stage.subscribe(SubscribeOptions::latest());
    let mut newest = stage.subscribe(SubscribeOptions::newest(3));
    for round in 0..5u8 {
        (0..6).for_each(|number| frame(&mut stage, 6 * round + number));
        (0..6).for_each(|_| drop(every.recv().unwrap().unwrap()));
        let frame = stage.kept_bytes() / 3;
        assert!(frame >= FRAME as u64, "one may ask for three of them");
        drop(latest.recv().unwrap().unwrap());
        assert_eq!(stage.kept_bytes(), 3 * frame);
        for left in (0..3u64).rev() {
            drop(newest.recv().unwrap().unwrap());
            assert_eq!(stage.kept_bytes(), left * frame);
        }
        frame_of_nobody(&mut stage, &mut [&mut every, &mut latest, &mut newest]);
    }
}

/// All read the next message, and nobody keeps it.
fn frame_of_nobody(stage: &mut Stage, readers: &mut [&mut Subscriber]) {
    frame(stage, 0);
    for reader in readers {
        assert!(stage.kept_bytes() >= FRAME as u64);
        assert_eq!(reader.recv().unwrap().unwrap().missed(), 0);
    }
    assert_eq!(stage.kept_bytes(), 0);
}

#[test]
fn frozen_memory_is_kept_no_longer_than_it_must() {
    let mut stage = Stage::new(PublishOptions::default());
    let mut every = stage.subscribe(SubscribeOptions::every());
    let frozen = Context::with_options(Options::new().pool_quota(8 << 20)).unwrap();
    for number in 0..100u8 {
        let mut frame = frozen.alloc_frozen::<u8>([FRAME]).unwrap();
        frame.fill(number);
        let mut set = TensorSet::new();
        set.insert("frame", frame.share().unwrap()).unwrap();
        if number % 2 == 1 {
            set.insert("short", stage.context.alloc::<u8>([4096]).unwrap().share().unwrap())
                .unwrap();
        }
        stage.publisher.send_tensors(&set).unwrap();
        let sample = every.recv().unwrap().unwrap();
        let tensors: Vec<_> = sample.tensors().collect();
        assert_eq!(tensors.len(), set.len());
        let (name, frame) = tensors[0];
        assert_eq!((name, frame.to_vec::<u8>().unwrap()), ("frame", vec![number; FRAME]));
    }
}

#[test]
fn a_newcomer_knows_every_segment_of_a_long_history() {
    const MOST: usize = 80;
    let options = PublishOptions::default().history(MOST as u32);
    let mut stage = Stage::with(Options::new().pool_quota(256 << 20), options);
    for number in 0..MOST as u8 {
        frame(&mut stage, number);
    }
    let mut every = stage.subscribe(SubscribeOptions::every());
    for number in 0..MOST as u8 {
        let (bytes, missed) = {
            let sample = every.recv_deadline(soon()).unwrap().expect("a message");
            let missed = sample.missed();
            (sample.into_tensor().unwrap().to_vec::<u8>().unwrap(), missed)
        };
        assert!(missed == 0 && bytes == vec![number; FRAME], "{number}");
    }
}

#[test]
fn a_subscriber_that_has_failed_is_told_when_what_it_holds_is_used_anew() {
    let mut stage = Stage::new(PublishOptions::default());
    // The topic and one segment of the pool.
    let limit = Options::new().link_limit(Resource::MappedBytes, FRAME as u64 * 3 / 2);
    let context = Context::with_options(limit).unwrap();
    let every = SubscribeOptions::every().reconnect(false);
    let mut subscriber = context.subscribe(&stage.name, every).unwrap();
    frame(&mut stage, 1);
    let held = subscriber.recv_deadline(soon()).unwrap().unwrap().into_tensor().unwrap();
    let failed = loop {
        frame(&mut stage, 2);
        match subscriber.recv_deadline(soon()) {
            Ok(sample) => drop(sample.unwrap().into_tensor().unwrap()),
            Err(error) => break error,
        }
    };
    assert!(matches!(failed.kind(), ErrorKind::AccountFull { .. }), "{failed:?}");
    wait_until("the end of the subscriber", || stage.publisher.subscribers().is_empty());
    (3..10).for_each(|byte| frame(&mut stage, byte));
    let read = held.to_vec::<u8>().map(drop);
    assert_eq!(*read.unwrap_err().kind(), ErrorKind::LoanRevoked);
}

#[test]
fn a_subscriber_that_holds_all_that_it_may_misses_messages_or_is_told() {
    let options = PublishOptions::new().hold_limit(2).stall_after(Duration::from_secs(20));
    let mut stage = Stage::new(options);
    let mut latest = stage.subscribe(SubscribeOptions::latest());
    let mut every = stage.subscribe(SubscribeOptions::every());
    let mut tensors = Vec::new();
    for number in 0..2u8 {
        frame(&mut stage, number);
        tensors.push(latest.recv().unwrap().unwrap().into_tensor().unwrap());
        tensors.push(every.recv().unwrap().unwrap().into_tensor().unwrap());
    }
    frame(&mut stage, 2);
    assert!(matches!(latest.try_recv(), Err(TryRecvError::Empty)));
    for _ in 0..2 {
        let met = every.recv().unwrap_err();
        assert_eq!(*met.kind(), ErrorKind::HoldLimit { limit: 2 });
    }
    assert_eq!((every.held(), latest.held()), (2, 2));
    drop(tensors);
    assert_eq!((every.held(), latest.held()), (0, 0));
    let third = every.recv().unwrap().unwrap();
    assert_eq!((third.sequence(), third.missed()), (3, 0));
    drop(third);
    frame(&mut stage, 3);
    let fourth = latest.recv().unwrap().unwrap();
    assert_eq!((fourth.sequence(), fourth.missed()), (4, 1));
}

#[test]
fn a_subscriber_that_holds_as_many_bytes_as_it_may_misses_messages_or_is_told() {
    const LIMIT: u64 = FRAME as u64 * 5 / 2;
    let options = PublishOptions::new().hold_limit(64).hold_bytes(LIMIT);
    let mut stage = Stage::new(options.stall_after(Duration::from_secs(20)));
    let mut latest = stage.subscribe(SubscribeOptions::latest());
    let mut every = stage.subscribe(SubscribeOptions::every());
    let mut tensors = Vec::new();
    for number in 0..2u8 {
        frame(&mut stage, number);
        tensors.push(latest.recv().unwrap().unwrap().into_tensor().unwrap());
        tensors.push(every.recv().unwrap().unwrap().into_tensor().unwrap());
    }
    frame(&mut stage, 2);
    assert!(matches!(latest.try_recv(), Err(TryRecvError::Empty)));
    for _ in 0..2 {
        let met = every.recv().unwrap_err();
        let (needed, held) = (FRAME as u64, 2 * FRAME as u64);
        assert_eq!(*met.kind(), ErrorKind::HoldBytes { needed, held, limit: LIMIT });
    }
    // A shorter message has room.
    stage.publisher.send(&[7; 1000]).unwrap();
    let sample = latest.recv().unwrap().unwrap();
    assert_eq!((sample.len(), sample.missed()), (1000, 1));
    drop(sample);
    assert_eq!((every.held(), latest.held()), (2, 2));
    // Nobody is evicted for what it holds, however often the publisher looks.
    for number in 0..20u8 {
        let _ = latest.try_recv().map(drop);
        let _ = every.try_recv().map(drop);
        stage.publisher.reclaim();
        stage.publisher.send(&[number; 1000]).unwrap();
    }
    assert_eq!(stage.publisher.subscribers().len(), 2);
    drop(tensors);
    let third = every.recv().unwrap().unwrap();
    assert_eq!((third.sequence(), third.missed()), (3, 0));
    drop(third);
    // One message may have more bytes than the limit.
    while every.try_recv().is_ok_and(|sample| sample.is_some()) {}
    let mut long = stage.publisher.alloc::<u8>([4 * FRAME]).unwrap();
    long.fill(9);
    stage.publisher.send_tensor(long).unwrap();
    let held = every.recv().unwrap().unwrap().into_tensor().unwrap();
    let also = latest.recv().unwrap().unwrap().into_tensor().unwrap();
    assert_eq!(held.to_vec::<u8>().unwrap(), also.to_vec::<u8>().unwrap());
    frame(&mut stage, 5);
    assert!(matches!(every.recv().unwrap_err().kind(), ErrorKind::HoldBytes { .. }));
}

#[test]
fn a_subscriber_that_wants_all_and_holds_too_many_bytes_is_waited_for_and_evicted() {
    let options = PublishOptions::new().hold_limit(64).hold_bytes(2 * FRAME as u64);
    let stalls = Duration::from_millis(100);
    let mut stage = Stage::new(options.slots(8).newest_limit(4).stall_after(stalls));
    let mut every = stage.subscribe(SubscribeOptions::every());
    let mut latest = stage.subscribe(SubscribeOptions::latest());
    let mut tensors = Vec::new();
    for number in 0..9u8 {
        frame(&mut stage, number);
        if let Ok(Some(sample)) = every.try_recv() {
            tensors.push(sample.into_tensor().unwrap());
        }
    }
    assert_eq!(tensors.len(), 2);
    let start = Instant::now();
    frame(&mut stage, 9);
    assert!(start.elapsed() >= stalls, "{:?}", start.elapsed());
    let met = every.recv().unwrap_err();
    assert_eq!(*met.kind(), ErrorKind::Evicted { cause: Eviction::Stalled });
    assert_eq!(latest.recv().unwrap().unwrap().sequence(), 10);
}

#[test]
fn a_subscriber_that_reads_nothing_is_evicted_and_the_others_go_on() {
    let options = PublishOptions::new().slots(16).stall_after(Duration::from_millis(50));
    let mut stage = Stage::with(Options::new().pool_quota(32 << 20), options);
    let mut stuck = stage.subscribe(SubscribeOptions::every());
    let mut other = stage.subscribe(SubscribeOptions::every());
    frame(&mut stage, 7);
    let held = stuck.recv().unwrap().unwrap().into_tensor().unwrap();
    let reader = std::thread::spawn(move || {
        let mut count = 0;
        while other.recv_deadline(crate::soon()).unwrap().is_some() {
            count += 1;
        }
        count
    });
    for number in 0..200u8 {
        frame(&mut stage, number);
    }
    let evicted = Eviction::Stalled;
    let met = loop {
        match stuck.recv() {
            Ok(_) => {}
            Err(met) => break met,
        }
    };
    assert_eq!(*met.kind(), ErrorKind::Evicted { cause: evicted }, "{met}");
    let read = held.to_vec::<u8>().map(drop);
    assert_eq!(*read.unwrap_err().kind(), ErrorKind::LoanRevoked);
    let kinds: Vec<_> = stage.publisher.take_events().iter().map(|event| event.kind()).collect();
    assert_eq!(kinds, [EventKind::Joined, EventKind::Joined, EventKind::Evicted(evicted)]);
    drop(stage.publisher);
    assert_eq!(reader.join().unwrap(), 201);
}

#[test]
fn an_attempt_does_not_wait_and_a_deadline_evicts_nobody() {
    let options = PublishOptions::new().slots(4).newest_limit(1);
    let mut stage = Stage::new(options.stall_after(Duration::from_secs(20)));
    let mut every = stage.subscribe(SubscribeOptions::every());
    for number in 0..3u8 {
        stage.publisher.try_send(&[number]).unwrap();
    }
    assert!(stage.publisher.try_send(b"one too many").is_err());
    let soon = Instant::now() + Duration::from_millis(20);
    assert!(stage.publisher.send_deadline(b"one too many", soon).unwrap_err().is_timeout());
    for number in 0..3u8 {
        assert_eq!(next(&mut every).0, [number]);
    }
    stage.publisher.try_send(&[4]).unwrap();
    assert_eq!(next(&mut every).0, [4]);
    assert_eq!(stage.publisher.subscribers().len(), 1);
}

#[test]
fn what_was_not_read_stays_after_the_publishers_end() {
    let mut stage = Stage::new(PublishOptions::default());
    let mut every = stage.subscribe(SubscribeOptions::every());
    for number in 0..5u8 {
        frame(&mut stage, number);
    }
    drop(stage.publisher);
    for number in 0..5u8 {
        let tensor = every.recv().unwrap().unwrap().into_tensor().unwrap();
        assert_eq!(tensor.to_vec::<u8>().unwrap(), vec![number; FRAME]);
    }
    assert!(every.recv().unwrap().is_none());
}

#[test]
fn the_owner_evicts_a_subscriber_and_has_its_memory_at_once() {
    let mut stage = Stage::new(PublishOptions::default());
    let mut viewer = stage.subscribe(SubscribeOptions::latest());
    frame(&mut stage, 1);
    let tensor = viewer.recv().unwrap().unwrap().into_tensor().unwrap();
    frame(&mut stage, 2);
    frame(&mut stage, 3);
    let info = &stage.publisher.subscribers()[0];
    assert_eq!((info.held(), info.pid()), (1, Some(std::process::id())));
    let id = info.id();
    assert!(stage.publisher.evict(id));
    assert!(!stage.publisher.evict(id));
    assert!(stage.kept_bytes() <= FRAME as u64 * 5 / 4);
    wait_until("the end", || matches!(viewer.try_recv(), Err(TryRecvError::Failed(_))));
    assert_eq!(*tensor.to_vec::<u8>().unwrap_err().kind(), ErrorKind::LoanRevoked);
}

#[test]
fn segments_come_and_go_for_as_long_as_a_subscriber_reads() {
    const LIMIT: u64 = 32 << 20;
    let mut stage = Stage::with(Options::new().pool_quota(LIMIT), PublishOptions::new());
    let context = Context::with_options(Options::new().peer_pool_limit(LIMIT)).unwrap();
    let mut subscriber = context.subscribe(&stage.name, SubscribeOptions::every()).unwrap();
    // Each length has a segment of its own, and the pool has room for two of them.
    for number in 0..24u8 {
        let message = vec![number; (9 + 2 * usize::from(number % 3)) << 20];
        stage.publisher.send(&message).unwrap();
        assert!(next(&mut subscriber) == (message, 0), "message {number}");
    }
}

#[test]
fn tensors_of_every_rank_arrive_through_slots_of_every_length() {
    for slot_len in [64, 128, 256] {
        let mut stage = Stage::new(PublishOptions::new().slot_len(slot_len));
        let mut subscriber = stage.subscribe(SubscribeOptions::every());
        let mut received = || subscriber.recv().unwrap().unwrap().into_tensor().unwrap();
        for rank in 0..=8 {
            let shape = Shape::new(&[2, 1, 3, 1, 2, 1, 1, 2][..rank]).unwrap();
            let len = shape.dims().iter().product();
            let bytes: Vec<u8> = (0..len).map(|byte| byte as u8).collect();
            let mut frame = stage.publisher.alloc::<u8>(shape).unwrap();
            frame.copy_from_slice(&bytes);
            stage.publisher.send_tensor(frame).unwrap();
            let kept = received();
            assert_eq!((kept.shape(), kept.bytes().unwrap().to_vec()), (&shape, bytes.clone()));

            let mut frame = stage.publisher.alloc::<u8>(shape).unwrap();
            frame.copy_from_slice(&bytes);
            let frame = frame.share().unwrap();
            for _ in 0..2 {
                stage.publisher.send_tensor(&frame).unwrap();
                let kept = received();
                assert_eq!((kept.shape(), kept.bytes().unwrap().to_vec()), (&shape, bytes.clone()));
            }
        }
    }
}
