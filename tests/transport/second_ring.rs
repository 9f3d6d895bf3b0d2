//! A sender whose ring is full for the first time goes on in a longer one. No message is lost, torn or out of order, a
//! process without memory stays where it is, and a peer that lies about its second ring ends its own link.

use std::os::fd::AsFd;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use rustix::fs::SealFlags;

use crate::support::census::{limit_files, shared_bytes};
use crate::support::other::alone;
use crate::support::raw::{self, Hello, RawPeer, header, memfd, page, ring_packet, segment};
use crate::support::{HANG, Stage, fault, pair, pair_of, soon, stays_faulty, wait_until};
use slipring::error::{Fault, TrySendError};
use slipring::options::Resource;
use slipring::{Connection, Context, ErrorKind, Options, Reactor, Tensor, TensorSet};

/// The ring that a link begins with, in bytes.
const FIRST: usize = 16 << 10;

/// Numbers that look random.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        (self.0 >> 33) % limit
    }
}

/// The message with this number.
fn body(number: u64, len: usize) -> Vec<u8> {
    (0..len).map(|index| (number.wrapping_mul(31) + index as u64) as u8).collect()
}

/// Sends until there is no room. Returns the bytes of all messages.
fn fill(link: &mut Connection, message: &[u8]) -> usize {
    let mut bytes = 0;
    loop {
        match link.sender().try_send(message) {
            Ok(()) => bytes += message.len(),
            Err(TrySendError::Full { .. }) => return bytes,
            Err(TrySendError::Failed(error)) => panic!("{error}"),
        }
    }
}

fn receive(link: &mut Connection) -> Vec<u8> {
    link.receiver().recv_deadline(soon()).unwrap().expect("a message")
}

#[test]
fn a_ring_that_is_full_makes_way_for_a_longer_one_once() {
    alone("a_ring_that_is_full_makes_way_for_a_longer_one_once", || {
        let (mut near, mut far) = pair(Options::new());
        let before = shared_bytes();
        let filled = fill(&mut near, &[7; 56]);
        assert!(filled > 900_000 && filled < 1 << 20, "{filled} bytes");
        // The record of the move counts, too.
        assert_eq!(near.stats().send_queue, (filled / 56 * 64 + 64) as u64);
        for _ in 0..filled / 56 {
            assert_eq!(receive(&mut far), [7; 56]);
        }
        assert!(far.receiver().try_recv().is_err());
        assert_eq!(near.stats().send_queue, 0);
        let moved = shared_bytes();
        assert_eq!(moved - before, 1 << 20, "one ring of a MiB");
        let again = fill(&mut near, &[8; 56]);
        assert!(again > 900_000, "{again} bytes");
        assert_eq!(shared_bytes(), moved);
        for _ in 0..again / 56 {
            assert_eq!(receive(&mut far), [8; 56]);
        }
    });
}

#[test]
fn a_short_ring_stays_what_it_is() {
    let (mut near, mut far) = pair(Options::new().ring_capacity(FIRST as u64));
    let filled = fill(&mut near, &[7; 56]);
    assert!(filled < FIRST, "{filled} bytes");
    assert_eq!(receive(&mut far), [7; 56]);
}

#[test]
fn messages_of_all_lengths_come_in_order_over_the_move() {
    let context = Context::new().unwrap();
    let mut random = Random(7);
    for round in 0..100 {
        let (mut near, mut far) = pair_of(&context, &context);
        let lens: Vec<_> = (0..60).map(|_| random.below(2000) as usize).collect();
        let reads = random.below(20);
        let mut next = 0u64..;
        let mut expect = |far: &mut Connection| {
            let number = next.next().unwrap();
            assert_eq!(receive(far), body(number, lens[number as usize]), "round {round}");
        };
        // Some are read before the ring is full, so the record of the move stands anywhere, over the ring's end, too.
        for (number, len) in lens.iter().enumerate() {
            near.send(&body(number as u64, *len)).unwrap();
            if (number as u64) < reads {
                expect(&mut far);
            }
        }
        drop(near);
        (reads..lens.len() as u64).for_each(|_| expect(&mut far));
        assert_eq!(far.recv().unwrap(), None);
    }
}

#[test]
fn a_batch_that_is_being_written_moves_too() {
    let context = Context::new().unwrap();
    let mut random = Random(8);
    for round in 0..100 {
        let (mut near, mut far) = pair_of(&context, &context);
        // The batch starts anywhere.
        for number in 0..random.below(40) {
            let first = body(number, random.below(900) as usize);
            near.send(&first).unwrap();
            assert_eq!(receive(&mut far), first);
        }
        let lens: Vec<_> = (0..200).map(|_| random.below(700) as usize).collect();
        assert!(lens.iter().sum::<usize>() > 2 * FIRST);
        let mut batch = near.sender().batch().unwrap();
        for (number, len) in lens.iter().enumerate() {
            batch.push(&body(number as u64, *len)).unwrap();
        }
        assert!(far.receiver().try_recv().is_err(), "a batch shows nothing before it is published");
        batch.publish().unwrap();
        for (number, len) in lens.iter().enumerate() {
            assert_eq!(receive(&mut far), body(number as u64, *len), "round {round}");
        }
        // One that is dropped leaves nothing.
        let mut batch = near.sender().batch().unwrap();
        batch.push(&[1; 700]).unwrap();
        drop(batch);
        near.send(b"last").unwrap();
        assert_eq!(receive(&mut far), b"last");
    }
}

#[test]
fn a_batch_that_was_dropped_does_not_move() {
    let (mut near, mut far) = pair(Options::new());
    let mut batch = near.sender().batch().unwrap();
    for _ in 0..3 {
        batch.push(&[0xFF; 1000]).unwrap();
    }
    drop(batch);
    let filled = fill(&mut near, &[7; 56]);
    for _ in 0..filled / 56 {
        assert_eq!(receive(&mut far), [7; 56]);
    }
}

#[test]
fn requests_tokens_tensors_and_long_messages_come_over_the_move() {
    let (mut near, mut far) = pair(Options::new());
    near.send(&[1; 4000]).unwrap();
    near.send(&[2; 4000]).unwrap();
    let long = body(3, 100_000);
    near.send(&long).unwrap();
    // Its description alone is longer than the first ring.
    let mut set = TensorSet::new();
    for index in 0..250u32 {
        set.insert(&format!("{index:060}"), Tensor::from_slice([1], &[index]).unwrap()).unwrap();
    }
    near.sender().send_tensors(&set).unwrap();
    near.send(&[4; 4000]).unwrap();
    assert_eq!(receive(&mut far), [1; 4000]);
    assert_eq!(receive(&mut far), [2; 4000]);
    assert_eq!(receive(&mut far), long);
    let set = far.receiver().recv_tensors_deadline(soon()).unwrap().unwrap();
    for index in 0..250u32 {
        let tensor = set.get(format!("{index:060}").as_str()).unwrap();
        assert_eq!(tensor.to_vec::<u32>().unwrap(), [index]);
    }
    assert_eq!(receive(&mut far), [4; 4000]);
}

#[test]
fn a_stream_between_threads_moves_while_it_is_read() {
    for seed in 0..30 {
        let (mut near, mut far) = pair(Options::new());
        thread::scope(|scope| {
            scope.spawn(move || {
                let mut random = Random(seed);
                for number in 0..5000u64 {
                    near.send(&body(number, 8 + random.below(500) as usize)).unwrap();
                }
            });
            let mut random = Random(seed);
            for number in 0..5000u64 {
                assert_eq!(receive(&mut far), body(number, 8 + random.below(500) as usize));
            }
        });
    }
}

#[test]
fn links_of_a_reactor_move() {
    let context = Context::new().unwrap();
    let (near, far) = pair_of(&context, &context);
    let reactor = Reactor::spawn(&context).unwrap();
    let (near, far) = (reactor.adopt(near).unwrap(), reactor.adopt(far).unwrap());
    let (got, gets) = channel();
    far.on_message(move |link, message| {
        let _ = got.send(message.to_vec());
        link.write(message.to_vec());
    });
    let (back, comes_back) = channel();
    near.on_message(move |_, message| {
        let _ = back.send(message.to_vec());
    });
    for number in 0..2000u64 {
        near.write(body(number, 100));
    }
    for channel in [gets, comes_back] {
        for number in 0..2000u64 {
            assert_eq!(channel.recv_timeout(HANG).unwrap(), body(number, 100));
        }
    }
    reactor.shutdown();
}

#[test]
fn a_reactor_counts_the_pages_of_a_long_ring_in_parts() {
    const RING: u64 = 256 << 20;
    let (near, far) = (Context::with_options(Options::new().ring_capacity(RING)), Context::new());
    let (mut near, far) = pair_of(&near.unwrap(), far.as_ref().unwrap());
    let reactor = Reactor::spawn(&Context::new().unwrap()).unwrap();
    let far = reactor.adopt(far).unwrap();
    let (got, gets) = channel();
    far.on_message(move |_, message| {
        let _ = got.send(message.to_vec());
    });
    for number in 0..2000u64 {
        near.send(&body(number, 100)).unwrap();
    }
    for number in 0..2000u64 {
        assert_eq!(gets.recv_timeout(HANG).unwrap(), body(number, 100));
    }
    reactor.shutdown();
}

#[test]
fn a_process_without_memory_stays_in_the_first_ring() {
    alone("a_process_without_memory_stays_in_the_first_ring", || {
        let (mut near, mut far) = pair(Options::new());
        limit_files(64 << 10);
        let filled = fill(&mut near, &[7; 56]);
        assert!(filled < FIRST, "{filled} bytes");
        (0..filled / 56).for_each(|_| assert_eq!(receive(&mut far), [7; 56]));
        near.send(b"short").unwrap();
        assert_eq!(receive(&mut far), b"short");

        // What is longer than that ring says why it has no room, and nothing of it is sent.
        let (mut near, mut far) = pair(Options::new());
        let mut batch = near.sender().batch().unwrap();
        let error = (0..).find_map(|_| batch.push(&[7; 1000]).err()).unwrap();
        let is_limit = matches!(error.kind(), ErrorKind::FileSizeLimit { bytes: 1_048_576, .. });
        assert!(is_limit, "{error}");
        let count = batch.len();
        assert_eq!(count, 16);
        batch.publish().unwrap();
        (0..count).for_each(|_| assert_eq!(receive(&mut far), [7; 1000]));
    });
}

#[test]
fn what_a_dead_peer_had_sent_is_received_over_the_move() {
    let (stage, hello) = (&mut Stage::new(Options::new()), movable());
    let (mut link, mut peer) = stage.link_with(hello);
    peer.say(b"one");
    let ring = peer.send_ring();
    peer.move_to(ring);
    peer.say(b"two");
    drop(peer);
    assert_eq!(receive(&mut link), b"one");
    assert_eq!(receive(&mut link), b"two");
    assert!(link.receiver().recv_deadline(soon()).is_err());
    stage.is_undisturbed();
}

#[test]
fn records_without_end_after_the_end_of_the_peer_are_a_fault_in_the_second_ring_too() {
    let stage = &mut Stage::new(Options::new());
    let (mut link, mut peer) = stage.link_with(movable());
    let ring = peer.send_ring();
    peer.move_to(ring);
    peer.fill_ring(raw::message(8), &[1; 8]);
    drop(peer);
    let met = loop {
        match link.receiver().recv_deadline(soon()) {
            Ok(message) => assert_eq!(message.unwrap(), [1; 8]),
            Err(error) => break error,
        }
    };
    assert!(matches!(met.kind(), ErrorKind::Fault(Fault::RecordsAfterEnd { .. })), "{met}");
    stage.is_undisturbed();
}

#[test]
fn second_rings_count_for_their_peers() {
    alone("second_rings_count_for_their_peers", || {
        // The segments of both sides and two second rings have room, a third ring has none.
        let limit = 2 * (1 << 20) + 7 * (24 << 10);
        let options = Options::new().link_limit(Resource::MappedBytes, 1 << 30);
        // A process has two thirds of what its user has.
        let options = options.user_limit(Resource::MappedBytes, limit * 3 / 2 + 1);
        let near = Context::new().unwrap();
        let far = Context::with_options(options).unwrap();
        let mut links: Vec<_> = (0..3).map(|_| pair_of(&near, &far)).collect();
        let moves = |(near, far): &mut (Connection, Connection)| {
            for number in 0..400 {
                near.send(&body(number, 56)).unwrap();
            }
            (0..400).try_for_each(|number| {
                let received = far.receiver().recv_deadline(soon())?;
                assert_eq!(received.unwrap(), body(number, 56));
                Ok::<_, slipring::Error>(())
            })
        };
        moves(&mut links[0]).unwrap();
        moves(&mut links[1]).unwrap();
        let error = moves(&mut links[2]).unwrap_err();
        let is_full =
            matches!(error.kind(), ErrorKind::AccountFull { resource: "mapped bytes", .. });
        assert!(is_full, "{error}");
        // What a link had counts no more once it is gone.
        links.truncate(1);
        wait_until("room", || moves(&mut pair_of(&near, &far)).is_ok());
        moves(&mut links[0]).unwrap();
    });
}

/// A peer that may move.
fn movable() -> Hello {
    Hello { second_ring: 128 << 10, ..Hello::honest() }
}

/// The fault of a link whose movable peer has done this.
fn fault_after(stage: &mut Stage, lie: impl FnOnce(&mut RawPeer)) -> Fault {
    let (mut link, mut peer) = stage.link_with(movable());
    peer.say(b"one");
    assert_eq!(receive(&mut link), b"one");
    lie(&mut peer);
    let met = fault(link.receiver().recv_deadline(soon()));
    stays_faulty(&mut link, met);
    met
}

fn field(field: &'static str, value: u64) -> Fault {
    Fault::Field { field, value }
}

#[test]
fn a_peer_that_lies_about_its_second_ring_ends_its_link() {
    let stage = &mut Stage::new(Options::new());
    let moved = header(raw::MOVED, 0);
    let unknown = Fault::UnknownSegment { segment: 0 };
    // A move without a ring.
    assert_eq!(fault_after(stage, |peer| peer.publish(moved, &[])), unknown);
    // A move by a peer that announced none.
    let (mut link, mut peer) = stage.link();
    peer.publish(moved, &[]);
    assert_eq!(fault(link.receiver().recv_deadline(soon())), unknown);
    // A second move.
    let met = fault_after(stage, |peer| {
        let ring = peer.send_ring();
        peer.move_to(ring);
        peer.publish(moved, &[]);
    });
    assert_eq!(met, unknown);
    // A move with bits or a payload.
    for word in [moved | 1 << 8, moved | 1 << 9, moved | 1 << 11, header(raw::MOVED, 8)] {
        let met = fault_after(stage, |peer| peer.header(word));
        assert_eq!(met, Fault::RecordHeader { header: word });
    }
    // A ring of another length than announced, a second one, one without an announcement, one with a number.
    for len in [0, page(), 64 << 10, (128 << 10) + 1, 256 << 10, u64::MAX] {
        let met = fault_after(stage, |peer| {
            let (fd, _memory) = segment(128 << 10);
            raw::send(&peer.socket, &ring_packet(len), &[fd.as_fd()]).unwrap();
            peer.publish(moved, &[]);
        });
        assert_eq!(met, field("segment.len", len));
    }
    let met = fault_after(stage, |peer| {
        let ring = peer.send_ring();
        peer.move_to(ring);
        peer.send_ring();
        peer.announce();
    });
    assert_eq!(met, field("segment.len", 128 << 10));
    let (mut link, mut peer) = stage.link();
    let (fd, _memory) = segment(page());
    raw::send(&peer.socket, &ring_packet(page()), &[fd.as_fd()]).unwrap();
    peer.announce();
    assert_eq!(fault(link.receiver().recv_deadline(soon())), field("segment.len", page()));
    let met = fault_after(stage, |peer| {
        let (fd, _memory) = segment(128 << 10);
        let mut packet = ring_packet(128 << 10);
        packet[16] = 1;
        raw::send(&peer.socket, &packet, &[fd.as_fd()]).unwrap();
        peer.announce();
    });
    assert_eq!(met, field("segment.segment", 1));
    // Memory that is no segment.
    let sparse = fault_after(stage, |peer| {
        let (fd, _memory) = memfd(128 << 10, false, raw::SEALS);
        raw::send(&peer.socket, &ring_packet(128 << 10), &[fd.as_fd()]).unwrap();
        peer.publish(moved, &[]);
    });
    assert!(matches!(sparse, Fault::Sparse { .. }), "{sparse:?}");
    let unsealed = fault_after(stage, |peer| {
        let (fd, _memory) = memfd(128 << 10, true, SealFlags::empty());
        raw::send(&peer.socket, &ring_packet(128 << 10), &[fd.as_fd()]).unwrap();
        peer.publish(moved, &[]);
    });
    assert!(matches!(unsealed, Fault::Seals { .. }), "{unsealed:?}");
    stage.is_undisturbed();
}

#[test]
fn a_position_that_cannot_be_after_a_move_ends_the_link() {
    let stage = &mut Stage::new(Options::new());
    for (good, bad) in [
        // Backwards in the first ring, between the rings, beyond what is written, and back in the first ring.
        (128, 64),
        (64, 20 << 10),
        (64, 3 << 20),
        (1 << 20, 128),
        (64, 65),
    ] {
        let (mut link, peer) = stage.link();
        fill(&mut link, &[7; 56]);
        let told = |link: &mut Connection| link.sender().try_send(&[7; 56]);
        peer.position(good);
        match told(&mut link) {
            Ok(()) | Err(TrySendError::Full { .. }) => {}
            Err(TrySendError::Failed(error)) => panic!("{good}: {error}"),
        }
        peer.position(bad);
        let met = loop {
            match told(&mut link) {
                Ok(()) => {}
                Err(TrySendError::Failed(error)) => break error,
                Err(TrySendError::Full { .. }) => panic!("{bad} is admitted"),
            }
        };
        let is_fault = matches!(
            met.kind(),
            ErrorKind::Fault(Fault::Position { position, .. }) if *position == bad
        );
        assert!(is_fault, "{good}, {bad}: {met}");
    }
    stage.is_undisturbed();
}

#[test]
fn a_sender_that_sleeps_for_room_in_its_second_ring_is_woken() {
    let (mut near, mut far) = pair(Options::new());
    let filled = fill(&mut near, &[7; 56]) / 56;
    thread::scope(|scope| {
        let sending = scope.spawn(|| {
            near.sender().send_deadline(&[9; 56], soon()).unwrap();
            near
        });
        wait_until("the sender sleeps", || far.stats().recv_queue > 0);
        (0..filled).for_each(|_| assert_eq!(receive(&mut far), [7; 56]));
        assert_eq!(receive(&mut far), [9; 56]);
        sending.join().unwrap();
    });
}

/// Fills the queue of the peer's socket with wake-ups, and reads nothing. Returns the peer's position.
fn fill_socket(link: &mut Connection, peer: &RawPeer) -> u64 {
    let mut position = 0;
    for epoch in 1..600u64 {
        peer.own.store(raw::RECEIVER_STATE, epoch << 3 | 2);
        link.sender().try_send(&[1; 8]).unwrap();
        position += 64;
        peer.position(position);
    }
    peer.own.store(raw::RECEIVER_STATE, 0);
    position
}

fn count_rings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("slipring.ring")).count()
}

#[test]
fn a_peer_that_reads_no_packets_costs_one_ring() {
    alone("a_peer_that_reads_no_packets_costs_one_ring", || {
        let mut stage = Stage::new(Options::new());
        let (mut link, peer) = stage.link();
        fill_socket(&mut link, &peer);
        let filled = fill(&mut link, &[7; 56]);
        assert!(filled < FIRST, "{filled} bytes");
        let before = count_rings();
        for _ in 0..1000 {
            assert!(link.sender().try_send(&[7; 56]).is_err());
        }
        assert_eq!(count_rings(), before);
        stage.is_undisturbed();
    });
}

#[test]
fn what_is_longer_than_the_first_ring_waits_for_the_socket() {
    let mut stage = Stage::new(Options::new());
    let (mut link, peer) = stage.link();
    fill_socket(&mut link, &peer);
    let mut batch = link.sender().batch().unwrap();
    let full = (0..100).find_map(|_| batch.try_push(&[7; 1000]).err()).unwrap();
    assert!(matches!(full, TrySendError::Full { .. }), "{full}");
    drop(batch);
    let mut set = TensorSet::new();
    for index in 0..250u32 {
        set.insert(&format!("{index:060}"), Tensor::from_slice([1], &[index]).unwrap()).unwrap();
    }
    thread::scope(|scope| {
        let sending = scope.spawn(|| link.sender().send_tensors_deadline(&set, soon()));
        thread::sleep(Duration::from_millis(50));
        // The ring is empty, and no position makes room.
        let mut packet = [0; 128];
        let flags = rustix::net::RecvFlags::DONTWAIT;
        while !sending.is_finished() {
            let _ = rustix::net::recv(&peer.socket, &mut packet, flags);
        }
        sending.join().unwrap().unwrap();
    });
}

#[test]
fn a_ring_comes_behind_all_packets_that_no_record_has_told_of() {
    let stage = &mut Stage::new(Options::new());
    for wakes in [0, 95, 96, 128] {
        let (mut link, mut peer) = stage.link_with(movable());
        for number in 0..32 {
            peer.send_segment(number, page());
        }
        for _ in 0..wakes {
            raw::send(&peer.socket, &raw::wake_packet(1), &[]).unwrap();
        }
        let ring = peer.send_ring();
        peer.move_to(ring);
        peer.say(b"two");
        assert_eq!(receive(&mut link), b"two", "{wakes} wake-ups");
    }
}

#[test]
fn a_node_that_cannot_be_bound_costs_no_ring() {
    let mut stage = Stage::new(Options::new().numa_of_receiver(true));
    let (mut link, _peer) = stage.link_with(Hello { numa_node: 900, ..Hello::honest() });
    let filled = fill(&mut link, &[7; 56]);
    assert!(filled > 900_000, "{filled} bytes");
}
