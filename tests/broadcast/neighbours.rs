//! Subscribers in other processes that are stopped, give no memory back, or are slow, beside a healthy one.

use std::time::Duration;

use rustix::process::{Pid, Signal, getpid, kill_process};
use slipring::broadcast::{
    EventKind, OwnedSample, PublishOptions, SubscribeOptions, Subscriber, SubscriberInfo,
    SubscriberState,
};
use slipring::error::{Eviction, TryRecvError, TrySendError};
use slipring::{Context, ErrorKind, Options};

use crate::support::other::{Other, listen_for, run_here};
use crate::support::wait_until;
use crate::{Stage, next, soon};

const FRAME: usize = 64 << 10;

/// Room for the messages that three subscribers hold and ask for, and for no second set of them.
const QUOTA: u64 = 4 << 20;

fn frame(number: u32) -> Vec<u8> {
    vec![number as u8; FRAME]
}

fn subscribe(name: &str, options: SubscribeOptions) -> Subscriber {
    Context::new().unwrap().subscribe(name, options.reconnect(false)).unwrap()
}

fn take(subscriber: &mut Subscriber) -> OwnedSample {
    subscriber.recv_deadline(soon()).unwrap().expect("a message").into_owned().unwrap()
}

fn stop_here() {
    kill_process(getpid(), Signal::STOP).unwrap();
}

fn is_stopped(info: &SubscriberInfo) -> bool {
    info.state() == SubscriberState::Stopped
}

/// Subscribes as a neighbour that may miss messages, until it is killed.
fn misbehave(argument: &str) {
    let (kind, name) = argument.split_once(' ').unwrap();
    let mut subscriber = subscribe(name, SubscribeOptions::newest(4));
    let mut kept = vec![take(&mut subscriber)];
    loop {
        match kind {
            "stops" => stop_here(),
            // It is empty once the subscriber holds as many as it may.
            "keeps" => match subscriber.try_recv() {
                Ok(sample) => kept.push(sample.expect("a message").into_owned().unwrap()),
                Err(TryRecvError::Empty) => {}
                Err(error) => panic!("{error}"),
            },
            _ => kept = vec![take(&mut subscriber)],
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn subscribers_that_may_miss_messages_never_make_the_publisher_wait() {
    let test = "subscribers_that_may_miss_messages_never_make_the_publisher_wait";
    run_here(test, misbehave);
    let context = Options::new().pool_quota(QUOTA);
    let mut stage = Stage::with(context, PublishOptions::default());
    let kinds = ["stops", "keeps", "lags"];
    let _others = kinds.map(|kind| Other::spawn(test, &format!("{kind} {}", stage.name)));
    wait_until("what the others do", || {
        stage.publisher.send(&frame(0)).unwrap();
        let all = stage.publisher.subscribers();
        all.len() == 3 && all.iter().any(is_stopped) && all.iter().any(|one| one.held() == 4)
    });
    let mut healthy = stage.subscribe(SubscribeOptions::every());
    stage.publisher.take_events();
    for number in 0..5_000 {
        // The healthy one has read all, so nothing else can make it full.
        stage.publisher.try_send(&frame(number)).unwrap();
        assert_eq!(next(&mut healthy), (frame(number), 0));
    }
    // The last four, and what each of the three may hold.
    stage.publisher.reclaim();
    assert!(stage.publisher.kept_bytes() <= (4 + 3 * 4) * FRAME as u64);
    assert!(stage.publisher.take_events().is_empty());
}

/// Stops with a message that it holds. Learns of its eviction when it goes on.
fn stop_for_long(name: &str) {
    let mut subscriber = subscribe(name, SubscribeOptions::every());
    let held = take(&mut subscriber);
    stop_here();
    // The signal may reach this thread later than the call returns.
    listen_for("on");
    assert_eq!(*held.to_vec().unwrap_err().kind(), ErrorKind::LoanRevoked);
    let met = loop {
        match subscriber.recv_deadline(soon()) {
            Ok(sample) => assert!(sample.is_some(), "the publisher has not ended"),
            Err(met) => break met,
        }
    };
    assert_eq!(*met.kind(), ErrorKind::Evicted { cause: Eviction::Stalled }, "{met}");
}

#[test]
fn a_stopped_subscriber_that_wants_every_message_costs_one_wait() {
    let test = "a_stopped_subscriber_that_wants_every_message_costs_one_wait";
    run_here(test, stop_for_long);
    let options = PublishOptions::new().slots(16).stall_after(Duration::from_millis(100));
    let mut stage = Stage::with(Options::new().pool_quota(QUOTA), options);
    let mut other = Other::spawn(test, &stage.name);
    wait_until("the other", || !stage.publisher.subscribers().is_empty());
    let mut healthy = stage.subscribe(SubscribeOptions::every());
    stage.publisher.take_events();
    let mut waits = 0;
    for number in 0..1_000 {
        if number == 1 {
            wait_until("the stop", || stage.publisher.subscribers().iter().any(is_stopped));
        }
        match stage.publisher.try_send(&frame(number)) {
            Ok(()) => {}
            Err(TrySendError::Full { .. }) => {
                waits += 1;
                stage.publisher.send(&frame(number)).unwrap();
                // At once, with what the stopped one held: all but this message.
                stage.publisher.reclaim();
                assert!(stage.publisher.kept_bytes() <= FRAME as u64);
            }
            Err(error) => panic!("{error}"),
        }
        assert_eq!(next(&mut healthy), (frame(number), 0));
    }
    assert_eq!(waits, 1);
    let kinds: Vec<_> = stage.publisher.take_events().iter().map(|event| event.kind()).collect();
    assert_eq!(kinds, [EventKind::Evicted(Eviction::Stalled)]);
    let pid = Pid::from_raw(other.pid().cast_signed()).unwrap();
    kill_process(pid, Signal::CONT).unwrap();
    other.tell("on");
    other.succeeds();
}
