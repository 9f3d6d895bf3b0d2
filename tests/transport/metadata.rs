//! Metadata arrives beside each kind of message, by each way that the message takes. A lie about it ends the link that
//! told it.

use std::time::{SystemTime, UNIX_EPOCH};

use slipring::error::{Fault, MetadataFault};
use slipring::message::{MessageKind, Metadata, Value};
use slipring::{Connection, ErrorKind, Options, meta};

use crate::support::raw::{
    self, CLOSE, Lent, MESSAGE, MORE, POOLED, REQUEST, RESPONSE, RawPeer, TIGHT,
};
use crate::support::{Stage, fault, pair, soon};

/// The mark of metadata.
const META: u64 = 1 << 11;

/// Messages that lie in the header's line, beside it, behind it, and in the pool.
const SIZES: [usize; 9] = [0, 1, 40, 56, 57, 513, 4096, 4097, 1 << 18];

fn values() -> Metadata {
    meta! { "stamp" => UNIX_EPOCH, "frame" => -7, "exposure" => 0.02, "camera" => "left", "keyframe" => true }
        .unwrap()
}

/// The longest metadata.
fn longest() -> Metadata {
    let text = "x".repeat(255);
    meta! { "a" => &text, "b" => &text[..246] }.unwrap()
}

#[test]
fn metadata_arrives_with_messages_of_every_size() {
    let (mut near, mut far) = pair(Options::new());
    for metadata in [values(), longest(), Metadata::new()] {
        for size in SIZES {
            let message: Vec<u8> = (0..size).map(|at| (at * 31) as u8).collect();
            near.sender().send_with(&message, &metadata).unwrap();
            near.sender().try_send_with(&message, &metadata).unwrap();
            near.sender().send_with_deadline(&message, &metadata, soon()).unwrap();
            let mut room = near.sender().reserve_with(size, &metadata).unwrap();
            room.copy_from_slice(&message);
            room.publish().unwrap();
            near.send(b"plain").unwrap();

            let expected = (message, metadata.clone());
            let receiver = far.receiver();
            assert_eq!(receiver.recv_with().unwrap().as_ref(), Some(&expected));
            assert_eq!(receiver.try_recv_with().unwrap().as_ref(), Some(&expected));
            assert_eq!(receiver.recv_with_deadline(soon()).unwrap().as_ref(), Some(&expected));
            let received = receiver.peek().unwrap().unwrap();
            assert_eq!((received.bytes().to_vec(), received.metadata().clone()), expected);
            let received = receiver.peek().unwrap().unwrap();
            assert_eq!((received.bytes().to_vec(), received.metadata().clone()), expected);
            received.release().unwrap();
            let plain = receiver.peek().unwrap().unwrap();
            assert!(plain.metadata().is_empty() && plain.len() == 5);
            plain.release().unwrap();
        }
    }
    assert_eq!(near.stats().sent.bytes, far.stats().received.bytes);
}

#[test]
fn who_asks_for_the_message_alone_gets_it() {
    let (mut near, mut far) = pair(Options::new());
    let mut buffer = vec![0; 1 << 20];
    for size in SIZES {
        let message: Vec<u8> = (0..size).map(|at| (at * 31) as u8).collect();
        for _ in 0..4 {
            near.sender().send_with(&message, &values()).unwrap();
        }
        assert_eq!(far.recv().unwrap().unwrap(), message);
        let mut into = Vec::new();
        far.receiver().recv_into(&mut into).unwrap();
        assert_eq!(into, message);
        let len = far.receiver().recv_to(&mut buffer).unwrap().unwrap();
        assert_eq!(buffer[..len], message);
        let mut seen = Vec::new();
        far.receiver().drain(9, |kind, bytes| seen.push((kind, bytes.to_vec()))).unwrap();
        assert_eq!(seen, [(MessageKind::Message, message)]);
    }
}

#[test]
fn a_shortened_reservation_keeps_its_metadata() {
    let (mut near, mut far) = pair(Options::new());
    for (size, left) in [(600, 500), (600, 3), (57, 8), (8, 0), (5000, 4)] {
        let mut room = near.sender().reserve_with(size, &values()).unwrap();
        room.iter_mut().enumerate().for_each(|(at, byte)| *byte = at as u8);
        room.truncate(left);
        assert_eq!(room.len(), left);
        room.publish().unwrap();
        let (message, metadata) = far.receiver().recv_with().unwrap().unwrap();
        assert!(
            message.len() == left && message.iter().enumerate().all(|(at, byte)| *byte == at as u8)
        );
        assert_eq!(metadata, values());
    }
}

#[test]
fn a_batch_carries_metadata() {
    let (mut near, mut far) = pair(Options::new());
    let mut batch = near.sender().batch().unwrap();
    batch.push(b"plain").unwrap();
    batch.push_with(b"one", &values()).unwrap();
    batch.push_with(&[7; 4000], &longest()).unwrap();
    batch.push(b"plain").unwrap();
    batch.publish().unwrap();
    let mut received = || far.receiver().recv_with().unwrap().unwrap();
    assert_eq!(received(), (b"plain".to_vec(), Metadata::new()));
    assert_eq!(received(), (b"one".to_vec(), values()));
    assert_eq!(received(), (vec![7; 4000], longest()));
    assert_eq!(received(), (b"plain".to_vec(), Metadata::new()));
}

#[test]
fn requests_and_responses_carry_metadata_also_when_they_are_set_aside() {
    let (mut near, mut far) = pair(Options::new());
    for size in SIZES {
        let body = vec![7; size];
        let id = near.submit_with(&body, &values()).unwrap();
        let request = far.recv_request().unwrap().unwrap();
        assert_eq!((request.id, &request.body, &request.metadata), (id, &body, &values()));
        // Both stand before the response, and then in the backlog.
        far.sender().send_with(&body, &longest()).unwrap();
        let back = far.submit_with(&body, &values()).unwrap();
        far.sender().respond_with(id, &body, &longest()).unwrap();
        assert_eq!(near.wait_with(id).unwrap(), (body.clone(), longest()));
        let received = near.receiver().peek().unwrap().unwrap();
        assert_eq!(received.metadata(), &longest());
        assert_eq!(near.receiver().recv_with().unwrap().unwrap(), (body.clone(), longest()));
        let request = near.recv_request().unwrap().unwrap();
        assert_eq!((request.id, &request.metadata), (back, &values()));
        near.sender().try_respond_with(back, &body, &values()).unwrap();
        // Who does not ask for it gets the body alone.
        assert_eq!(far.wait(back).unwrap(), body);
    }
}

/// A section, from its entries.
fn section(entries: &[u8]) -> Vec<u8> {
    let mut bytes = (entries.len() as u16).to_le_bytes().to_vec();
    bytes.extend(entries);
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    bytes
}

/// An entry `name` with an integer.
fn integer(name: &str, value: i64) -> Vec<u8> {
    let mut bytes = vec![1, name.len() as u8];
    bytes.extend(name.as_bytes());
    bytes.extend(value.to_le_bytes());
    bytes
}

/// A record as it is told.
fn publish(peer: &mut RawPeer, kind: u64, payload: &[u8]) {
    let tight = if (57..=512).contains(&payload.len()) { TIGHT } else { 0 };
    peer.publish(raw::header(kind | tight, payload.len() as u64), payload);
}

fn receive(link: &mut Connection) -> slipring::Result<Option<(Vec<u8>, Metadata)>> {
    link.receiver().recv_with_deadline(soon())
}

#[test]
fn a_peer_that_has_the_wire_format_alone_sends_metadata() {
    let mut stage = Stage::new(Options::new());
    let (mut link, mut peer) = stage.link();
    let section = section(&[integer("frame", 7), vec![3, 1, b'c', 2, b'o', b'k']].concat());
    publish(&mut peer, MESSAGE | META, &[&section[..], b"hello"].concat());
    let (message, metadata) = receive(&mut link).unwrap().unwrap();
    assert_eq!(message, b"hello");
    let values: Vec<_> = metadata.iter().collect();
    assert_eq!(values, [("frame", Value::Integer(7)), ("c", Value::String("ok"))]);

    publish(&mut peer, REQUEST | META, &[&9u64.to_le_bytes()[..], &section, b"ask"].concat());
    let request = link.receiver().recv_request_deadline(soon()).unwrap().unwrap();
    assert_eq!((&request.body[..], request.metadata), (&b"ask"[..], metadata.clone()));

    peer.send_segment(0, raw::page());
    peer.pool[0].1.write(64, b"in pool.");
    let lent = Lent { segment: 0, slot: 0, offset: 64, len: 8, generation: 1 };
    peer.publish(
        raw::header(MESSAGE | META | POOLED, section.len() as u64 + 32),
        &[section, lent.encode()].concat(),
    );
    assert_eq!(receive(&mut link).unwrap().unwrap(), (b"in pool.".to_vec(), metadata));
}

#[test]
fn each_lie_about_metadata_is_a_fault() {
    let one = integer("a", 1);
    let header =
        |kind: u64, len: usize| Fault::RecordHeader { header: raw::header(kind, len as u64) };
    let lies = [
        (MESSAGE | META, Vec::new(), Fault::Metadata(MetadataFault::Len { len: 0, max: 512 })),
        (MESSAGE | META, section(&[]), Fault::Metadata(MetadataFault::Len { len: 0, max: 512 })),
        (
            MESSAGE | META,
            section(&[0; 513]),
            Fault::Metadata(MetadataFault::Len { len: 513, max: 512 }),
        ),
        (MESSAGE | META, section(&one)[..8].to_vec(), header(MESSAGE | META, 8)),
        (MESSAGE | META, vec![5], header(MESSAGE | META, 1)),
        (
            MESSAGE | META,
            section(&integer("", 1)),
            Fault::Metadata(MetadataFault::Name { len: 0, max: 63 }),
        ),
        (
            MESSAGE | META,
            section(&[one.clone(), one.clone()].concat()),
            Fault::Metadata(MetadataFault::SameName { first: 0, second: 1 }),
        ),
        (
            MESSAGE | META,
            section(&[6, 1, b'a']),
            Fault::Metadata(MetadataFault::Type { index: 0, code: 6 }),
        ),
        (MESSAGE | META, section(&one[..10]), Fault::Metadata(MetadataFault::Cut { index: 0 })),
        (REQUEST | META, vec![0; 7], header(REQUEST | META, 7)),
        (REQUEST | META, vec![0; 8], Fault::Metadata(MetadataFault::Len { len: 0, max: 512 })),
        (
            RESPONSE | META,
            [vec![1; 8], section(&one)].concat(),
            Fault::UnknownRequest { id: 0x0101_0101_0101_0101 },
        ),
        (MESSAGE | META | POOLED, section(&one), header(MESSAGE | META | POOLED, 16)),
        (
            MESSAGE | META | POOLED,
            [section(&one), vec![0; 24]].concat(),
            header(MESSAGE | META | POOLED, 40),
        ),
        (CLOSE | META, Vec::new(), header(CLOSE | META, 0)),
        (5 | META, vec![0; 4], header(5 | META, 4)),
        (6 | META, Vec::new(), header(6 | META, 0)),
        (7 | META | 1 << 24, Vec::new(), Fault::Metadata(MetadataFault::Len { len: 0, max: 512 })),
        (7 | META | 1 << 24 | 1 << 16, section(&one), header(7 | META | 1 << 24 | 1 << 16, 16)),
        (
            MESSAGE | META | MORE | 1 << 12,
            section(&one),
            header(MESSAGE | META | MORE | 1 << 12, 16),
        ),
    ];
    let mut stage = Stage::new(Options::new());
    for (kind, payload, expected) in lies {
        let (mut link, mut peer) = stage.link();
        peer.publish(raw::header(kind, payload.len() as u64), &payload);
        assert_eq!(fault(receive(&mut link)), expected, "{kind:#x} {payload:?}");
        assert!(link.send(b"over").is_err());
    }
    stage.is_undisturbed();
}

#[test]
fn metadata_is_checked_in_a_private_copy() {
    // The peer changes the section after the receiver has seen the message: what was checked stays.
    let mut stage = Stage::new(Options::new());
    let (mut link, mut peer) = stage.link();
    let section = section(&integer("frame", 7));
    publish(&mut peer, MESSAGE | META, &[&section[..], b"x"].concat());
    assert!(link.receiver().peek_deadline(soon()).unwrap().is_some());
    peer.write(8, &[0xFF; 16]);
    let received = link.receiver().peek_deadline(soon()).unwrap().unwrap();
    assert_eq!(received.metadata().get("frame"), Some(Value::Integer(7)));
    received.release().unwrap();
}

#[test]
fn bad_metadata_is_an_error_before_anything_is_sent() {
    let (mut near, mut far) = pair(Options::new());
    let bad = meta! { "a" => 1, "a" => 2 };
    let expected = ErrorKind::Metadata(MetadataFault::SameName { first: 0, second: 1 });
    assert_eq!(*bad.unwrap_err().kind(), expected);
    near.sender().send_with(b"next", &meta! { "t" => SystemTime::now() }.unwrap()).unwrap();
    assert_eq!(far.recv().unwrap().unwrap(), b"next");
}
