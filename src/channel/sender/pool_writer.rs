//! The sender's way through the pool, for messages longer than `inline_max`.

use std::time::{Duration, Instant};

use crate::channel::announced::Offered;
use crate::channel::envelope::{Envelope, PLAIN};
use crate::channel::loan_descriptor::LoanDescriptor;
use crate::channel::sender::Sender;
use crate::error::{Error, ErrorKind, Result, TrySendError};
use crate::link::session::Session;
use crate::link::waiter::tell_of_stall;
use crate::patience::SendPatience;
use crate::pool::{Lacking, Pool};
use crate::ring::{Header, Kind};
use crate::status::Awaited;

/// The longest sleep while a sender waits for events without a bell: blocks that other peers return, and room on the
/// socket.
const SLICE: Duration = Duration::from_millis(5);

/// A sender measures the distance of its peer once in this many loans. It then notices soon that a thread has moved, and
/// the measuring does not show in `ping_pong --modes tensor`.
const DISTANCE_EVERY: u64 = 16;

/// Returns the error for `len` bytes that no slot or block is free for.
fn full(len: usize) -> TrySendError {
    TrySendError::Full { free: 0, needed: len as u64 }
}

impl Sender {
    #[cold]
    pub(crate) fn put_pooled(
        &mut self,
        envelope: Envelope<'_>,
        message: &[u8],
        patience: SendPatience,
    ) -> Result<(), TrySendError> {
        self.room_in_pool(message.len(), envelope, patience)?;
        self.fill(envelope, message);
        self.finish_pooled(envelope, message.len())?;
        Ok(())
    }

    /// Reserves a block for `len` bytes, and everything that its publication needs: a segment that the peer knows, a loan
    /// slot, and a record in the ring.
    #[inline(always)]
    pub(crate) fn room_in_pool(
        &mut self,
        len: usize,
        envelope: Envelope<'_>,
        patience: SendPatience,
    ) -> Result<(), TrySendError> {
        // A leaked reservation left its block here.
        self.pooled.block.put_back();
        if self.take_ready_room(len, envelope.pooled())? {
            self.found(envelope.pooled(), true);
            return Ok(());
        }
        let room = self.find_room_in_pool(len, envelope, patience);
        match room {
            Ok(()) => self.found(envelope.pooled(), true),
            Err(_) => self.pooled.block.put_back(),
        }
        room
    }

    /// Reserves the block that lies ready for `len` bytes, if it lies in a segment that the peer knows, a slot is promised and the
    /// ring has room. Returns `false` and holds nothing otherwise.
    #[inline(always)]
    fn take_ready_room(&mut self, len: usize, header: Header) -> Result<bool> {
        self.check()?;
        let max = self.link.terms().max_message;
        let Self { prepared, ready, promise, .. } = self;
        let (Some(next), Some(ready), Some(promise)) = (*prepared, &*ready, &*promise) else {
            return Ok(false);
        };
        if len as u64 > max || !next.is_for(len) || !promise.admits(next.block_len()) {
            return Ok(false);
        }
        self.room.progress(&self.link, self.producer.written());
        let Ok(Ok(offset)) = self.producer.reserve(header) else { return Ok(false) };
        *prepared = None;
        if !self.pooled.block.take_ready(ready, next, len) {
            return Ok(false);
        }
        self.pooled.offset = offset;
        let is_known = self.announced.knows(self.pooled.block.segment());
        if !is_known {
            self.pooled.block.put_back();
        }
        Ok(is_known)
    }

    fn find_room_in_pool(
        &mut self,
        len: usize,
        envelope: Envelope<'_>,
        patience: SendPatience,
    ) -> Result<(), TrySendError> {
        self.check()?;
        let max = self.session.link.terms().max_message;
        if len as u64 > max {
            return Err(Error::new(ErrorKind::MessageTooLarge { len: len as u64, max }).into());
        }
        let header = envelope.pooled();
        let first = self.try_room_in_pool(len, header);
        if !matches!(first, Err(TrySendError::Full { .. })) {
            return first;
        }
        let Some(deadline) = self.deadline(patience) else {
            if self.link.peer_left() {
                return Err(Error::from(ErrorKind::PeerClosed).into());
            }
            if !self.link.by_descriptor() {
                return first;
            }
            self.arm_for_pool()?;
            return self.try_room_in_pool(len, header);
        };
        let start = Instant::now();
        loop {
            self.room_in_ring(header, SendPatience::Until(deadline))?;
            match self.try_room_in_pool(len, header) {
                Err(TrySendError::Full { .. }) => {
                    self.await_pool(Pool::block_len(len), start, deadline)?
                }
                answer => {
                    self.room.status().run();
                    tell_of_stall(&self.link, Awaited::Memory, start);
                    return answer;
                }
            }
        }
    }

    fn try_room_in_pool(&mut self, len: usize, header: Header) -> Result<(), TrySendError> {
        loop {
            self.pooled.offset = self.room_in_ring(header, SendPatience::None)?;
            if !self.ask_block(len)? {
                continue;
            }
            match self.offer(self.pooled.block.segment(), &[])? {
                Offered::Known => return Ok(()),
                Offered::NoRoom => {
                    // A sender that waits holds no block that another sender could need.
                    self.pooled.block.put_back();
                    return Err(full(len));
                }
                Offered::Unannounced => {
                    self.pooled.block.put_back();
                    self.announce_packets(SendPatience::None)?;
                }
            }
        }
    }

    /// Asks the pool for a block for `len` bytes. Returns `false` if the caller must ask once more.
    #[cold]
    fn ask_block(&mut self, len: usize) -> Result<bool, TrySendError> {
        let Session { link, env, .. } = &*self.session;
        match env.pool().alloc_for(len, link.borrower())? {
            Ok(block) => self.pooled.block = block,
            // Only this half lends to this peer, so a slot that it gives up stays free.
            Err(Lacking::Share) if self.promise.is_some() => {
                self.renounce();
                return Ok(false);
            }
            Err(Lacking::Share) => return Err(full(len)),
            Err(Lacking::Memory(spent)) if spent.needed > spent.quota => {
                return Err(Error::from(spent).into());
            }
            Err(Lacking::Memory(spent)) => {
                let free = spent.quota.saturating_sub(spent.used);
                return Err(TrySendError::Full { free, needed: spent.needed });
            }
        }
        Ok(true)
    }

    /// Announces a segment to the peer if the peer does not know it. The segments in `needed` stay announced.
    #[inline]
    pub(crate) fn offer(&mut self, segment: u32, needed: &[u32]) -> Result<Offered> {
        if self.announced.knows(segment) {
            return Ok(Offered::Known);
        }
        let reader = self.producer.read().map_err(|fault| self.link.fail(fault))?;
        self.announced.offer(&self.session, segment, (reader, usize::MAX), needed)
    }

    /// Sends a record that makes the reader read its socket.
    #[cold]
    pub(crate) fn announce_packets(&mut self, patience: SendPatience) -> Result<(), TrySendError> {
        let header = Header::new(Kind::Packets, 0);
        self.room_in_ring(header, patience)?;
        self.announced.announce_packets();
        self.producer.publish(header);
        self.announce()?;
        Ok(())
    }

    #[cold]
    pub(crate) fn await_pool(
        &mut self,
        needed: u64,
        start: Instant,
        deadline: Instant,
    ) -> Result<()> {
        self.show_counts();
        let waited = self.await_return(needed, start, deadline);
        if waited.is_err() {
            self.room.status().run();
        }
        waited
    }

    /// Waits for the return of a loan, or a while.
    fn await_return(&mut self, needed: u64, start: Instant, deadline: Instant) -> Result<()> {
        let Self { room, session, .. } = self;
        let Session { link, env, .. } = &**session;
        // The peer rings for each loan that it returns. Nobody rings for the blocks of other peers.
        let oldest = env.pool().oldest_loan(link.borrower());
        let waited = room.wait(link, Awaited::Memory, (Some(deadline), Some(SLICE)), || {
            oldest.as_ref().is_some_and(|loan| loan.is_returned()) || link.peer_left()
        });
        match waited {
            Err(error) if error.is_timeout() => {
                let late = Error::from(ErrorKind::TimedOut { after: start.elapsed() });
                let mut what = format!(
                    "the peer makes no room for {needed} bytes: it receives too slowly, or keeps what it was lent; {}",
                    env.pool().holdings()
                );
                if needed > env.pool().loan_limit().bytes {
                    what += "; a message of more bytes goes while the peer process holds nothing";
                }
                return Err(late.waiting_for(what));
            }
            waited => waited?,
        }
        self.check()?;
        if self.session.link.peer_left() { Err(ErrorKind::PeerClosed.into()) } else { Ok(()) }
    }

    /// As [`finish_pooled`](Self::finish_pooled), for a message without metadata. All that its envelope decides is known beforehand.
    pub(crate) fn finish_plain_pooled(&mut self, len: usize) -> Result<()> {
        self.finish_loan(PLAIN, len)
    }

    /// Publishes the block's descriptor, and enters the loan into the peer's account.
    pub(crate) fn finish_pooled(&mut self, envelope: Envelope<'_>, len: usize) -> Result<()> {
        self.finish_loan(envelope, len)
    }

    #[inline(always)]
    fn finish_loan(&mut self, envelope: Envelope<'_>, len: usize) -> Result<()> {
        let place = self.pooled.block.place();
        let promise = self.promise.take().or_else(|| self.ask_promise());
        let Some((promise, place)) = promise.zip(place) else {
            self.pooled.block.put_back();
            // The account is closed, so the peer has ended.
            return Err(self.link.end());
        };
        let descriptor = LoanDescriptor::new(&promise.loan(place), len as u64).to_words();
        let offset = self.pooled.offset;
        self.ring.put_words(offset + envelope.len(), &descriptor);
        self.write_envelope(offset, envelope);
        self.stats.pooled += 1;
        let announced = self.finish(envelope.pooled(), len);
        let Session { link, env, .. } = &*self.session;
        let block = &mut self.pooled.block;
        let revoke = || link.revoke_loans();
        (self.promise, self.prepared) =
            env.pool().enter_and_prepare(block, link.borrower(), promise, revoke);
        // The account was closed in between: the peer, which may read this message, is told that it cannot rely on it.
        self.pooled.block.put_back();
        announced?;
        self.note_distance()
    }

    /// Measures the distance of the peer after one loan in [`DISTANCE_EVERY`], if the pool needs it.
    #[inline(always)]
    pub(crate) fn note_distance(&mut self) -> Result<()> {
        let lent = self.stats.pooled + self.stats.tensors;
        if self.session.env.pool().minds_distance() && lent.is_multiple_of(DISTANCE_EVERY) {
            self.measure_distance()
        } else {
            Ok(())
        }
    }

    /// Times the load of the peer's position. The peer stores its position last before it waits, so the line lies in the
    /// nearest cache of the peer's core. The lines of a loan may lie anywhere.
    #[cold]
    fn measure_distance(&mut self) -> Result<()> {
        match self.producer.time_position() {
            Ok(Some(took)) => self.session.env.pool().note_distance(took),
            Ok(None) => {}
            Err(fault) => return Err(self.link.fail(fault)),
        }
        Ok(())
    }
}
