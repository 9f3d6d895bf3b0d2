//! Messages in long slots, which a subscriber that wants every message sees where they lie.

use std::os::fd::AsFd;
use std::time::Duration;

use slipring::broadcast::{PublishOptions, SubscribeOptions, Subscriber};
use slipring::error::{Eviction, TrySendError};
use slipring::{ErrorKind, meta};

use crate::support::other::{alone, fork};
use crate::{Stage, next, soon};

/// The longest message that lies in a slot.
const LONGEST: usize = 1 << 20;

fn options() -> PublishOptions {
    PublishOptions::new().slots(4).slot_len(2 << 20).newest_limit(2)
}

/// A stage with a subscriber that has read one message, so that it sees the next ones in their slots.
fn begun() -> (Stage, Subscriber) {
    let mut stage = Stage::new(options());
    let mut every = stage.subscribe(SubscribeOptions::every());
    stage.publisher.send(b"first").unwrap();
    assert_eq!(next(&mut every).0, b"first");
    (stage, every)
}

#[test]
fn a_long_message_lies_in_its_slot_and_takes_no_memory_of_the_pool() {
    let (mut stage, mut every) = begun();
    let mut latest = stage.subscribe(SubscribeOptions::latest());
    let mut places = Vec::new();
    for number in 0..8u8 {
        stage.publisher.reserve(LONGEST).unwrap().publish().unwrap();
        let mut message = stage.publisher.reserve(LONGEST).unwrap();
        message.fill(number);
        message.publish().unwrap();
        assert_eq!(every.recv().unwrap().unwrap().len(), LONGEST);
        let sample = every.recv().unwrap().unwrap();
        places.push(sample.bytes().unwrap().as_ptr() as usize);
        assert_eq!(sample.to_vec().unwrap(), vec![number; LONGEST]);
        let copy = sample.into_owned().unwrap();
        assert_eq!(next(&mut latest).0, vec![number; LONGEST]);
        assert_eq!(copy.to_vec().unwrap(), vec![number; LONGEST]);
        assert_eq!(stage.kept_bytes(), 0);
    }
    // Nothing was copied: the messages lie in four slots by turns.
    assert_eq!(places[0].abs_diff(places[1]), 2 * (2 << 20));
    assert_eq!((places[2], places[3]), (places[0], places[1]));
    // A longer one lies in the pool.
    stage.publisher.send(&vec![9; LONGEST + 1]).unwrap();
    assert_eq!(next(&mut every).0, vec![9; LONGEST + 1]);
    assert!(stage.kept_bytes() > 0);
}

#[test]
fn metadata_comes_with_a_message_in_a_long_slot() {
    let (mut stage, mut every) = begun();
    for len in [0, 5000, LONGEST - 100] {
        stage.publisher.send_with(&vec![3; len], &meta! { "len" => len as i64 }.unwrap()).unwrap();
        let sample = every.recv().unwrap().unwrap();
        assert_eq!(sample.to_vec().unwrap(), vec![3; len]);
        assert_eq!(sample.metadata(), &meta! { "len" => len as i64 }.unwrap());
        assert_eq!(stage.kept_bytes(), 0);
    }
}

#[test]
fn the_publisher_overwrites_a_message_only_after_the_next_receive() {
    let (mut stage, mut every) = begun();
    stage.publisher.send(&[1; 5000]).unwrap();
    let sample = every.recv().unwrap().unwrap();
    for number in 2..4u8 {
        stage.publisher.try_send(&[number; 5000]).unwrap();
    }
    assert!(matches!(stage.publisher.try_send(&[4; 5000]), Err(TrySendError::Full { .. })));
    assert_eq!(sample.to_vec().unwrap(), [1; 5000]);
    drop(sample);
    // The subscriber may not have told that it is done.
    assert_eq!(next(&mut every).0, [2; 5000]);
    stage.publisher.try_send(&[4; 5000]).unwrap();
    assert_eq!(next(&mut every).0, [3; 5000]);
    assert_eq!(next(&mut every).0, [4; 5000]);
}

/// Checks that a subscriber whose sample this is cannot read it.
fn is_revoked(sample: slipring::broadcast::Sample<'_>) {
    assert_eq!(*sample.bytes().unwrap_err().kind(), ErrorKind::LoanRevoked);
    assert_eq!(*sample.to_vec().unwrap_err().kind(), ErrorKind::LoanRevoked);
    assert_eq!(*sample.into_owned().unwrap_err().kind(), ErrorKind::LoanRevoked);
}

#[test]
fn an_evicted_subscriber_reads_no_byte_of_another_message() {
    let (mut stage, mut every) = begun();
    stage.publisher.send(&[1; 5000]).unwrap();
    let sample = every.recv().unwrap().unwrap();
    let id = stage.publisher.subscribers()[0].id();
    assert!(stage.publisher.evict(id));
    assert_eq!(sample.to_vec().unwrap(), [1; 5000]);
    for number in 2..9u8 {
        stage.publisher.send(&[number; 5000]).unwrap();
    }
    is_revoked(sample);
    let error = every.recv().unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Evicted { cause: Eviction::Asked });
}

#[test]
fn an_evicted_subscriber_is_told_so_after_what_it_can_read() {
    let (mut stage, mut every) = begun();
    for number in 1..3u8 {
        stage.publisher.send(&[number; 5000]).unwrap();
    }
    let id = stage.publisher.subscribers()[0].id();
    assert!(stage.publisher.evict(id));
    for number in 1..3u8 {
        assert_eq!(next(&mut every).0, [number; 5000]);
    }
    let error = every.recv().unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Evicted { cause: Eviction::Asked });
}

#[test]
fn what_was_published_before_the_end_is_read_after_it() {
    let (mut stage, mut every) = begun();
    for number in 1..4u8 {
        stage.publisher.send(&[number; 5000]).unwrap();
    }
    drop(stage.publisher);
    for number in 1..4u8 {
        assert_eq!(next(&mut every).0, [number; 5000]);
    }
}

#[test]
fn a_released_message_is_overwritten_before_the_next_receive() {
    let mut stage = Stage::new(PublishOptions::new().slots(2).slot_len(4096).newest_limit(1));
    let mut every = stage.subscribe(SubscribeOptions::every());
    for number in 0..4u8 {
        stage.publisher.try_send(&[number; 2000]).unwrap();
        let copy = every.recv().unwrap().unwrap().into_owned().unwrap();
        every.release();
        assert_eq!(copy.to_vec().unwrap(), [number; 2000]);
    }
}

#[test]
fn a_subscriber_that_looks_at_a_message_for_too_long_is_evicted() {
    let mut stage = Stage::new(options().stall_after(Duration::from_millis(50)));
    let mut every = stage.subscribe(SubscribeOptions::every());
    stage.publisher.send(b"first").unwrap();
    next(&mut every);
    stage.publisher.send(&[1; 5000]).unwrap();
    let sample = every.recv().unwrap().unwrap();
    for number in 2..9u8 {
        stage.publisher.send(&[number; 5000]).unwrap();
    }
    is_revoked(sample);
}

#[test]
fn a_subscriber_whose_link_has_ended_reads_no_byte_of_another_message() {
    for _ in 0..100 {
        let (mut stage, mut every) = begun();
        let socket = every.descriptor().unwrap().try_clone_to_owned().unwrap();
        stage.publisher.send(&[1; 5000]).unwrap();
        let sample = every.recv().unwrap().unwrap();
        std::thread::scope(|scope| {
            let reading = scope.spawn(move || {
                loop {
                    match sample.to_vec() {
                        Ok(bytes) => assert_eq!(bytes, [1; 5000]),
                        Err(_) => break is_revoked(sample),
                    }
                }
            });
            // The publisher waits for it no longer, and it does not look at its link.
            rustix::net::shutdown(socket.as_fd(), rustix::net::Shutdown::Both).unwrap();
            let mut number = 2;
            while !reading.is_finished() {
                stage.publisher.send_deadline(&[number; 5000], soon()).unwrap();
                number = number.wrapping_add(1).max(2);
            }
        });
    }
}

#[test]
fn a_forked_child_cannot_read_a_message_in_its_slot() {
    alone("a_forked_child_cannot_read_a_message_in_its_slot", || {
        let (mut stage, mut every) = begun();
        stage.publisher.send(&[1; 5000]).unwrap();
        let sample = every.recv().unwrap().unwrap();
        let status = fork(|| {
            assert_eq!(*sample.to_vec().unwrap_err().kind(), ErrorKind::Forked);
        });
        assert_eq!(status, 0, "the child panicked or was killed");
        let status = fork(|| {
            every.release();
            assert_eq!(*every.recv().unwrap_err().kind(), ErrorKind::Forked);
        });
        assert_eq!(status, 0, "the child panicked or was killed");
        stage.publisher.send(&[2; 5000]).unwrap();
        assert_eq!(next(&mut every).0, [2; 5000]);
    });
}

#[test]
fn no_byte_of_another_message_is_ever_seen_in_a_long_slot() {
    let mut stage = Stage::new(PublishOptions::new().slots(4).slot_len(1 << 16).newest_limit(2));
    let options =
        [SubscribeOptions::every(), SubscribeOptions::newest(2), SubscribeOptions::latest()];
    let subscribers: Vec<_> = options.into_iter().map(|options| stage.subscribe(options)).collect();
    std::thread::scope(|scope| {
        for mut subscriber in subscribers {
            scope.spawn(move || {
                while let Some(sample) = subscriber.recv_deadline(soon()).unwrap() {
                    let bytes = sample.to_vec().unwrap();
                    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "{bytes:?}");
                    assert_eq!(bytes[0], sample.sequence() as u8);
                }
            });
        }
        for number in 1..=20_000u32 {
            let len = 1 + number as usize % 8000;
            stage.publisher.send(&vec![number as u8; len]).unwrap();
        }
        drop(stage.publisher);
    });
}
