//! What each policy receives and misses.

use slipring::broadcast::{Policy, PublishOptions, SubscribeOptions};
use slipring::error::TryRecvError;
use slipring::message::{MessageKind, Value};
use slipring::{ErrorKind, Tensor, TensorSet, meta};

use crate::{Stage, next};

#[test]
fn every_message_reaches_a_subscriber_that_wants_every_one() {
    let mut stage = Stage::new(PublishOptions::new().slots(16));
    let mut subscribers: Vec<_> =
        (0..3).map(|_| stage.subscribe(SubscribeOptions::every())).collect();
    std::thread::scope(|scope| {
        for subscriber in &mut subscribers {
            scope.spawn(move || {
                for number in 0..20_000u32 {
                    assert_eq!(next(subscriber), (number.to_le_bytes().to_vec(), 0));
                }
            });
        }
        for number in 0..20_000u32 {
            stage.publisher.send(&number.to_le_bytes()).unwrap();
        }
    });
}

#[test]
fn messages_of_every_length_arrive() {
    let mut stage = Stage::new(PublishOptions::default());
    let mut subscriber = stage.subscribe(SubscribeOptions::every());
    for len in [0, 1, 7, 8, 48, 49, 239, 240, 241, 1000, 4096, 1 << 20] {
        let message: Vec<u8> = (0..len).map(|byte| byte as u8).collect();
        stage.publisher.send(&message).unwrap();
        stage.publisher.send_with(&message, &meta! { "len" => len as i64 }.unwrap()).unwrap();
        assert_eq!(next(&mut subscriber).0, message, "{len}");
        let sample = subscriber.recv().unwrap().unwrap();
        assert_eq!(sample.kind(), MessageKind::Message);
        assert_eq!(sample.len(), len as usize);
        assert_eq!(sample.to_vec().unwrap(), message, "{len}");
        assert_eq!(sample.metadata().get("len"), Some(Value::Integer(len as i64)));
    }
}

#[test]
fn a_slow_subscriber_gets_the_newest_ones_and_is_told_of_the_others() {
    let mut stage = Stage::new(PublishOptions::new().slots(16).newest_limit(8));
    let mut newest = stage.subscribe(SubscribeOptions::newest(3));
    let mut latest = stage.subscribe(SubscribeOptions::latest());
    for number in 0..10u8 {
        stage.publisher.send(&[number]).unwrap();
    }
    assert_eq!(next(&mut newest), (vec![7], 7));
    assert_eq!(next(&mut newest), (vec![8], 0));
    assert_eq!(next(&mut newest), (vec![9], 0));
    assert_eq!(next(&mut latest), (vec![9], 9));
    assert!(matches!(latest.try_recv(), Err(TryRecvError::Empty)));
    // Far beyond the slots.
    for number in 0..1000u32 {
        stage.publisher.send(&number.to_le_bytes()).unwrap();
    }
    assert_eq!(next(&mut newest), (997u32.to_le_bytes().to_vec(), 997));
    assert_eq!(next(&mut latest), (999u32.to_le_bytes().to_vec(), 999));
    assert_eq!(newest.counts(), (4, 1004));
}

#[test]
fn no_byte_of_another_message_is_ever_seen() {
    let mut stage = Stage::new(PublishOptions::new().slots(4).slot_len(128).newest_limit(2));
    let options = [SubscribeOptions::newest(2), SubscribeOptions::latest()];
    let subscribers: Vec<_> = options.into_iter().map(|options| stage.subscribe(options)).collect();
    std::thread::scope(|scope| {
        for mut subscriber in subscribers {
            scope.spawn(move || {
                let (mut last, mut missed) = (0, 0);
                while let Some(sample) = subscriber.recv_deadline(crate::soon()).unwrap() {
                    let bytes = sample.to_vec().unwrap();
                    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "{bytes:?}");
                    assert_eq!(bytes[0], sample.sequence() as u8);
                    assert_eq!(sample.sequence(), last + sample.missed() + 1);
                    last = sample.sequence();
                    missed += sample.missed();
                }
                assert!(missed > 0);
            });
        }
        for number in 1..=200_000u32 {
            let len = 1 + number as usize % 112;
            stage.publisher.send(&vec![number as u8; len]).unwrap();
        }
        drop(stage.publisher);
    });
}

#[test]
fn a_late_subscriber_gets_the_history() {
    let mut stage = Stage::new(PublishOptions::new().history(3));
    for number in 0..5u8 {
        stage.publisher.send(&vec![number; if number % 2 == 0 { 10 } else { 5000 }]).unwrap();
    }
    let mut every = stage.subscribe(SubscribeOptions::every());
    let mut latest = stage.subscribe(SubscribeOptions::latest());
    for number in 2..5u8 {
        assert_eq!(next(&mut every).0[0], number);
    }
    assert_eq!(next(&mut latest).0[0], 4);
    let mut without = Stage::new(PublishOptions::default());
    without.publisher.send(b"before").unwrap();
    let mut late = without.subscribe(SubscribeOptions::every());
    without.publisher.send(b"after").unwrap();
    assert_eq!(next(&mut late), (b"after".to_vec(), 0));
}

#[test]
fn tensors_and_sets_reach_all_with_their_metadata() {
    let mut stage = Stage::new(PublishOptions::default());
    let mut subscribers: Vec<_> =
        (0..3).map(|_| stage.subscribe(SubscribeOptions::every())).collect();
    let mut frame = stage.publisher.alloc::<u16>([100, 100]).unwrap();
    frame.fill(513);
    stage.publisher.send_tensor_with(frame, &meta! { "frame" => 1 }.unwrap()).unwrap();
    let mut set = TensorSet::new();
    for index in 0..40i64 {
        let tensor = Tensor::from_slice([300], &[index; 300]).unwrap();
        set.insert(&format!("a name that is long, number {index}"), tensor).unwrap();
    }
    set.set_metadata(meta! { "step" => 9 }.unwrap());
    stage.publisher.send_tensors(&set).unwrap();
    for subscriber in &mut subscribers {
        let sample = subscriber.recv().unwrap().unwrap();
        assert_eq!(sample.metadata().get("frame"), Some(Value::Integer(1)));
        let tensor = sample.into_tensor().unwrap();
        assert_eq!(tensor.to_vec::<u16>().unwrap(), vec![513; 10_000]);
        let set = subscriber.recv().unwrap().unwrap().into_tensors();
        assert_eq!(set.metadata().get("step"), Some(Value::Integer(9)));
        assert_eq!(set.len(), 40);
        for (index, (_, tensor)) in set.iter().enumerate() {
            assert_eq!(tensor.to_vec::<i64>().unwrap(), [index as i64; 300]);
        }
    }
}

#[test]
fn impossible_options_are_errors() {
    let context = slipring::Context::new().unwrap();
    let wrong = [
        PublishOptions::new().slots(3),
        PublishOptions::new().slots(1),
        PublishOptions::new().slot_len(32),
        PublishOptions::new().slot_len(100),
        PublishOptions::new().slot_len(4 << 20),
        PublishOptions::new().history(256),
        PublishOptions::new().newest_limit(256),
        PublishOptions::new().hold_limit(0),
        PublishOptions::new().hold_limit(65),
        PublishOptions::new().hold_bytes(0),
        // The pool of a context has 2 GiB.
        PublishOptions::new().hold_bytes((2 << 30) + 1),
    ];
    for options in wrong {
        let met = context.publish(crate::unique_name(), options).unwrap_err();
        assert!(matches!(met.kind(), ErrorKind::InvalidOption { .. }), "{met}");
    }
    let small = slipring::Context::with_options(slipring::Options::new().pool_quota(1 << 20));
    let more = PublishOptions::new().hold_bytes((1 << 20) + 1);
    let met = small.unwrap().publish(crate::unique_name(), more).unwrap_err();
    let text = met.to_string();
    assert!(text.contains("hold_bytes") && text.contains("1048577"), "{text}");
    assert!(text.contains("Options::pool_quota"), "{text}");
    let stage = Stage::new(PublishOptions::new().every(false).newest_limit(4));
    let refused = [SubscribeOptions::every(), SubscribeOptions::newest(5)];
    for options in refused {
        let met = context.subscribe(&stage.name, options).unwrap_err();
        assert_eq!(*met.kind(), ErrorKind::PolicyRefused);
    }
    assert_eq!(stage.subscribe(SubscribeOptions::newest(4)).policy(), Policy::Newest(4));
}

#[test]
fn a_subscriber_that_is_any_number_of_messages_behind_goes_on() {
    for behind in 0..40u32 {
        let mut stage = Stage::new(PublishOptions::new().slots(16));
        let mut newest = stage.subscribe(SubscribeOptions::newest(12));
        let mut latest = stage.subscribe(SubscribeOptions::latest());
        for number in 0..=behind {
            stage.publisher.send(&number.to_le_bytes()).unwrap();
        }
        assert_eq!(next(&mut latest), (behind.to_le_bytes().to_vec(), behind.into()));
        let (mut expected, mut received) = (0, 0);
        while let Ok(Some(sample)) = newest.try_recv() {
            expected += sample.missed() + 1;
            received += 1;
        }
        assert_eq!((expected, received), (u64::from(behind) + 1, u64::from(behind + 1).min(12)));
    }
}
