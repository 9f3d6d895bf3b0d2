//! The announced segments: those of our pool whose descriptors the peer has received or will receive.
//!
//! 1. A record names a segment only after the segment's packet is on the socket.
//! 2. The announced segments of a peer together stay within the limit that the peer gave in the handshake.
//! 3. A segment is retired only when the peer holds no loan in it and has passed the last record that names it.
//! 4. After at most 32 packets that the peer has not read, a record tells it to read its socket. A record that names segments
//!    comes earlier, if the socket takes no further packet.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::error::{CudaFault, Error, ErrorKind, Result};
use crate::handshake::packet::{Content, Packet};
use crate::link::LinkSocket;
use crate::link::allocations::{
    ALLOCATIONS, AnnouncedAllocations, SharedAllocation, WithdrawalWay,
};
use crate::link::control_socket::SEGMENTS;
use crate::link::link::Link;
use crate::link::session::Session;

/// The most packets on the socket of which no record has told. The peer reads its socket only when a record says so,
/// so the number is far below what a socket's queue holds (`docs/wire.md`, packets record).
pub(crate) const UNANNOUNCED: u32 = 32;

/// How many known segments are found without a search: more than there are blocks of a length that has a segment for each.
const LATEST: usize = 8;

/// An announced segment.
#[derive(Debug, Clone, Copy)]
struct Sent {
    /// Its length in bytes.
    len: u64,
    /// The ring position of the last record that names the segment without a loan. Until the reader has passed it, the
    /// reader could take a later Retire packet first.
    named: Option<u64>,
}

impl Sent {
    /// Returns whether a reader at position `reader` has yet to read a record that names the segment.
    fn is_due(&self, reader: u64) -> bool {
        // Both positions lie less than 2^63 apart, so the difference is right where they wrap around.
        self.named.is_some_and(|named| reader.wrapping_sub(named).wrapping_sub(1) > u64::MAX / 2)
    }
}

/// The segments that one peer knows, and the packets that wait for it.
#[derive(Debug, Default)]
pub(crate) struct AnnouncedSegments {
    /// By number. Numbers count up, so the oldest comes first.
    segments: BTreeMap<u32, Sent>,
    /// Known segments of the latest queries, by the low bits of their numbers.
    latest: [Option<u32>; LATEST],
    packets: Arc<Packets>,
    /// `None`: the peer knows none yet.
    allocations: Option<Arc<AnnouncedAllocations>>,
}

/// The packets on the socket of which no packets record has told. A record that names a segment does not count: a reader
/// that has the segment in its cache does not read its socket.
#[derive(Debug, Default)]
struct Packets {
    untold: Mutex<Untold>,
}

#[derive(Debug, Default)]
struct Untold {
    count: u32,
    /// One of them concerns an allocation of a GPU, and the next record with a tensor there comes behind a packets record.
    of_allocations: bool,
}

impl Untold {
    /// Returns whether a record must tell of the packets before the next one.
    fn is_full(&mut self, link: &Link) -> bool {
        if self.count >= UNANNOUNCED && link.has_received_all() {
            // A record has no need to tell of packets that are read.
            self.count = 0;
        }
        self.count >= UNANNOUNCED
    }
}

impl Packets {
    /// Sends a packet. Any thread may.
    fn post(&self, link: &Link, packet: Packet, fd: Option<BorrowedFd<'_>>) -> Result<Offered> {
        let mut untold = self.untold();
        if untold.is_full(link) {
            return Ok(Offered::Unannounced);
        }
        if !link.post(&packet, fd.as_slice())? {
            // The peer may read the packets that fill the socket when a record tells of them, and not before.
            return Ok(if untold.count > 0 { Offered::Unannounced } else { Offered::NoRoom });
        }
        untold.count += 1;
        untold.of_allocations |=
            matches!(packet, Packet::Allocation { .. } | Packet::Withdraw { .. });
        Ok(Offered::Known)
    }

    /// Sends a packet of which a record tells next, as of all packets before it.
    fn post_told(&self, link: &Link, packet: Packet, fd: BorrowedFd<'_>) -> Result<bool> {
        // Under the lock: what another thread sends behind it counts.
        let mut untold = self.untold();
        let is_sent = link.post(&packet, &[fd])?;
        if is_sent {
            *untold = Untold::default();
        }
        Ok(is_sent)
    }

    fn untold(&self) -> MutexGuard<'_, Untold> {
        self.untold.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The way by which any thread sends a peer withdrawals.
struct PacketWay {
    link: Weak<Link>,
    packets: Arc<Packets>,
}

impl WithdrawalWay for PacketWay {
    fn withdraw(&self, number: u64) -> bool {
        // At the end of the link the peer closes all of them.
        self.link.upgrade().is_none_or(|link| {
            let posted = self.packets.post(&link, Packet::Withdraw { number }, None);
            posted.map_or(!link.is_alive(), |posted| posted == Offered::Known)
        })
    }

    fn socket(&self) -> Result<Option<OwnedFd>> {
        // The thread may watch the link's own one, too, for what comes.
        let socket = self.link.upgrade().map(LinkSocket::new);
        let copy = |socket: LinkSocket| rustix::io::fcntl_dupfd_cloexec(socket.as_fd(), 3);
        let copy = socket.map(copy).transpose();
        copy.map_err(|errno| Error::os("F_DUPFD_CLOEXEC", errno))
    }
}

/// Whether a record may name a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Offered {
    /// The peer knows the segment.
    Known,
    /// The socket's queue is full, or the peer holds loans in all segments that it maps.
    NoRoom,
    /// A packets record must come first.
    Unannounced,
}

impl AnnouncedSegments {
    /// Returns whether the peer knows a segment.
    #[inline]
    pub(crate) fn knows(&mut self, segment: u32) -> bool {
        let latest = &mut self.latest[segment as usize % LATEST];
        if *latest == Some(segment) {
            return true;
        }
        let known = self.segments.contains_key(&segment);
        if known {
            *latest = Some(segment);
        }
        known
    }

    /// Notes that the record at ring position `position` names a segment without a loan.
    pub(crate) fn name(&mut self, segment: u32, position: u64) {
        if let Some(sent) = self.segments.get_mut(&segment) {
            sent.named = Some(position);
        }
    }

    /// Notes that a record tells of all packets that were sent before it. The caller publishes it next: what another thread sends
    /// meanwhile counts, whether the record tells of it or not.
    pub(crate) fn announce_packets(&mut self) {
        *self.packets.untold() = Untold::default();
    }

    /// Announces a segment to the peer, whose reader is at position `reader`, and keeps the segments in `needed`. Up to `most`
    /// segments that the pool has dropped are retired first, and idle ones where the peer's limit leaves no room.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::PoolExhausted`]: the segment and those in `needed` together exceed the peer's limit.
    /// - Otherwise the socket's.
    #[cold]
    pub(crate) fn offer(
        &mut self,
        session: &Session,
        segment: u32,
        (reader, most): (u64, usize),
        needed: &[u32],
    ) -> Result<Offered> {
        let Session { link, env, .. } = session;
        let mut dropped = self.without(reader, |segment| env.pool().holds(segment));
        dropped.truncate(most);
        let retired = self.retire(link, &dropped, |_| false)?;
        if retired != Offered::Known {
            return Ok(retired);
        }
        let Some((fd, len, frozen)) = env.pool().segment_of(segment)? else {
            return Ok(Offered::NoRoom);
        };
        let quota = link.terms().peer_pool_limit;
        let fits = |sent: &Self| len <= quota - sent.bytes() && sent.segments.len() < SEGMENTS;
        if len > quota || !fits(self) {
            let beside =
                |(number, sent): (&u32, &Sent)| needed.contains(number).then_some(sent.len);
            let together = self.segments.iter().filter_map(beside).sum::<u64>().saturating_add(len);
            if together > quota {
                let used = self.bytes();
                return Err(ErrorKind::PoolExhausted { needed: together, used, quota }.into());
            }
            // Segments without loans make room next. They are announced anew when a record needs them.
            let lent = env.pool().lent_to(link.borrower());
            let stays = |segment| lent.contains(&segment) || needed.contains(&segment);
            let idle = self.without(reader, stays);
            let retired = self.retire(link, &idle, fits)?;
            if retired != Offered::Known {
                return Ok(retired);
            }
            if !fits(self) {
                return Ok(Offered::NoRoom);
            }
        }
        let content = if frozen { Content::Frozen } else { Content::Blocks };
        let sent =
            self.packets.post(link, Packet::Segment { segment, len, content }, Some(fd.as_fd()))?;
        if sent == Offered::Known {
            self.segments.insert(segment, Sent { len, named: None });
        }
        Ok(sent)
    }

    /// Announces allocations of GPUs that the peer does not know, after it has withdrawn those that are gone. After the last
    /// packet a packets record comes first, so that the peer has read its socket when a record names one of them.
    ///
    /// # Errors
    ///
    /// [`CudaFault::Announced`], and those of the socket.
    pub(crate) fn offer_allocations<'a>(
        &mut self,
        link: &Arc<Link>,
        named: impl Iterator<Item = &'a Arc<SharedAllocation>>,
    ) -> Result<Offered> {
        let packets = self.packets.clone();
        let allocations = self.allocations.get_or_insert_with(|| {
            let (link, packets) = (Arc::downgrade(link), packets.clone());
            AnnouncedAllocations::new(PacketWay { link, packets })
        });
        let withdrawn = allocations.withdraw_gone(|number| {
            match packets.post(link, Packet::Withdraw { number }, None) {
                Ok(Offered::Known) => Ok(()),
                unsent => Err(unsent),
            }
        });
        if let Err(unsent) = withdrawn {
            return unsent;
        }
        for allocation in named {
            if allocations.knows(allocation) {
                continue;
            }
            if !allocations.has_room() {
                return Err(CudaFault::Announced { limit: ALLOCATIONS }.into());
            }
            let (packet, fd) = allocation.announcement();
            match packets.post(link, packet, Some(fd))? {
                Offered::Known => allocations.announced(allocation),
                unsent => return Ok(unsent),
            }
        }
        let untold = packets.untold();
        Ok(if untold.of_allocations { Offered::Unannounced } else { Offered::Known })
    }

    /// Announces the second ring of this side, of which a record tells next. Returns `false` if the socket takes no packet
    /// now.
    pub(crate) fn offer_ring(&mut self, link: &Link, len: u64, fd: BorrowedFd<'_>) -> Result<bool> {
        let ring = Packet::Segment { segment: 0, len, content: Content::Ring };
        self.packets.post_told(link, ring, fd)
    }

    /// Retires segments one by one until there is `enough` room. The peer may unmap them.
    fn retire(
        &mut self,
        link: &Link,
        segments: &[u32],
        enough: impl Fn(&Self) -> bool,
    ) -> Result<Offered> {
        for &segment in segments {
            if enough(self) {
                break;
            }
            match self.packets.post(link, Packet::Retire { segment }, None)? {
                Offered::Known => {
                    self.latest = [None; LATEST];
                    self.segments.remove(&segment);
                }
                unsent => return Ok(unsent),
            }
        }
        Ok(Offered::Known)
    }

    /// Returns the segments that need not stay and that no unread record names.
    fn without(&self, reader: u64, stays: impl Fn(u32) -> bool) -> Vec<u32> {
        let idle = self.segments.iter().filter(|(_, sent)| !sent.is_due(reader));
        idle.map(|(number, _)| *number).filter(|number| !stays(*number)).collect()
    }

    /// Returns the bytes of all announced segments, which the peer's limit bounds.
    fn bytes(&self) -> u64 {
        self.segments.values().map(|sent| sent.len).sum()
    }
}

#[cfg(test)]
mod tests;
