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

use std::sync::Arc;

use crate::error::{Fault, Result, TensorFault};
use crate::pool::FrozenBlock;
use crate::ring::{Header, Kind};
use crate::shm::Bytes;
use crate::transport::backlog::Letter;
use crate::transport::inbox::{Head, Inbox};
use crate::transport::lenders::{Lender, Lenders};
use crate::transport::link::Session;
use crate::transport::peer::{Peer, has_ended};
use crate::transport::pooled::{self, NO_SLOT, Pooled};
use crate::transport::receiver::{MessageKind, Receiver, TryRecvError};
use crate::transport::shelf::Shelf;
use crate::transport::wait::Patience;

/// The longest payload of a parcel, in bytes, however large the ring is: 1024 tensors with names. Part of the
/// wire format.
pub(super) const LONGEST: u64 = 1 << 20;

/// Payloads up to so many bytes are put together on the stack.
pub(super) const SHORT: usize = 64;

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
pub struct LentRange {
    lender: Arc<Lender>,
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
    origin: Origin<'a>,
    shelf: &'a mut Option<Arc<Shelf>>,
}

enum Origin<'a> {
    /// Of the record at the ring's position.
    Ring { session: &'a Arc<Session>, lenders: &'a mut Lenders, table: &'a [u8] },
    /// Of a parcel that was set aside.
    Kept(std::vec::IntoIter<Attachment>),
}

impl<'a> Claims<'a> {
    pub(super) fn kept(attachments: Vec<Attachment>, shelf: &'a mut Option<Arc<Shelf>>) -> Self {
        Self { origin: Origin::Kept(attachments.into_iter()), shelf }
    }

    /// What the receiving half keeps, for what was claimed.
    pub(crate) fn shelf(&mut self) -> Arc<Shelf> {
        self.shelf.get_or_insert_default().clone()
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
            Origin::Ring { session, lenders, table } => match table.split_first_chunk() {
                Some((descriptor, rest)) => {
                    *table = rest;
                    Some(attach(session, lenders, &Pooled::decode(descriptor))?)
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
    lenders: &mut Lenders,
    descriptor: &Pooled,
) -> Result<Attachment> {
    if descriptor.slot != NO_SLOT {
        return Ok(Attachment::Lent(borrow(session, lenders, descriptor)?));
    }
    descriptor.judge_place()?;
    let link = &session.link;
    let memory = link.arrivals().frozen(&link.socket, descriptor.segment)?;
    let (offset, len) = descriptor.range_in(memory.memory().len() as u64)?;
    Ok(Attachment::Frozen { memory, offset, len })
}

/// A range of the peer's pool.
#[inline(always)]
fn borrow(session: &Arc<Session>, lenders: &mut Lenders, descriptor: &Pooled) -> Result<LentRange> {
    descriptor.judge(u64::MAX, session.link.terms.own.loan_slots)?;
    let lender = lenders.find(session, descriptor.segment)?.clone();
    let (offset, len) = descriptor.range_in(lender.segment.len() as u64)?;
    let Pooled { slot, generation, .. } = *descriptor;
    Ok(LentRange { lender, offset, len, generation, slot })
}

/// Words of a description that a single parcel has at most.
pub(crate) const SINGLE: usize = 4;

/// A parcel with one loan and a short description, which lies in one line with its header. Taken apart in
/// registers: nearly every parcel is one, and bytes that go through memory in several widths wait for each
/// other.
pub(crate) struct Single {
    head: Head,
    loan: Pooled,
    /// In little-endian words; what lies behind its length means nothing.
    pub(crate) description: [u64; SINGLE],
    /// The description's length in bytes.
    pub(crate) len: usize,
}

impl Single {
    /// Bytes of the loan.
    #[inline(always)]
    pub(crate) fn loan_len(&self) -> u64 {
        self.loan.len
    }
}

impl Receiver {
    /// Looks for a single parcel at the ring's position, which stays there. `None`: there is something else, or
    /// nothing; the general way says what.
    #[inline(always)]
    pub(crate) fn single(&mut self, patience: Patience) -> Result<Option<Single>, TryRecvError> {
        if self.backlog.has_tensors() {
            return Ok(None);
        }
        let Some(head) = self.inbox.head(patience)? else { return Ok(None) };
        const LENS: std::ops::RangeInclusive<usize> = pooled::LEN..=pooled::LEN + 8 * SINGLE;
        if head.header.kind() != Kind::Parcel
            || head.header.attachments() != 1
            || !LENS.contains(&head.len)
        {
            return Ok(None);
        }
        // The line of the header, which is mapped whatever the record's length.
        let line = self.inbox.line(&head);
        let Some([a, b, c, d, description @ ..]) = line.words::<{ 4 + SINGLE }>() else {
            return Ok(None);
        };
        let loan = Pooled::of_words([a, b, c, d]);
        let len = head.len - pooled::LEN;
        Ok((loan.slot != NO_SLOT).then_some(Single { head, loan, description, len }))
    }

    /// Takes the loan of a single parcel that was judged, and gives the record back.
    #[inline(always)]
    pub(crate) fn take_single(&mut self, single: &Single) -> Result<LentRange> {
        let inbox = &mut self.inbox;
        inbox.open_window_for(single.loan.segment);
        let attached = borrow(&inbox.session, &mut inbox.lenders, &single.loan);
        let range = attached.map_err(|error| inbox.fail(error))?;
        inbox.stats.tensors += 1;
        inbox.discard(single.head.header);
        Ok(range)
    }
}

impl Inbox {
    /// Judges a parcel's header.
    pub(super) fn judge_parcel(&self, header: Header) -> Result<(), Fault> {
        let table = (header.attachments() * pooled::LEN) as u64;
        let is_bounded = (table..=LONGEST).contains(&header.len());
        if header.version() != Header::PARCEL_VERSION || !is_bounded {
            return Err(Fault::RecordHeader { header: header.to_word() });
        }
        Ok(())
    }

    /// Gives the parcel at the ring's position to `open`, and then back. Where `open` fails, or leaves an
    /// attachment, the link ends.
    #[inline]
    pub(super) fn open<T>(
        &mut self,
        head: &Head,
        open: impl FnOnce(&[u8], &mut Claims<'_>) -> Result<T>,
    ) -> Result<T> {
        let (mut short, mut long) = ([0; SHORT], Vec::new());
        let payload = if head.len <= SHORT {
            &mut short[..head.len]
        } else {
            long.resize(head.len, 0);
            &mut long[..]
        };
        self.link.peer.bytes(head.offset, head.len).copy_to(payload);
        let (table, description) = payload.split_at(head.header.attachments() * pooled::LEN);
        self.link.arrivals().open_window();
        let mut claims = Claims {
            origin: Origin::Ring { session: &self.session, lenders: &mut self.lenders, table },
            shelf: &mut self.shelf,
        };
        let opened = open(description, &mut claims)
            .and_then(|opened| claims.finish().map(|()| opened))
            .map_err(|error| self.fail(error))?;
        self.stats.tensors += 1;
        self.discard(head.header);
        if table.chunks_exact(pooled::LEN).any(Pooled::is_frozen) {
            // The sender can have these mappings retired once it knows that the record was read.
            self.tell_position();
        }
        Ok(opened)
    }

    /// The bytes from a record's payload on, up to the end of the line behind its header at least.
    #[inline(always)]
    fn line(&self, head: &Head) -> Bytes<'_> {
        self.link.peer.bytes(head.offset, pooled::LEN + 8 * SINGLE)
    }

    /// Takes the record at the ring's position out.
    pub(super) fn letter(
        &mut self,
        head: &Head,
        kind: MessageKind,
        (mut body, copied): (Vec<u8>, usize),
    ) -> Result<Letter> {
        if kind == MessageKind::Tensors {
            let (body, attachments) = self.keep(head)?;
            return Ok(Letter { kind, body, attachments });
        }
        self.copy_rest(head, &mut body, copied);
        Ok(Letter { kind, body, attachments: Vec::new() })
    }

    /// Sets the parcel at the ring's position aside: its description, and what came with it.
    pub(super) fn keep(&mut self, head: &Head) -> Result<(Vec<u8>, Vec<Attachment>)> {
        let count = head.header.attachments();
        self.open(head, |description, claims| {
            let attachments: Result<_> = (0..count).map(|_| claims.claim()).collect();
            Ok((description.to_vec(), attachments?))
        })
    }
}
