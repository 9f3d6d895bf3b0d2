//! How long a send waits for subscribers that want every message, and which of them it evicts.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use slipring::broadcast::{EventKind, PublishOptions, Publisher, SubscribeOptions};
use slipring::error::{Eviction, TrySendError};
use slipring::{ErrorKind, Options, Tensor, TensorSet};

use crate::hostile::{EVERY, Over, join};
use crate::support::raw::{self, Hello, RawPeer};
use crate::support::{HANG, wait_until};
use crate::{Stage, next};

fn evictions(stage: &Stage) -> usize {
    let stalled = EventKind::Evicted(Eviction::Stalled);
    stage.publisher.take_events().iter().filter(|event| event.kind() == stalled).count()
}

#[test]
fn a_subscriber_that_leaves_with_a_sample_is_waited_for_no_longer() {
    let options = PublishOptions::new().slots(4).newest_limit(1).stall_after(HANG * 2);
    let mut stage = Stage::new(options);
    let mut every = stage.subscribe(SubscribeOptions::every());
    stage.publisher.send(&[7; 1000]).unwrap();
    let sample = every.recv().unwrap().unwrap().into_owned().unwrap();
    while stage.publisher.try_send(b"more").is_ok() {}
    std::thread::scope(|scope| {
        let publisher = &mut stage.publisher;
        let sending = scope.spawn(move || publisher.send(b"waits"));
        // Long enough for the publisher to fall asleep.
        std::thread::sleep(Duration::from_millis(100));
        let start = Instant::now();
        drop(every);
        sending.join().unwrap().unwrap();
        assert!(start.elapsed() < HANG, "{:?}", start.elapsed());
    });
    assert_eq!(evictions(&stage), 0);
    assert_eq!(sample.to_vec().unwrap(), [7; 1000]);
}

#[test]
fn subscribers_that_read_nothing_stall_together() {
    let stall = Duration::from_millis(300);
    let options = PublishOptions::new().slots(4).newest_limit(1).stall_after(stall);
    let mut stage = Stage::new(options);
    let silent: Vec<_> = (0..40).map(|_| join(&stage, Hello::subscriber(EVERY, 0))).collect();
    while stage.publisher.try_send(b"more").is_ok() {}
    let start = Instant::now();
    stage.publisher.send(b"waits").unwrap();
    let waited = start.elapsed();
    assert!(waited >= stall && waited < stall * 20, "{waited:?}");
    assert_eq!(evictions(&stage), 40);
    drop(silent);
}

#[test]
fn sends_with_short_deadlines_evict_a_subscriber_that_has_stalled() {
    let stall = Duration::from_millis(200);
    let options = PublishOptions::new().slots(4).newest_limit(1).stall_after(stall);
    let mut stage = Stage::new(options);
    let meta = slipring::meta! { "number" => 7 }.unwrap();
    let tensor = Tensor::from_slice([2], &[1u8, 2]).unwrap();
    let mut set = TensorSet::new();
    set.push(Tensor::from_slice([2], &[3u8, 4]).unwrap());
    type Send<'a> = &'a dyn Fn(&mut Publisher, Instant) -> slipring::Result<()>;
    let sends: [Send<'_>; 5] = [
        &|publisher, until| publisher.send_deadline(b"plain", until),
        &|publisher, until| publisher.send_with_deadline(b"with", &meta, until),
        &|publisher, until| publisher.send_tensor_deadline(&tensor, until),
        &|publisher, until| publisher.send_tensor_with_deadline(&tensor, &meta, until),
        &|publisher, until| publisher.send_tensors_deadline(&set, until),
    ];
    let mut latest = stage.subscribe(SubscribeOptions::latest());
    for send in sends {
        let silent = join(&stage, Hello::subscriber(EVERY, 0));
        while stage.publisher.try_send(b"more").is_ok() {}
        let (start, sent, mut late) = (Instant::now(), stage.publisher.sent(), 0);
        while let Err(error) = send(&mut stage.publisher, Instant::now() + stall / 20) {
            assert!(error.is_timeout(), "{error}");
            assert!(start.elapsed() < HANG, "it waits for ever");
            late += 1;
            // Neither of these ends the wait.
            let full = stage.publisher.try_send(b"more");
            assert!(matches!(full, Err(TrySendError::Full { .. })), "{full:?}");
            drop(stage.publisher.alloc_deadline::<u8>([1], Instant::now() + stall / 20).unwrap());
        }
        assert!(start.elapsed() >= stall && late > 0, "{late} in {:?}", start.elapsed());
        assert_eq!((evictions(&stage), stage.publisher.sent()), (1, sent + 1));
        drop(silent);
    }
    let sample = latest.recv_deadline(Instant::now() + HANG).unwrap().unwrap();
    assert_eq!(sample.into_tensors().at(0).unwrap().to_vec::<u8>().unwrap(), [3, 4]);
}

#[test]
fn memory_that_a_subscriber_keeps_is_waited_for_until_a_deadline() {
    const BLOCK: usize = 1 << 20;
    let options = PublishOptions::new().slots(16).stall_after(HANG * 2);
    let mut stage = Stage::with(Options::new().pool_quota(4 << 20), options);
    let mut every = stage.subscribe(SubscribeOptions::every());
    let shortly = || Instant::now() + Duration::from_millis(20);
    let error = loop {
        match stage.publisher.alloc_deadline::<u8>([BLOCK], shortly()) {
            Ok(block) => stage.publisher.send_tensor(block).unwrap(),
            Err(error) => break error,
        }
    };
    assert!(error.is_timeout(), "{error}");
    while every.try_recv().is_ok_and(|sample| sample.is_some()) {}
    stage.publisher.alloc_deadline::<u8>([BLOCK], Instant::now() + HANG).unwrap();
}

#[test]
fn subscribers_that_read_on_by_turns_are_not_evicted() {
    const BLOCK: usize = 65_536;
    let options = PublishOptions::new().slots(256).stall_after(Duration::from_secs(2));
    let mut stage = Stage::with(Options::new().pool_quota(8 << 20), options);
    let slow = [(); 2].map(|()| join(&stage, Hello::subscriber(EVERY, 0)));
    // The pool is full.
    while stage.publisher.try_send(&[0; BLOCK]).is_ok() {}
    let mut set = TensorSet::new();
    for _ in 0..4 {
        set.push(Tensor::from_slice([BLOCK], &[1u8; BLOCK]).unwrap());
    }
    let flag = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let over = Over(&flag);
        scope.spawn(|| {
            // Each of them reads a message every 800 ms. The send needs five of both, which takes twice its patience.
            for position in 2.. {
                for each in &slow {
                    std::thread::sleep(Duration::from_millis(400));
                    if flag.load(Ordering::Relaxed) {
                        return;
                    }
                    each.position(position);
                }
            }
        });
        stage.publisher.send_tensors(&set).unwrap();
        drop(over);
    });
    assert_eq!(evictions(&stage), 0);
}

#[test]
fn a_message_of_many_segments_reaches_those_that_want_every_message() {
    const FRAME: usize = 1 << 20;
    let mut stage = Stage::with(Options::new().pool_quota(256 << 20), PublishOptions::new());
    let mut every = stage.subscribe(SubscribeOptions::every());
    let mut set = TensorSet::new();
    for _ in 0..80 {
        set.push(stage.publisher.alloc::<u8>([FRAME]).unwrap().share().unwrap());
    }
    stage.publisher.send_tensors(&set).unwrap();
    stage.publisher.send(b"next").unwrap();
    assert_eq!(evictions(&stage), 0);
    let sample = every.recv().unwrap().unwrap();
    assert_eq!(sample.tensors().count(), 80);
    drop(sample);
    assert_eq!(next(&mut every).0, b"next");
}

#[test]
fn a_newcomer_has_its_own_time_in_a_send_that_has_waited_for_others() {
    const STALL: Duration = Duration::from_secs(1);
    let options = PublishOptions::new().slots(256).history(2).stall_after(STALL);
    let mut stage = Stage::with(Options::new().pool_quota(8 << 20), options);
    let slow = join(&stage, Hello::subscriber(EVERY, 0));
    // The pool is full.
    while stage.publisher.try_send(&[0; 65_536]).is_ok() {}
    let name = stage.name.clone();
    let flag = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let over = Over(&flag);
        scope.spawn(|| {
            for position in 2.. {
                std::thread::sleep(STALL / 4);
                if flag.load(Ordering::Relaxed) {
                    return;
                }
                slow.position(position);
            }
        });
        // Long after the send began, and before its end.
        let newcomer = scope.spawn(|| {
            std::thread::sleep(STALL * 13 / 4);
            let came = Instant::now();
            let mut newcomer = RawPeer::greet(raw::dial(&name), Hello::subscriber(EVERY, 0));
            newcomer.meet();
            // The revoked word.
            wait_until("its eviction", || newcomer.theirs().load(0x0c8) != 0);
            came.elapsed()
        });
        // More than the pool has beside the history, which the newcomer has yet to read.
        let error = stage.publisher.send(&vec![1; 8 << 20]).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::PoolExhausted { .. }), "{error:?}");
        let had = newcomer.join().unwrap();
        assert!(had >= STALL, "it is evicted after {had:?}");
        drop(over);
    });
    assert_eq!(evictions(&stage), 2);
}
