//! The segments of our pool that a peer has been sent.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};

use crate::error::{ErrorKind, Result};
use crate::handshake::packet::Packet;
use crate::link::control_socket::SEGMENTS;
use crate::link::link::Link;
use crate::link::session::Session;

/// Packets that are posted at most before a record says so: far fewer than a socket's queue holds, as
/// the reader takes them only when a record makes it.
const UNANNOUNCED: u32 = 32;

/// A segment that the peer has been sent.
#[derive(Debug, Clone, Copy)]
struct Sent {
    /// Its length in bytes.
    len: u64,
    /// Where the last record starts that names it without a loan: a position in the ring. As long as the
    /// reader has not passed it, it may meet the record after a Retire that was sent later.
    named: Option<u64>,
}

impl Sent {
    /// Whether a reader that is at `reader` may still come upon its number.
    fn is_due(&self, reader: u64) -> bool {
        // Both lie within a ring's length of each other, wherever the count wraps around.
        self.named.is_some_and(|named| reader.wrapping_sub(named).wrapping_sub(1) > u64::MAX / 2)
    }
}

/// What the peer has been sent, and what it has been told of that.
#[derive(Debug, Default)]
pub(crate) struct AnnouncedSegments {
    /// By number, in the order in which the pool made them.
    segments: BTreeMap<u32, Sent>,
    /// The one that was asked for last.
    last: Option<u32>,
    /// Packets on the socket of which no record has told. A record that names a segment does not count:
    /// a reader that knows the segment from before need not look at its socket.
    unannounced: u32,
}

/// Whether a block's segment can be named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Offered {
    Known,
    /// The socket's queue is full, or the peer holds blocks of everything that it maps.
    NoRoom,
    /// A record must tell of the packets first.
    Unannounced,
}

impl AnnouncedSegments {
    /// Whether the peer knows a segment.
    #[inline]
    pub(crate) fn knows(&mut self, segment: u32) -> bool {
        if self.last == Some(segment) {
            return true;
        }
        let known = self.segments.contains_key(&segment);
        if known {
            self.last = Some(segment);
        }
        known
    }

    /// A record that starts at `position` of the ring names a segment of which nothing is lent.
    pub(crate) fn name(&mut self, segment: u32, position: u64) {
        if let Some(sent) = self.segments.get_mut(&segment) {
            sent.named = Some(position);
        }
    }

    /// A record has told of all packets.
    pub(crate) fn packets_announced(&mut self) {
        self.unannounced = 0;
    }

    /// Makes sure that the peer, whose reader is at `reader`, knows a segment beside those that `needed`
    /// names.
    #[cold]
    pub(crate) fn offer(
        &mut self,
        session: &Session,
        segment: u32,
        reader: u64,
        needed: &[u32],
    ) -> Result<Offered> {
        let Session { link, env, .. } = session;
        // What the pool has dropped since is room for what comes.
        let dropped = self.without(reader, |segment| env.pool().holds(segment));
        let retired = self.retire(link, &dropped, |_| false)?;
        if retired != Offered::Known {
            return Ok(retired);
        }
        let Some((fd, len, frozen)) = env.pool().segment_of(segment)? else {
            return Ok(Offered::NoRoom);
        };
        let quota = link.terms.peer_pool_limit;
        let fits = |sent: &Self| len <= quota - sent.bytes() && sent.segments.len() < SEGMENTS;
        if len > quota || !fits(self) {
            let beside =
                |(number, sent): (&u32, &Sent)| needed.contains(number).then_some(sent.len);
            let together = self.segments.iter().filter_map(beside).sum::<u64>().saturating_add(len);
            if together > quota {
                let used = self.bytes();
                return Err(ErrorKind::PoolExhausted { needed: together, used, quota }.into());
            }
            // So is what the peer has returned wholly; it is sent anew when it is needed again.
            let lent = env.pool().lent_to(link.borrower);
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
        let sent = self.post(link, Packet::Segment { segment, len, frozen }, Some(&fd))?;
        if sent == Offered::Known {
            self.segments.insert(segment, Sent { len, named: None });
        }
        Ok(sent)
    }

    /// Tells the peer that it need not map these any more, until there is `enough` room.
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
            match self.post(link, Packet::Retire { segment }, None)? {
                Offered::Known => {
                    self.last = None;
                    self.segments.remove(&segment);
                }
                unsent => return Ok(unsent),
            }
        }
        Ok(Offered::Known)
    }

    fn post(&mut self, link: &Link, packet: Packet, fd: Option<&OwnedFd>) -> Result<Offered> {
        if self.unannounced >= UNANNOUNCED {
            return Ok(Offered::Unannounced);
        }
        if !link.post(&packet, fd.map(AsFd::as_fd).as_slice())? {
            return Ok(Offered::NoRoom);
        }
        self.unannounced += 1;
        Ok(Offered::Known)
    }

    /// Those that need not stay, as far as the reader's position says.
    fn without(&self, reader: u64, stays: impl Fn(u32) -> bool) -> Vec<u32> {
        let idle = self.segments.iter().filter(|(_, sent)| !sent.is_due(reader));
        idle.map(|(number, _)| *number).filter(|number| !stays(*number)).collect()
    }

    /// Never more than the peer's limit.
    fn bytes(&self) -> u64 {
        self.segments.values().map(|sent| sent.len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_is_due_until_the_reader_has_passed_the_record_that_names_it() {
        for named in [0, 64, u64::MAX - 63, 1 << 63] {
            let sent = Sent { len: 4096, named: Some(named) };
            assert!(sent.is_due(named) && sent.is_due(named.wrapping_sub(64)));
            assert!(!sent.is_due(named.wrapping_add(64)));
            assert!(!sent.is_due(named.wrapping_add(1 << 40)));
        }
        assert!(!Sent { len: 4096, named: None }.is_due(0));
    }
}
