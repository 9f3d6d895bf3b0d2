//! The segments of our pool that a peer has been sent.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;

use crate::error::{Error, ErrorKind, Result};
use crate::transport::arrivals::SEGMENTS;
use crate::transport::hello::Packet;
use crate::transport::link::{Link, Session};
use crate::transport::socket;

/// Packets that are posted at most before a record says so: far fewer than a socket's queue holds, as
/// the reader takes them only when a record makes it.
const UNANNOUNCED: u32 = 32;

/// What the peer has been sent, and what it has been told of that.
#[derive(Debug, Default)]
pub(super) struct SentSegments {
    /// Number → length in bytes, in the order in which the pool made them.
    lens: BTreeMap<u32, u64>,
    /// Packets on the socket of which no record has told. A record that names a segment does not count:
    /// a reader that knows the segment from before need not look at its socket.
    unannounced: u32,
}

/// Whether a block's segment can be named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Offered {
    Known,
    /// The socket's queue is full, or the peer holds blocks of everything that it maps.
    NoRoom,
    /// A record must tell of the packets first.
    Unannounced,
}

impl SentSegments {
    /// Makes sure that the peer knows a segment.
    #[inline]
    pub(super) fn offer(&mut self, session: &Session, segment: u32) -> Result<Offered> {
        if self.lens.contains_key(&segment) {
            return Ok(Offered::Known);
        }
        self.send(session, segment)
    }

    /// A record has told of all packets.
    pub(super) fn announced(&mut self) {
        self.unannounced = 0;
    }

    #[cold]
    fn send(&mut self, session: &Session, segment: u32) -> Result<Offered> {
        let Session { link, core, .. } = session;
        // What the pool has dropped since is room for what comes.
        let dropped = self.without(|segment| core.pool.holds(segment));
        let retired = self.retire(link, &dropped, |_| false)?;
        if retired != Offered::Known {
            return Ok(retired);
        }
        let Some((fd, len, frozen)) = core.pool.segment_of(segment)? else {
            return Ok(Offered::NoRoom);
        };
        let quota = link.terms.peer_pool_limit;
        if len > quota {
            let used = self.bytes();
            return Err(ErrorKind::PoolExhausted { needed: len, used, quota }.into());
        }
        let fits = |sent: &Self| len <= quota - sent.bytes() && sent.lens.len() < SEGMENTS;
        if !fits(self) {
            // So is what the peer has returned wholly; it is sent anew when it is needed again.
            let lent = core.pool.lent_to(link.borrower);
            let idle = self.without(|segment| lent.contains(&segment));
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
            self.lens.insert(segment, len);
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
                Offered::Known => drop(self.lens.remove(&segment)),
                unsent => return Ok(unsent),
            }
        }
        Ok(Offered::Known)
    }

    fn post(&mut self, link: &Link, packet: Packet, fd: Option<&OwnedFd>) -> Result<Offered> {
        if self.unannounced >= UNANNOUNCED {
            return Ok(Offered::Unannounced);
        }
        match socket::send(&link.socket, &packet.encode(), fd.map(AsFd::as_fd)) {
            Ok(true) => {
                self.unannounced += 1;
                Ok(Offered::Known)
            }
            Ok(false) => Ok(Offered::NoRoom),
            Err(Errno::PIPE | Errno::CONNRESET) => {
                // It reads no packets any more, so it is done with the link.
                link.hang_up();
                Err(link.end())
            }
            Err(errno) => Err(Error::os("sendmsg", errno)),
        }
    }

    fn without(&self, keep: impl Fn(u32) -> bool) -> Vec<u32> {
        self.lens.keys().copied().filter(|segment| !keep(*segment)).collect()
    }

    /// Never more than the peer's limit.
    fn bytes(&self) -> u64 {
        self.lens.values().sum()
    }
}
