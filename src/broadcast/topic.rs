//! The topic as a subscriber receives it: the last packet of a join, behind the segments that its messages name.

use std::time::Instant;

use crate::account::Resource;
use crate::broadcast::layout::Geometry;
use crate::error::{Error, ErrorKind, Fault, Result};
use crate::handshake::packet::{PACKET, Packet, Topic};
use crate::handshake::socket::{self, Incoming, Received};
use crate::link::control_socket;
use crate::link::session::Session;
use crate::shm::PeerSegment;

fn is_segment(packet: &Received<PACKET>) -> bool {
    matches!(Packet::decode(&packet.bytes[..packet.len]), Ok(Packet::Segment { .. }))
}

/// Waits for the topic, behind the segments that its messages name. Returns it with its memory.
pub(super) fn receive(
    session: &Session,
    (since, deadline): (Instant, Instant),
) -> Result<(Topic, PeerSegment)> {
    let socket = session.link.socket();
    let mut packet = loop {
        match control_socket::receive(socket)? {
            Incoming::Packet(packet) if is_segment(&packet) => {
                session.link.control_socket().admit(packet, socket)?;
            }
            Incoming::Packet(packet) => {
                packet.is_whole(socket)?;
                break packet;
            }
            Incoming::End => return Err(ErrorKind::PeerClosed.into()),
            Incoming::Nothing => {
                if !socket::wait_readable(socket, Some(deadline))? {
                    let late = Error::from(ErrorKind::TimedOut { after: since.elapsed() });
                    let peer = session.link.peer_name();
                    return Err(late.waiting_for(format!("no topic came from {peer}")));
                }
            }
        }
    };
    let topic = match Packet::decode(&packet.bytes[..packet.len])? {
        Packet::Topic(topic) => topic,
        other => return Err(other.out_of_place().into()),
    };
    let count = packet.descriptors.len();
    let fd = if count == 1 { packet.descriptors.pop() } else { None };
    let fd = fd.ok_or(Fault::DescriptorCount { count, expected: 1 })?;
    let len = Geometry::of(&topic).topic_len();
    let account = session.link.account();
    let charges = [
        account.charge(Resource::Mappings, 1)?,
        account.charge(Resource::MappedBytes, len as u64)?,
    ];
    let peer = session.link.identity();
    let process = (peer.uid(), peer.pid());
    let segment = session.env.mapped().attach(process, &fd, (len, false), false, charges)?;
    fd.close_mapped();
    Ok((topic, segment))
}
