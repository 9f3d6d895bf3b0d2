//! The attachments of a tensors record on the receiver's side: memory that comes with it without a copy. The sender's
//! side is `sender::attachments`.
//!
//! ```text
//!   header: kind, attachments, version │ attachment … │ description
//!                                        32 bytes each
//! ```
//!
//! 1. Attachments are claimed in their order, each once, and all of them; otherwise the link ends.
//! 2. A claimed loan goes back to its sender when its [`LentRange`] is dropped, and only then.
//! 3. This file does not interpret the description: the `tensor` module reads a private copy of it.

use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::account::{Charge, Resource};
use crate::channel::extension::ExtensionSlot;
use crate::channel::hold::Hold;
use crate::channel::loan_descriptor as pooled;
use crate::channel::loan_descriptor::{LoanDescriptor, NO_SLOT};
use crate::channel::metadata::Metadata;
use crate::channel::segment_cache::{CachedSegment, SegmentCache};
use crate::error::{Error, ErrorKind, Fault, Result, TensorFault};
use crate::handshake::peer::{Peer, has_ended};
use crate::link::LinkSocket;
use crate::link::allocations::PassedAllocation;
use crate::link::session::Session;
use crate::pool::FrozenBlock;
use crate::shm::{Bytes, SegmentMemory};

/// The longest payload of a tensors record, in bytes, however large the ring is. A longer description lies in an
/// attachment. Part of the wire format.
pub(crate) const LONGEST: u64 = 1 << 20;

/// The longest description in bytes that lies in an attachment: room for 32,768 tensors with names of up to 80 bytes. Part of
/// the wire format.
pub(crate) const DESCRIPTION: u64 = 1 << 22;

/// The longest payload that is assembled on the stack, in bytes. Longer ones take a heap allocation.
pub(crate) const SHORT: usize = 64;

/// Memory that came with a tensors record: a loan, or a range of a frozen segment.
#[derive(Debug)]
pub(crate) enum Attachment {
    Lent(LentRange),
    Frozen { memory: Arc<FrozenBlock>, offset: usize, len: usize },
}

impl Attachment {
    /// Returns its length in bytes.
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Lent(range) => range.len,
            Self::Frozen { len, .. } => *len,
        }
    }
}

/// The bit of a range of a publisher's message: the loan ends with the last part of the message.
const PART: u64 = 1 << 32;

/// A range of a peer's pool that is lent to this process. Dropping it returns the loan.
#[derive(Debug)]
pub struct LentRange {
    segment: Arc<CachedSegment>,
    offset: usize,
    len: usize,
    generation: u64,
    /// The slot, and [`PART`]. In one word: a move of fields of other widths waits for their stores.
    slot: u64,
}

impl LentRange {
    /// Returns the range of this offset and length in bytes, of a loan that the session [keeps](Session::keep_loan).
    #[inline(always)]
    pub(super) fn new(
        segment: Arc<CachedSegment>,
        (offset, len): (usize, usize),
        loan: LoanDescriptor,
    ) -> Self {
        Self { segment, offset, len, generation: loan.generation, slot: loan.slot.into() }
    }

    /// Returns whether the caller vouches that the peer does not change these bytes.
    #[inline(always)]
    pub(crate) fn is_trusted(&self) -> bool {
        self.segment.session.is_trusted()
    }

    /// Checks that the peer has not taken the loan back. Then what was read before is what the peer has sent.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::LoanRevoked`](crate::ErrorKind::LoanRevoked)
    #[inline(always)]
    pub(crate) fn check(&self) -> Result<()> {
        self.segment.session.link.check_loans()
    }

    /// Returns whether the process that has lent it has ended.
    pub(crate) fn lender_ended(&self) -> bool {
        let link = &self.segment.session.link;
        // While the watcher sees the link alive, no system call is needed.
        !link.is_alive() && link.identity().pidfd().is_none_or(has_ended)
    }

    /// Returns the allocation of a GPU that the lender has announced under this number.
    ///
    /// # Errors
    ///
    /// [`Fault::UnknownAllocation`]
    pub(crate) fn allocation(&self, number: u64) -> Result<Arc<PassedAllocation>, Fault> {
        self.segment.session.link.control_socket().allocation(number)
    }

    /// Charges the link's account for an allocation of a GPU that this process maps: one mapping of `len` bytes.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::AccountFull`](crate::ErrorKind::AccountFull)
    pub(crate) fn charge_mapping(&self, len: u64) -> Result<MappingCharge> {
        let account = self.segment.session.link.account();
        let charge = |resource, amount| account.charge(resource, amount);
        let charges = [charge(Resource::GpuMappings, 1)?, charge(Resource::GpuMappedBytes, len)?];
        Ok(MappingCharge { _charges: charges })
    }

    /// Returns the socket of the lender's link.
    pub(crate) fn socket(&self) -> LinkSocket {
        LinkSocket::new(self.segment.session.link.clone())
    }

    /// Returns the process that has lent it.
    pub(crate) fn lender(&self) -> &Peer {
        self.segment.session.link.identity()
    }

    /// Returns the memory that the range is part of.
    pub(crate) fn memory(&self) -> SegmentMemory {
        SegmentMemory::of_peer(self.segment.segment.mapping())
    }

    /// Returns a view of the bytes, which the peer can change at any moment.
    #[inline(always)]
    pub(crate) fn bytes(&self) -> Bytes<'_> {
        self.segment.segment.mapping().bytes(self.offset, self.len)
    }
}

/// What an allocation of a GPU costs its lender's account while it is mapped.
#[derive(Debug)]
pub struct MappingCharge {
    _charges: [Charge; 2],
}

/// What an account lacks that was not charged for an allocation of a GPU.
#[derive(Debug)]
pub struct MissingRoom {
    amount: u64,
    is_bytes: bool,
}

impl MappingCharge {
    /// Returns what is missing, if an account was full.
    pub fn missing(refused: &Error) -> Option<MissingRoom> {
        let ErrorKind::AccountFull { resource, used, needed, limit, .. } = *refused.kind() else {
            return None;
        };
        let amount = used.saturating_add(needed).saturating_sub(limit);
        Some(MissingRoom { amount, is_bytes: resource == Resource::GpuMappedBytes.name() })
    }
}

impl MissingRoom {
    /// Returns how much is missing: bytes, or mappings.
    pub fn amount(&self) -> u64 {
        self.amount
    }

    /// Returns how much of it the close of an allocation of `len` bytes gives back.
    pub fn won_by(&self, len: u64) -> u64 {
        if self.is_bytes { len } else { 1 }
    }
}

impl Drop for LentRange {
    #[inline]
    fn drop(&mut self) {
        let (session, slot) = (&self.segment.session, self.slot as u32);
        if self.slot & PART == 0 {
            session.return_loan(slot, self.generation);
        } else {
            session.drop_part(slot);
        }
    }
}

/// The attachments of a tensors record that is being opened.
pub(crate) struct Claims<'a> {
    origin: Origin<'a>,
    extension: &'a mut Option<Arc<ExtensionSlot>>,
    metadata: Metadata,
}

/// The place that attachments are claimed from.
enum Origin<'a> {
    /// The record at the ring's position: `table` holds the descriptors that are left.
    Ring { session: &'a Arc<Session>, segments: &'a mut SegmentCache, table: &'a [u8] },
    /// A message of a publisher, whose memory this side holds.
    Held {
        session: &'a Arc<Session>,
        segments: &'a mut SegmentCache,
        table: &'a [u8],
        hold: Option<&'a Hold<'a>>,
    },
    /// A record in the backlog, whose attachments were claimed when it was set aside.
    Kept(std::vec::IntoIter<Attachment>),
}

impl<'a> Claims<'a> {
    /// Returns the attachments of the record at the ring's position, whose descriptors are `table`.
    pub(super) fn in_ring(
        (session, segments): (&'a Arc<Session>, &'a mut SegmentCache),
        table: &'a [u8],
        metadata: Metadata,
        extension: &'a mut Option<Arc<ExtensionSlot>>,
    ) -> Self {
        Self { origin: Origin::Ring { session, segments, table }, extension, metadata }
    }

    /// Returns the attachments of a message of a publisher, whose descriptors are `table`.
    pub(crate) fn held(
        (session, segments): (&'a Arc<Session>, &'a mut SegmentCache),
        table: &'a [u8],
        hold: Option<&'a Hold<'a>>,
        metadata: Metadata,
        extension: &'a mut Option<Arc<ExtensionSlot>>,
    ) -> Self {
        Self { origin: Origin::Held { session, segments, table, hold }, extension, metadata }
    }

    /// Returns the attachments of a record that was set aside.
    pub(crate) fn kept(
        attachments: Vec<Attachment>,
        metadata: Metadata,
        extension: &'a mut Option<Arc<ExtensionSlot>>,
    ) -> Self {
        Self { origin: Origin::Kept(attachments.into_iter()), extension, metadata }
    }

    /// Takes the record's metadata.
    pub(crate) fn take_metadata(&mut self) -> Metadata {
        std::mem::take(&mut self.metadata)
    }

    /// Returns the receiver's extension slot, which is made on the first call.
    pub(crate) fn extension(&mut self) -> Arc<ExtensionSlot> {
        self.extension.get_or_insert_default().clone()
    }

    /// Claims the next attachment.
    ///
    /// # Errors
    ///
    /// - [`Fault`]: there is none, or its descriptor is wrong.
    /// - This process has no memory to map it.
    #[inline]
    pub(crate) fn claim(&mut self) -> Result<Attachment> {
        let next = match &mut self.origin {
            Origin::Ring { session, segments, table } => match table.split_first_chunk() {
                Some((descriptor, rest)) => {
                    *table = rest;
                    Some(attach(session, segments, &LoanDescriptor::decode(descriptor))?)
                }
                None => None,
            },
            Origin::Held { session, segments, table, hold } => match table.split_first_chunk() {
                Some((descriptor, rest)) => {
                    *table = rest;
                    let descriptor = LoanDescriptor::decode(descriptor);
                    Some(attach_held(session, segments, &descriptor, *hold)?)
                }
                None => None,
            },
            Origin::Kept(attachments) => attachments.next(),
        };
        next.ok_or_else(|| Fault::Tensor(TensorFault::Count { count: 1, expected: 0 }).into())
    }

    /// Returns the count of attachments that are not claimed.
    pub(crate) fn left(&self) -> usize {
        match &self.origin {
            Origin::Ring { table, .. } | Origin::Held { table, .. } => table.len() / pooled::LEN,
            Origin::Kept(attachments) => attachments.len(),
        }
    }

    /// Checks that all attachments are claimed.
    ///
    /// # Errors
    ///
    /// [`Fault`]: some are left.
    pub(crate) fn finish(&self) -> Result<()> {
        match self.left() {
            0 => Ok(()),
            count => Err(Fault::Tensor(TensorFault::Count { count, expected: 0 }).into()),
        }
    }
}

/// Returns a private copy of the description of `said` bytes that lies in an attachment, and returns its loan.
///
/// # Errors
///
/// [`Fault::MessageLength`]: the peer has changed the length since it was read. As [`Claims::claim`].
#[cold]
pub(super) fn long_description(
    (session, segments): (&Arc<Session>, &mut SegmentCache),
    descriptor: &[u8; pooled::LEN],
    said: u64,
) -> Result<Vec<u8>> {
    let attachment = attach(session, segments, &LoanDescriptor::decode(descriptor))?;
    let len = attachment.len() as u64;
    if len != said {
        return Err(Fault::MessageLength { len, max: said }.into());
    }
    match attachment {
        Attachment::Lent(range) => {
            let copy = range.bytes().try_to_vec()?;
            range.check()?;
            Ok(copy)
        }
        Attachment::Frozen { memory, offset, len } => {
            Bytes::of(memory.memory().bytes(offset, len)).try_to_vec()
        }
    }
}

/// Returns the memory that a descriptor names.
#[inline]
fn attach(
    session: &Arc<Session>,
    segments: &mut SegmentCache,
    descriptor: &LoanDescriptor,
) -> Result<Attachment> {
    if descriptor.slot != NO_SLOT {
        return Ok(Attachment::Lent(borrow(session, segments, descriptor)?));
    }
    attach_frozen(session, descriptor)
}

/// Returns the memory that a descriptor of a publisher's names.
fn attach_held(
    session: &Arc<Session>,
    segments: &mut SegmentCache,
    descriptor: &LoanDescriptor,
    hold: Option<&Hold<'_>>,
) -> Result<Attachment> {
    match hold {
        Some(hold) if descriptor.slot != NO_SLOT => {
            Ok(Attachment::Lent(borrow_held(session, segments, descriptor, hold)?))
        }
        _ => attach_frozen(session, descriptor),
    }
}

fn attach_frozen(session: &Arc<Session>, descriptor: &LoanDescriptor) -> Result<Attachment> {
    descriptor.check_offset()?;
    let link = &session.link;
    let memory = link.control_socket().frozen(link.socket(), descriptor.segment)?;
    let (offset, len) = descriptor.range_in(memory.memory().len() as u64)?;
    Ok(Attachment::Frozen { memory, offset, len })
}

/// Returns the range, as offset and length in bytes, that a descriptor names in a cached segment of the peer's pool, if it names
/// one. `None`: [`borrow`] finds the cause.
#[inline(always)]
pub(super) fn find_cached(
    session: &Session,
    segments: &SegmentCache,
    descriptor: LoanDescriptor,
) -> Option<(usize, usize)> {
    let is_legal = descriptor.check(u64::MAX, session.link.terms().own.loan_slots).is_ok();
    let cached = segments.current(session, descriptor.segment).filter(|_| is_legal)?;
    descriptor.range_in(cached.segment.len() as u64).ok()
}

/// Returns the range of the peer's pool that a descriptor names.
#[inline]
fn borrow(
    session: &Arc<Session>,
    segments: &mut SegmentCache,
    descriptor: &LoanDescriptor,
) -> Result<LentRange> {
    locate(session, segments, descriptor, |_| {
        session.keep_loan(descriptor.slot);
        Ok(descriptor.slot.into())
    })
}

/// Returns the range of a publisher's pool that a descriptor names, as another part of a held message.
pub(crate) fn borrow_held(
    session: &Arc<Session>,
    segments: &mut SegmentCache,
    descriptor: &LoanDescriptor,
    hold: &Hold<'_>,
) -> Result<LentRange> {
    locate(session, segments, descriptor, |len| Ok(PART | u64::from(hold.split(len)?)))
}

/// As [`borrow_held`], as the only part.
#[inline(always)]
pub(crate) fn borrow_whole(
    session: &Arc<Session>,
    segments: &mut SegmentCache,
    descriptor: &LoanDescriptor,
    hold: Hold<'_>,
) -> Result<LentRange> {
    locate(session, segments, descriptor, |len| Ok(PART | u64::from(hold.into_slot(len)?)))
}

/// Returns the range that a descriptor names, with the slot that `keep` returns for its length, with [`PART`] if that is a part of a held message.
#[inline(always)]
fn locate(
    session: &Arc<Session>,
    segments: &mut SegmentCache,
    descriptor: &LoanDescriptor,
    keep: impl FnOnce(u64) -> Result<u64>,
) -> Result<LentRange> {
    descriptor.check(u64::MAX, session.link.terms().own.loan_slots)?;
    let segment = segments.find(session, descriptor.segment)?.clone();
    let (offset, len) = descriptor.range_in(segment.segment.len() as u64)?;
    let (generation, slot) = (descriptor.generation, keep(descriptor.len)?);
    Ok(LentRange { segment, offset, len, generation, slot })
}

/// The longest description of a record with a single loan that both sides handle in registers, in words of 8 bytes.
pub(crate) const SINGLE: usize = 4;

/// The lengths of the payload of such a record without metadata, in bytes.
pub(crate) const SINGLE_LENS: RangeInclusive<usize> = pooled::LEN..=pooled::LEN + 8 * SINGLE;
