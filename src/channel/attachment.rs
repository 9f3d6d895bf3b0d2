//! Parcels: records that describe memory, and enclose it without a copy. How they are received; `enclosure`
//! sends them.
//!
//! ```text
//!   header: kind, attachments, version │ attachment … │ description
//!                                        32 bytes each
//! ```
//!
//! What the description says is not this layer's matter: it hands out a private copy of it, and the
//! attachments in their order.

use crate::channel::loan_descriptor::{self as pooled};
use std::sync::Arc;

use crate::channel::extension::ExtensionSlot;
use crate::channel::loan_descriptor::LoanDescriptor;
use crate::channel::loan_descriptor::NO_SLOT;
use crate::channel::segment_cache::CachedSegment;
use crate::channel::segment_cache::SegmentCache;
use crate::error::{Fault, Result, TensorFault};
use crate::handshake::peer::Peer;
use crate::handshake::peer::has_ended;
use crate::link::session::Session;
use crate::pool::FrozenBlock;
use crate::shm::Bytes;

/// The longest payload of a parcel, in bytes, however large the ring is: 1024 tensors with names. Part of the
/// wire format.
pub(crate) const LONGEST: u64 = 1 << 20;

/// Payloads up to so many bytes are put together on the stack.
pub(crate) const SHORT: usize = 64;

/// Memory that came with a parcel. Dropped, it goes back to the sender if it was lent.
#[derive(Debug)]
pub(crate) enum Attachment {
    Lent(LentRange),
    Frozen { memory: Arc<FrozenBlock>, offset: usize, len: usize },
}

impl Attachment {
    /// Its length in bytes.
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Lent(range) => range.len,
            Self::Frozen { len, .. } => *len,
        }
    }
}

/// A range of a peer's pool, on loan to us.
#[derive(Debug)]
pub(crate) struct LentRange {
    lender: Arc<CachedSegment>,
    offset: usize,
    len: usize,
    generation: u64,
    slot: u32,
}

impl LentRange {
    /// Whether the user vouches that the peer leaves these bytes alone.
    #[inline(always)]
    pub(crate) fn is_trusted(&self) -> bool {
        self.lender.session.is_trusted()
    }

    /// Whether the process that has lent it has ended.
    pub(crate) fn lender_ended(&self) -> bool {
        let link = &self.lender.session.link;
        // Nobody asks the kernel while the watcher has seen nothing.
        !link.is_alive() && link.identity.pidfd().is_none_or(has_ended)
    }

    /// Who has lent it.
    pub(crate) fn lender(&self) -> &Peer {
        &self.lender.session.link.identity
    }

    /// The bytes, which the peer can change at any moment.
    #[inline(always)]
    pub(crate) fn bytes(&self) -> Bytes<'_> {
        self.lender.segment.mapping().bytes(self.offset, self.len)
    }
}

impl Drop for LentRange {
    #[inline]
    fn drop(&mut self) {
        self.lender.session.return_loan(self.slot, self.generation);
    }
}

/// The attachments of a parcel that is being opened, each to be taken once.
pub(crate) struct Claims<'a> {
    pub(super) origin: Origin<'a>,
    pub(super) extension: &'a mut Option<Arc<ExtensionSlot>>,
}

pub(super) enum Origin<'a> {
    /// Of the record at the ring's position.
    Ring { session: &'a Arc<Session>, segments: &'a mut SegmentCache, table: &'a [u8] },
    /// Of a parcel that was set aside.
    Kept(std::vec::IntoIter<Attachment>),
}

impl<'a> Claims<'a> {
    pub(crate) fn kept(
        attachments: Vec<Attachment>,
        extension: &'a mut Option<Arc<ExtensionSlot>>,
    ) -> Self {
        Self { origin: Origin::Kept(attachments.into_iter()), extension }
    }

    /// What the receiving half keeps, for what was claimed.
    pub(crate) fn extension(&mut self) -> Arc<ExtensionSlot> {
        self.extension.get_or_insert_default().clone()
    }

    /// The next attachment.
    ///
    /// # Errors
    ///
    /// - [`Fault`]: there is none, or it cannot be.
    /// - What this process lacks to map it.
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
            Origin::Kept(attachments) => attachments.next(),
        };
        next.ok_or_else(|| Fault::Tensor(TensorFault::Count { count: 1, expected: 0 }).into())
    }

    /// How many are left.
    pub(crate) fn left(&self) -> usize {
        match &self.origin {
            Origin::Ring { table, .. } => table.len() / pooled::LEN,
            Origin::Kept(attachments) => attachments.len(),
        }
    }

    /// All attachments were taken.
    pub(crate) fn finish(&self) -> Result<()> {
        match self.left() {
            0 => Ok(()),
            count => Err(Fault::Tensor(TensorFault::Count { count, expected: 0 }).into()),
        }
    }
}

#[inline]
fn attach(
    session: &Arc<Session>,
    segments: &mut SegmentCache,
    descriptor: &LoanDescriptor,
) -> Result<Attachment> {
    if descriptor.slot != NO_SLOT {
        return Ok(Attachment::Lent(borrow(session, segments, descriptor)?));
    }
    descriptor.check_offset()?;
    let link = &session.link;
    let memory = link.control_socket().frozen(&link.socket, descriptor.segment)?;
    let (offset, len) = descriptor.range_in(memory.memory().len() as u64)?;
    Ok(Attachment::Frozen { memory, offset, len })
}

/// A range of the peer's pool.
#[inline(always)]
pub(super) fn borrow(
    session: &Arc<Session>,
    segments: &mut SegmentCache,
    descriptor: &LoanDescriptor,
) -> Result<LentRange> {
    descriptor.check(u64::MAX, session.link.terms.own.loan_slots)?;
    let lender = segments.find(session, descriptor.segment)?.clone();
    let (offset, len) = descriptor.range_in(lender.segment.len() as u64)?;
    let LoanDescriptor { slot, generation, .. } = *descriptor;
    Ok(LentRange { lender, offset, len, generation, slot })
}

/// Words of a description that a single parcel has at most.
pub(crate) const SINGLE: usize = 4;
