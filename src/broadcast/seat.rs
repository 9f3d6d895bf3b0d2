//! One subscriber, as its publisher sees it.
//!
//! 1. What the subscriber wrote is loaded once and judged: a position beyond the newest message counts as the end of it, and
//!    one that goes back as the furthest one so far. A hold of a message before the first one counts as none.
//! 2. A subscriber that has left reads no further message, but may still hold some.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Instant;

use crate::channel::announced::{AnnouncedSegments, Offered};
use crate::error::{Error, ErrorKind, Eviction, Result};
use crate::handshake::{Policy, layout, socket};
use crate::link::link::Link;
use crate::link::session::Session;
use crate::shm::{OwnWords, PeerMapping, PeerWords};
use crate::sync::{Edge, Ordering};
use crate::wake::{GONE, HOT};

/// One subscriber.
#[derive(Debug)]
pub(super) struct Seat {
    session: Session,
    policy: Policy,
    /// The first message that it may read.
    first: u64,
    /// The furthest position so far. At first the first message.
    furthest: Cell<u64>,
    joined: Instant,
    holds: usize,
    announced: AnnouncedSegments,
    /// The state word says that the publisher is hot.
    is_hot: Cell<bool>,
    /// The newest message when the publisher last slept for this subscriber.
    slept_at: Cell<u64>,
}

/// After so many messages without a sleep for a subscriber the publisher is hot for it: as many as a sleeper of a link takes
/// records.
const HOT_AFTER: u64 = 1024;

/// A subscriber for which so many packets wait takes no further one. Their descriptors are in flight, and the kernel limits
/// those of a user.
pub(crate) const UNRECEIVED: usize = 32;

/// Segments that the pool has dropped and that one announcement retires at most: the segment behind them has a place, and then
/// the subscriber reads them all.
const RETIRES: usize = 16;

/// The bytes that Linux counts for a packet on x86-64.
const PACKET_BYTES: usize = 768;

impl Seat {
    /// Returns the seat of a subscriber that may hold so many messages.
    pub(super) fn new(session: Session, policy: Policy, holds: u32) -> Self {
        let (joined, announced) = (Instant::now(), AnnouncedSegments::default());
        // Its Hello offers fewer words than a library does.
        let holds = holds.min(session.link.terms().peer.loan_slots) as usize;
        let (first, furthest) = (0, Cell::new(0));
        let (is_hot, slept_at) = (Cell::new(false), Cell::new(0));
        let seat =
            Self { session, policy, first, furthest, joined, holds, announced, is_hot, slept_at };
        // A subscriber tells the publisher after each message with memory in the pool, and the publisher seldom sleeps.
        seat.heat();
        seat
    }

    fn heat(&self) {
        if self.session.link.interrupts() {
            self.session.link.own().store(layout::SENDER_STATE, HOT, Ordering::Relaxed);
            self.is_hot.set(true);
        }
    }

    /// Takes out whether the publisher is hot, which is about to wait for this subscriber.
    pub(super) fn take_heat(&self) -> bool {
        self.is_hot.take()
    }

    /// Notes whether the publisher is still hot after a wait, and whether it was about to sleep in it.
    pub(super) fn put_heat(&self, is_hot: bool, slept: bool, newest: u64) {
        self.is_hot.set(is_hot);
        if slept {
            self.slept_at.set(newest);
        }
    }

    /// Makes the publisher hot again, if it has not slept for this subscriber for long.
    pub(super) fn stay_awake(&self, newest: u64) {
        if !self.is_hot.get() && newest - self.slept_at.get() >= HOT_AFTER {
            self.heat();
        }
    }

    pub(super) fn link(&self) -> &Arc<Link> {
        &self.session.link
    }

    pub(super) fn policy(&self) -> Policy {
        self.policy
    }

    pub(super) fn joined(&self) -> Instant {
        self.joined
    }

    /// Returns the words of the subscriber.
    pub(super) fn words(&self) -> PeerMapping {
        self.session.link.peer().clone()
    }

    /// Returns whether the subscriber reads no further message. One whose link has ended may not know of it, so what it reads of
    /// the pool from here on is revoked.
    pub(super) fn is_over(&self) -> bool {
        let is_alive = self.session.link.is_alive();
        if !is_alive {
            self.revoke();
        }
        !is_alive || self.session.link.peer_left()
    }

    /// Returns the number of the message that the subscriber reads next. `newest` is the last one.
    pub(super) fn position(&self, newest: u64) -> u64 {
        let position = self.session.link.peer().load(layout::POSITION);
        // Pairs with Feed::tell: holds that the subscriber took of earlier messages.
        Edge::Reuse.acquire();
        self.advance(position.min(newest + 1));
        self.furthest.get()
    }

    /// Sets the first message that the subscriber may read.
    pub(super) fn begin(&mut self, first: u64) {
        self.first = first;
        self.advance(first);
    }

    /// Notes a position that the subscriber has told. One that goes back changes nothing.
    pub(super) fn advance(&self, position: u64) {
        self.furthest.set(position.max(self.furthest.get()));
    }

    /// Returns whether the publisher waits for this subscriber before it overwrites or withdraws a message that the subscriber
    /// has not read.
    pub(super) fn is_waited_for(&self) -> bool {
        self.policy == Policy::Every && !self.is_over()
    }

    /// Returns the messages that the subscriber holds. One before its first message is a lie, and holds nothing.
    pub(super) fn held(&self) -> impl Iterator<Item = u64> {
        let peer = self.session.link.peer();
        let words = (0..self.holds).map(|index| peer.load(layout::RETURNS + 8 * index));
        words.filter(|message| *message != 0 && *message >= self.first)
    }

    /// Returns whether the subscriber knows these segments of the pool.
    pub(super) fn knows(&mut self, mut segments: impl Iterator<Item = u32>) -> bool {
        segments.all(|segment| self.announced.knows(segment))
    }

    /// Tells the subscriber of segments of the pool, unless many packets wait for it. `needed` are those that it must not lose.
    /// Returns whether it knows all of them.
    ///
    /// # Errors
    ///
    /// This process lacks what it takes to send a descriptor.
    pub(super) fn announce(&mut self, segments: &[u32], needed: &[u32]) -> Result<bool> {
        if self.knows(segments.iter().copied()) {
            return Ok(true);
        }
        if socket::unreceived(self.session.link.socket()) >= UNRECEIVED * PACKET_BYTES {
            return Ok(false);
        }
        for segment in segments {
            if self.announced.knows(*segment) {
                continue;
            }
            loop {
                // The subscriber reads its socket when a message names a segment that it does not know.
                self.announced.announce_packets();
                match self.announced.offer(&self.session, *segment, (0, RETIRES), needed) {
                    Ok(Offered::Known) => break,
                    Ok(Offered::Unannounced) => {}
                    Ok(Offered::NoRoom) => return Ok(false),
                    Err(error) if self.is_its_own(&error) => return Ok(false),
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(true)
    }

    /// Returns whether the subscriber has caused a failed announcement: its limit leaves no room, or its link has ended.
    fn is_its_own(&self, error: &Error) -> bool {
        matches!(error.kind(), ErrorKind::PoolExhausted { .. }) || !self.session.link.is_alive()
    }

    /// Says that the publisher has ended in order.
    pub(super) fn say_end(&self) {
        // As a receiver that has left: the subscriber loads it when it sees the end of the socket.
        self.session.link.own().store(layout::RECEIVER_STATE, GONE, Edge::Publish.store());
        socket::shutdown(self.session.link.socket());
    }

    /// Ends the link. The subscriber learns why, and that it cannot rely on what it reads of the pool.
    pub(super) fn evict(&self, cause: Eviction) {
        let link = &self.session.link;
        link.own().store(layout::EVICTED, cause as u64 + 1, Ordering::Relaxed);
        // Pairs with Feed::fail: a subscriber that finds what the publisher does next finds the cause, too.
        Edge::Overwrite.release();
        self.revoke();
        link.show_eviction(cause);
        let _ = link.fail(Error::from(ErrorKind::Evicted { cause }));
    }

    /// Tells the subscriber that it cannot rely on what it reads of the pool.
    pub(super) fn revoke(&self) {
        // The pool orders this before the next use of the memory.
        self.session.link.revoke_loans();
    }
}
