//! A peer lies in each byte that it may write after the handshake. Its own link ends with the name of the fault, or
//! nothing happens. Other links do not notice.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::raw::{self, *};
use crate::support::{Stage, fault, soon, stays_faulty};
use rustix::fs::SealFlags;
use slipring::error::{Fault, TryRecvError, TrySendError};
use slipring::message::MessageKind;
use slipring::options::Spin;
use slipring::{Connection, ErrorKind, Options};

/// Lengths and positions that a lying peer tries.
const LIES: [u64; 11] = [
    1,
    7,
    (64 << 10) - 1,
    64 << 10,
    (64 << 10) + 1,
    (64 << 10) + 8,
    1 << 31,
    (1 << 32) - 1,
    1 << 32,
    1 << 63,
    u64::MAX,
];

/// Records that say that packets wait on the socket.
const PACKETS: u64 = 6;

/// Ends the disturbing thread, also when the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The fault with which the next receive ends.
fn received_fault(link: &mut Connection) -> Fault {
    fault(link.receiver().recv_deadline(soon()))
}

#[test]
fn a_header_that_cannot_be_ends_the_link_with_that_header() {
    let mut stage = Stage::new(Options::new());
    let mut lies: Vec<u64> = (12..32).map(|bit| header(MESSAGE, 8) | 1 << bit).collect();
    lies.extend((5..=255).map(|kind| header(kind, 8)));
    // No kind, but not nothing either.
    lies.extend([MORE, POOLED, TIGHT, header(0, 1), header(0, 0xFFFF_FFFF), 1 << 63]);
    // A close has neither flags nor payload.
    lies.extend([CLOSE | MORE, CLOSE | POOLED, CLOSE | TIGHT, header(CLOSE, 1)]);
    lies.extend([header(CLOSE, 56), header(CLOSE, 0xFFFF_FFFF)]);
    // A request and a response start with an id.
    for kind in [REQUEST, RESPONSE] {
        lies.extend((0..8).map(|len| header(kind, len)));
        lies.extend((0..8).map(|len| header(kind | MORE, len)));
    }
    // A descriptor has 32 bytes, behind an id 40.
    lies.extend([0, 8, 31, 33, 40, 64, 600].map(|len| header(MESSAGE | POOLED, len)));
    for kind in [REQUEST, RESPONSE] {
        lies.extend([0, 7, 32, 39, 41, 600].map(|len| header(kind | POOLED, len)));
    }
    for lie in lies {
        let (mut link, mut peer) = stage.link();
        peer.say(b"before");
        peer.header(lie);
        assert_eq!(link.receiver().recv_deadline(soon()).unwrap().unwrap(), b"before");
        let expected = Fault::RecordHeader { header: lie };
        assert_eq!(received_fault(&mut link), expected, "{lie:#x}");
        stays_faulty(&mut link, expected);
    }
    stage.is_undisturbed();
}

#[test]
fn a_record_longer_than_the_ring_ends_the_link() {
    let mut stage = Stage::new(Options::new());
    let capacity = Hello::honest().ring_capacity;
    let lengths = [capacity - 191, capacity - 1, capacity, capacity + 1, 1 << 31, (1 << 32) - 1];
    for len in lengths {
        for flags in [0, MORE, TIGHT, TIGHT | MORE] {
            for kind in [MESSAGE, REQUEST, RESPONSE] {
                let (mut link, peer) = stage.link();
                peer.header(header(kind | flags, len));
                let expected = Fault::RecordLength { len, capacity };
                assert_eq!(received_fault(&mut link), expected, "{kind} {flags:#x} {len}");
                stays_faulty(&mut link, expected);
            }
        }
    }
    stage.is_undisturbed();
}

#[test]
fn wake_ups_that_nobody_asked_for_are_taken_and_end_no_link() {
    let mut stage = Stage::new(Options::new());
    for by_descriptor in [false, true] {
        let (mut link, mut peer) = stage.link();
        if by_descriptor {
            let _ = link.as_fd();
        }
        for round in 0..20u32 {
            for number in 0..30 {
                raw::send(&peer.socket, &wake_packet(1 + (number & 1)), &[]).unwrap();
            }
            // A look at the socket, as a record that tells of packets asks for.
            peer.publish(header(PACKETS, 0), &[]);
            assert!(
                matches!(link.receiver().try_recv(), Err(TryRecvError::Empty)),
                "round {round}"
            );
            peer.say(&round.to_le_bytes());
            assert_eq!(
                link.receiver().recv_deadline(soon()).unwrap().unwrap(),
                round.to_le_bytes()
            );
            link.send(b"here").unwrap();
        }
    }
    stage.is_undisturbed();
}

#[test]
fn the_longest_record_is_read_whole_wherever_it_starts() {
    let mut stage = Stage::new(Options::new());
    let capacity = Hello::honest().ring_capacity;
    let len = capacity - 192;
    for flags in [0, TIGHT] {
        let (mut link, mut peer) = stage.link();
        for round in 0..40u64 {
            // The places of one round differ from those of the next, and reach the last line.
            peer.publish(header(MESSAGE | flags, len), &vec![round as u8; len as usize]);
            assert_eq!(
                link.receiver().recv_deadline(soon()).unwrap().unwrap(),
                vec![round as u8; len as usize]
            );
            let short = (round * 8) % 400;
            peer.publish(header(MESSAGE | flags, short), &vec![7; short as usize]);
            assert_eq!(
                link.receiver().recv_deadline(soon()).unwrap().unwrap(),
                vec![7; short as usize]
            );
        }
        peer.publish(header(MESSAGE | TIGHT, 0), &[]);
        assert_eq!(link.receiver().recv_deadline(soon()).unwrap().unwrap(), b"");
    }
    stage.is_undisturbed();
}

#[test]
fn a_batch_that_promises_more_and_gives_nothing_is_a_fault() {
    let mut stage = Stage::new(Options::new());
    for flags in [0, TIGHT] {
        let (mut link, mut peer) = stage.link();
        peer.publish(header(MESSAGE | MORE | flags, 5), b"first");
        assert_eq!(link.receiver().recv_deadline(soon()).unwrap().unwrap(), b"first");
        assert_eq!(received_fault(&mut link), Fault::RecordMissing);
        stays_faulty(&mut link, Fault::RecordMissing);
    }
    stage.is_undisturbed();
}

#[test]
fn a_fault_is_not_undone_by_a_peer_that_mends_what_it_wrote() {
    let mut stage = Stage::new(Options::new());
    let (mut link, mut peer) = stage.link();
    peer.header(0xFF);
    let expected = Fault::RecordHeader { header: 0xFF };
    assert_eq!(received_fault(&mut link), expected);
    peer.say(b"mended");
    stays_faulty(&mut link, expected);
    let (mut link, mut peer) = stage.link();
    peer.publish(header(MESSAGE | MORE, 5), b"first");
    assert_eq!(link.receiver().recv_deadline(soon()).unwrap().unwrap(), b"first");
    assert_eq!(received_fault(&mut link), Fault::RecordMissing);
    peer.say(b"late");
    stays_faulty(&mut link, Fault::RecordMissing);
    stage.is_undisturbed();
}

#[test]
fn nothing_follows_a_close() {
    let mut stage = Stage::new(Options::new());
    let (mut link, mut peer) = stage.link();
    peer.publish(CLOSE, &[]);
    peer.say(b"after the end");
    for _ in 0..3 {
        assert_eq!(link.receiver().recv_deadline(soon()).unwrap(), None);
        assert!(matches!(link.receiver().try_recv(), Ok(None)));
    }
    link.send(b"the other way is open").unwrap();
    stage.is_undisturbed();
}

#[test]
fn a_close_that_was_seen_is_not_taken_back() {
    let mut stage = Stage::new(Options::new());
    let (mut link, peer) = stage.link();
    peer.header(CLOSE);
    assert_eq!(link.receiver().recv_deadline(soon()).unwrap(), None);
    peer.header(0);
    let again = link.receiver().recv_deadline(Instant::now() + Duration::from_millis(20));
    assert!(matches!(again, Ok(None)), "{again:?}");
    stage.is_undisturbed();
}

#[test]
fn a_position_that_cannot_be_ends_the_link() {
    let capacity = 4096;
    let mut stage = Stage::new(Options::new().ring_capacity(capacity));
    let honest = 5 * 64;
    let mut lies: Vec<u64> = LIES.to_vec();
    lies.extend([0, 64, honest - 64, honest - 8, honest + 1, honest + 7, 0u64.wrapping_sub(64)]);
    for lie in lies {
        let (mut link, peer) = stage.link();
        let mut sent = 0;
        while link.sender().try_send(b"fill").is_ok() {
            sent += 64;
        }
        peer.position(honest);
        while link.sender().try_send(b"fill").is_ok() {
            sent += 64;
        }
        assert_eq!(sent, capacity - 128 + honest);
        peer.position(lie);
        let expected = Fault::Position { position: lie, tail: honest, head: sent };
        assert_eq!(fault(link.send(b"one more")), expected);
        stays_faulty(&mut link, expected);
        let past = sent + 8;
        let (mut link, peer) = stage.link();
        while link.sender().try_send(b"fill").is_ok() {}
        peer.position(past);
        let TrySendError::Failed(error) = link.sender().try_send(b"more").unwrap_err() else {
            panic!("a full ring hides the fault")
        };
        let head = capacity - 128;
        assert_eq!(fault::<()>(Err(error)), Fault::Position { position: past, tail: 0, head });
    }
    stage.is_undisturbed();
}

#[test]
fn a_lying_position_ends_a_send_that_waits_for_room() {
    for spin in [Spin::Never, Spin::Forever] {
        let options = Options::new().ring_capacity(4096).spin(spin);
        let mut stage = Stage::new(options);
        for lie in [8, 4096, 1 << 63, u64::MAX] {
            let (mut link, peer) = stage.link();
            while link.sender().try_send(b"fill").is_ok() {}
            peer.position(64);
            link.send(b"fill").unwrap();
            let sender = thread::spawn(move || {
                let error = link.sender().send_deadline(b"one more", soon());
                (fault(error), link)
            });
            thread::sleep(Duration::from_millis(5));
            peer.position(lie);
            let (met, mut link) = sender.join().unwrap();
            assert!(matches!(met, Fault::Position { position, .. } if position == lie), "{met:?}");
            stays_faulty(&mut link, met);
        }
        stage.is_undisturbed();
    }
}

/// Values that a sleep word never has.
const NO_STATES: [u64; 7] = [12, 7, 8, 11, 1 << 63, (1 << 32) | 3, u64::MAX];

#[test]
fn a_receiver_state_that_cannot_be_ends_the_link_at_the_next_send() {
    let mut stage = Stage::new(Options::new());
    for lie in NO_STATES {
        let (mut link, peer) = stage.link();
        link.send(b"before").unwrap();
        peer.own.store(RECEIVER_STATE, lie);
        let expected = Fault::Parking { value: lie };
        assert_eq!(fault(link.send(b"message")), expected, "{lie:#x}");
        stays_faulty(&mut link, expected);
        let (mut link, peer) = stage.link();
        peer.own.store(RECEIVER_STATE, lie);
        let mut batch = link.sender().batch().unwrap();
        batch.push(b"message").unwrap();
        assert_eq!(fault(batch.publish()), expected);
    }
    stage.is_undisturbed();
}

/// The sender of a tensor that is still being written loses its memory with the link that it was published on. C's interface
/// tells that by the tensor's length.
#[test]
fn a_tensor_whose_send_fails_behind_the_publication_has_no_memory_left() {
    use slipring::seam::SendPatience;
    let mut stage = Stage::new(Options::new());
    for lie in NO_STATES {
        let (mut link, peer) = stage.link();
        let mut tensor = stage.context.allocation().dtype(slipring::DType::Uint8, [5000]).unwrap();
        let before = link.sender().put_writable(&mut tensor, SendPatience::None).unwrap();
        assert!(before.is_ok() && tensor.is_empty());
        let mut tensor = stage.context.allocation().dtype(slipring::DType::Uint8, [5000]).unwrap();
        peer.own.store(RECEIVER_STATE, lie);
        let failed = link.sender().put_writable(&mut tensor, SendPatience::None).unwrap();
        assert!(failed.is_err() && tensor.is_empty(), "{lie:#x}: {failed:?}");
    }
    stage.is_undisturbed();
}

#[test]
fn a_sender_state_that_cannot_be_ends_the_link_when_room_is_given() {
    let mut stage = Stage::new(Options::new());
    for lie in NO_STATES {
        let (mut link, mut peer) = stage.link();
        peer.own.store(SENDER_STATE, lie);
        peer.say(b"message");
        assert_eq!(link.receiver().recv_deadline(soon()).unwrap().unwrap(), b"message");
        // The ring is empty now, which the peer is told before anything else.
        let expected = Fault::Parking { value: lie };
        assert_eq!(received_fault(&mut link), expected, "{lie:#x}");
        stays_faulty(&mut link, expected);
    }
    stage.is_undisturbed();
}

#[test]
fn a_sender_state_that_cannot_be_does_not_stop_the_return_of_a_loan() {
    let mut stage = Stage::new(Options::new());
    let (mut link, mut peer) = stage.link();
    peer.send_segment(1, 1 << 20);
    peer.own.store(SENDER_STATE, 8);
    peer.lend(Lent { segment: 1, slot: 3, offset: 64, len: 9000, generation: 77 });
    assert_eq!(link.receiver().recv_deadline(soon()).unwrap().unwrap(), vec![0; 9000]);
    assert_eq!(peer.theirs().load(RETURNS + 8 * 3), 77);
    drop(link);
    stage.is_undisturbed();
}

#[test]
fn a_receiver_that_says_it_is_gone_ends_sending_in_order() {
    let mut stage = Stage::new(Options::new());
    let (mut link, mut peer) = stage.link();
    peer.own.store(RECEIVER_STATE, 3);
    // It may have read the first one before it left.
    link.send(b"perhaps").unwrap();
    assert_eq!(*link.send(b"for nobody").unwrap_err().kind(), ErrorKind::PeerClosed);
    assert_eq!(*link.call(b"for nobody").unwrap_err().kind(), ErrorKind::PeerClosed);
    // Taking it back helps nobody.
    peer.own.store(RECEIVER_STATE, 0);
    peer.say(b"still talking");
    assert_eq!(link.receiver().recv_deadline(soon()).unwrap().unwrap(), b"still talking");
    stage.is_undisturbed();
}

#[test]
fn a_receiver_that_said_it_was_gone_stays_gone() {
    let mut stage = Stage::new(Options::new());
    let (mut link, peer) = stage.link();
    peer.own.store(RECEIVER_STATE, 3);
    link.send(b"perhaps").unwrap();
    peer.own.store(RECEIVER_STATE, 0);
    // It lives, and has not died in the meantime.
    assert_eq!(*link.send(b"for nobody").unwrap_err().kind(), ErrorKind::PeerClosed);
    stage.is_undisturbed();
}

#[test]
fn a_fault_that_one_half_meets_ends_the_other_in_its_sleep() {
    let mut stage = Stage::new(Options::new().ring_capacity(4096).spin(Spin::Never));
    // The sending half meets it, the receiving half sleeps.
    let (link, peer) = stage.link();
    let (mut outbox, mut inbox) = link.split();
    let (tell, told) = std::sync::mpsc::channel();
    let sleeper = thread::spawn(move || {
        tell.send(rustix::thread::gettid()).unwrap();
        fault(inbox.recv_deadline(soon()))
    });
    crate::support::other::wait_until_asleep(told.recv().unwrap());
    // The receiving half's parking word is a legal one, and attended to.
    outbox.send(b"rings").unwrap();
    peer.own.store(RECEIVER_STATE, 8);
    let expected = Fault::Parking { value: 8 };
    assert_eq!(fault(outbox.send(b"faulty")), expected);
    assert_eq!(sleeper.join().unwrap(), expected);
    // The receiving half meets it, the sending half waits for room.
    let (mut link, peer) = stage.link();
    while link.sender().try_send(b"fill").is_ok() {}
    let (mut outbox, mut inbox) = link.split();
    let (tell, told) = std::sync::mpsc::channel();
    let sleeper = thread::spawn(move || {
        tell.send(rustix::thread::gettid()).unwrap();
        fault(outbox.send_deadline(b"more", soon()))
    });
    crate::support::other::wait_until_asleep(told.recv().unwrap());
    peer.header(0xFF);
    let expected = Fault::RecordHeader { header: 0xFF };
    assert_eq!(fault(inbox.recv_deadline(soon())), expected);
    assert_eq!(sleeper.join().unwrap(), expected);
    stage.is_undisturbed();
}

#[test]
fn a_lie_wakes_a_sleeping_receiver_to_its_fault() {
    let mut stage = Stage::new(Options::new().spin(Spin::Never));
    let (mut link, peer) = stage.link();
    let (tell, told) = std::sync::mpsc::channel();
    let sleeper = thread::spawn(move || {
        tell.send(rustix::thread::gettid()).unwrap();
        let met = fault(link.receiver().recv_deadline(soon()));
        stays_faulty(&mut link, met);
        met
    });
    crate::support::other::wait_until_asleep(told.recv().unwrap());
    peer.header(header(MESSAGE, 1 << 31));
    let expected = Fault::RecordLength { len: 1 << 31, capacity: 64 << 10 };
    assert_eq!(sleeper.join().unwrap(), expected);
    stage.is_undisturbed();
}

#[test]
fn a_peer_that_says_it_sleeps_again_and_again_only_gets_rung() {
    let mut stage = Stage::new(Options::new());
    let (mut link, mut peer) = stage.link();
    for epoch in 1..200u64 {
        // Eager or not.
        peer.own.store(RECEIVER_STATE, epoch << 2 | 1);
        peer.own.store(SENDER_STATE, epoch << 2 | 1);
        link.send(b"message").unwrap();
        peer.say(b"answer");
        assert_eq!(link.receiver().recv_deadline(soon()).unwrap().unwrap(), b"answer");
        peer.position(epoch * 64);
        assert!(matches!(link.receiver().try_recv(), Err(TryRecvError::Empty)));
    }
    let (data, room) = (peer.theirs().load(DATA_BELL), peer.theirs().load(ROOM_BELL));
    assert_eq!((data, room), (199, 199), "one ring an epoch");
    stage.is_undisturbed();
}

#[test]
fn a_bell_that_rings_for_nothing_delays_no_deadline() {
    let mut stage = Stage::new(Options::new().ring_capacity(4096).spin(Spin::Never));
    let (mut link, peer) = stage.link();
    while link.sender().try_send(b"fill").is_ok() {}
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _stop = Stop(&stop);
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                peer.own.ring(DATA_BELL);
                peer.own.ring(ROOM_BELL);
            }
        });
        for _ in 0..5 {
            let deadline = Instant::now() + Duration::from_millis(10);
            assert!(link.receiver().recv_deadline(deadline).unwrap_err().is_timeout());
            let deadline = Instant::now() + Duration::from_millis(10);
            assert!(link.sender().send_deadline(b"late", deadline).unwrap_err().is_timeout());
        }
    });
    stage.is_undisturbed();
}

const SLOTS: u64 = 256;

#[test]
fn a_pool_descriptor_that_lies_ends_the_link() {
    let mut stage = Stage::new(Options::new().max_message(512 << 10).loan_slots(SLOTS as u32));
    let capacity = 1u64 << 20;
    let honest = Lent { segment: 1, slot: 0, offset: 0, len: 9000, generation: 1 };
    let range = |offset, len| Fault::SegmentRange { offset, len, capacity };
    let slot = |slot| Fault::LoanSlot { slot, slots: SLOTS };
    let long = |len| Fault::MessageLength { len, max: 512 << 10 };
    let odd = |value| Fault::Field { field: "pooled.offset", value };
    let at = |offset, len| Lent { offset, len, ..honest };
    let mut lies = vec![
        (Lent { segment: 0, ..honest }, Fault::UnknownSegment { segment: 0 }),
        (Lent { segment: 2, ..honest }, Fault::UnknownSegment { segment: 2 }),
        (Lent { segment: u32::MAX, ..honest }, Fault::UnknownSegment { segment: u32::MAX }),
        (Lent { slot: 256, ..honest }, slot(256)),
        (Lent { slot: 1 << 31, ..honest }, slot(1 << 31)),
        (Lent { slot: u32::MAX, ..honest }, slot(u32::MAX.into())),
        (at(capacity, 1), range(capacity, 1)),
        (at(capacity - 64, 65), range(capacity - 64, 65)),
        (at(capacity + 64, 0), range(capacity + 64, 0)),
        (at(1 << 32, 64), range(1 << 32, 64)),
        (at(1 << 63, 64), range(1 << 63, 64)),
        // Offset and length together overflow.
        (at(0u64.wrapping_sub(64), 64), range(0u64.wrapping_sub(64), 64)),
        (at(0u64.wrapping_sub(64), 128), range(0u64.wrapping_sub(64), 128)),
        (at(0u64.wrapping_sub(1 << 12), 1 << 13), range(0u64.wrapping_sub(1 << 12), 1 << 13)),
    ];
    lies.extend([1, 8, 63, 65, u64::MAX].map(|offset| (at(offset, 8), odd(offset))));
    let lengths = [(512 << 10) + 1, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 63, u64::MAX];
    lies.extend(lengths.map(|len| (at(0, len), long(len))));
    for (lie, expected) in lies {
        let (mut link, mut peer) = stage.link();
        peer.send_segment(1, capacity);
        peer.lend(honest);
        assert_eq!(link.receiver().recv_deadline(soon()).unwrap().unwrap().len(), 9000);
        peer.lend(lie);
        assert_eq!(received_fault(&mut link), expected, "{lie:?}");
        stays_faulty(&mut link, expected);
    }
    stage.is_undisturbed();
}

#[test]
fn a_pool_descriptor_at_the_limits_is_honest() {
    let mut stage = Stage::new(Options::new());
    let capacity = 1u64 << 20;
    let (mut link, mut peer) = stage.link();
    peer.send_segment(u32::MAX, capacity);
    let cases = [(0, capacity), (capacity, 0), (capacity - 64, 64), (0, 0)];
    for (slot, (offset, len)) in cases.into_iter().enumerate() {
        let slot = 255 - slot as u32;
        // A generation is the peer's own matter, and stored back as it is.
        for generation in [0, 1, u64::MAX] {
            peer.lend(Lent { segment: u32::MAX, slot, offset, len, generation });
            let message = link.receiver().recv_deadline(soon()).unwrap().unwrap();
            assert_eq!(message.len() as u64, len);
            assert_eq!(peer.theirs().load(RETURNS + 8 * slot as usize), generation);
        }
    }
    stage.is_undisturbed();
}

#[test]
fn a_message_over_the_agreed_maximum_ends_the_link() {
    let mut stage = Stage::new(Options::new().max_message(1000));
    stage.witness.longest = 300;
    for (word, len) in [
        (message(1001), 1001),
        (header(MESSAGE | MORE, 5000), 5000),
        (header(MESSAGE | TIGHT, 1001), 1001),
        (header(REQUEST, 8 + 1001), 1001),
        (header(REQUEST, 65_000), 64_992),
    ] {
        let (mut link, mut peer) = stage.link();
        peer.say(&[1; 1000]);
        assert_eq!(link.receiver().recv_deadline(soon()).unwrap().unwrap(), vec![1; 1000]);
        peer.header(word);
        let expected = Fault::MessageLength { len, max: 1000 };
        assert_eq!(received_fault(&mut link), expected, "{word:#x}");
        stays_faulty(&mut link, expected);
    }
    stage.is_undisturbed();
}

/// A link to whose peer a message in an unknown segment refers, after `send` had the socket.
fn names_a_segment(stage: &mut Stage, send: impl FnOnce(&mut RawPeer)) -> Connection {
    let (link, mut peer) = stage.link();
    send(&mut peer);
    peer.lend(Lent { segment: 1, slot: 0, offset: 0, len: 4096, generation: 1 });
    link
}

#[test]
fn a_segment_packet_that_lies_ends_the_link() {
    let mut stage = Stage::new(Options::new());
    let field = |field, value| Fault::Field { field, value };
    let wrong_size = |size, expected| Fault::MemorySize { size, expected };
    for len in [1, page() - 1, page() + 1, 1 << 63 | 1, u64::MAX] {
        let mut link = names_a_segment(&mut stage, |peer| {
            let (fd, _memory) = segment(page());
            raw::send(&peer.socket, &segment_packet(1, len), &[fd.as_fd()]).unwrap();
        });
        let met = received_fault(&mut link);
        let expected = if len > 4 << 30 {
            Fault::PeerPool { bytes: len, segments: 1, limit: 4 << 30 }
        } else {
            field("segment.len", len)
        };
        assert_eq!(met, expected, "{len:#x}");
        stays_faulty(&mut link, expected);
    }
    for (said, is) in [(2 * page(), page()), (page(), 2 * page()), (1 << 30, page())] {
        let mut link = names_a_segment(&mut stage, |peer| {
            let (fd, _memory) = segment(is);
            raw::send(&peer.socket, &segment_packet(1, said), &[fd.as_fd()]).unwrap();
        });
        assert_eq!(received_fault(&mut link), wrong_size(is, said));
    }
    let mut link = names_a_segment(&mut stage, |peer| {
        let (fd, _memory) = segment(page());
        raw::send(&peer.socket, &segment_packet(1, 0), &[fd.as_fd()]).unwrap();
    });
    assert_eq!(received_fault(&mut link), field("segment.len", 0));
    let mut link = names_a_segment(&mut stage, |peer| {
        let (fd, _memory) = segment(page());
        let mut packet = segment_packet(1, page());
        packet[20] = 4;
        raw::send(&peer.socket, &packet, &[fd.as_fd()]).unwrap();
    });
    assert_eq!(received_fault(&mut link), field("segment.flags", 4));
    stage.is_undisturbed();
}

#[test]
fn a_pool_segment_must_be_sealed_allocated_and_shared_memory() {
    let mut stage = Stage::new(Options::new());
    for missing in [SealFlags::SHRINK, SealFlags::GROW, SealFlags::FUTURE_WRITE, SealFlags::SEAL] {
        let mut link = names_a_segment(&mut stage, |peer| {
            let (fd, _memory) = memfd(page(), true, SEALS - missing);
            raw::send(&peer.socket, &segment_packet(1, page()), &[fd.as_fd()]).unwrap();
        });
        let (seals, required) = ((SEALS - missing).bits(), SEALS.bits());
        let expected = Fault::Seals { seals, required };
        assert_eq!(received_fault(&mut link), expected);
        stays_faulty(&mut link, expected);
    }
    let mut link = names_a_segment(&mut stage, |peer| {
        let (fd, _memory) = memfd(4 * page(), false, SEALS);
        raw::send(&peer.socket, &segment_packet(1, 4 * page()), &[fd.as_fd()]).unwrap();
    });
    let expected = Fault::Sparse { allocated: 0, size: 4 * page() };
    assert_eq!(received_fault(&mut link), expected);
    // Blocks behind the end, which the receiver would free with the segment.
    let behind = 4 * page() * page() / 8;
    let mut link = names_a_segment(&mut stage, |peer| {
        let (fd, _memory) = memfd(page(), true, SealFlags::empty());
        let keep = rustix::fs::FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&fd, keep, page(), behind).unwrap();
        rustix::fs::fcntl_add_seals(&fd, SEALS).unwrap();
        raw::send(&peer.socket, &segment_packet(1, page()), &[fd.as_fd()]).unwrap();
    });
    let most = behind / 4 + page();
    let expected = Fault::Excess { allocated: page() + behind, most };
    assert_eq!(received_fault(&mut link), expected);
    let mut link = names_a_segment(&mut stage, |peer| {
        let (pipe, _other_end) = std::io::pipe().unwrap();
        raw::send(&peer.socket, &segment_packet(1, page()), &[pipe.as_fd()]).unwrap();
    });
    let expected = Fault::NotMemfd;
    assert_eq!(received_fault(&mut link), expected);
    stage.is_undisturbed();
}

#[test]
fn a_packet_that_is_out_of_place_ends_the_link() {
    let mut stage = Stage::new(Options::new());
    let (fd, _memory) = segment(page());
    let (fd, good) = (fd.as_fd(), segment_packet(1, page()));
    let mut other_magic = good.clone();
    other_magic[0] ^= 1;
    let mut other_kind = good.clone();
    other_kind[8] = 10;
    let mut other_count = good.clone();
    other_count[12] = 2;
    let mut longer = good.clone();
    longer.push(0);
    let kind = |value| Fault::Field { field: "kind", value };
    let count = |count, expected| Fault::DescriptorCount { count, expected };
    let cut = |len| Fault::PacketLength { len, expected: 128 };
    let cases: [(&[u8], &[_], Fault); 13] = [
        (&good[..127], &[fd], cut(127)),
        (&good[..1], &[fd], cut(1)),
        (&[], &[], cut(0)),
        (&longer, &[fd], Fault::Truncated),
        (&[0; 60_000], &[], Fault::Truncated),
        (&other_magic, &[fd], Fault::Magic),
        (&other_kind, &[fd], kind(10)),
        (&other_count, &[fd], Fault::Field { field: "descriptors", value: 2 }),
        (&good, &[], count(0, 1)),
        (&good, &[fd, fd], count(2, 1)),
        (&good, &[fd; 200], count(200, 1)),
        (&retire_packet(1), &[fd], count(1, 0)),
        (&Hello::honest().encode(), &[fd], kind(1)),
    ];
    for (packet, fds, expected) in cases {
        let mut link = names_a_segment(&mut stage, |peer| {
            raw::send(&peer.socket, packet, fds).unwrap();
        });
        assert_eq!(received_fault(&mut link), expected);
        stays_faulty(&mut link, expected);
    }
    stage.is_undisturbed();
}

#[test]
fn a_refusal_of_a_link_that_stands_ends_it() {
    let mut stage = Stage::new(Options::new());
    let mut link = names_a_segment(&mut stage, |peer| {
        raw::send(&peer.socket, &refusal_packet((1, 1), 4), &[]).unwrap();
    });
    let first = link.receiver().recv_deadline(soon()).unwrap_err();
    assert_eq!(*first.kind(), ErrorKind::RefusedByPeer { code: 4 });
    let again = link.receiver().recv_deadline(soon()).unwrap_err();
    assert_eq!(again.kind(), first.kind());
    assert_eq!(link.send(b"late").unwrap_err().kind(), first.kind());
    stage.is_undisturbed();
}

#[test]
fn a_segment_number_is_used_once() {
    let mut stage = Stage::new(Options::new());
    let mut link = names_a_segment(&mut stage, |peer| {
        peer.send_segment(2, page());
        peer.send_segment(2, page());
    });
    let expected = Fault::Field { field: "segment.segment", value: 2 };
    assert_eq!(received_fault(&mut link), expected);
    stage.is_undisturbed();
}

#[test]
fn a_retired_segment_is_unknown_and_retiring_an_unknown_one_is_nothing() {
    let mut stage = Stage::new(Options::new());
    let (mut link, mut peer) = stage.link();
    let lent = Lent { segment: 1, slot: 0, offset: 0, len: 4096, generation: 1 };
    raw::send(&peer.socket, &retire_packet(99), &[]).unwrap();
    peer.send_segment(1, page());
    peer.lend(lent);
    assert_eq!(link.receiver().recv_deadline(soon()).unwrap().unwrap().len(), 4096);
    raw::send(&peer.socket, &retire_packet(1), &[]).unwrap();
    peer.send_segment(2, page());
    peer.lend(Lent { segment: 2, ..lent });
    assert_eq!(link.receiver().recv_deadline(soon()).unwrap().unwrap().len(), 4096);
    peer.lend(lent);
    let expected = Fault::UnknownSegment { segment: 1 };
    assert_eq!(received_fault(&mut link), expected);
    stays_faulty(&mut link, expected);
    stage.is_undisturbed();
}

#[test]
fn a_segment_that_is_retired_while_it_is_read_stays_readable() {
    let mut stage = Stage::new(Options::new());
    let (mut link, mut peer) = stage.link();
    peer.send_segment(1, page());
    peer.pool[0].1.store(0, 0x0102_0304_0506_0708);
    peer.lend(Lent { segment: 1, slot: 0, offset: 0, len: 4096, generation: 1 });
    let received = link.receiver().peek().unwrap().unwrap();
    raw::send(&peer.socket, &retire_packet(1), &[]).unwrap();
    drop(peer);
    let bytes = received.bytes().to_vec();
    assert_eq!(bytes[..8], 0x0102_0304_0506_0708u64.to_ne_bytes());
    assert!(received.release().is_ok());
    stage.is_undisturbed();
}

#[test]
fn a_record_that_was_seen_stays_as_it_was_seen() {
    let mut stage = Stage::new(Options::new());
    let (mut link, mut peer) = stage.link();
    // Shorter, longer, of another kind, of none, impossible, gone.
    let lies =
        [message(1), message(48), header(REQUEST, 20), header(CLOSE, 0), header(255, 9), MORE, 0];
    for lie in lies {
        for in_place in [true, false] {
            peer.say(&[7; 40]);
            assert_eq!(link.receiver().peek_deadline(soon()).unwrap().unwrap().len(), 40);
            for _ in 0..2 {
                peer.own.store(peer.hello.control_len as usize + peer.head as usize - 64, lie);
                let received = link.receiver().try_peek().unwrap().unwrap();
                assert_eq!((received.len(), received.kind()), (40, MessageKind::Message));
            }
            if in_place {
                link.receiver().drain(1, |_, bytes| assert_eq!(bytes.to_vec(), [7; 40])).unwrap();
            } else {
                assert_eq!(link.receiver().try_recv().unwrap().unwrap(), [7; 40]);
            }
        }
    }
    // A descriptor changes as little as a header.
    let lent = Lent { segment: 1, slot: 0, offset: 0, len: 4096, generation: 1 };
    peer.send_segment(1, page());
    peer.lend(lent);
    assert_eq!(link.receiver().peek_deadline(soon()).unwrap().unwrap().len(), 4096);
    peer.write(peer.head - 56, &Lent { len: 5, offset: u64::MAX, ..lent }.encode());
    assert_eq!(link.receiver().try_peek().unwrap().unwrap().len(), 4096);
    assert_eq!(link.receiver().recv_deadline(soon()).unwrap().unwrap().len(), 4096);
    // A receive of another kind leaves it as it is, too.
    peer.publish(header(REQUEST, 12), &[1, 0, 0, 0, 0, 0, 0, 0, 9, 9, 9, 9]);
    let left = link.recv_tensor().unwrap_err();
    assert!(matches!(left.kind(), ErrorKind::OtherKind { .. }), "{left}");
    assert_eq!(link.recv_request().unwrap().unwrap().body, [9; 4]);
    drop(link);
    stage.is_undisturbed();
}

#[test]
fn too_many_bytes_of_a_peers_pool_end_the_link() {
    let mut stage = Stage::new(Options::new().peer_pool_limit(8 * page()));
    stage.witness.longest = 300;
    let (mut link, mut peer) = stage.link();
    let lent = Lent { segment: 1, slot: 0, offset: 0, len: 64, generation: 1 };
    peer.send_segment(1, 8 * page());
    peer.lend(lent);
    assert!(link.receiver().recv_deadline(soon()).is_ok());
    raw::send(&peer.socket, &retire_packet(1), &[]).unwrap();
    peer.send_segment(2, 4 * page());
    peer.send_segment(3, 4 * page());
    peer.lend(Lent { segment: 3, ..lent });
    assert!(link.receiver().recv_deadline(soon()).is_ok(), "what was retired counts no more");
    peer.send_segment(4, page());
    peer.lend(Lent { segment: 4, ..lent });
    let expected = Fault::PeerPool { bytes: 9 * page(), segments: 3, limit: 8 * page() };
    assert_eq!(received_fault(&mut link), expected);
    stays_faulty(&mut link, expected);
    stage.is_undisturbed();
}

#[test]
fn too_many_segments_of_a_peers_pool_end_the_link() {
    const LIMIT: u32 = 1024;
    let mut stage = Stage::new(Options::new());
    let (mut link, peer) = stage.link();
    let (fd, _memory) = segment(page());
    let mut peer = peer;
    for number in 1..=LIMIT + 1 {
        raw::send(&peer.socket, &segment_packet(number, page()), &[fd.as_fd()]).unwrap();
        if number % 64 == 0 || number > LIMIT {
            peer.lend(Lent { segment: number, slot: 0, offset: 0, len: 8, generation: 1 });
            let received = link.receiver().recv_deadline(soon());
            if number <= LIMIT {
                assert_eq!(received.unwrap().unwrap().len(), 8);
            } else {
                let bytes = u64::from(number) * page();
                let expected = Fault::PeerPool { bytes, segments: number as usize, limit: 4 << 30 };
                assert_eq!(fault(received), expected);
            }
        }
    }
    stage.is_undisturbed();
}

#[test]
fn packets_that_nobody_asked_for_change_nothing() {
    let mut stage = Stage::new(Options::new());
    let (mut link, mut peer) = stage.link();
    rustix::io::ioctl_fionbio(&peer.socket, true).unwrap();
    while raw::send(&peer.socket, &[0xAA; 128], &[]).is_ok() {}
    for _ in 0..100 {
        peer.say(b"in order");
        assert_eq!(link.receiver().recv_deadline(soon()).unwrap().unwrap(), b"in order");
        link.send(b"both ways").unwrap();
    }
    stage.is_undisturbed();
}

#[test]
fn a_generation_that_was_never_lent_returns_nothing() {
    let block = 64 << 10;
    let mut stage = Stage::new(Options::new().pool_quota(block));
    let (mut link, peer) = stage.link();
    let message = vec![5; block as usize];
    link.send(&message).unwrap();
    let data = Hello::honest().control_len as usize;
    let lent = Lent::read(peer.theirs(), data);
    assert_eq!((lent.len, lent.slot), (block, 0));
    let lies = [0, lent.generation - 1, lent.generation + 1, 1 << 32 | lent.generation, u64::MAX];
    for lie in lies {
        for slot in 0..256 {
            peer.give_back(slot, lie);
        }
        let full = link.sender().try_send(&message);
        assert!(matches!(full, Err(TrySendError::Full { .. })), "{lie:#x}: {full:?}");
    }
    // In a slot that is not the loan's the right generation means nothing either.
    peer.give_back(1, lent.generation);
    assert!(matches!(link.sender().try_send(&message), Err(TrySendError::Full { .. })));
    peer.give_back(0, lent.generation);
    link.sender().try_send(&message).unwrap();
    // The old generation, still there, does not return the new loan.
    assert!(matches!(link.sender().try_send(&message), Err(TrySendError::Full { .. })));
    drop((link, peer));
    stage.is_undisturbed();
}

#[test]
fn a_response_to_a_request_that_was_never_made_is_a_fault() {
    let mut stage = Stage::new(Options::new());
    for id in [0u64, 1, 2, 1 << 32, u64::MAX] {
        let (mut link, mut peer) = stage.link();
        peer.publish(header(RESPONSE, 8), &id.to_le_bytes());
        let expected = Fault::UnknownRequest { id };
        assert_eq!(received_fault(&mut link), expected);
        stays_faulty(&mut link, expected);
        // Also where it is looked at in place.
        let (mut link, mut peer) = stage.link();
        peer.publish(header(RESPONSE, 8), &id.to_le_bytes());
        let received = link.receiver().peek().unwrap().unwrap();
        assert_eq!(fault(received.release()), expected);
        stays_faulty(&mut link, expected);
    }
    stage.is_undisturbed();
}

#[test]
fn a_request_is_answered_once() {
    let mut stage = Stage::new(Options::new());
    let (mut link, mut peer) = stage.link();
    let id = link.submit(b"question").unwrap();
    for _ in 0..2 {
        peer.publish(header(RESPONSE, 8), &1u64.to_le_bytes());
    }
    assert_eq!(link.wait_deadline(id, soon()).unwrap(), b"");
    assert_eq!(received_fault(&mut link), Fault::UnknownRequest { id: 1 });
    stage.is_undisturbed();
}

#[test]
fn a_payload_that_changes_while_it_is_read_is_only_bytes() {
    let mut stage = Stage::new(Options::new());
    let (mut link, mut peer) = stage.link();
    peer.send_segment(1, 1 << 20);
    peer.say(&[0; 4000]);
    peer.lend(Lent { segment: 1, slot: 0, offset: 0, len: 1 << 20, generation: 1 });
    let stop = AtomicBool::new(false);
    let data = peer.hello.control_len as usize;
    thread::scope(|scope| {
        let _stop = Stop(&stop);
        scope.spawn(|| {
            let mut value = 0u64;
            while !stop.load(Ordering::Relaxed) {
                value = value.wrapping_add(0x0101_0101_0101_0101);
                for at in (64..4000).step_by(8) {
                    peer.own.store(data + at, value);
                }
                for at in (0..1 << 20).step_by(4096) {
                    peer.pool[0].1.store(at, value);
                }
            }
        });
        for len in [4000, 1 << 20] {
            let received = link.receiver().peek().unwrap().unwrap();
            for _ in 0..50 {
                assert_eq!(received.bytes().to_vec().len(), len);
                assert_eq!(received.bytes().lines().count(), len / 64);
            }
            received.release().unwrap();
        }
    });
    stage.is_undisturbed();
}

/// A generator of noise without a seed from outside: the same lies each run.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        // SplitMix64, Steele et al. 2014.
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[(self.next() % choices.len() as u64) as usize]
    }

    /// A word that may pass for something.
    fn word(&mut self) -> u64 {
        match self.next() % 8 {
            0 => 0,
            1 => self.of(&[MESSAGE, REQUEST, RESPONSE, CLOSE, MESSAGE | MORE, MESSAGE | TIGHT]),
            2 => header(self.of(&[MESSAGE, MESSAGE | MORE, REQUEST]), self.next() % 600),
            3 => header(MESSAGE | POOLED, 32),
            4 => header(self.of(&[MESSAGE, MESSAGE | TIGHT]), self.next() % 65_536),
            5 => (self.next() % 64) << 2 | 1,
            6 => (self.next() % 128) * 64,
            _ => self.next(),
        }
    }
}

#[test]
fn words_that_change_at_full_speed_are_survived() {
    let mut stage = Stage::new(Options::new().send_timeout(Duration::from_millis(5)));
    let ended = AtomicU64::new(0);
    for seed in 0..60 {
        let (mut link, mut peer) = stage.link();
        peer.send_segment(1, 1 << 20);
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let _stop = Stop(&stop);
            scope.spawn(|| {
                let mut noise = Noise(seed);
                let data = peer.hello.control_len;
                // Seeds differ in what they shake: all, or all but what ends a link soonest.
                let control =
                    [POSITION, SENDER_STATE, RECEIVER_STATE, DATA_BELL, ROOM_BELL, FILLED];
                while !stop.load(Ordering::Relaxed) {
                    for _ in 0..64 {
                        let at = match noise.next() % 4 {
                            0 if seed % 3 == 0 => noise.of(&control) as u64,
                            0 => noise.of(&[DATA_BELL, ROOM_BELL, FILLED]) as u64,
                            1 => RETURNS as u64 + 8 * (noise.next() % 256),
                            2 => data + 8 * (noise.next() % 64),
                            _ => data + 8 * (noise.next() % (peer.hello.ring_capacity / 8)),
                        };
                        let word = if seed % 3 == 2 && at >= data {
                            // Only what can be: such a link lasts.
                            noise.of(&[0, message(8), message(40), message(100)])
                        } else {
                            noise.word()
                        };
                        peer.own.store(at as usize, word);
                    }
                    peer.own.ring(DATA_BELL);
                    peer.own.ring(ROOM_BELL);
                }
            });
            let until = Instant::now() + Duration::from_millis(25);
            let mut first: Option<ErrorKind> = None;
            let mut scratch = Vec::new();
            while Instant::now() < until {
                let mut note = |answer: Result<(), slipring::Error>| {
                    let Err(error) = answer else { return };
                    match (error.kind(), &first) {
                        (
                            ErrorKind::TimedOut { .. }
                            | ErrorKind::OtherKind { .. }
                            | ErrorKind::BacklogFull { .. },
                            _,
                        ) => {}
                        // A lie about being gone; nothing sticks before a fault does.
                        (ErrorKind::PeerClosed | ErrorKind::PeerDied, _) => {}
                        (kind, None) => first = Some(kind.clone()),
                        (kind, Some(first)) => assert_eq!(kind, first, "seed {seed}: {error}"),
                    }
                };
                let soon = Instant::now() + Duration::from_millis(1);
                note(link.receiver().recv_deadline(soon).map(drop));
                note(link.send(&[1; 40]));
                note(match link.sender().try_send(&[2; 20_000]) {
                    Err(TrySendError::Failed(error)) => Err(error),
                    _ => Ok(()),
                });
                note(link.call_deadline(b"question", soon).map(drop));
                note(match link.receiver().try_recv_into(&mut scratch) {
                    Err(TryRecvError::Failed(error)) => Err(error),
                    _ => Ok(()),
                });
                note(link.receiver().drain(100, |_, bytes| scratch = bytes.to_vec()).map(drop));
                note(link.receiver().recv_request_deadline(soon).map(drop));
            }
            if first.is_some() {
                ended.fetch_add(1, Ordering::Relaxed);
            }
        });
        stage.witness.check();
    }
    assert!(ended.into_inner() > 10, "the noise ends links");
    stage.is_undisturbed();
}

#[test]
fn a_peer_that_hung_up_ends_the_link_whatever_it_writes_then() {
    let mut stage = Stage::new(Options::new());
    let (mut link, mut peer) = stage.link();
    peer.say(b"last");
    rustix::net::shutdown(&peer.socket, rustix::net::Shutdown::Write).unwrap();
    assert_eq!(link.receiver().recv_deadline(soon()).unwrap().unwrap(), b"last");
    assert_eq!(*link.receiver().recv_deadline(soon()).unwrap_err().kind(), ErrorKind::PeerDied);
    crate::support::wait_until("the end", || link.send(b"to nobody").is_err());
    assert_eq!(*link.send(b"to nobody").unwrap_err().kind(), ErrorKind::PeerDied);
    stage.is_undisturbed();
}
