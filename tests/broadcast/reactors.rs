//! Many subscribers on the thread of one reactor.

use std::ops::ControlFlow;
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use slipring::broadcast::{PublishOptions, SubscribeOptions};
use slipring::options::Spin;
use slipring::{Address, Context, ErrorKind, EventLoop, Options, Reactor};

use crate::support::{HANG, wait_until};
use crate::{Stage, unique_name};

/// What a callback has seen: bytes of a message, and whether another publisher has come.
type Seen = Result<Option<(Vec<u8>, bool)>, ErrorKind>;

/// Subscribes, and returns what the callback sees.
fn watch(
    reactor: &Reactor,
    context: &Context,
    name: &str,
    options: SubscribeOptions,
) -> Receiver<Seen> {
    let (seen, all) = mpsc::channel();
    let subscriber = context.subscribe(name, options).unwrap();
    let callback = move |sample: slipring::Result<Option<slipring::broadcast::Sample<'_>>>| {
        let sample = match sample {
            Ok(Some(sample)) => Ok(Some((sample.to_vec().unwrap(), sample.restarted()))),
            Ok(None) => Ok(None),
            Err(error) => Err(error.kind().clone()),
        };
        let _ = seen.send(sample);
        ControlFlow::Continue(())
    };
    reactor.subscribe(subscriber, callback).unwrap();
    all
}

fn message(bytes: &[u8]) -> Seen {
    Ok(Some((bytes.to_vec(), false)))
}

#[test]
fn one_thread_serves_many_subscribers() {
    let mut stage = Stage::new(PublishOptions::new().slots(64).stall_after(HANG));
    let reactor = Reactor::spawn(&stage.context).unwrap();
    let options = SubscribeOptions::every().reconnect(false);
    let all: Vec<_> =
        (0..100).map(|_| watch(&reactor, &stage.context, &stage.name, options.clone())).collect();
    for round in 0..300u32 {
        stage.publisher.send(&round.to_le_bytes()).unwrap();
        if round % 100 == 0 {
            // Long enough for the reactor to fall asleep.
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    drop(stage.publisher);
    for seen in &all {
        for round in 0..300u32 {
            assert_eq!(seen.recv_timeout(HANG), Ok(message(&round.to_le_bytes())));
        }
        assert_eq!(seen.recv_timeout(HANG), Ok(Ok(None)));
        // The callback is gone.
        assert!(seen.recv_timeout(HANG).is_err());
    }
}

#[test]
fn subscribers_of_a_reactor_find_a_publisher_that_comes_again() {
    let (context, name) = (Context::new().unwrap(), unique_name());
    let history = PublishOptions::new().history(1);
    let mut publisher = context.publish(&name, history.clone()).unwrap();
    let reactor = Reactor::spawn(&context).unwrap();
    let all: Vec<_> =
        (0..20).map(|_| watch(&reactor, &context, &name, SubscribeOptions::every())).collect();
    for round in 0..3u8 {
        publisher.send(&[round]).unwrap();
        for seen in &all {
            assert_eq!(seen.recv_timeout(HANG), Ok(Ok(Some((vec![round], round > 0)))));
        }
        drop(publisher);
        std::thread::sleep(Duration::from_millis(20));
        publisher = context.publish(&name, history.clone()).unwrap();
    }
    // Shut down beside a look for a publisher.
    drop(publisher);
    std::thread::sleep(Duration::from_millis(20));
    reactor.shutdown();
    for seen in &all {
        assert_eq!(seen.recv_timeout(HANG), Ok(Err(ErrorKind::ReactorStopped)));
    }
}

#[test]
fn a_callback_that_breaks_or_panics_ends_its_subscription_and_no_other() {
    let mut stage = Stage::new(PublishOptions::default());
    let reactor = Reactor::spawn(&stage.context).unwrap();
    let subscriber = stage.subscribe(SubscribeOptions::every());
    reactor.subscribe(subscriber, |_| ControlFlow::Break(())).unwrap();
    let subscriber = stage.subscribe(SubscribeOptions::every());
    reactor.subscribe(subscriber, |_| panic!("as planned")).unwrap();
    let seen = watch(&reactor, &stage.context, &stage.name, SubscribeOptions::every());
    assert_eq!(stage.publisher.subscribers().len(), 3);
    stage.publisher.send(b"one").unwrap();
    assert_eq!(seen.recv_timeout(HANG), Ok(message(b"one")));
    wait_until("two are gone", || stage.publisher.subscribers().len() == 1);
    stage.publisher.send(b"two").unwrap();
    assert_eq!(seen.recv_timeout(HANG), Ok(message(b"two")));
}

#[test]
fn an_evicted_subscriber_of_a_reactor_is_told() {
    let mut stage = Stage::new(PublishOptions::default());
    let reactor = Reactor::spawn(&stage.context).unwrap();
    let seen = watch(&reactor, &stage.context, &stage.name, SubscribeOptions::latest());
    let id = stage.publisher.subscribers()[0].id();
    assert!(stage.publisher.evict(id));
    assert!(matches!(seen.recv_timeout(HANG), Ok(Err(ErrorKind::Evicted { .. }))));
    assert!(seen.recv_timeout(HANG).is_err());
}

#[test]
fn a_callback_that_keeps_samples_is_told_of_the_limit_and_goes_on() {
    let mut stage = Stage::new(PublishOptions::new().hold_limit(2));
    let reactor = Reactor::spawn(&stage.context).unwrap();
    let subscriber = stage.subscribe(SubscribeOptions::every());
    let (kept, all) = mpsc::channel();
    reactor
        .subscribe(subscriber, move |sample| {
            let sample = sample.map(|sample| sample.expect("no end").into_owned().unwrap());
            kept.send(sample).unwrap();
            ControlFlow::Continue(())
        })
        .unwrap();
    for number in 0..3u8 {
        stage.publisher.send(&[number; 1000]).unwrap();
    }
    let mut held = Vec::new();
    for number in 0..2u8 {
        held.push(all.recv_timeout(HANG).unwrap().unwrap());
        assert_eq!(held.last().unwrap().to_vec().unwrap(), [number; 1000]);
    }
    let limit = all.recv_timeout(HANG).unwrap().unwrap_err();
    assert_eq!(*limit.kind(), ErrorKind::HoldLimit { limit: 2 });
    held.clear();
    let sample = all.iter().find_map(Result::ok).unwrap();
    assert_eq!(sample.to_vec().unwrap(), [2; 1000]);
}

#[test]
fn an_event_loop_of_the_callers_own_sleeps_on_its_descriptor() {
    let address = Address::fresh();
    let context = Context::with_options(Options::new().spin(Spin::Never)).unwrap();
    let mut publisher = context.publish(&address, PublishOptions::default()).unwrap();
    let mut events = EventLoop::new(&context).unwrap();
    let reactor = events.reactor();
    let (seen, all) = mpsc::channel();
    let subscriber = context.subscribe(&address, SubscribeOptions::every()).unwrap();
    reactor
        .subscribe(subscriber, move |sample| {
            seen.send(sample.unwrap().unwrap().to_vec().unwrap()).unwrap();
            ControlFlow::Continue(())
        })
        .unwrap();
    while events.poll_once(1000).unwrap() > 0 {}
    let ready = |events: &EventLoop, time: i64| {
        let time = rustix::event::Timespec { tv_sec: time, tv_nsec: 0 };
        let mut fds = [rustix::event::PollFd::new(events, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&time)).unwrap() > 0
    };
    for round in 0..50u8 {
        assert!(!ready(&events, 0));
        assert_eq!(events.timeout(), None);
        publisher.send(&[round]).unwrap();
        assert!(ready(&events, 20));
        while events.poll_once(1000).unwrap() > 0 {}
        assert_eq!(all.try_recv(), Ok(vec![round]));
    }
}

#[test]
fn a_stopped_reactor_refuses_subscribers() {
    let stage = Stage::new(PublishOptions::default());
    let reactor = Reactor::spawn(&stage.context).unwrap();
    reactor.shutdown();
    let seen = watch(&reactor, &stage.context, &stage.name, SubscribeOptions::latest());
    assert_eq!(seen.recv_timeout(HANG), Ok(Err(ErrorKind::ReactorStopped)));
    wait_until("it is gone", || stage.publisher.subscribers().is_empty());
}

#[test]
fn silent_subscribers_cost_a_reactor_no_time() {
    let stage = Stage::new(PublishOptions::default());
    let reactor = Reactor::spawn(&stage.context).unwrap();
    let all: Vec<_> = (0..200)
        .map(|_| watch(&reactor, &stage.context, &stage.name, SubscribeOptions::latest()))
        .collect();
    let used = time_of_thread(&reactor);
    assert!(used < 0.02, "{:.2} % of a processor", used * 100.0);
    drop(all);
}

/// Returns the part of a second that a reactor's thread works.
pub fn time_of_thread(reactor: &Reactor) -> f64 {
    let cpu_of_thread = || {
        let (sent, time) = mpsc::channel();
        reactor.defer(move || {
            let clock = rustix::time::ClockId::ThreadCPUTime;
            let time = rustix::time::clock_gettime(clock);
            sent.send(Duration::new(time.tv_sec as u64, time.tv_nsec as u32)).unwrap();
        });
        time.recv_timeout(HANG).unwrap()
    };
    std::thread::sleep(Duration::from_millis(100));
    let (before, start) = (cpu_of_thread(), Instant::now());
    std::thread::sleep(Duration::from_millis(1000));
    (cpu_of_thread() - before).as_secs_f64() / start.elapsed().as_secs_f64()
}
