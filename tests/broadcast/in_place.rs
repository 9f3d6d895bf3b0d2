//! Messages that are written in place, and batches.

use std::time::Duration;

use slipring::broadcast::{PublishOptions, SubscribeOptions};
use slipring::error::TryRecvError;
use slipring::message::Value;
use slipring::meta;

use crate::{Stage, next};

#[test]
fn reserved_messages_of_every_length_arrive() {
    let mut stage = Stage::new(PublishOptions::default());
    let mut subscriber = stage.subscribe(SubscribeOptions::every());
    let (plain, text) = (meta! {}.unwrap(), "x".repeat(250));
    let long = meta! { "text" => text.as_str() }.unwrap();
    for metadata in [plain, meta! { "n" => 7 }.unwrap(), long] {
        for len in [0, 1, 8, 200, 239, 240, 241, 5000, 1 << 20] {
            let message: Vec<u8> = (0..len).map(|byte| byte as u8).collect();
            let mut room = stage.publisher.reserve_with(len, &metadata).unwrap();
            assert_eq!(room.len(), len);
            room.copy_from_slice(&message);
            assert_eq!(room[..], message);
            room.publish().unwrap();
            let sample = subscriber.recv().unwrap().unwrap();
            assert_eq!(sample.to_vec().unwrap(), message, "{len}");
            assert_eq!(sample.metadata(), &metadata, "{len}");
        }
    }
}

#[test]
fn a_dropped_reservation_publishes_nothing() {
    let mut stage = Stage::new(PublishOptions::default());
    let mut subscriber = stage.subscribe(SubscribeOptions::every());
    for len in [8, 5000] {
        stage.publisher.reserve(len).unwrap().fill(1);
        assert!(matches!(subscriber.try_recv(), Err(TryRecvError::Empty)));
        stage.publisher.send(&[2; 8]).unwrap();
        assert_eq!(next(&mut subscriber), (vec![2; 8], 0));
    }
    assert_eq!((stage.publisher.sent(), stage.kept_bytes()), (2, 0));
}

#[test]
fn a_subscriber_behind_an_open_reservation_goes_on_with_later_messages() {
    let mut stage = Stage::new(PublishOptions::new().slots(4).newest_limit(3));
    let mut newest = stage.subscribe(SubscribeOptions::newest(3));
    // The subscriber is due message 1, whose slot the reservation of message 5 takes.
    for number in 1..=4u8 {
        stage.publisher.send(&[number]).unwrap();
    }
    let mut room = stage.publisher.reserve(1).unwrap();
    assert_eq!(next(&mut newest), (vec![2], 1));
    room[0] = 5;
    assert_eq!(next(&mut newest), (vec![3], 0));
    drop(room);
    assert_eq!(next(&mut newest), (vec![4], 0));
    assert!(matches!(newest.try_recv(), Err(TryRecvError::Empty)));
    stage.publisher.send(&[6]).unwrap();
    assert_eq!(next(&mut newest), (vec![6], 0));
}

#[test]
fn no_byte_of_an_open_reservation_is_ever_seen() {
    let mut stage = Stage::new(PublishOptions::new().slots(4).newest_limit(3));
    let mut subscriber = stage.subscribe(SubscribeOptions::newest(3));
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while let Some(sample) = subscriber.recv_deadline(crate::soon()).unwrap() {
                let bytes = sample.to_vec().unwrap();
                assert_eq!(bytes, [sample.sequence() as u8; 100]);
            }
        });
        for number in 1..=50_000u32 {
            stage.publisher.reserve(100).unwrap().fill(0xff);
            let mut room = stage.publisher.reserve(100).unwrap();
            room.fill(number as u8);
            room.publish().unwrap();
        }
        drop(stage.publisher);
    });
}

#[test]
fn a_batch_reaches_subscribers_that_sleep_and_waits_for_those_that_want_every_message() {
    let mut stage =
        Stage::new(PublishOptions::new().slots(16).stall_after(Duration::from_secs(60)));
    let subscribers: Vec<_> = (0..2).map(|_| stage.subscribe(SubscribeOptions::every())).collect();
    std::thread::scope(|scope| {
        for mut subscriber in subscribers {
            scope.spawn(move || {
                for number in 0..3000u32 {
                    let (message, missed) = next(&mut subscriber);
                    assert_eq!((&message[..4], missed), (&number.to_le_bytes()[..], 0));
                }
            });
        }
        for round in 0..3 {
            // Long enough for both to fall asleep.
            std::thread::sleep(Duration::from_millis(50));
            // One in 100 is long.
            let message = |number: u32| {
                let len = if number % 100 == 50 { 1000 } else { 4 };
                let mut message = number.to_le_bytes().to_vec();
                message.resize(len, 0);
                message
            };
            let sent = stage.publisher.send_all((round * 1000..(round + 1) * 1000).map(message));
            assert_eq!(sent.unwrap(), 1000);
        }
    });
}

#[test]
fn what_a_batch_has_published_before_its_iterator_panics_arrives() {
    let mut stage = Stage::new(PublishOptions::default());
    let mut subscriber = stage.subscribe(SubscribeOptions::every());
    std::thread::scope(|scope| {
        let received = scope.spawn(move || next(&mut subscriber));
        std::thread::sleep(Duration::from_millis(50));
        let messages = (0..2u8).map(|number| if number == 0 { [7] } else { panic!("as planned") });
        let publisher = &mut stage.publisher;
        let sent =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| publisher.send_all(messages)));
        assert!(sent.is_err());
        assert_eq!(received.join().unwrap(), (vec![7], 0));
    });
}

#[test]
fn long_metadata_needs_no_bytes_beside_it() {
    let mut stage = Stage::new(PublishOptions::new().slot_len(64));
    let mut subscriber = stage.subscribe(SubscribeOptions::every());
    let text = "x".repeat(250);
    stage.publisher.send_with(b"", &meta! { "text" => text.as_str() }.unwrap()).unwrap();
    let sample = subscriber.recv().unwrap().unwrap();
    assert_eq!((sample.len(), sample.metadata().get("text")), (0, Some(Value::String(&text))));
}
