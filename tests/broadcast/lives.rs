//! Joins, ends, restarts, and what is told of them.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use slipring::broadcast::{EventKind, PublishOptions, SubscribeOptions, SubscriberState};
use slipring::error::TryRecvError;
use slipring::{Context, ErrorKind, Options};

use crate::hostile::{EVERY, NEWEST_WORD, joins};
use crate::support::raw::{self, Hello, RawPeer};
use crate::support::{HANG, wait_until};
use crate::{Stage, next, soon, unique_name};

#[test]
fn either_side_may_come_first() {
    let name = unique_name();
    let context = Context::new().unwrap();
    let met = context.subscribe(&name, SubscribeOptions::every()).unwrap_err();
    assert!(matches!(met.kind(), ErrorKind::NobodyListens { .. }));
    let joining = std::thread::spawn({
        let (context, name) = (context.clone(), name.clone());
        let options = SubscribeOptions::every().wait_for_publisher(Duration::from_secs(20));
        move || context.subscribe(&name, options).unwrap()
    });
    std::thread::sleep(Duration::from_millis(20));
    let mut publisher = context.publish(&name, PublishOptions::default()).unwrap();
    let mut subscriber = joining.join().unwrap();
    publisher.send(b"hello").unwrap();
    assert_eq!(next(&mut subscriber).0, b"hello");
}

#[test]
fn a_publisher_that_comes_again_is_found() {
    let name = unique_name();
    let context = Context::new().unwrap();
    let mut publisher = context.publish(&name, PublishOptions::default()).unwrap();
    let mut subscriber = context.subscribe(&name, SubscribeOptions::every()).unwrap();
    publisher.send(b"first").unwrap();
    let sample = subscriber.recv().unwrap().unwrap();
    assert!(!sample.restarted());
    drop(publisher);
    assert!(matches!(subscriber.try_recv(), Err(TryRecvError::Empty)));
    let again = std::thread::spawn({
        let (context, name) = (context.clone(), name.clone());
        move || {
            std::thread::sleep(Duration::from_millis(20));
            let mut publisher = context.publish(&name, PublishOptions::new().history(2)).unwrap();
            publisher.send(b"second").unwrap();
            publisher.send(b"third").unwrap();
            publisher
        }
    });
    let sample = subscriber.recv_deadline(soon()).unwrap().unwrap();
    assert!(sample.restarted());
    assert_eq!(sample.to_vec().unwrap(), b"second");
    let sample = subscriber.recv().unwrap().unwrap();
    assert!(!sample.restarted());
    drop(again.join().unwrap());
}

#[test]
fn a_receive_does_not_wait_for_the_answer_of_a_publisher_beyond_its_deadline() {
    let name = unique_name();
    let patient = Context::with_options(Options::new().handshake_timeout(HANG)).unwrap();
    let hasty = Options::new().handshake_timeout(Duration::from_millis(30));
    let hasty = Context::with_options(hasty).unwrap();
    let publisher = patient.publish(&name, PublishOptions::default()).unwrap();
    let subscribe = |context: &Context| context.subscribe(&name, SubscribeOptions::every());
    let (mut patient, mut hasty) = (subscribe(&patient).unwrap(), subscribe(&hasty).unwrap());
    drop(publisher);
    // It listens, and answers nobody.
    let silent = raw::listen(&name);
    let start = Instant::now();
    let met = patient.recv_deadline(start + Duration::from_millis(50)).map(drop).unwrap_err();
    assert!(met.is_timeout(), "{met}");
    assert!(start.elapsed() < HANG / 2, "{:?}", start.elapsed());
    // A receive without a deadline goes on beyond the time of a handshake.
    let waiting =
        std::thread::spawn(move || hasty.recv().map(|one| one.unwrap().to_vec().unwrap()));
    std::thread::sleep(Duration::from_millis(100));
    assert!(!waiting.is_finished());
    drop(silent);
    let mut publisher = Context::new().unwrap().publish(&name, PublishOptions::default()).unwrap();
    wait_until("the join", || publisher.subscribers().len() == 1);
    publisher.send(b"here").unwrap();
    assert_eq!(waiting.join().unwrap().unwrap(), b"here");
}

#[test]
fn links_and_broadcasts_do_not_mix() {
    let context = Context::new().unwrap();
    let stage = Stage::new(PublishOptions::default());
    let met = context.connect(&stage.name).unwrap_err();
    assert_eq!(*met.kind(), ErrorKind::WrongService { publishes: true });
    let name = unique_name();
    let mut listener = context.listen(&name).unwrap();
    let asking = std::thread::spawn({
        let (context, name) = (context.clone(), name.clone());
        move || context.subscribe(&name, SubscribeOptions::latest()).unwrap_err()
    });
    wait_until("the refusal", || {
        assert!(listener.try_accept().unwrap().is_none());
        listener.stats().refused == 1
    });
    let met = asking.join().unwrap();
    assert_eq!(*met.kind(), ErrorKind::WrongService { publishes: false });
}

#[test]
fn a_second_publisher_of_a_name_is_refused_and_the_first_one_goes_on() {
    let mut stage = Stage::new(PublishOptions::default());
    let mut subscriber = stage.subscribe(SubscribeOptions::every());
    for (context, number) in [(stage.context.clone(), 1u8), (Context::new().unwrap(), 2)] {
        let met = context.publish(&stage.name, PublishOptions::default()).unwrap_err();
        assert!(matches!(met.kind(), ErrorKind::AddressInUse { .. }), "{met:?}");
        let text = met.to_string();
        assert!(text.contains(&stage.name) && text.contains("take another address"), "{text}");
        stage.publisher.send(&[number]).unwrap();
        assert_eq!(next(&mut subscriber), (vec![number], 0));
        let mut newcomer = stage.subscribe(SubscribeOptions::every());
        stage.publisher.send(b"both").unwrap();
        for one in [&mut subscriber, &mut newcomer] {
            assert_eq!(next(one), (b"both".to_vec(), 0));
        }
    }
}

#[test]
fn the_publisher_is_told_who_comes_and_goes() {
    let mut stage = Stage::new(PublishOptions::new().subscriber_limit(2));
    let first = stage.subscribe(SubscribeOptions::newest(2));
    let mut second = stage.subscribe(SubscribeOptions::every());
    let met = stage.context.subscribe(&stage.name, SubscribeOptions::latest()).unwrap_err();
    assert_eq!(*met.kind(), ErrorKind::RefusedByPeer { code: 8 });
    stage.publisher.send(b"one").unwrap();
    let infos = stage.publisher.subscribers();
    assert_eq!(infos.len(), 2);
    assert_eq!((infos[0].lag(), infos[1].lag()), (1, 1));
    assert_eq!(infos[0].state(), SubscriberState::Awake);
    next(&mut second);
    assert!(matches!(second.try_recv(), Err(TryRecvError::Empty)));
    assert_eq!(stage.publisher.subscribers()[1].lag(), 0);
    drop(first);
    wait_until("the end", || stage.publisher.subscribers().len() == 1);
    let kinds: Vec<_> = stage.publisher.take_events().iter().map(|event| event.kind()).collect();
    assert_eq!(kinds, [EventKind::Joined, EventKind::Joined, EventKind::Left]);
    // A place is free.
    stage.subscribe(SubscribeOptions::latest());
}

#[test]
fn sleepers_are_woken_together() {
    let mut stage = Stage::new(PublishOptions::default());
    let subscribers: Vec<_> = (0..8).map(|_| stage.subscribe(SubscribeOptions::every())).collect();
    let readers: Vec<_> = subscribers
        .into_iter()
        .map(|mut subscriber| {
            std::thread::spawn(move || {
                (0..50u8).for_each(|number| assert_eq!(next(&mut subscriber).0, [number]));
            })
        })
        .collect();
    for number in 0..50u8 {
        std::thread::sleep(Duration::from_millis(2));
        stage.publisher.send(&[number]).unwrap();
    }
    readers.into_iter().for_each(|reader| reader.join().unwrap());
}

#[test]
fn a_descriptor_tells_of_messages_and_of_the_end() {
    let mut stage = Stage::new(PublishOptions::default());
    let mut subscriber = stage.subscribe(SubscribeOptions::latest());
    for number in 0..20u8 {
        while !matches!(subscriber.try_recv(), Err(TryRecvError::Empty)) {}
        let fd = subscriber.descriptor().unwrap().try_clone_to_owned().unwrap();
        assert!(matches!(subscriber.try_recv(), Err(TryRecvError::Empty)));
        assert!(!readable(&fd, Duration::from_millis(1)), "{number}");
        stage.publisher.send(&[number]).unwrap();
        assert!(readable(&fd, Duration::from_secs(20)), "{number}");
        assert_eq!(next(&mut subscriber).0, [number]);
    }
    let fd = subscriber.descriptor().unwrap().try_clone_to_owned().unwrap();
    drop(stage.publisher);
    assert!(readable(&fd, Duration::from_secs(20)));
    assert!(subscriber.recv().unwrap().is_none());
}

fn readable(fd: &std::os::fd::OwnedFd, patience: Duration) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds = [PollFd::new(fd, PollFlags::IN)];
    let time =
        Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: patience.subsec_nanos().into() };
    poll(&mut fds, Some(&time)).unwrap() == 1
}

#[test]
fn an_address_is_free_after_its_publisher() {
    let (context, name) = (Context::new().unwrap(), unique_name());
    let mut subscriber: Option<slipring::broadcast::Subscriber> = None;
    for round in 0..50u8 {
        let options = PublishOptions::new().history(1);
        let mut publisher = context.publish(&name, options).unwrap();
        publisher.send(&[round]).unwrap();
        let subscriber = subscriber
            .get_or_insert_with(|| context.subscribe(&name, SubscribeOptions::every()).unwrap());
        let sample = subscriber.recv_deadline(soon()).unwrap().unwrap();
        assert_eq!((sample.to_vec().unwrap(), sample.restarted()), (vec![round], round > 0));
    }
}

#[test]
fn a_listed_subscriber_gets_what_is_sent_before_it_maps_the_topic() {
    // A publisher that lists a subscriber, and publishes a message before the subscriber maps the topic.
    for (options, first) in [
        (SubscribeOptions::every(), 1),
        (SubscribeOptions::newest(2), 1),
        (SubscribeOptions::latest(), 1),
        // Beyond the newest message is none.
        (SubscribeOptions::every(), u64::MAX),
    ] {
        let (fd, memory) = raw::segment(2 * raw::page());
        let publish = |message: u64| {
            let slot = (raw::page() + 256 * message) as usize;
            memory.store(slot + 8, raw::header(raw::MESSAGE, 8));
            memory.write(slot + 16, &message.to_ne_bytes());
            memory.store(slot, message << 1);
            memory.store(NEWEST_WORD, message);
        };
        publish(1);
        let mut topic = raw::topic_packet(16, 256, 4, 0);
        topic[40..48].copy_from_slice(&first.to_le_bytes());
        let (subscriber, _peer) =
            joins(options, |socket| raw::send(socket, &topic, &[fd.as_fd()]).unwrap());
        let mut subscriber = subscriber.unwrap();
        if first != 1 {
            publish(2);
        }
        let expected: u64 = if first == 1 { 1 } else { 2 };
        assert_eq!(next(&mut subscriber), (expected.to_ne_bytes().to_vec(), 0));
    }
}

#[test]
fn the_topic_packet_names_the_first_message() {
    for (history, sent, first) in [(0, 0, 1u64), (0, 3, 4), (2, 1, 1), (2, 5, 4)] {
        let mut stage = Stage::new(PublishOptions::new().history(history));
        (0..sent).for_each(|_| stage.publisher.send(b"before").unwrap());
        let mut peer = RawPeer::greet(raw::dial(&stage.name), Hello::subscriber(EVERY, 0));
        peer.meet();
        let (topic, _) = raw::receive(&peer.socket).expect("a Topic");
        assert_eq!(topic[8], raw::TOPIC as u8);
        assert_eq!(topic[40..48], first.to_le_bytes(), "{sent} messages, history {history}");
    }
}
