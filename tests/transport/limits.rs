//! Each limit has an answer of its own, and the link works after it.

use std::thread;
use std::time::{Duration, Instant};

use crate::support::census::{Census, shared_bytes};
use crate::support::other::{Other, over_threads_and_processes};
use crate::support::{pair, pair_of, pair_with, soon, unique_name, wait_until};
use slipring::error::{TryRecvError, TrySendError};
use slipring::message::MessageKind;
use slipring::options::Spin;
use slipring::{Connection, Context, Error, ErrorKind, Options};

fn kind<T: std::fmt::Debug>(answer: Result<T, Error>) -> ErrorKind {
    answer.unwrap_err().kind().clone()
}

fn shortly() -> Instant {
    Instant::now() + Duration::from_millis(20)
}

fn is_full(answer: Result<(), TrySendError>) -> bool {
    matches!(answer, Err(TrySendError::Full { .. }))
}

/// Asserts that the connection moves messages in order.
fn works(near: &mut Connection, far: &mut Connection) {
    for len in [0, 40, 400] {
        near.send(&vec![len as u8; len]).unwrap();
        assert_eq!(far.receiver().recv_deadline(soon()).unwrap().unwrap(), vec![len as u8; len]);
    }
}

#[test]
fn messages_at_every_boundary_arrive_whole() {
    let sizes = || {
        let edges: [usize; 14] =
            [0, 8, 48, 56, 64, 128, 448, 504, 512, 1024, 4096, 8192, 65_536 - 192, 65_536];
        edges.into_iter().flat_map(|edge| edge.saturating_sub(1)..=edge + 1)
    };
    let message =
        |len: usize, salt: usize| -> Vec<u8> { (0..len).map(|at| (at * 7 + salt) as u8).collect() };
    over_threads_and_processes(
        "messages_at_every_boundary_arrive_whole",
        // Nearly all of a small ring may be one message.
        || Options::new().ring_capacity(32 << 10).inline_max(u64::MAX),
        |mut link| {
            for (round, len) in sizes().chain(sizes().rev()).enumerate() {
                link.send(&message(len, round)).unwrap();
                assert_eq!(
                    link.receiver().recv_deadline(soon()).unwrap().unwrap(),
                    message(len, round + 1)
                );
                let mut room = link.sender().reserve(len).unwrap();
                room.copy_from_slice(&message(len, round + 2));
                room.publish().unwrap();
                let id = link.submit(&message(len, round + 3)).unwrap();
                let response = link.wait_deadline(id, soon()).unwrap();
                assert_eq!(response, message(len, round + 4));
            }
            link.close().unwrap();
        },
        |mut link| {
            for (round, len) in sizes().chain(sizes().rev()).enumerate() {
                assert_eq!(
                    link.receiver().recv_deadline(soon()).unwrap().unwrap(),
                    message(len, round)
                );
                link.send(&message(len, round + 1)).unwrap();
                assert_eq!(
                    link.receiver().recv_deadline(soon()).unwrap().unwrap(),
                    message(len, round + 2)
                );
                let request = link.recv_request().unwrap().unwrap();
                assert_eq!(request.body, message(len, round + 3));
                link.respond(request.id, &message(len, round + 4)).unwrap();
            }
            assert_eq!(link.receiver().recv_deadline(soon()).unwrap(), None);
        },
    );
}

#[test]
fn every_length_around_the_ways_to_pack_survives_the_smallest_ring() {
    let (mut near, mut far) = pair(Options::new().ring_capacity(4096).inline_max(u64::MAX));
    let mut pooled = 0;
    for len in (0..2000).chain([2048, 4096]) {
        let message = vec![len as u8; len];
        near.send(&message).unwrap();
        assert_eq!(far.receiver().recv_deadline(soon()).unwrap().unwrap(), message);
        pooled = far.stats().received.pooled;
    }
    assert!(pooled > 0, "more than a quarter of the ring goes through the pool");
}

#[test]
fn an_empty_message_is_a_message() {
    let (mut near, mut far) = pair(Options::new());
    near.send(b"").unwrap();
    near.sender().reserve(0).unwrap().publish().unwrap();
    let mut batch = near.sender().batch().unwrap();
    batch.push(b"").unwrap();
    batch.push(b"").unwrap();
    batch.publish().unwrap();
    for _ in 0..4 {
        assert_eq!(far.receiver().recv_deadline(soon()).unwrap().unwrap(), b"");
    }
    assert!(matches!(far.receiver().try_recv(), Err(TryRecvError::Empty)));
    let id = near.submit(b"").unwrap();
    let request = far.recv_request().unwrap().unwrap();
    assert_eq!(request.body, b"");
    far.respond(request.id, b"").unwrap();
    assert_eq!(near.wait_deadline(id, soon()).unwrap(), b"");
}

#[test]
fn the_smaller_limit_of_both_sides_is_the_links() {
    for (ours, theirs) in [(1000, 50_000), (50_000, 1000), (1000, 1000), (20_000, 50_000)] {
        let max = ours.min(theirs);
        let (mut near, mut far) =
            pair_with(Options::new().max_message(ours), Options::new().max_message(theirs));
        assert_eq!((near.sender().max_message(), far.sender().max_message()), (max, max));
        let longest = vec![1; max as usize];
        let longer = vec![1; max as usize + 1];
        for (from, to) in [(0, 1), (1, 0)] {
            let ends = [&mut near, &mut far];
            let expected = ErrorKind::MessageTooLarge { len: max + 1, max };
            assert_eq!(kind(ends[from].send(&longer)), expected);
            assert_eq!(kind(ends[from].call(&longer)), expected);
            assert_eq!(kind(ends[from].sender().reserve(max as usize + 1).map(drop)), expected);
            let mut batch = ends[from].sender().batch().unwrap();
            assert!(matches!(kind(batch.push(&longer)), ErrorKind::MessageTooLarge { .. }));
            drop(batch);
            ends[from].send(&longest).unwrap();
            assert_eq!(ends[to].receiver().recv_deadline(soon()).unwrap().unwrap(), longest);
            let id = ends[from].submit(&longest).unwrap();
            let request = ends[to].recv_request().unwrap().unwrap();
            assert_eq!(kind(ends[to].respond(request.id, &longer)), expected);
            ends[to].respond(request.id, &longest).unwrap();
            assert_eq!(ends[from].wait_deadline(id, soon()).unwrap(), longest);
        }
        let huge = usize::MAX;
        assert!(matches!(
            kind(near.sender().reserve(huge).map(drop)),
            ErrorKind::MessageTooLarge { .. }
        ));
        works(&mut near, &mut far);
    }
}

#[test]
fn a_batch_has_limits_and_is_as_it_was_when_it_meets_them() {
    let (mut near, mut far) = pair(Options::new().ring_capacity(4096));
    let mut batch = near.sender().batch().unwrap();
    // Longer messages travel alone.
    assert_eq!(kind(batch.push(&[0; 1025])), ErrorKind::MessageTooLarge { len: 1025, max: 1024 });
    assert!(batch.is_empty());
    for number in 0..3u8 {
        batch.push(&vec![number; 1000]).unwrap();
    }
    let met = kind(batch.push(&[9; 1000]));
    assert!(
        matches!(met, ErrorKind::BatchTooLarge { needed, capacity: 3968 } if needed > 3968),
        "{met:?}"
    );
    assert_eq!(batch.len(), 3);
    let room = batch.reserve(8).unwrap();
    room.copy_from_slice(b"in place");
    batch.publish().unwrap();
    for number in 0..3u8 {
        assert_eq!(far.receiver().recv_deadline(soon()).unwrap().unwrap(), vec![number; 1000]);
    }
    assert_eq!(far.receiver().recv_deadline(soon()).unwrap().unwrap(), b"in place");
    works(&mut near, &mut far);
}

#[test]
fn a_full_ring_is_said_waited_for_and_recovered_from() {
    for spin in [Spin::Never, Spin::Adaptive { max: Duration::from_micros(50) }, Spin::Forever] {
        let options =
            Options::new().ring_capacity(4096).spin(spin).send_timeout(Duration::from_millis(20));
        let (mut near, mut far) = pair(options);
        let mut sent = 0u32;
        while near.sender().try_send(&sent.to_le_bytes()).is_ok() {
            sent += 1;
        }
        assert!(is_full(near.sender().try_send(b"x")));
        assert!(matches!(near.sender().try_reserve(8), Err(TrySendError::Full { .. })));
        assert!(near.send(b"late").unwrap_err().is_timeout());
        assert!(near.sender().send_deadline(b"late", shortly()).unwrap_err().is_timeout());
        assert!(near.sender().reserve(8).map(drop).unwrap_err().is_timeout());
        assert!(near.call(b"late").unwrap_err().is_timeout());
        assert!(near.send(&[1; 20_000]).unwrap_err().is_timeout());
        let mut batch = near.sender().batch().unwrap();
        assert!(matches!(batch.try_push(b"x"), Err(TrySendError::Full { .. })));
        assert!(batch.push(b"late").unwrap_err().is_timeout());
        drop(batch);
        for number in 0..sent {
            assert_eq!(
                far.receiver().recv_deadline(soon()).unwrap().unwrap(),
                number.to_le_bytes()
            );
        }
        // Nothing that timed out was sent.
        assert!(matches!(far.receiver().try_recv(), Err(TryRecvError::Empty)));
        works(&mut near, &mut far);
    }
}

#[test]
fn a_deadline_that_has_passed_is_one() {
    let (mut near, mut far) = pair(Options::new().ring_capacity(4096));
    let past = Instant::now() - Duration::from_millis(1);
    assert!(near.receiver().recv_deadline(past).unwrap_err().is_timeout());
    assert!(near.call_deadline(b"x", past).unwrap_err().is_timeout());
    while near.sender().try_send(b"fill").is_ok() {}
    assert!(near.sender().send_deadline(b"x", past).unwrap_err().is_timeout());
    // A message that is there is received, even after the deadline.
    assert_eq!(far.recv_request().unwrap().unwrap().body, b"x");
    assert_eq!(far.receiver().recv_deadline(past).unwrap().unwrap(), b"fill");
}

#[test]
fn a_message_over_the_pools_quota_is_refused_at_once() {
    let (mut near, mut far) = pair(Options::new().pool_quota(64 << 10));
    let met = kind(near.send(&[0; (64 << 10) + 1]));
    assert!(matches!(met, ErrorKind::PoolExhausted { quota: 65_536, .. }), "{met:?}");
    near.send(&[1; 64 << 10]).unwrap();
    assert_eq!(far.receiver().recv_deadline(soon()).unwrap().unwrap().len(), 64 << 10);
    let (mut near, mut far) = pair(Options::new().pool_quota(0));
    let met = kind(near.send(&[0; 20_000]));
    assert!(matches!(met, ErrorKind::PoolExhausted { quota: 0, .. }), "{met:?}");
    works(&mut near, &mut far);
}

#[test]
fn a_spent_quota_is_waited_for_and_recovered_from() {
    let quota = 256 << 10;
    let (mut near, mut far) = pair(Options::new().pool_quota(quota).loan_limit(1024, quota));
    let message = |number: u8| vec![number; 64 << 10];
    (0..4).for_each(|number| near.send(&message(number)).unwrap());
    assert!(is_full(near.sender().try_send(&message(9))));
    assert!(near.sender().send_deadline(&message(9), shortly()).unwrap_err().is_timeout());
    // Short messages need no pool.
    near.send(b"short").unwrap();
    let sender = thread::spawn(move || {
        near.sender().send_deadline(&message(4), soon()).unwrap();
        near
    });
    thread::sleep(Duration::from_millis(10));
    for number in 0..4 {
        assert_eq!(far.receiver().recv_deadline(soon()).unwrap().unwrap(), message(number));
    }
    assert_eq!(far.receiver().recv_deadline(soon()).unwrap().unwrap(), b"short");
    assert_eq!(far.receiver().recv_deadline(soon()).unwrap().unwrap(), message(4));
    let mut near = sender.join().unwrap();
    works(&mut near, &mut far);
}

#[test]
fn waiting_for_the_pool_ends_at_its_deadline_at_every_spin_policy() {
    for spin in [
        Spin::Never,
        Spin::For(Duration::ZERO),
        Spin::Adaptive { max: Duration::ZERO },
        Spin::For(Duration::from_micros(5)),
        Spin::Forever,
    ] {
        let (ended, end) = std::sync::mpsc::channel();
        thread::spawn(move || {
            let (mut near, far) = pair(Options::new().spin(spin).pool_quota(64 << 10));
            near.send(&[1; 64 << 10]).unwrap();
            let late = near.sender().send_deadline(&[2; 64 << 10], shortly());
            let _ = ended.send(late.unwrap_err().is_timeout());
            drop(far);
        });
        let timed_out = end.recv_timeout(Duration::from_secs(5));
        assert_eq!(timed_out, Ok(true), "{spin:?}");
    }
}

#[test]
fn loan_slots_are_a_limit_and_come_back() {
    let (mut near, mut far) = pair(Options::new().loan_slots(3));
    let message = |number: u8| vec![number; 10_000];
    (0..3).for_each(|number| near.send(&message(number)).unwrap());
    assert!(is_full(near.sender().try_send(&message(9))));
    assert!(near.sender().send_deadline(&message(9), shortly()).unwrap_err().is_timeout());
    for round in 0..50u8 {
        assert_eq!(far.receiver().recv_deadline(soon()).unwrap().unwrap(), message(round));
        near.send(&message(round + 3)).unwrap();
        assert!(is_full(near.sender().try_send(&message(9))));
    }
    drop((near, far));
}

#[test]
fn what_a_peer_maps_of_our_pool_is_limited_by_it() {
    let (mut near, mut far) = pair_with(Options::new(), Options::new().peer_pool_limit(2 << 20));
    for _ in 0..300 {
        near.send(&[1; 16 << 10]).unwrap();
        assert_eq!(far.receiver().recv_deadline(soon()).unwrap().unwrap(), [1; 16 << 10]);
    }
    let met = kind(near.send(&[1; 3 << 20]));
    assert!(matches!(met, ErrorKind::PoolExhausted { quota: 2_097_152, .. }), "{met:?}");
    works(&mut near, &mut far);
    let (mut near, mut far) = pair_with(Options::new(), Options::new().peer_pool_limit(0));
    let met = kind(near.send(&[1; 20_000]));
    assert!(matches!(met, ErrorKind::PoolExhausted { quota: 0, .. }), "{met:?}");
    works(&mut near, &mut far);
}

#[test]
fn messages_that_fit_into_what_a_peer_maps_can_be_sent_at_any_length() {
    // The pool walks through 2 MiB of each block size, more than this peer maps in all; nothing is
    // ever in use but the one message.
    let (mut near, mut far) = pair_with(Options::new(), Options::new().peer_pool_limit(2 << 20));
    for len in [16 << 10, 512 << 10, 64 << 10, 1 << 20].into_iter().cycle().take(40) {
        near.send(&vec![1; len]).unwrap();
        assert_eq!(far.receiver().recv_deadline(soon()).unwrap().unwrap(), vec![1; len]);
    }
}

#[test]
fn idle_memory_of_the_pool_is_given_back_and_taken_again() {
    let context = Context::new().unwrap();
    let (mut near, mut far) = pair_of(&context, &context);
    assert_eq!(context.pool_bytes(), 0, "nothing before the first long message");
    for round in 0..5u8 {
        let message = vec![round; 2 << 20];
        near.send(&message).unwrap();
        assert!(context.pool_bytes() >= 2 << 20);
        assert_eq!(context.trim(), 0, "on loan");
        assert_eq!(far.receiver().recv_deadline(soon()).unwrap().unwrap(), message);
        assert!(context.trim() >= 2 << 20);
        assert_eq!((context.pool_bytes(), context.trim()), (0, 0));
    }
}

#[test]
fn messages_of_one_length_fill_the_ring_lap_after_lap() {
    for len in [8, 56, 57, 120, 200, 505, 512, 600] {
        let (mut near, mut far) = pair(Options::new().ring_capacity(4096));
        // All of it looks like a header.
        let message = |number: u32| -> Vec<u8> {
            let word = 1 | u64::from(number % 9) << 32;
            word.to_le_bytes().into_iter().cycle().take(len).collect()
        };
        let (mut sent, mut received) = (0, 0);
        for lap in 0..40 {
            // All that there is room for, then one at a time, behind which there is nothing.
            for most in [u32::MAX, 1, 1, lap % 3] {
                let before = sent;
                while sent - before < most && near.sender().try_send(&message(sent)).is_ok() {
                    sent += 1;
                }
                while received < sent {
                    assert_eq!(
                        far.receiver().try_recv().unwrap().unwrap(),
                        message(received),
                        "{len}"
                    );
                    received += 1;
                }
                assert!(matches!(far.receiver().try_recv(), Err(TryRecvError::Empty)), "{len}");
            }
        }
        assert!(sent > 150, "{sent} of {len} bytes");
    }
}

#[test]
fn a_reservation_can_be_shortened_and_abandoned() {
    let (mut near, mut far) = pair(Options::new());
    let pattern = |len: usize| -> Vec<u8> { (0..len).map(|at| (at * 13) as u8).collect() };
    for reserved in [1, 56, 57, 300, 512, 513, 4096, 4097, 5000, 100_000] {
        for kept in [0, 1, 55, 56, 57, 511, 512, 513, 4096, 4097, reserved] {
            if kept > reserved {
                continue;
            }
            // After one as long it has found where the next record will start, and it will not.
            near.send(&pattern(reserved)).unwrap();
            assert_eq!(far.receiver().recv_deadline(soon()).unwrap().unwrap(), pattern(reserved));
            let mut room = near.sender().reserve(reserved).unwrap();
            assert_eq!(room.len(), reserved);
            room.copy_from_slice(&pattern(reserved));
            room.truncate(kept);
            assert_eq!(room[..], pattern(kept), "{reserved} to {kept}");
            room.publish().unwrap();
            let arrived = far.receiver().recv_deadline(soon()).unwrap().unwrap();
            assert_eq!(arrived, pattern(kept), "{reserved} to {kept}");
            // Bytes that are written and not published do not arrive.
            let mut room = near.sender().reserve(reserved).unwrap();
            room.fill(0xFF);
            room.truncate(kept / 2);
            drop(room);
            assert!(matches!(far.receiver().try_recv(), Err(TryRecvError::Empty)));
        }
    }
    assert_eq!(near.stats().sent.messages, far.stats().received.messages);
}

#[test]
fn abandoned_bytes_are_never_taken_for_records() {
    for capacity in [4096, 64 << 10] {
        let (mut near, mut far) = pair(Options::new().ring_capacity(capacity));
        // Every abandoned word looks like the header of an 8-byte message.
        let lure: Vec<u8> = (1u64 | 8 << 32).to_le_bytes().repeat(128);
        for round in 0..2000u64 {
            let len = (round * 8 % 1024) as usize;
            let mut room = near.sender().reserve(len).unwrap();
            room.copy_from_slice(&lure[..len]);
            drop(room);
            let mut batch = near.sender().batch().unwrap();
            for part in 0..round % 4 {
                batch.push(&lure[..(part * 56) as usize]).unwrap();
            }
            drop(batch);
            assert!(matches!(far.receiver().try_recv(), Err(TryRecvError::Empty)), "round {round}");
            let message = &lure[..(round * 24 % 1000) as usize];
            near.send(message).unwrap();
            assert_eq!(
                far.receiver().recv_deadline(soon()).unwrap().unwrap(),
                message,
                "round {round}"
            );
            assert!(matches!(far.receiver().try_recv(), Err(TryRecvError::Empty)), "round {round}");
        }
    }
}

#[test]
fn abandoned_blocks_go_back_to_the_pool() {
    let (mut near, mut far) = pair(Options::new().pool_quota(64 << 10));
    for _ in 0..100 {
        drop(near.sender().reserve(64 << 10).unwrap());
    }
    near.send(&[1; 64 << 10]).unwrap();
    assert_eq!(far.receiver().recv_deadline(soon()).unwrap().unwrap().len(), 64 << 10);
}

#[test]
fn an_option_out_of_range_is_named_with_its_value() {
    let page = rustix::param::page_size() as u64;
    let wrong: [(&str, u64, Options); 17] = [
        ("ring_capacity", 0, Options::new().ring_capacity(0)),
        ("ring_capacity", 1, Options::new().ring_capacity(1)),
        ("ring_capacity", page / 2, Options::new().ring_capacity(page / 2)),
        ("ring_capacity", page * 3, Options::new().ring_capacity(page * 3)),
        ("ring_capacity", 1 << 31, Options::new().ring_capacity(1 << 31)),
        ("ring_capacity", u64::MAX, Options::new().ring_capacity(u64::MAX)),
        ("max_message", 0, Options::new().max_message(0)),
        ("max_message", (1 << 40) + 1, Options::new().max_message((1 << 40) + 1)),
        ("max_message", u64::MAX, Options::new().max_message(u64::MAX)),
        ("loan_slots", 0, Options::new().loan_slots(0)),
        ("loan_slots", 65_537, Options::new().loan_slots(65_537)),
        ("loan_slots", u32::MAX.into(), Options::new().loan_slots(u32::MAX)),
        ("loan_limit", 0, Options::new().loan_limit(0, 1)),
        ("loan_limit", 0, Options::new().loan_limit(1, 0)),
        ("pool_footprint", 0, Options::new().pool_footprint(0)),
        ("half_open_limit", 0, Options::new().half_open_limit(0)),
        ("ring_capacity", page + 1, Options::new().ring_capacity(page + 1)),
    ];
    for (option, given, options) in wrong {
        match kind(Context::with_options(options)) {
            ErrorKind::InvalidOption { name, value, must } => {
                assert_eq!((name, value), (option, given));
                assert!(!must.is_empty());
            }
            other => panic!("{option} = {given}: {other:?}"),
        }
    }
}

#[test]
fn every_option_at_its_edge_gives_a_working_link() {
    let page = rustix::param::page_size() as u64;
    let edges = [
        Options::new().ring_capacity(page),
        Options::new().ring_capacity(16 << 20),
        Options::new().max_message(1 << 40),
        Options::new().inline_max(u64::MAX),
        Options::new().loan_slots(1),
        Options::new().loan_slots(65_536),
        Options::new().pool_footprint(1),
        Options::new().pool_footprint(u64::MAX),
        Options::new().pool_quota(u64::MAX),
        Options::new().peer_pool_limit(u64::MAX),
        Options::new().half_open_limit(1),
        Options::new().half_open_limit(usize::MAX),
        Options::new().backlog_limit(0),
        Options::new().send_timeout(Duration::MAX),
        Options::new().handshake_timeout(Duration::MAX),
        Options::new().spin(Spin::Never),
        Options::new().spin(Spin::Forever),
        Options::new().spin(Spin::For(Duration::MAX)),
        Options::new().spin(Spin::Adaptive { max: Duration::MAX }),
        Options::new().spin(Spin::Adaptive { max: Duration::ZERO }),
        Options::new().huge_pages(true),
        Options::new().prefault(true),
        Options::new().huge_pages(true).prefault(true),
        Options::new().numa_of_receiver(false),
        Options::new().numa_of_receiver(true),
        Options::new().numa_node(0),
    ];
    for options in edges {
        let shown = format!("{options:?}");
        let (mut near, mut far) = pair(options);
        for len in [0, 40, 4000, 20_000, 1 << 20] {
            near.send(&vec![3; len]).unwrap_or_else(|error| panic!("{error} with {shown}"));
            assert_eq!(
                far.receiver().recv_deadline(soon()).unwrap().unwrap(),
                vec![3; len],
                "{shown}"
            );
        }
        let id = far.submit(b"question").unwrap();
        let request = near.recv_request().unwrap().unwrap();
        near.respond(request.id, b"answer").unwrap();
        assert_eq!(far.wait(id).unwrap(), b"answer");
        near.close().unwrap();
        assert_eq!(far.recv().unwrap(), None);
    }
}

#[test]
fn a_node_that_is_not_there_is_an_error_at_set_up() {
    for node in [1023, 1024, u32::MAX] {
        let context = Context::with_options(Options::new().numa_node(node)).unwrap();
        let name = unique_name();
        let mut listener = Context::new().unwrap().listen(&name).unwrap();
        let met = kind(context.connect(&name));
        assert!(matches!(met, ErrorKind::Os { call: "mbind" }), "{met:?}");
        assert!(listener.try_accept().unwrap().is_none());
    }
}

#[test]
fn the_backlog_has_a_limit_and_nothing_in_it_is_lost() {
    let (mut near, mut far) = pair(Options::new().backlog_limit(10_000));
    let id = near.submit(b"question").unwrap();
    (0..100u8).for_each(|number| far.send(&[number; 400]).unwrap());
    let met = kind(near.wait_deadline(id, soon()));
    let ErrorKind::BacklogFull { messages, needed, used, limit } = met else { panic!("{met:?}") };
    assert!(messages > 10 && messages < 25 && limit == 10_000, "{messages} {limit}");
    assert!(used > 400 * messages && used <= limit && used + needed > limit, "{used} {needed}");
    for number in 0..100u8 {
        assert_eq!(near.receiver().recv_deadline(soon()).unwrap().unwrap(), [number; 400]);
    }
    let request = far.recv_request().unwrap().unwrap();
    far.respond(request.id, b"answer").unwrap();
    assert_eq!(near.wait_deadline(id, soon()).unwrap(), b"answer");
    // One message may be set aside whatever its length.
    let id = near.submit(b"question").unwrap();
    let request = far.recv_request().unwrap().unwrap();
    far.send(&[7; 50_000]).unwrap();
    far.respond(request.id, b"answer").unwrap();
    assert_eq!(near.wait_deadline(id, soon()).unwrap(), b"answer");
    assert_eq!(near.receiver().recv_deadline(soon()).unwrap().unwrap(), vec![7; 50_000]);
}

#[test]
fn what_was_set_aside_keeps_its_order_and_kind() {
    let (mut near, mut far) = pair(Options::new());
    let id = near.submit(b"ours").unwrap();
    far.send(b"first").unwrap();
    let theirs = far.submit(b"theirs").unwrap();
    far.send(b"second").unwrap();
    let request = far.recv_request().unwrap().unwrap();
    far.respond(request.id, b"to ours").unwrap();
    far.send(b"third").unwrap();
    assert_eq!(near.wait_deadline(id, soon()).unwrap(), b"to ours");
    assert_eq!(near.receiver().recv_deadline(soon()).unwrap().unwrap(), b"first");
    let request = near.recv_request().unwrap().unwrap();
    assert_eq!(request.body, b"theirs");
    near.respond(request.id, b"to theirs").unwrap();
    for expected in [&b"second"[..], b"third"] {
        assert_eq!(near.receiver().recv_deadline(soon()).unwrap().unwrap(), expected);
    }
    assert_eq!(far.wait_deadline(theirs, soon()).unwrap(), b"to theirs");
}

#[test]
fn requests_in_flight_have_a_limit() {
    let (mut near, mut far) = pair(Options::new().ring_capacity(1 << 20));
    let ids: Vec<_> = (0..4096).map(|_| near.submit(b"question").unwrap()).collect();
    let expected = ErrorKind::CallsInFlight { calls: 4096, limit: 4096 };
    assert_eq!(kind(near.submit(b"one more")), expected);
    assert_eq!(kind(near.call(b"one more")), expected);
    near.send(b"a message is no request").unwrap();
    assert!(matches!(kind(far.recv()), ErrorKind::OtherKind { .. }));
    let first = far.recv_request().unwrap().unwrap();
    far.respond(first.id, b"answer").unwrap();
    assert_eq!(near.wait_deadline(ids[0], soon()).unwrap(), b"answer");
    near.submit(b"one more").unwrap();
    assert_eq!(kind(near.submit(b"and another")), expected);
    for number in 1..4097 {
        if number == 4096 {
            assert_eq!(far.recv().unwrap().unwrap(), b"a message is no request");
        }
        let request = far.recv_request().unwrap().unwrap();
        far.respond(request.id, b"").unwrap();
    }
    for id in &ids[1..] {
        assert_eq!(near.wait_deadline(*id, soon()).unwrap(), b"");
    }
}

#[test]
fn a_peer_that_answers_nothing_has_4096_requests_and_another_is_asked() {
    let context = Context::with_options(Options::new().ring_capacity(1 << 20)).unwrap();
    let (mut asked, mut silent) = pair_of(&context, &context);
    let (mut near, mut honest) = pair_of(&context, &context);
    let serving = thread::spawn(move || {
        while let Some(request) = honest.recv_request().unwrap() {
            honest.respond(request.id, &request.body).unwrap();
        }
    });
    let full = ErrorKind::CallsInFlight { calls: 4096, limit: 4096 };
    let mut made = Vec::new();
    while let Ok(id) = asked.submit(b"question") {
        // It reads each request.
        silent.recv_request().unwrap().unwrap();
        made.push(id);
        assert!(made.len() <= 4096, "there is no end to it");
        if made.len() % 64 == 0 {
            assert_eq!(near.call_deadline(b"honest", soon()).unwrap(), b"honest");
        }
    }
    for _ in 0..100 {
        assert_eq!(kind(asked.submit(b"one more")), full);
        assert_eq!(near.call_deadline(b"honest", soon()).unwrap(), b"honest");
    }
    asked.abandon(made[0]);
    asked.submit(b"one more").unwrap();
    assert_eq!(kind(asked.submit(b"and one more")), full);
    asked.send(b"a message is no request").unwrap();
    drop((asked, silent, near));
    serving.join().unwrap();
}

#[test]
fn calls_that_are_given_up_and_never_answered_end_no_later_call() {
    let context = Context::with_options(Options::new().ring_capacity(1 << 20)).unwrap();
    let (mut near, mut far) = pair_of(&context, &context);
    let mut requests = Vec::new();
    for _ in 0..10_000 {
        assert!(near.call_deadline(b"question", Instant::now()).unwrap_err().is_timeout());
        requests.push(far.recv_request().unwrap().unwrap().id);
    }
    let id = near.submit(b"question").unwrap();
    // Responses to requests that this side has forgotten, to one that it remembers, and to the one that it waits for.
    for late in [requests[0], requests[1000], requests[9999]] {
        far.respond(late, b"late").unwrap();
    }
    let asked = far.recv_request().unwrap().unwrap();
    far.respond(asked.id, b"answer").unwrap();
    assert_eq!(near.wait_deadline(id, soon()).unwrap(), b"answer");
    // A second response to a request is a fault of the peer.
    far.respond(requests[9999], b"twice").unwrap();
    far.send(b"message").unwrap();
    let fault = kind(near.receiver().recv_deadline(soon()));
    assert!(matches!(fault, ErrorKind::Fault(_)), "{fault:?}");
}

#[test]
fn a_response_that_comes_too_late_is_dropped() {
    let (mut near, mut far) = pair(Options::new());
    assert!(near.call_deadline(b"slow", shortly()).unwrap_err().is_timeout());
    let slow = far.recv_request().unwrap().unwrap();
    assert_eq!(slow.body, b"slow");
    far.respond(slow.id, b"too late").unwrap();
    let server = thread::spawn(move || {
        let request = far.recv_request().unwrap().unwrap();
        far.respond(request.id, b"in time").unwrap();
        far.send(b"message").unwrap();
        far
    });
    assert_eq!(near.call_deadline(b"fast", soon()).unwrap(), b"in time");
    assert_eq!(near.receiver().recv_deadline(soon()).unwrap().unwrap(), b"message");
    // A request that was only waited for too briefly stays in flight.
    let id = near.submit(b"patience").unwrap();
    assert!(near.wait_deadline(id, shortly()).unwrap_err().is_timeout());
    let mut far = server.join().unwrap();
    let request = far.recv_request().unwrap().unwrap();
    far.respond(request.id, b"worth it").unwrap();
    assert_eq!(near.wait_deadline(id, soon()).unwrap(), b"worth it");
    assert!(matches!(kind(near.wait_deadline(id, soon())), ErrorKind::UnknownRequest { .. }));
    // An abandoned one is answered into the void.
    let id = near.submit(b"never mind").unwrap();
    near.abandon(id);
    assert!(matches!(kind(near.wait_deadline(id, soon())), ErrorKind::UnknownRequest { .. }));
    let request = far.recv_request().unwrap().unwrap();
    far.respond(request.id, b"void").unwrap();
    far.send(b"after").unwrap();
    assert_eq!(near.receiver().recv_deadline(soon()).unwrap().unwrap(), b"after");
}

#[test]
fn a_response_is_asked_for_without_waiting() {
    let (mut near, mut far) = pair(Options::new());
    let failed = |met| match met {
        Err(TryRecvError::Failed(error)) => kind::<()>(Err(error)),
        other => panic!("{other:?}"),
    };
    let id = near.submit(b"question").unwrap();
    assert!(matches!(near.try_wait(id), Err(TryRecvError::Empty)));
    let request = far.recv_request().unwrap().unwrap();
    far.send(b"before").unwrap();
    assert!(matches!(near.try_wait(id), Err(TryRecvError::Empty)));
    far.respond(request.id, b"answer").unwrap();
    assert_eq!(near.try_wait(id).unwrap(), b"answer");
    assert_eq!(near.recv().unwrap().unwrap(), b"before");
    assert_eq!(failed(near.try_wait(id)), ErrorKind::UnknownRequest { id: 1 });
    let id = near.submit(b"the last one").unwrap();
    drop(far);
    assert_eq!(failed(near.try_wait(id)), ErrorKind::PeerClosed);
}

#[test]
fn a_peek_shows_every_kind_and_settles_a_response() {
    let (mut near, mut far) = pair(Options::new());
    let id = near.submit(b"question").unwrap();
    let received = far.receiver().peek().unwrap().unwrap();
    let MessageKind::Request(request) = received.kind() else { panic!("{received:?}") };
    // Not released, it is still the next one.
    assert_eq!(received.bytes().to_vec(), b"question");
    assert_eq!(far.recv_request().unwrap().unwrap().id, request);
    far.respond(request, b"answer").unwrap();
    let received = near.receiver().peek().unwrap().unwrap();
    assert_eq!(received.kind(), MessageKind::Response(id));
    received.release().unwrap();
    assert!(matches!(kind(near.wait_deadline(id, soon())), ErrorKind::UnknownRequest { .. }));
}

#[test]
fn only_the_halves_of_one_connection_can_be_joined() {
    let (near, far) = pair(Options::new());
    let (outbox, inbox) = near.split();
    let (far_outbox, far_inbox) = far.split();
    let (outbox, far_inbox) = Connection::join(outbox, far_inbox).unwrap_err();
    let mut near = Connection::join(outbox, inbox).unwrap();
    let mut far = Connection::join(far_outbox, far_inbox).unwrap();
    works(&mut near, &mut far);
    works(&mut far, &mut near);
}

#[test]
fn a_dropped_sender_ends_one_direction_only() {
    let (near, mut far) = pair(Options::new());
    let (mut outbox, mut inbox) = near.split();
    outbox.send(b"last").unwrap();
    drop(outbox);
    assert_eq!(far.receiver().recv_deadline(soon()).unwrap().unwrap(), b"last");
    assert_eq!(far.receiver().recv_deadline(soon()).unwrap(), None);
    for len in [10, 20_000] {
        far.send(&vec![1; len]).unwrap();
        assert_eq!(inbox.recv_deadline(soon()).unwrap().unwrap(), vec![1; len]);
    }
    far.close().unwrap();
    assert_eq!(inbox.recv_deadline(soon()).unwrap(), None);
}

#[test]
fn a_dropped_receiver_ends_one_direction_only() {
    let (near, mut far) = pair(Options::new());
    let (mut outbox, inbox) = near.split();
    drop(inbox);
    // The first one may have been under way.
    let _ = far.send(b"for nobody");
    wait_until("the end", || far.send(b"for nobody").is_err());
    assert_eq!(kind(far.send(b"for nobody")), ErrorKind::PeerClosed);
    for len in [10, 20_000] {
        outbox.send(&vec![1; len]).unwrap();
        assert_eq!(far.receiver().recv_deadline(soon()).unwrap().unwrap(), vec![1; len]);
    }
}

#[test]
fn a_receiver_that_is_dropped_ends_a_sender_that_waits_for_room() {
    for spin in [Spin::Never, Spin::Forever] {
        let (mut near, far) = pair(Options::new().ring_capacity(4096).spin(spin));
        while near.sender().try_send(b"fill").is_ok() {}
        let sender = thread::spawn(move || kind(near.sender().send_deadline(b"more", soon())));
        thread::sleep(Duration::from_millis(10));
        let (_outbox, inbox) = far.split();
        drop(inbox);
        assert_eq!(sender.join().unwrap(), ErrorKind::PeerClosed);
    }
}

#[test]
fn a_receiver_that_is_dropped_ends_a_sender_that_waits_for_the_pool() {
    let (mut near, far) = pair(Options::new().pool_quota(64 << 10));
    near.send(&[1; 64 << 10]).unwrap();
    let sender = thread::spawn(move || kind(near.sender().send_deadline(&[2; 64 << 10], soon())));
    thread::sleep(Duration::from_millis(10));
    let (_outbox, inbox) = far.split();
    drop(inbox);
    assert_eq!(sender.join().unwrap(), ErrorKind::PeerClosed);
}

#[test]
fn no_shared_memory_is_an_error_at_set_up() {
    let test = "no_shared_memory_is_an_error_at_set_up";
    let mut other = Other::start(test, "", |_| {
        // A limit on file lengths is the one that a test may set for itself.
        let context = Context::new().unwrap();
        let (mut near, mut far) = pair_of(&context, &context);
        let name = unique_name();
        // A context that has made a link may have a side for the next one.
        let fresh = Context::new().unwrap();
        let mut listener = fresh.listen(&name).unwrap();
        let resource = rustix::process::Resource::Fsize;
        let before = rustix::process::getrlimit(resource);
        let limit = rustix::process::Rlimit { current: Some(16 << 10), maximum: before.maximum };
        rustix::process::setrlimit(resource, limit).unwrap();
        let refused = ErrorKind::FileSizeLimit { bytes: 24 << 10, limit: 16 << 10 };
        assert_eq!(kind(fresh.connect(&name)), refused);
        assert!(listener.try_accept().is_ok());
        let met = kind(near.send(&[1; 100_000]));
        assert!(matches!(met, ErrorKind::FileSizeLimit { limit: 16384, .. }), "{met:?}");
        // A link that needs no more memory works.
        works(&mut near, &mut far);
        // The accepting side lacks it: both are told, and the listener goes on.
        let raw = crate::support::raw::dial(&name);
        rustix::process::setrlimit(resource, before).unwrap();
        let peer = crate::support::raw::RawPeer::greet(raw, crate::support::raw::Hello::honest());
        let limit = rustix::process::Rlimit { current: Some(16 << 10), maximum: before.maximum };
        rustix::process::setrlimit(resource, limit).unwrap();
        assert_eq!(kind(listener.accept_deadline(soon())), refused);
        let (answer, _) = crate::support::raw::receive(&peer.socket).unwrap();
        assert_eq!(crate::support::raw::refusal_code(&answer), Some(4));
        rustix::process::setrlimit(resource, before).unwrap();
        near.send(&[1; 100_000]).unwrap();
        assert_eq!(far.receiver().recv_deadline(soon()).unwrap().unwrap().len(), 100_000);
    });
    other.succeeds();
}

#[test]
fn statistics_count_what_was_done() {
    let (mut near, mut far) = pair(Options::new());
    near.send(&[1; 10]).unwrap();
    near.send(&[1; 10_000]).unwrap();
    let mut batch = near.sender().batch().unwrap();
    batch.push(&[1; 5]).unwrap();
    batch.push(&[1; 5]).unwrap();
    batch.publish().unwrap();
    while far.receiver().try_recv().is_ok() {}
    let (sent, received) = (near.stats().sent, far.stats().received);
    assert_eq!((sent.messages, sent.bytes, sent.pooled), (4, 10_020, 1));
    assert_eq!((received.messages, received.bytes, received.pooled), (4, 10_020, 1));
}

#[test]
fn an_idle_link_takes_24_kib_and_2_descriptors_a_side() {
    const LINKS: u64 = 10;
    let mut other = Other::start("an_idle_link_takes_24_kib_and_2_descriptors_a_side", "", |_| {
        let context = Context::new().unwrap();
        // The first one starts the watcher.
        let first = pair_of(&context, &context);
        // The context has a spare side at both counts, which a listener makes that finds nobody.
        let make_spare = || {
            let mut listener = context.listen(unique_name()).unwrap();
            assert!(listener.try_accept().unwrap().is_none());
        };
        make_spare();
        let (held, shared) = (Census::take(), shared_bytes());
        let links: Vec<_> = (0..LINKS).map(|_| pair_of(&context, &context)).collect();
        make_spare();
        let (now, bytes) = (Census::take(), shared_bytes() - shared);
        let descriptors = (now.descriptors - held.descriptors) as u64;
        assert!(descriptors <= 2 * 2 * LINKS, "{descriptors} descriptors");
        // Both sides are here.
        let side = bytes / (2 * LINKS);
        assert!(rustix::param::page_size() != 4096 || side == 24 << 10, "{side} bytes");
        // A thread that was joined may be counted for a moment.
        wait_until("the end of the connectors", || Census::take().threads <= held.threads);
        drop((first, links));
    });
    assert!(other.wait().success());
}

#[test]
fn stats_tell_what_is_queued_lent_and_held() {
    let context = Context::with_options(Options::new().ring_capacity(16 << 10)).unwrap();
    let (mut near, mut far) = pair_of(&context, &context);
    let queues = |near: &Connection, far: &Connection| {
        assert_eq!((near.stats().recv_queue, far.stats().send_queue), (0, 0));
        (near.stats().send_queue, far.stats().recv_queue)
    };
    let loans = |near: &Connection, far: &Connection| {
        assert_eq!((near.stats().loans_held, far.stats().loans_out), (0, 0));
        (near.stats().loans_out, far.stats().loans_held)
    };
    assert_eq!((queues(&near, &far), loans(&near, &far)), ((0, 0), (0, 0)));
    assert_eq!(near.stats().pool_bytes, context.pool_bytes());

    // Records that stand alone, and a batch that packs three.
    near.send(b"short").unwrap();
    near.send(&[1; 1000]).unwrap();
    let mut batch = near.sender().batch().unwrap();
    for _ in 0..3 {
        batch.push(&[2; 40]).unwrap();
    }
    batch.publish().unwrap();
    let (sent, waits) = queues(&near, &far);
    assert_eq!(sent, waits);
    assert!(sent >= 5 + 1000 + 3 * 40, "{sent}");
    (0..5).for_each(|_| assert!(far.receiver().recv_deadline(soon()).unwrap().is_some()));
    assert!(matches!(far.receiver().try_recv(), Err(TryRecvError::Empty)));
    assert_eq!(queues(&near, &far), (0, 0));

    // A full ring, whose records run over its end.
    while near.sender().try_send(&[3; 100]).is_ok() {}
    let (sent, waits) = queues(&near, &far);
    assert_eq!(sent, waits);
    assert!((14 << 10..=16 << 10).contains(&sent), "{sent}");
    while far.receiver().try_recv().is_ok() {}
    assert_eq!(queues(&near, &far), (0, 0));

    // The pool: a long message is on loan until it is received, a tensor until it is dropped.
    near.send(&vec![4; 100_000]).unwrap();
    assert_eq!(loans(&near, &far), (1, 0));
    far.receiver().recv_deadline(soon()).unwrap();
    assert_eq!(loans(&near, &far), (0, 0));
    let held: Vec<_> = (1..=3)
        .map(|count| {
            near.send_tensor(context.alloc::<u8>([100_000]).unwrap()).unwrap();
            let held = far.recv_tensor().unwrap().unwrap();
            assert_eq!(loans(&near, &far), (count, count));
            held
        })
        .collect();
    let pool_bytes = near.stats().pool_bytes;
    assert!(pool_bytes >= 300_000 && pool_bytes == context.pool_bytes(), "{pool_bytes}");
    drop(held);
    assert_eq!(loans(&near, &far), (0, 0));

    // What was sent before the end still waits.
    near.send(b"last").unwrap();
    near.close().unwrap();
    assert_eq!(far.stats().recv_queue, 64);
    assert_eq!(far.receiver().recv_deadline(soon()).unwrap().unwrap(), b"last");
    assert_eq!(far.receiver().recv_deadline(soon()).unwrap(), None);
    assert_eq!(far.stats().recv_queue, 0);
}
