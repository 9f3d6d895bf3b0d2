//! The pool segments that a peer has sent, mapped when a record first names them.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::error::{ErrorKind, Fault, Result};
use crate::shm::{PeerSegment, page_size};
use crate::transport::hello::{PACKET, Packet};
use crate::transport::socket::{self, Incoming, Received};

/// Segments of one peer that a side keeps mapped at most. Part of the wire format.
pub(super) const SEGMENTS: usize = 4096;

/// Packets read in search of one segment at most: every segment retired and sent anew. A peer that
/// sends more keeps this side reading for ever.
const PACKETS: usize = 2 * SEGMENTS;

#[derive(Debug)]
pub(super) struct PeerPool {
    segments: HashMap<u32, Arc<PeerSegment>>,
    /// The segment that was named last, which the next message is likely to name again.
    last: Option<(u32, Arc<PeerSegment>)>,
    /// Bytes of these.
    bytes: u64,
    limit: u64,
    prefault: bool,
}

impl PeerPool {
    /// A table for `limit` bytes of segments.
    pub(super) fn new(limit: u64, prefault: bool) -> Self {
        Self { segments: HashMap::new(), last: None, bytes: 0, limit, prefault }
    }

    /// The segment with this number. Reads the socket if it is not known yet: the peer sends a
    /// segment before it publishes a record that names it.
    pub(super) fn segment(&mut self, socket: &OwnedFd, segment: u32) -> Result<Arc<PeerSegment>> {
        if let Some((number, mapped)) = &self.last
            && *number == segment
        {
            return Ok(mapped.clone());
        }
        for _ in 0..PACKETS {
            if self.segments.contains_key(&segment) {
                break;
            }
            match socket::receive::<PACKET>(socket)? {
                Incoming::Packet(packet) => self.admit(packet)?,
                Incoming::Nothing | Incoming::End => break,
            }
        }
        match self.segments.get(&segment) {
            Some(mapped) => {
                self.last = Some((segment, mapped.clone()));
                Ok(mapped.clone())
            }
            None => Err(Fault::UnknownSegment { segment }.into()),
        }
    }

    fn admit(&mut self, mut packet: Received<PACKET>) -> Result<()> {
        let judged = Packet::decode(&packet.bytes[..packet.len])?;
        let (count, expected) = (packet.descriptors.len(), judged.descriptors());
        if count != expected {
            return Err(Fault::DescriptorCount { count, expected }.into());
        }
        match (judged, packet.descriptors.pop()) {
            (Packet::Segment { segment, len }, Some(fd)) => self.map(segment, len, fd),
            (Packet::Retire { segment }, _) => {
                self.last = None;
                if let Some(dropped) = self.segments.remove(&segment) {
                    self.bytes -= dropped.len() as u64;
                }
                Ok(())
            }
            (other, _) => Err(other.out_of_place().into()),
        }
    }

    fn map(&mut self, segment: u32, len: u64, fd: OwnedFd) -> Result<()> {
        let bytes = self.bytes.saturating_add(len);
        let segments = self.segments.len() + 1;
        if bytes > self.limit || segments > SEGMENTS {
            return Err(Fault::PeerPool { bytes, segments }.into());
        }
        if len == 0 || !len.is_multiple_of(page_size() as u64) {
            return Err(Fault::Field { field: "segment.len", value: len }.into());
        }
        if self.segments.contains_key(&segment) {
            return Err(Fault::Field { field: "segment.segment", value: segment.into() }.into());
        }
        let Ok(whole) = usize::try_from(len) else {
            return Err(ErrorKind::OutOfMemory { bytes: len }.into());
        };
        let mapped = PeerSegment::attach(fd, whole, whole, self.prefault)?;
        self.segments.insert(segment, Arc::new(mapped));
        self.bytes = bytes;
        Ok(())
    }
}
