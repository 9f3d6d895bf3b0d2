//! Unit tests of `handshake::packet`.

use super::*;
use proptest::prelude::*;

fn hello() -> Hello {
    Hello {
        role: Role::Link,
        issues_membarrier: true,
        control_len: layout::len(256),
        ring_capacity: 64 << 10,
        second_ring: 1 << 20,
        loan_slots: 256,
        numa_node: None,
        max_message: 1 << 30,
        pool_limit: 1 << 32,
    }
}

const LIES: [u64; 10] = [
    0,
    1,
    (64 << 10) - 1,
    (64 << 10) + 1,
    1 << 31,
    (1 << 32) - 1,
    1 << 32,
    (1 << 40) + 1,
    1 << 63,
    u64::MAX,
];

type Honest = fn(u64) -> bool;

/// Every field of a Hello that `decode` checks: name, offset and length in bytes, and which other
/// values than the test's are no lies.
const FIELDS: [(&str, usize, usize, Honest); 18] = [
    ("magic", 0, 8, |_| false),
    ("kind", 8, 2, |_| false),
    ("head.zero", 10, 2, |_| false),
    ("descriptors", 12, 4, |_| false),
    ("version_min", 16, 2, |value| value == 0),
    ("version_max", 18, 2, |value| value >= 1),
    ("architecture", 20, 4, |_| false),
    ("flags", 24, 4, |value| value == 0),
    // A publisher has no policy either.
    ("role", 28, 4, |value| value == 1),
    ("control_len", 32, 8, |_| false),
    ("ring_capacity", 40, 8, |_| false),
    ("loan_slots", 48, 4, |value| value >= 1 && layout::len(value as u32) == 8192),
    ("numa_node", 52, 4, |value| value < 1024),
    ("max_message", 56, 8, |value| value > 0 && value <= 1 << 40),
    ("policy", 72, 4, |_| false),
    ("depth", 76, 4, |_| false),
    ("second_ring", 80, 8, |value| value == 0),
    ("hello.zero", 88, 8, |_| false),
];

#[test]
fn packets_survive_their_bytes() {
    for packet in [
        Packet::Hello(hello()),
        Packet::Hello(Hello { numa_node: Some(3), issues_membarrier: false, ..hello() }),
        Packet::Segment { segment: 7, len: 1 << 30, content: Content::Blocks },
        Packet::Segment { segment: 0, len: 4096, content: Content::Frozen },
        Packet::Segment { segment: 0, len: 1 << 20, content: Content::Ring },
        Packet::Retire { segment: u32::MAX },
        Packet::Wake(Reason::Data),
        Packet::Wake(Reason::Room),
        Packet::Descriptors { first: 1 << 40, count: 253 },
        Packet::Allocation { number: 1 << 40, len: 64 << 20, device: [7; 16] },
        Packet::Withdraw { number: 1 << 40 },
        Packet::Hello(Hello { role: Role::Publisher, ..hello() }),
        Packet::Hello(Hello { role: Role::Subscriber(Policy::Every), ..hello() }),
        Packet::Hello(Hello { role: Role::Subscriber(Policy::Newest(7)), ..hello() }),
        Packet::Hello(Hello { role: Role::Subscriber(Policy::Latest), ..hello() }),
        Packet::Topic(Topic {
            slots: 2,
            slot_len: 64,
            hold_limit: 1,
            history: 0,
            hold_bytes: 0,
            first: 1,
        }),
        Packet::Topic(Topic {
            slots: 65536,
            slot_len: 65536,
            hold_limit: 64,
            history: 65535,
            hold_bytes: u64::MAX,
            first: u64::MAX,
        }),
    ] {
        assert_eq!(Packet::decode(&packet.encode()).unwrap(), packet);
    }
}

#[test]
fn every_lying_field_of_a_hello_is_refused() {
    let honest = Packet::Hello(hello()).encode();
    for (name, offset, len, is_honest) in FIELDS {
        for lie in LIES {
            let mut bytes = honest;
            bytes[offset..offset + len].copy_from_slice(&lie.to_le_bytes()[..len]);
            let mut value = [0; 8];
            value[..len].copy_from_slice(&bytes[offset..offset + len]);
            let expected = bytes == honest || is_honest(u64::from_le_bytes(value));
            let decoded = Packet::decode(&bytes);
            assert_eq!(decoded.is_ok(), expected, "{name} = {lie:#x}: {decoded:?}");
        }
    }
}

#[test]
fn no_common_version_names_both_ranges() {
    let mut bytes = Packet::Hello(hello()).encode();
    bytes[16..20].copy_from_slice(&[2, 0, 9, 0]);
    let error = Packet::decode(&bytes).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::NoCommonVersion { ours: (1, 1), theirs: (2, 9) });
    assert_eq!(
        error.to_string(),
        "no common protocol version: this side speaks 1 to 1, the peer 2 to 9"
    );
}

#[test]
fn a_refusal_says_why() {
    let told = |reason| Packet::decode(&refusal(reason)).unwrap_err().kind().clone();
    assert_eq!(told(Refusal::NotAdmitted), ErrorKind::NotAdmittedByPeer);
    for (reason, code) in
        [(Refusal::BadHello, 2), (Refusal::BadSegment, 3), (Refusal::NoResources, 4)]
    {
        assert_eq!(told(reason), ErrorKind::RefusedByPeer { code });
    }
}

proptest! {
    #[test]
    fn any_bytes_are_judged(bytes in proptest::collection::vec(any::<u8>(), 0..160)) {
        let _ = Packet::decode(&bytes);
    }

    #[test]
    fn a_hello_with_any_byte_changed_is_judged(at in 0..PACKET, with in any::<u8>()) {
        let mut bytes = Packet::Hello(hello()).encode();
        bytes[at] = with;
        let _ = Packet::decode(&bytes);
    }
}
