//! The entry of fuzz targets to the packets.

use crate::error::ErrorKind;
use crate::handshake::packet::Refusal::{BadHello, BadSegment, NoResources, NotAdmitted};
use crate::handshake::packet::{PACKET, Packet, refusal};

/// Decodes any bytes. A packet that decodes must encode to the same bytes.
pub fn packet(bytes: &[u8]) {
    match Packet::decode(bytes) {
        Ok(packet) => {
            let again = packet.encode();
            assert_eq!((again.len(), bytes.len()), (PACKET, PACKET));
            assert_eq!(Packet::decode(&again).unwrap(), packet);
            // A Hello's versions are the writer's own. `decode` ignores the bytes behind the other bodies.
            let looked_at = match packet {
                Packet::Hello(hello) => {
                    let len = hello.control_len + hello.ring_capacity;
                    assert_eq!(hello.extents().segment_len() as u64, len);
                    20..PACKET
                }
                Packet::Segment { .. } | Packet::Topic(_) => 0..32,
                Packet::Retire { .. } | Packet::Wake(_) => 0..20,
                Packet::Descriptors { .. } | Packet::Withdraw { .. } => 0..24,
                Packet::Allocation { .. } => 0..48,
            };
            assert_eq!(again[looked_at.clone()], bytes[looked_at], "{packet:?}");
        }
        Err(error) => {
            let code = match error.kind() {
                ErrorKind::NotAdmittedByPeer => 1,
                ErrorKind::RefusedByPeer { code } => *code,
                _ => return,
            };
            let known = [NotAdmitted, BadHello, BadSegment, NoResources];
            if let Some(reason) = known.into_iter().find(|reason| *reason as u32 == code) {
                let again = Packet::decode(&refusal(reason)).unwrap_err();
                assert_eq!(error.kind(), again.kind());
            }
        }
    }
}
