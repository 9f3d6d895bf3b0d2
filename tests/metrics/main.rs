//! What the instruments tell is what has passed, also of links that have ended.

mod page;
#[path = "../support/mod.rs"]
mod support;

use std::thread;
use std::time::Duration;

use opentelemetry::metrics::MeterProvider;
use slipring::broadcast::{PublishOptions, SubscribeOptions};
use slipring::options::Spin;
use slipring::{Connection, Context, Options, Reactor};

use page::{Page, Reader};
use support::other::{Other, fork, say, wait_for_death};
use support::{soon, unique_name, wait_until};

/// Two ends of a link on an address, of one context each.
fn pair(name: &str, options: impl Fn() -> Options) -> (Connection, Connection) {
    let [near, far] = [(); 2].map(|()| Context::with_options(options()).unwrap());
    pair_of(name, &near, &far)
}

/// Two ends of a link on an address.
fn pair_of(name: &str, near: &Context, far: &Context) -> (Connection, Connection) {
    let mut listener = far.listen(name).unwrap();
    thread::scope(|scope| {
        let near = scope.spawn(|| near.connect_deadline(name, soon()).unwrap());
        let far = listener.accept_deadline(soon()).unwrap();
        (near.join().unwrap(), far)
    })
}

fn sent(page: &Page, name: &str) -> f64 {
    page.at(name).of("slipring_messages_total", &[("network_io_direction", "transmit")])
}

fn received(page: &Page, name: &str) -> f64 {
    page.at(name).of("slipring_messages_total", &[("network_io_direction", "receive")])
}

#[test]
fn a_link_tells_its_messages_bytes_sleeps_and_wakeups() {
    let (reader, name) = (Reader::new(), unique_name());
    let (mut near, mut far) = pair(&name, || Options::default().spin(Spin::Never));
    let receiver = thread::spawn(move || {
        for _ in 0..10 {
            assert_eq!(far.recv().unwrap().unwrap().len(), 7);
        }
        far.send(b"done").unwrap();
        far
    });
    for _ in 0..10 {
        // The receiver sleeps before each of them.
        thread::sleep(Duration::from_millis(10));
        near.send(b"message").unwrap();
    }
    assert_eq!(&*near.recv().unwrap().unwrap(), b"done");
    let far = receiver.join().unwrap();
    let page = reader.read();
    let at = page.at(&name);
    let (out, into) = (("network_io_direction", "transmit"), ("network_io_direction", "receive"));
    let (near_role, far_role) = (("slipring_role", "connected"), ("slipring_role", "accepted"));
    for (labels, messages, bytes) in [
        ([near_role, out], 10.0, 70.0),
        ([far_role, into], 10.0, 70.0),
        ([far_role, out], 1.0, 4.0),
        ([near_role, into], 1.0, 4.0),
    ] {
        assert_eq!(at.of("slipring_messages_total", &labels), messages, "{labels:?}\n{page}");
        assert_eq!(at.of("slipring_io_bytes_total", &labels), bytes, "{labels:?}\n{page}");
    }
    assert!(at.of("slipring_sleeps_total", &[far_role, into]) >= 5.0, "{page}");
    assert!(at.of("slipring_wakeups_total", &[near_role, out]) >= 5.0, "{page}");
    assert_eq!(at.of("slipring_link_count", &[near_role]), 1.0, "{page}");
    drop((near, far));
    let page = reader.read();
    assert_eq!(page.at(&name).of("slipring_link_count", &[]), 0.0, "{page}");
    assert_eq!((sent(&page, &name), received(&page, &name)), (11.0, 11.0), "{page}");
}

/// A hot receiver makes its sender store one count in sixteen.
#[test]
fn counts_of_streams_are_exact_at_the_end_and_never_fall() {
    const ROUNDS: [u64; 5] = [3000, 3001, 3007, 3013, 3015];
    let (reader, name) = (Reader::new(), unique_name());
    let (mut total, mut last) = (0, 0.0);
    for messages in ROUNDS {
        let (mut near, mut far) = pair(&name, Options::default);
        for index in 0..messages {
            near.send(&[7; 100]).unwrap();
            assert_eq!(far.recv().unwrap().unwrap().len(), 100);
            // A receiver that finds nothing tells its position, and is hot after many bytes.
            if index + 7 < messages {
                assert!(far.receiver().try_recv().is_err());
            }
            total += 1;
            if total % 500 == 0 {
                let now = sent(&reader.read(), &name);
                assert!(
                    now >= last && now <= total as f64 && now > total as f64 - 16.0,
                    "{now} {last} {total}"
                );
                last = now;
            }
        }
        drop((near, far));
        let page = reader.read();
        let (sent, received) = (sent(&page, &name), received(&page, &name));
        assert_eq!((sent, received), (total as f64, total as f64), "{page}");
        last = sent;
        let bytes = page.at(&name).of("slipring_io_bytes_total", &[("slipring_role", "connected")]);
        assert_eq!(bytes, 100.0 * total as f64, "{page}");
    }
}

/// Hot subscribers make their publisher store one count in sixteen.
#[test]
fn counts_of_a_topic_are_exact_at_the_end() {
    let reader = Reader::new();
    let context = Context::new().unwrap();
    for messages in [3001, 3004, 3007] {
        let name = unique_name();
        let mut topic = context.publish(&name, PublishOptions::default()).unwrap();
        let mut subscriber = context.subscribe(&name, SubscribeOptions::every()).unwrap();
        for _ in 0..messages {
            topic.send(b"message").unwrap();
            assert_eq!(subscriber.recv().unwrap().unwrap().missed(), 0);
        }
        drop((topic, subscriber));
        let (page, messages) = (reader.read(), f64::from(messages));
        assert_eq!((sent(&page, &name), received(&page, &name)), (messages, messages), "{page}");
    }
}

#[test]
fn the_queue_of_a_receiver_that_does_not_read_grows_until_it_reads() {
    let (reader, name) = (Reader::new(), unique_name());
    let (mut near, mut far) = pair(&name, Options::default);
    let used = |page: &Page| {
        let labels = [("slipring_role", "connected")];
        page.at(&name).of("slipring_queue_usage_bytes", &labels)
    };
    assert_eq!(used(&reader.read()), 0.0);
    (0..20).for_each(|_| near.send(&[7; 100]).unwrap());
    let page = reader.read();
    // A record takes its header and whole words.
    assert!((2000.0..4000.0).contains(&used(&page)), "{page}");
    let limit = page.at(&name).of("slipring_queue_limit_bytes", &[("slipring_role", "connected")]);
    assert_eq!(limit, 1_048_576.0, "{page}");
    (0..20).for_each(|_| drop(far.recv().unwrap().unwrap()));
    assert!(far.receiver().try_recv().is_err());
    let page = reader.read();
    assert_eq!(used(&page), 0.0, "{page}");
}

#[test]
fn a_sender_that_waits_for_room_and_lent_blocks_are_told() {
    let (reader, name) = (Reader::new(), unique_name());
    let context = Context::new().unwrap();
    let (mut near, mut far) = pair_of(&name, &context, &context);
    let mut tensor = context.alloc::<u8>([1 << 20]).unwrap();
    tensor.fill(1);
    near.send_tensor(tensor).unwrap();
    let kept = far.recv_tensor().unwrap().unwrap();
    let sender = thread::spawn(move || {
        for _ in 0..10_000 {
            near.send(&[7; 100]).unwrap();
        }
        near
    });
    let waited = |page: &Page| {
        let labels = [("slipring_awaited", "room"), ("network_io_direction", "transmit")];
        page.at(&name).of("slipring_wait_duration_seconds", &labels)
    };
    wait_until("a wait", || waited(&reader.read()) > 0.02);
    let page = reader.read();
    let at = page.at(&name);
    assert_eq!(at.of("slipring_loan_count", &[("slipring_role", "connected")]), 1.0, "{page}");
    assert!(at.of("slipring_loan_usage_bytes", &[]) >= 1048576.0, "{page}");
    assert!(page.of("slipring_pool_usage_bytes", &[]) >= 1048576.0, "{page}");
    assert!(page.of("slipring_pool_limit_bytes", &[]) >= 1048576.0, "{page}");
    let own = std::process::id().to_string();
    assert!(at.has("slipring_loan_count", &[("slipring_peer_pid", &own)]), "{page}");
    for _ in 0..10_000 {
        far.recv().unwrap().unwrap();
    }
    let near = sender.join().unwrap();
    assert_eq!(waited(&reader.read()), 0.0);
    drop((kept, near));
}

#[test]
fn the_death_of_a_peer_is_counted_once() {
    let test = "the_death_of_a_peer_is_counted_once";
    let name = unique_name();
    support::other::run_here(test, |name| {
        let mut link = Context::new().unwrap().connect_retry(name, soon()).unwrap();
        link.send(b"here").unwrap();
        say("here");
        wait_for_death();
    });
    let (reader, context) = (Reader::new(), Context::new().unwrap());
    let mut listener = context.listen(&name).unwrap();
    let deaths = |page: &Page| page.at(&name).of("slipring_peer_deaths_total", &[]);
    for round in 1..=2 {
        let mut other = Other::spawn(test, &name);
        let mut link = listener.accept_deadline(soon()).unwrap();
        other.expect("here");
        assert_eq!(&*link.recv().unwrap().unwrap(), b"here");
        other.kill();
        wait_until("a death", || deaths(&reader.read()) == f64::from(round));
        assert!(link.recv().is_err());
        drop(link);
        assert_eq!(deaths(&reader.read()), f64::from(round));
    }
    // A reactor sees the end by itself, before the thread that watches for deaths or after it.
    let reactor = Reactor::spawn(&context).unwrap();
    for round in 3..=6 {
        let mut other = Other::spawn(test, &name);
        let link = reactor.adopt(listener.accept_deadline(soon()).unwrap()).unwrap();
        link.on_message(|_, _| {});
        other.expect("here");
        other.kill();
        wait_until("a death", || deaths(&reader.read()) == f64::from(round));
        wait_until("the end", || !link.is_open());
        assert_eq!(deaths(&reader.read()), f64::from(round));
    }
    // One that closes in order is no death.
    thread::scope(|scope| {
        let link = scope.spawn(|| context.connect_deadline(&name, soon()).unwrap());
        let mut accepted = listener.accept_deadline(soon()).unwrap();
        link.join().unwrap().close().unwrap();
        assert!(accepted.recv().unwrap().is_none());
    });
    assert_eq!(deaths(&reader.read()), 6.0);
}

#[test]
fn a_topic_tells_lags_evictions_and_what_was_missed() {
    let (reader, name) = (Reader::new(), unique_name());
    let context = Context::new().unwrap();
    let mut topic = context.publish(&name, PublishOptions::default().slots(16)).unwrap();
    let mut every = context.subscribe(&name, SubscribeOptions::every()).unwrap();
    topic.send(b"0").unwrap();
    assert_eq!(every.recv().unwrap().unwrap().bytes().unwrap().len(), 1);
    let lag = |page: &Page| page.at(&name).of("slipring_subscriber_lag", &[]);
    (0..7).for_each(|_| topic.send(b"unread").unwrap());
    let page = reader.read();
    assert!((7.0..=8.0).contains(&lag(&page)), "{page}");
    assert!(topic.evict(topic.subscribers()[0].id()));
    let page = reader.read();
    assert_eq!(lag(&page), 0.0, "{page}");
    let evictions = |page: &Page, cause| {
        page.at(&name).of("slipring_subscriber_evictions_total", &[("slipring_cause", cause)])
    };
    assert_eq!((evictions(&page, "asked"), evictions(&page, "stalled")), (1.0, 0.0), "{page}");
    drop(every);

    let mut latest = context.subscribe(&name, SubscribeOptions::latest()).unwrap();
    (0..9).for_each(|_| topic.send(b"unread").unwrap());
    let missed = latest.recv().unwrap().unwrap().missed();
    drop(latest);
    let page = reader.read();
    let at = page.at(&name);
    assert_eq!(at.of("slipring_subscriber_missed_total", &[]), missed as f64, "{page}");
    assert!(missed >= 8, "{missed}");
    assert_eq!(received(&page, &name), 2.0, "{page}");
    assert_eq!(sent(&page, &name), 17.0, "{page}");
    drop(topic);
    let page = reader.read();
    assert_eq!((sent(&page, &name), evictions(&page, "asked")), (17.0, 1.0), "{page}");
}

#[test]
fn a_listener_tells_whom_it_accepted_and_refused() {
    let (reader, name) = (Reader::new(), unique_name());
    let context = Context::new().unwrap();
    let mut listener = context.listen(&name).unwrap();
    thread::scope(|scope| {
        // A listener for links refuses subscribers.
        let refused = scope.spawn(|| context.subscribe(&name, SubscribeOptions::every()).is_err());
        let accepted = scope.spawn(|| {
            while !refused.is_finished() {
                thread::sleep(Duration::from_millis(1));
            }
            assert!(refused.join().unwrap());
            context.connect_deadline(&name, soon()).unwrap()
        });
        drop(listener.accept_deadline(soon()).unwrap());
        drop(accepted.join().unwrap());
    });
    let peers = |outcome| {
        let page = reader.read();
        page.at(&name).of("slipring_listener_peers_total", &[("slipring_outcome", outcome)])
    };
    assert_eq!(["accepted", "refused", "silent"].map(peers), [1.0, 1.0, 0.0]);
    drop(listener);
    assert_eq!(["accepted", "refused", "silent"].map(peers), [1.0, 1.0, 0.0]);
}

#[test]
fn three_hundred_addresses_make_a_bounded_number_of_series() {
    let test = "three_hundred_addresses_make_a_bounded_number_of_series";
    let mut other = Other::start(test, "", |_| {
        let reader = Reader::new();
        for _ in 0..300 {
            let (mut near, mut far) = pair(&unique_name(), Options::default);
            near.send(b"one").unwrap();
            assert_eq!(&*far.recv().unwrap().unwrap(), b"one");
        }
        let page = reader.read();
        let transmit = [("network_io_direction", "transmit")];
        let series = page.count("slipring_messages_total", &transmit);
        assert!((100..=258).contains(&series), "{series}");
        assert_eq!(page.of("slipring_messages_total", &transmit), 300.0);
        let rest = page.at_other().of("slipring_messages_total", &transmit);
        assert!((100.0..250.0).contains(&rest), "{rest}");
        // An address that has no series of its own gets none later.
        let accepted =
            page.of("slipring_listener_peers_total", &[("slipring_outcome", "accepted")]);
        assert_eq!(accepted, 300.0);
    });
    other.succeeds();
}

#[test]
fn each_provider_shows_everything_and_a_second_call_nothing_twice() {
    let (one, other, name) = (Reader::new(), Reader::new(), unique_name());
    slipring::metrics::observe(&one.provider().meter("test"));
    let (mut near, mut far) = pair(&name, Options::default);
    near.send(b"once").unwrap();
    far.recv().unwrap().unwrap();
    for reader in [&one, &other, &one] {
        let page = reader.read();
        assert_eq!((sent(&page, &name), received(&page, &name)), (1.0, 1.0), "{page}");
    }
}

#[test]
fn a_forked_child_counts_for_itself() {
    let test = "a_forked_child_counts_for_itself";
    let mut other = Other::start(test, "", |_| {
        let (reader, name) = (Reader::new(), unique_name());
        let exchange = |name: &str| {
            let (mut near, mut far) = pair(name, Options::default);
            near.send(b"one").unwrap();
            far.recv().unwrap().unwrap();
            (near, far)
        };
        drop(exchange(&name));
        let mut kept = Some(exchange(&name));
        let status = fork(|| {
            assert_eq!(sent(&reader.read(), &name), 0.0);
            drop(kept.take());
            let own = unique_name();
            let _link = exchange(&own);
            let page = reader.read();
            assert_eq!((sent(&page, &name), sent(&page, &own)), (0.0, 1.0), "{page}");
        });
        assert_eq!(status, 0);
        let page = reader.read();
        assert_eq!((sent(&page, &name), received(&page, &name)), (2.0, 2.0), "{page}");
    });
    other.succeeds();
}
