//! The segments of our pool that a peer has been sent.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;

use crate::error::{Error, ErrorKind, Result};
use crate::pool::Block;
use crate::transport::hello::Packet;
use crate::transport::link::{Link, Session};
use crate::transport::peer_pool::SEGMENTS;
use crate::transport::socket;

/// Number → length in bytes, in the order in which the pool made them.
#[derive(Debug, Default)]
pub(super) struct SentSegments(BTreeMap<u32, u64>);

impl SentSegments {
    /// Whether the peer knows a block's segment.
    #[inline]
    pub(super) fn has(&self, block: &Block) -> bool {
        self.0.contains_key(&block.segment())
    }

    /// Sends the peer the descriptor of a block's segment. `false`: the socket's queue is full, or
    /// the peer holds blocks of everything that it maps.
    #[cold]
    pub(super) fn send(&mut self, session: &Session, block: &Block) -> Result<bool> {
        let Session { link, core, .. } = session;
        // What the pool has dropped since is room for what comes.
        let dropped = self.without(|segment| core.pool.holds(segment));
        if !self.retire(link, &dropped, |_| false)? {
            return Ok(false);
        }
        let Some((fd, len)) = core.pool.segment_of(block)? else { return Ok(false) };
        let quota = link.terms.peer_pool_limit;
        if len > quota {
            let used = self.bytes();
            return Err(ErrorKind::PoolExhausted { needed: len, used, quota }.into());
        }
        let fits = |sent: &Self| len <= quota - sent.bytes() && sent.0.len() < SEGMENTS;
        if !fits(self) {
            // So is what the peer has returned wholly; it is sent anew when it is needed again.
            let lent = core.pool.lent_to(link.borrower);
            let idle = self.without(|segment| lent.contains(&segment));
            if !self.retire(link, &idle, fits)? || !fits(self) {
                return Ok(false);
            }
        }
        let segment = block.segment();
        let done = post(link, Packet::Segment { segment, len }, Some(&fd))?;
        if done {
            self.0.insert(segment, len);
        }
        Ok(done)
    }

    /// Tells the peer that it need not map these any more, until there is `enough` room. `false`:
    /// the socket's queue is full.
    fn retire(
        &mut self,
        link: &Link,
        segments: &[u32],
        enough: impl Fn(&Self) -> bool,
    ) -> Result<bool> {
        for &segment in segments {
            if enough(self) {
                break;
            }
            if !post(link, Packet::Retire { segment }, None)? {
                return Ok(false);
            }
            self.0.remove(&segment);
        }
        Ok(true)
    }

    fn without(&self, keep: impl Fn(u32) -> bool) -> Vec<u32> {
        self.0.keys().copied().filter(|segment| !keep(*segment)).collect()
    }

    /// Never more than the peer's limit.
    fn bytes(&self) -> u64 {
        self.0.values().sum()
    }
}

fn post(link: &Link, packet: Packet, fd: Option<&OwnedFd>) -> Result<bool> {
    match socket::send(&link.socket, &packet.encode(), fd.map(AsFd::as_fd)) {
        Err(Errno::PIPE | Errno::CONNRESET) => Err(link.end()),
        sent => sent.map_err(|errno| Error::os("sendmsg", errno)),
    }
}
