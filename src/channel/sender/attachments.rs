//! The sender of tensors records, with their attachments.
//!
//! 1. The sender acquires in this order: room in the ring, loan slots, memory for copies, announced segments.
//! 2. It copies only when it has all of them.
//! 3. While it waits for one of them it holds none, so it blocks no other sender.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use crate::channel::announced::Offered;
use crate::channel::attachment::{DESCRIPTION, LONGEST, LentRange, SHORT, SINGLE};
use crate::channel::envelope::Envelope;
use crate::channel::loan_descriptor as pooled;
use crate::channel::loan_descriptor::LoanDescriptor;
use crate::channel::sender::Sender;
use crate::channel::sender::lacking_room::LackingRoom;
use crate::error::{Error, ErrorKind, Result, TensorFault, TrySendError};
use crate::handshake::peer::Peer;
use crate::link::allocations::SharedAllocation;
use crate::link::env::LinkEnv;
use crate::link::session::Session;
use crate::link::waiter::tell_of_stall;
use crate::patience::SendPatience;
use crate::pool::{Block, BorrowerId, Exhausted, FrozenBlock, Pool, Promise, SharedBlock};
use crate::ring::{Header, Kind};
use crate::shm::Bytes;
use crate::status::Awaited;

/// The most attachments of one record.
pub(crate) const ATTACHMENTS: usize = 255;

/// Memory that goes with a tensors record. Lending takes effect when the record is published.
#[derive(Debug)]
pub(crate) enum OutgoingAttachment<'a> {
    /// To one receiver: it is nobody else's any more.
    Block(&'a mut Block),
    Shared(&'a SharedBlock),
    /// A shared block whose bytes nobody reads: the receiver returns it to say that it is done with memory of a GPU.
    Ticket {
        block: SharedBlock,
        /// The allocation that the peer must know.
        allocation: Option<Arc<SharedAllocation>>,
    },
    /// The offset is a multiple of 64.
    Frozen {
        memory: &'a Arc<FrozenBlock>,
        offset: usize,
        len: usize,
    },
    /// Copied into a block, which is there while the record is being published.
    Copy {
        bytes: Bytes<'a>,
        /// The loan that the bytes belong to, if a peer can take them back.
        lender: Option<&'a LentRange>,
        block: Option<Block>,
    },
}

impl<'a> OutgoingAttachment<'a> {
    /// To be copied.
    pub(crate) fn copy_of(bytes: Bytes<'a>, lender: Option<&'a LentRange>) -> Self {
        Self::Copy { bytes, lender, block: None }
    }

    /// Copies the bytes, if they are to be copied.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::LoanRevoked`]: their lender has taken them back.
    fn fill(&mut self) -> Result<()> {
        let Self::Copy { bytes, lender, block: Some(block) } = self else { return Ok(()) };
        bytes.copy_to(block.bytes_mut());
        lender.map_or(Ok(()), LentRange::check)
    }

    fn is_lent(&self) -> bool {
        !matches!(self, Self::Frozen { .. })
    }

    /// Returns where the block lies that the caller has filled.
    fn place(&self) -> Option<(u32, u64)> {
        match self {
            Self::Block(block) => block.place(),
            Self::Shared(block) => Some(block.place()),
            Self::Ticket { block, .. } => Some(block.place()),
            Self::Frozen { .. } | Self::Copy { .. } => None,
        }
    }

    /// Its length in bytes.
    fn len(&self) -> usize {
        match self {
            Self::Block(block) => block.len(),
            Self::Shared(block) => block.bytes().len(),
            Self::Ticket { block, .. } => block.len(),
            Self::Frozen { len, .. } => *len,
            Self::Copy { bytes, .. } => bytes.len(),
        }
    }

    /// Returns the bytes of the pool that the receiver holds.
    fn block_len(&self) -> u64 {
        match self {
            Self::Block(block) => block.block_len(),
            Self::Shared(block) => block.block_len(),
            Self::Ticket { block, .. } => block.block_len(),
            Self::Frozen { .. } => 0,
            Self::Copy { bytes, .. } => Pool::block_len(bytes.len()),
        }
    }

    /// The number of its segment.
    #[inline]
    fn segment(&self, session: &Session) -> Result<u32> {
        Ok(match self {
            Self::Block(block) => block.segment(),
            Self::Shared(block) => block.segment(),
            Self::Ticket { block, .. } => block.segment(),
            Self::Frozen { memory, .. } => session.env.pool().number_of(memory)?,
            Self::Copy { block, .. } => block.as_ref().map_or(u32::MAX, Block::segment),
        })
    }
}

impl Sender {
    /// Returns the room that the last tensors record lacked, if it was not sent for that reason.
    pub(crate) fn take_lacking(&mut self) -> Option<LackingRoom> {
        self.lacking.take()
    }

    /// Returns whether another try is worth its work: the room is there by now, or the try would return an error.
    pub(crate) fn may_have_room(&mut self, lacking: LackingRoom) -> bool {
        let (header, loans, bytes) = lacking.parts();
        if self.link.peer_left() || self.link.by_descriptor() {
            return true;
        }
        match self.room_in_ring(header, SendPatience::None) {
            Ok(_) => {}
            Err(error) => return !matches!(error, TrySendError::Full { .. }),
        }
        self.renounce();
        let Session { link, env, .. } = &*self.session;
        loans == 0 || env.pool().admits(link.borrower(), loans, bytes)
    }

    /// The pool that this half lends from.
    pub(crate) fn pool(&self) -> &Pool {
        self.session.env.pool()
    }

    /// What the links of this half's context share.
    pub(crate) fn env(&self) -> &Arc<LinkEnv> {
        &self.session.env
    }

    /// Who borrows from it, by its account and as the kernel knows it.
    pub(crate) fn borrower(&self) -> (BorrowerId, &Peer) {
        let link = &self.session.link;
        (link.borrower(), link.identity())
    }

    /// Counts tensors in memory of a GPU that were sent: ordered by events, by words, synchronized.
    pub(crate) fn count_gpu(&mut self, [events, words, synchronized]: [u64; 3]) {
        self.stats.gpu_by_events += events;
        self.stats.gpu_by_words += words;
        self.stats.gpu_synchronized += synchronized;
    }

    /// Ends the link as a peer at fault does.
    #[cfg(test)]
    pub(crate) fn fail_for_tests(&self, fault: crate::error::Fault) {
        let _ = self.session.link.fail(fault);
    }

    /// Sends a tensors record. If it fails, the attachments stay as they were.
    #[inline]
    pub(crate) fn post(
        &mut self,
        envelope: Envelope<'_>,
        attachments: &mut [OutgoingAttachment<'_>],
        description: &[u8],
        patience: SendPatience,
    ) -> Result<(), TrySendError> {
        match self.try_post(envelope, attachments, description) {
            Err(TrySendError::Full { free, needed }) => {
                self.await_post(envelope, (attachments, description), patience, (free, needed))
            }
            posted => posted,
        }
    }

    /// Returns whether a description has room in the ring, with what stands in front of it.
    pub(crate) fn is_in_ring(
        &self,
        envelope: Envelope<'_>,
        attachments: usize,
        description: usize,
    ) -> bool {
        let len = envelope.len() + attachments * pooled::LEN + description;
        len as u64 <= self.longest_tensors()
    }

    /// Sends a tensors record whose description goes through the pool, as the last attachment.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::MessageTooLarge`], and as [`post`](Self::post).
    #[cold]
    pub(crate) fn post_long<'a>(
        &mut self,
        envelope: Envelope<'_>,
        mut attachments: Vec<OutgoingAttachment<'a>>,
        description: &'a [u8],
        patience: SendPatience,
    ) -> Result<(), TrySendError> {
        let (len, max) = (description.len() as u64, DESCRIPTION);
        if len > max {
            return Err(Error::from(ErrorKind::MessageTooLarge { len, max }).into());
        }
        attachments.push(OutgoingAttachment::copy_of(Bytes::of(description), None));
        self.post(envelope.with_long_description(), &mut attachments, &[], patience)
    }

    /// Returns the longest payload of a tensors record in bytes.
    #[inline]
    fn longest_tensors(&self) -> u64 {
        crate::ring::largest_payload(self.longest_ring()).min(LONGEST)
    }

    #[cold]
    fn await_post(
        &mut self,
        envelope: Envelope<'_>,
        (attachments, description): (&mut [OutgoingAttachment<'_>], &[u8]),
        patience: SendPatience,
        (free, needed): (u64, u64),
    ) -> Result<(), TrySendError> {
        let header = self.tensors_header(envelope, attachments.len(), description.len())?;
        let Some(deadline) = self.deadline(patience) else {
            if self.link.peer_left() {
                return Err(Error::from(ErrorKind::PeerClosed).into());
            }
            if !self.link.by_descriptor() {
                let (loans, bytes) = (lent(attachments), bytes_of(attachments));
                self.lacking = Some(LackingRoom::new(header, loans, bytes));
                return Err(TrySendError::Full { free, needed });
            }
            self.arm_for_pool()?;
            return self.try_post(envelope, attachments, description);
        };
        let start = Instant::now();
        loop {
            self.room_in_ring(header, SendPatience::Until(deadline))?;
            match self.try_post(envelope, attachments, description) {
                Err(TrySendError::Full { .. }) => {
                    self.await_pool(bytes_of(attachments), start, deadline)?
                }
                posted => {
                    self.room.status().run();
                    tell_of_stall(&self.link, Awaited::Memory, start);
                    return posted;
                }
            }
        }
    }

    /// Returns the header of a tensors record.
    #[inline]
    fn tensors_header(
        &self,
        envelope: Envelope<'_>,
        attachments: usize,
        description: usize,
    ) -> Result<Header> {
        let len = envelope.len() + attachments * pooled::LEN + description;
        let max = self.longest_tensors();
        if attachments > ATTACHMENTS {
            // The description is no tensor.
            let own = usize::from(envelope.is_long);
            let fault =
                TensorFault::Count { count: attachments - own, expected: ATTACHMENTS - own };
            return Err(fault.into());
        }
        if len as u64 > max {
            let kind = ErrorKind::MessageTooLarge { len: len as u64, max };
            return Err(kind.into());
        }
        let header = envelope.mark(Header::tensors(envelope.kind, attachments as u8, len as u32));
        Ok(if envelope.is_long { header.with_long_description() } else { header })
    }

    #[inline]
    fn try_post(
        &mut self,
        envelope: Envelope<'_>,
        attachments: &mut [OutgoingAttachment<'_>],
        description: &[u8],
    ) -> Result<(), TrySendError> {
        let header = self.tensors_header(envelope, attachments.len(), description.len())?;
        let offset = match self.room_for_tensors(header, attachments) {
            Ok(offset) => offset,
            Err(error) => {
                give_back(attachments);
                return Err(error);
            }
        };
        if let Err(error) = attachments.iter_mut().try_for_each(OutgoingAttachment::fill) {
            give_back(attachments);
            return Err(error.into());
        }
        let (mut short, mut long) = ([0; SHORT], Vec::new());
        let len = header.len() as usize - envelope.len();
        let payload = if len <= SHORT {
            &mut short[..len]
        } else {
            long.resize(len, 0);
            &mut long[..]
        };
        let (table, rest) = payload.split_at_mut(attachments.len() * pooled::LEN);
        rest.copy_from_slice(description);
        let mut bytes = 0;
        for (to, attachment) in table.chunks_exact_mut(pooled::LEN).zip(&mut *attachments) {
            let Some(descriptor) = self.lend_attachment(attachment) else {
                give_back(attachments);
                return Err(self.lacks_slots(header.len()));
            };
            bytes += descriptor.len;
            to.copy_from_slice(&descriptor.encode());
        }
        self.write(offset, envelope, payload);
        self.producer.publish(header);
        self.found(header, true);
        self.stats.tensors += 1;
        self.stats.bytes += bytes;
        self.announce()?;
        Ok(self.note_distance()?)
    }

    /// Sends a tensors record of one loan, with a description of `len` bytes in little-endian words. Nothing is put
    /// together in memory: words wait for bytes that were just written. The loan is entered, by `enter`, once
    /// the peer can see it: it has the slot that was promised then. If the account was closed meanwhile, `enter` calls its
    /// last argument. False: something is lacking, and the
    /// [general way](Self::post) finds out what.
    #[inline(always)]
    pub(crate) fn try_post_single(
        &mut self,
        (place, bytes, block_len): ((u32, u64), usize, u64),
        enter: impl FnOnce(&Pool, BorrowerId, Promise, &dyn Fn()) -> Option<Promise>,
        [a, b, c, d]: [u64; SINGLE],
        len: usize,
    ) -> Result<bool, TrySendError> {
        let header = Header::tensors(Kind::Tensors, 1, (pooled::LEN + len) as u32);
        self.check()?;
        self.room.progress(&self.link, self.producer.written());
        let Ok(Ok(offset)) = self.producer.reserve(header) else { return Ok(false) };
        if !self.announced.knows(place.0) {
            return Ok(false);
        }
        let Some(promise) = self.promise.take().or_else(|| self.ask_promise()) else {
            return Ok(false);
        };
        if !promise.admits(block_len) {
            self.promise = Some(promise);
            return Ok(false);
        }
        let [e, f, g, h] = LoanDescriptor::new(&promise.loan(place), bytes as u64).to_words();
        let words = [e, f, g, h, a, b, c, d];
        let whole = words.len().min(pooled::LEN / 8 + len.div_ceil(8));
        self.ring.put_words(offset, &words[..whole]);
        self.producer.publish(header);
        self.found(header, true);
        self.stats.tensors += 1;
        self.stats.bytes += bytes as u64;
        let announced = self.announce();
        let Session { link, env, .. } = &*self.session;
        self.promise = enter(env.pool(), link.borrower(), promise, &|| link.revoke_loans());
        announced?;
        self.note_distance()?;
        Ok(true)
    }

    #[cold]
    pub(crate) fn ask_promise(&self) -> Option<Promise> {
        let Session { link, env, .. } = &*self.session;
        env.pool().promise(link.borrower())
    }

    /// The slot that was promised is free for whatever comes.
    pub(crate) fn renounce(&mut self) {
        if let Some(promise) = self.promise.take() {
            let Session { link, env, .. } = &*self.session;
            env.pool().renounce(link.borrower(), promise);
        }
    }

    /// Acquires room for a tensors record, with all that its publication needs.
    #[inline]
    fn room_for_tensors(
        &mut self,
        header: Header,
        attachments: &mut [OutgoingAttachment<'_>],
    ) -> Result<usize, TrySendError> {
        let loans = lent(attachments);
        self.renounce();
        loop {
            let offset = self.room_in_ring(header, SendPatience::None)?;
            let full = TrySendError::Full { free: 0, needed: header.len() };
            let Session { link, env, .. } = &*self.session;
            if loans > 0 && !env.pool().admits(link.borrower(), loans, bytes_of(attachments)) {
                let slots =
                    link.terms().peer.loan_slots.min(env.pool().loan_limit().blocks) as usize;
                if loans > slots {
                    let own = usize::from(header.is_pooled());
                    let expected = slots.saturating_sub(own);
                    let fault = TensorFault::Count { count: loans - own, expected };
                    return Err(Error::from(fault).into());
                }
                env.pool().fits(needed(attachments)).map_err(Error::from)?;
                return Err(full);
            }
            take_blocks(env.pool(), attachments)?;
            match self.offer_all(attachments)? {
                Offered::Known => return Ok(offset),
                Offered::NoRoom => return Err(full),
                Offered::Unannounced => self.announce_packets(SendPatience::None)?,
            }
        }
    }

    #[inline]
    fn offer_all(&mut self, attachments: &[OutgoingAttachment<'_>]) -> Result<Offered> {
        for attachment in attachments {
            let segment = attachment.segment(&self.session)?;
            if !self.announced.knows(segment) {
                let needed: Result<Vec<u32>> =
                    attachments.iter().map(|each| each.segment(&self.session)).collect();
                let offered = self.offer(segment, &needed?)?;
                if offered != Offered::Known {
                    return Ok(offered);
                }
            }
        }
        let allocations = attachments.iter().filter_map(|attachment| match attachment {
            OutgoingAttachment::Ticket { allocation, .. } => allocation.as_ref(),
            _ => None,
        });
        if allocations.clone().next().is_some() {
            return self.announced.offer_allocations(&self.link, allocations);
        }
        Ok(Offered::Known)
    }

    /// Lends an attachment. Returns `None` if the account was closed.
    #[inline]
    fn lend_attachment(
        &mut self,
        attachment: &mut OutgoingAttachment<'_>,
    ) -> Option<LoanDescriptor> {
        let Session { link, env, .. } = &*self.session;
        let (pool, to) = (env.pool(), link.borrower());
        let len = attachment.len() as u64;
        if let OutgoingAttachment::Frozen { memory, offset, len } = attachment {
            // It has one, since it was offered.
            let segment = pool.number_of(memory).ok()?;
            self.announced.name(segment, self.producer.written());
            return Some(LoanDescriptor::frozen(segment, *offset as u64, *len as u64));
        }
        let loan = match attachment {
            OutgoingAttachment::Block(block) => pool.lend(block, to),
            OutgoingAttachment::Copy { block: Some(block), .. } => pool.lend(block, to),
            OutgoingAttachment::Shared(block) => pool.lend_shared(block, to),
            OutgoingAttachment::Ticket { block, .. } => pool.lend_shared(block, to),
            OutgoingAttachment::Copy { block: None, .. } | OutgoingAttachment::Frozen { .. } => {
                None
            }
        };
        loan.map(|loan| LoanDescriptor::new(&loan, len))
    }

    /// The peer holds as many loans as it can, or none any more.
    #[cold]
    fn lacks_slots(&self, needed: u64) -> TrySendError {
        match self.check() {
            Ok(()) => TrySendError::Full { free: 0, needed },
            Err(error) => error.into(),
        }
    }
}

/// Takes the blocks that copies go to.
#[inline]
fn take_blocks(
    pool: &Pool,
    attachments: &mut [OutgoingAttachment<'_>],
) -> Result<(), TrySendError> {
    for at in 0..attachments.len() {
        if let OutgoingAttachment::Copy { bytes, block: block @ None, .. } = &mut attachments[at] {
            match pool.alloc(bytes.len())? {
                Ok(taken) => *block = Some(taken),
                Err(spent) => return Err(lacking(spent, attachments)),
            }
        }
    }
    Ok(())
}

/// Returns the number of loans that the receiver of a record gets.
#[inline]
fn lent(attachments: &[OutgoingAttachment<'_>]) -> usize {
    attachments.iter().filter(|attachment| attachment.is_lent()).count()
}

/// Returns the bytes of the pool that the receiver of a record holds.
#[inline]
fn bytes_of(attachments: &[OutgoingAttachment<'_>]) -> u64 {
    let lens = attachments.iter().map(OutgoingAttachment::block_len);
    lens.fold(0, u64::saturating_add)
}

/// Returns the bytes of the pool that a record takes at once: those of its blocks and of its copies.
fn needed(attachments: &[OutgoingAttachment<'_>]) -> u64 {
    // A block that is attached twice is taken once.
    let mut blocks = HashSet::new();
    let new = attachments.iter().filter(|each| each.place().is_none_or(|at| blocks.insert(at)));
    new.fold(0, |sum, attachment| sum.saturating_add(attachment.block_len()))
}

/// What to say when the pool has no block now: whether it ever will.
#[cold]
fn lacking(spent: Exhausted, attachments: &[OutgoingAttachment<'_>]) -> TrySendError {
    let needed = needed(attachments);
    if needed > spent.quota {
        return Error::from(Exhausted { needed, ..spent }).into();
    }
    TrySendError::Full { free: spent.quota.saturating_sub(spent.used), needed }
}

/// Returns the blocks for copies: a sender that waits holds none.
fn give_back(attachments: &mut [OutgoingAttachment<'_>]) {
    for attachment in attachments {
        if let OutgoingAttachment::Copy { block, .. } = attachment {
            *block = None;
        }
    }
}
