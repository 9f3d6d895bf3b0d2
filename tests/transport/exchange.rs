//! Messages, requests and ends pass between the two ends of a connection, each on a thread.

use std::panic::{self, AssertUnwindSafe};
use std::thread;
use std::time::{Duration, Instant};

use slipring::error::{TryRecvError, TrySendError};
use slipring::message::MessageKind;
use slipring::options::Spin;
use slipring::{Address, Connection, Context, ErrorKind, Options};

/// Two ends in one process.
fn pair(options: Options) -> (Connection, Connection) {
    let address = Address::fresh();
    let context = Context::with_options(options).unwrap();
    let mut listener = context.listen(&address).unwrap();
    let connector = thread::spawn(move || context.connect(&address).unwrap());
    let accepted = listener.accept().unwrap();
    (connector.join().unwrap(), accepted)
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

#[test]
fn messages_of_every_size_arrive_whole_and_in_order() {
    let (mut near, mut far) = pair(Options::new());
    let sizes = [0, 1, 7, 8, 48, 56, 57, 64, 1000, 4095, 4096, 4097, 65536, 1 << 20, 5 << 20];
    let echo = thread::spawn(move || {
        while let Some(message) = far.recv().unwrap() {
            far.send(&message).unwrap();
        }
    });
    for (round, size) in sizes.iter().cycle().take(200).enumerate() {
        let message: Vec<u8> = (0..*size).map(|at| (at * 31 + round) as u8).collect();
        near.send(&message).unwrap();
        assert_eq!(near.recv().unwrap().unwrap(), message);
    }
    near.close().unwrap();
    echo.join().unwrap();
}

#[test]
fn a_close_delivers_what_was_sent_before() {
    let (mut near, mut far) = pair(Options::new());
    for round in 0..100u64 {
        near.send(&round.to_le_bytes()).unwrap();
    }
    near.send(&vec![7; 1 << 20]).unwrap();
    near.close().unwrap();
    for round in 0..100u64 {
        assert_eq!(far.recv().unwrap().unwrap(), round.to_le_bytes());
    }
    assert_eq!(far.recv().unwrap().unwrap(), vec![7; 1 << 20]);
    assert_eq!(far.recv().unwrap(), None);
    assert_eq!(far.recv().unwrap(), None);
    far.close().unwrap();
}

#[test]
fn a_stream_flows_through_the_smallest_ring_at_every_spin_policy() {
    for spin in [
        Spin::Never,
        Spin::For(Duration::from_micros(5)),
        Spin::Adaptive { max: Duration::from_micros(50) },
    ] {
        let options = Options::new().ring_capacity(4096).spin(spin);
        let (mut near, mut far) = pair(options);
        let sender = thread::spawn(move || {
            for round in 0..20_000u64 {
                let len = 8 + (round * 37 % 500) as usize;
                let mut room = near.sender().reserve(len).unwrap();
                room.fill(round as u8);
                room[..8].copy_from_slice(&round.to_le_bytes());
                room.publish().unwrap();
            }
            near.close().unwrap();
        });
        let mut expected = 0u64;
        while let Some(received) = far.receiver().peek().unwrap() {
            let bytes = received.bytes().to_vec();
            assert_eq!(bytes.len(), 8 + (expected * 37 % 500) as usize);
            assert_eq!(bytes[..8], expected.to_le_bytes());
            assert!(bytes[8..].iter().all(|byte| *byte == expected as u8));
            received.release().unwrap();
            expected += 1;
        }
        assert_eq!(expected, 20_000);
        sender.join().unwrap();
    }
}

#[test]
fn a_message_that_a_slice_does_not_hold_stays_the_next_one() {
    let (mut near, mut far) = pair(Options::new());
    let mut buffer = [0; 100];
    assert!(matches!(far.receiver().try_recv_to(&mut buffer), Err(TryRecvError::Empty)));
    // In the ring, in the pool, and set aside by a wait for a response.
    for (len, is_set_aside) in [(90usize, false), (90_000, false), (90, true), (0, true)] {
        let message: Vec<u8> = (0..len).map(|at| at as u8).collect();
        near.send(&message).unwrap();
        near.send(b"after").unwrap();
        if is_set_aside {
            let asked = far.submit(b"what?").unwrap();
            let request = near.recv_request().unwrap().unwrap();
            near.respond(request.id, b"that").unwrap();
            assert_eq!(far.wait(asked).unwrap(), b"that");
        }
        for room in [0, 10, len.saturating_sub(1)].into_iter().filter(|room| *room < len) {
            let short = far.receiver().recv_to(&mut vec![0; room]).unwrap_err();
            assert_eq!(*short.kind(), ErrorKind::BufferTooShort { len, room });
        }
        let mut whole = vec![0; len + 1];
        assert_eq!(far.receiver().recv_to_deadline(&mut whole, soon()).unwrap(), Some(len));
        assert_eq!((&whole[..len], whole[len]), (&message[..], 0));
        assert_eq!(far.receiver().recv_to(&mut buffer).unwrap(), Some(5));
        assert_eq!(&buffer[..5], b"after");
    }
    near.close().unwrap();
    assert_eq!(far.receiver().recv_to(&mut buffer).unwrap(), None);
}

#[test]
fn a_drain_waits_for_its_first_message_alone() {
    let (mut near, mut far) = pair(Options::new());
    let mut seen = Vec::new();
    let late = far.receiver().drain_deadline(9, Instant::now(), |_, _| panic!("nothing was sent"));
    assert!(matches!(late.unwrap_err().kind(), ErrorKind::TimedOut { .. }));
    let sender = thread::spawn(move || {
        thread::sleep(Duration::from_millis(20));
        let mut batch = near.sender().batch().unwrap();
        for byte in 0..5u8 {
            batch.push(&[byte]).unwrap();
        }
        batch.publish().unwrap();
        near.close().unwrap();
    });
    for (max, count) in [(0, 0), (3, 3), (9, 2), (9, 0)] {
        let drained =
            far.receiver().drain_deadline(max, soon(), |_, bytes| seen.push(bytes.byte(0)));
        assert_eq!(drained.unwrap(), count);
    }
    assert_eq!(seen, [0, 1, 2, 3, 4]);
    sender.join().unwrap();
}

#[test]
fn a_drain_sees_every_kind_and_leaves_the_message_at_which_its_caller_panics() {
    let (mut near, mut far) = pair(Options::new());
    let long = vec![3; 1 << 20];
    for round in 0..50u8 {
        let messages = [&[round; 9][..], &[round; 64], &[round; 64], &long, &[round; 64], &[]];
        for message in &messages[..3] {
            near.send(message).unwrap();
        }
        let asked = near.submit(&messages[1][..7]).unwrap();
        for message in &messages[3..] {
            near.send(message).unwrap();
        }
        let expected =
            [messages[0], messages[1], messages[2], &messages[1][..7], &long, messages[4], &[]];
        let mut seen: Vec<Vec<u8>> = Vec::new();
        let stop = usize::from(round) % expected.len();
        let panicked = panic::catch_unwind(AssertUnwindSafe(|| {
            far.receiver().drain(100, |_, bytes| {
                assert!(seen.len() < stop, "here");
                seen.push(bytes.to_vec());
            })
        }));
        assert!(panicked.is_err());
        // As many as are asked for, and then the rest.
        let mut more = |max| {
            far.receiver().drain(max, |kind, bytes| {
                let is_request = matches!(kind, MessageKind::Request(_));
                assert_eq!(is_request, seen.len() == 3);
                seen.push(bytes.to_vec());
            })
        };
        assert_eq!(more(1).unwrap(), 1);
        assert_eq!(more(100).unwrap(), expected.len() - stop - 1);
        assert_eq!(more(100).unwrap(), 0);
        assert_eq!(seen, expected);
        near.abandon(asked);
    }
    drop(near);
    assert_eq!(far.receiver().drain(1, |_, _| panic!("nothing follows")).unwrap(), 0);
}

#[test]
fn a_batch_becomes_visible_at_once() {
    let (mut near, mut far) = pair(Options::new());
    for round in 0..1000u32 {
        let mut batch = near.sender().batch().unwrap();
        for index in 0..16u32 {
            batch.push(&(round * 16 + index).to_le_bytes()[..(index as usize % 5)]).unwrap();
        }
        assert!(matches!(far.receiver().try_recv(), Err(TryRecvError::Empty)));
        batch.publish().unwrap();
        let mut seen = 0;
        let drained = far
            .receiver()
            .drain(100, |_, bytes| {
                let number: u32 = round * 16 + seen;
                assert_eq!(bytes.to_vec(), number.to_le_bytes()[..(seen as usize % 5)]);
                seen += 1;
            })
            .unwrap();
        assert_eq!(drained, 16);
    }
    let mut batch = near.sender().batch().unwrap();
    batch.push(b"abandoned").unwrap();
    drop(batch);
    near.send(b"kept").unwrap();
    assert_eq!(far.recv().unwrap().unwrap(), b"kept");
}

/// Lengths on both sides of each border of the layout: of a line, of a tight record, and of a word.
const LENGTHS: [usize; 14] = [0, 1, 7, 8, 55, 56, 57, 63, 64, 65, 512, 513, 600, 4096];

#[test]
fn messages_of_one_length_after_another_arrive_in_batches_and_alone() {
    for drained in [true, false] {
        let (mut near, mut far) = pair(Options::new());
        let mut buffer = Vec::new();
        let message = |number: usize, len: usize| -> Vec<u8> {
            (0..len).map(|index| (number * 31 + index * 7) as u8).collect()
        };
        // Each run begins with the length at which the one before has ended, and in a batch behind records of another length.
        let runs = LENGTHS.iter().flat_map(|first| LENGTHS.map(|second| (*first, second)));
        for (round, (first, second)) in runs.enumerate() {
            let lens = [first, second, second, second, first, first, second];
            let messages: Vec<_> = lens.iter().map(|len| message(round, *len)).collect();
            let mut batch = near.sender().batch().unwrap();
            messages.iter().for_each(|message| batch.push(message).unwrap());
            batch.publish().unwrap();
            messages.iter().for_each(|message| near.send(message).unwrap());
            let expected = [&messages[..], &messages[..]].concat();
            let mut seen = Vec::new();
            if drained {
                while seen.len() < expected.len() {
                    far.receiver().drain(5, |_, bytes| seen.push(bytes.to_vec())).unwrap();
                }
            } else {
                for _ in &expected {
                    far.receiver().recv_into(&mut buffer).unwrap().unwrap();
                    seen.push(buffer.clone());
                }
            }
            assert!(seen == expected, "{first} and {second} bytes");
        }
        let (sent, received) = (near.stats().sent, far.stats().received);
        assert_eq!((sent.messages, sent.bytes), (received.messages, received.bytes));
    }
}

#[test]
fn a_panic_in_a_drain_leaves_the_message_that_it_met() {
    let (mut near, mut far) = pair(Options::new());
    (0..4u8).for_each(|number| near.send(&[number]).unwrap());
    let mut seen = Vec::new();
    let panic = panic::catch_unwind(AssertUnwindSafe(|| {
        far.receiver().drain(100, |_, bytes| {
            assert_ne!(bytes.byte(0), 2, "as meant");
            seen.push(bytes.byte(0));
        })
    }));
    assert!(panic.is_err());
    assert_eq!((seen, far.stats().received.messages), (vec![0, 1], 2));
    assert_eq!(far.recv().unwrap().unwrap(), [2]);
    assert_eq!(far.recv().unwrap().unwrap(), [3]);
    assert_eq!(far.stats().received.messages, 4);
}

#[test]
fn a_full_ring_says_so_and_has_room_after_a_receive() {
    let (mut near, mut far) = pair(Options::new().ring_capacity(4096));
    let mut sent = 0u32;
    let (free, needed) = loop {
        match near.sender().try_send(&sent.to_le_bytes()) {
            Ok(()) => sent += 1,
            Err(TrySendError::Full { free, needed }) => break (free, needed),
            Err(other) => panic!("{other}"),
        }
    };
    assert_eq!((free, needed), (0, 64));
    assert_eq!(sent, 4096 / 64 - 2);
    let late = near.send_deadline_test(b"late");
    assert!(matches!(late.unwrap_err().kind(), ErrorKind::TimedOut { .. }));
    for expected in 0..sent {
        assert_eq!(far.recv().unwrap().unwrap(), expected.to_le_bytes());
    }
    assert!(matches!(far.receiver().try_recv(), Err(TryRecvError::Empty)));
    near.sender().try_send(b"room").unwrap();
    assert_eq!(far.recv().unwrap().unwrap(), b"room");
}

trait SendLate {
    fn send_deadline_test(&mut self, message: &[u8]) -> slipring::Result<()>;
}

impl SendLate for Connection {
    fn send_deadline_test(&mut self, message: &[u8]) -> slipring::Result<()> {
        self.sender().send_deadline(message, Instant::now() + Duration::from_millis(20))
    }
}

#[test]
fn a_receive_ends_at_its_deadline() {
    let (_near, mut far) = pair(Options::new());
    let late = far.receiver().recv_deadline(Instant::now() + Duration::from_millis(20));
    assert!(late.unwrap_err().is_timeout());
}

#[test]
fn calls_are_matched_by_id_in_any_order() {
    let (mut near, mut far) = pair(Options::new());
    let server = thread::spawn(move || {
        let mut waiting = Vec::new();
        while let Some(request) = far.recv_request().unwrap() {
            waiting.push(request);
            if waiting.len() == 4 {
                while let Some(request) = waiting.pop() {
                    far.respond(request.id, &request.body).unwrap();
                }
            }
        }
    });
    let ids: Vec<_> = (0..4u8).map(|number| near.submit(&[number; 100]).unwrap()).collect();
    for (number, id) in ids.iter().enumerate() {
        assert_eq!(near.wait_deadline(*id, soon()).unwrap(), vec![number as u8; 100]);
    }
    let unknown = near.wait(ids[0]).unwrap_err();
    assert!(matches!(unknown.kind(), ErrorKind::UnknownRequest { .. }));
    let large: Vec<_> =
        (0..4u8).map(|number| near.submit(&vec![number; 100_000]).unwrap()).collect();
    for (number, id) in large.iter().enumerate() {
        assert_eq!(near.wait_deadline(*id, soon()).unwrap(), vec![number as u8; 100_000]);
    }
    near.close().unwrap();
    server.join().unwrap();
}

#[test]
fn the_peer_of_a_pair_is_this_process() {
    let (near, far) = pair(Options::new());
    for link in [near, far] {
        assert_eq!(link.peer().pid(), Some(std::process::id()));
        assert!(link.peer().pidfd().is_some());
    }
}

#[test]
fn halves_live_on_two_threads() {
    let (near, far) = pair(Options::new());
    let (mut near_out, mut near_in) = near.split();
    let (mut far_out, mut far_in) = far.split();
    thread::scope(|scope| {
        scope.spawn(move || (0..50_000u64).for_each(|n| near_out.send(&n.to_le_bytes()).unwrap()));
        scope.spawn(move || (0..50_000u64).for_each(|n| far_out.send(&n.to_le_bytes()).unwrap()));
        for inbox in [&mut near_in, &mut far_in] {
            scope.spawn(move || {
                for n in 0..50_000u64 {
                    assert_eq!(inbox.recv().unwrap().unwrap(), n.to_le_bytes());
                }
                assert_eq!(inbox.recv().unwrap(), None);
            });
        }
    });
}

#[test]
fn what_was_reserved_and_not_published_never_becomes_a_header() {
    let (mut near, mut far) = pair(Options::new().ring_capacity(4096));
    for round in 0..1000usize {
        near.send(b"one line").unwrap();
        assert_eq!(far.recv().unwrap().unwrap(), b"one line");
        if round % 2 == 0 {
            near.sender().reserve(50 + round % 900).unwrap().fill(1);
        } else {
            let mut batch = near.sender().batch().unwrap();
            batch.push(&[1; 40]).unwrap();
            batch.push(&[1; 400]).unwrap();
            drop(batch);
        }
        near.send(b"one more").unwrap();
        assert_eq!(far.recv().unwrap().unwrap(), b"one more");
        assert!(matches!(far.receiver().try_recv(), Err(TryRecvError::Empty)));
        let mut room = near.sender().reserve(600).unwrap();
        room.fill(1);
        room[..7].copy_from_slice(b"shorter");
        room.truncate(7);
        room.publish().unwrap();
        assert_eq!(far.recv().unwrap().unwrap(), b"shorter");
        assert!(matches!(far.receiver().try_recv(), Err(TryRecvError::Empty)));
    }
}

#[test]
fn a_reservation_can_be_shortened_at_any_place_of_a_nearly_full_ring() {
    let (mut near, mut far) = pair(Options::new().ring_capacity(4096));
    let mut expected = std::collections::VecDeque::new();
    for round in 0..20_000usize {
        let (reserved, kept) = (round * 7 % 700, round * 13 % 700);
        let kept = kept.min(reserved);
        match near.sender().try_reserve(reserved) {
            Ok(mut room) => {
                for (at, byte) in room.iter_mut().enumerate() {
                    *byte = (round + at) as u8;
                }
                room.truncate(kept);
                room.publish().unwrap();
                expected.push_back((round, kept));
            }
            Err(TrySendError::Full { .. }) => {
                let (round, kept) = expected.pop_front().unwrap();
                let message: Vec<u8> = (0..kept).map(|at| (round + at) as u8).collect();
                assert_eq!(far.recv().unwrap().unwrap(), message);
            }
            Err(TrySendError::Failed(error)) => panic!("{error}"),
        }
    }
}
