//! Parcels: records that describe memory, and enclose it without a copy.
//!
//! ```text
//!   header: kind, attachments, version │ attachment … │ description
//!                                        32 bytes each
//! ```
//!
//! What the description says is not this layer's matter: it hands out a private copy of it, and the
//! attachments in their order.

use std::sync::Arc;
use std::time::Instant;

use crate::error::{Error, ErrorKind, Fault, Result, TensorFault};
use crate::pool::{Block, FrozenBlock, Loan, Pool, SharedBlock};
use crate::ring::Header;
use crate::shm::{Bytes, PeerSegment};
use crate::transport::backlog::Letter;
use crate::transport::inbox::{Head, Inbox};
use crate::transport::link::{Link, Session};
use crate::transport::pooled::{self, NO_SLOT, Pooled};
use crate::transport::receiver::MessageKind;
use crate::transport::sender::{Patience, Sender, TrySendError};
use crate::transport::sent::Offered;

/// Attachments of one parcel at most.
pub(crate) const ATTACHMENTS: usize = 255;

/// Payloads up to so many bytes are put together on the stack.
const SHORT: usize = 256;

/// Memory that goes with a parcel. What is lent is lent once the parcel was published.
#[derive(Debug)]
pub(crate) enum Enclosure<'a> {
    /// To one receiver: it is nobody else's any more.
    Block(Block),
    Shared(&'a SharedBlock),
    /// The offset is a multiple of 64.
    Frozen {
        memory: &'a Arc<FrozenBlock>,
        offset: usize,
        len: usize,
    },
}

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
    segment: Arc<PeerSegment>,
    session: Arc<Session>,
    offset: usize,
    len: usize,
    generation: u64,
    slot: u32,
}

impl LentRange {
    /// Whether the user vouches that the peer leaves these bytes alone.
    #[inline(always)]
    pub(crate) fn is_trusted(&self) -> bool {
        self.session.is_trusted()
    }

    /// The bytes, which the peer can change at any moment.
    #[inline(always)]
    pub(crate) fn bytes(&self) -> Bytes<'_> {
        self.segment.mapping().bytes(self.offset, self.len)
    }
}

impl Drop for LentRange {
    #[inline]
    fn drop(&mut self) {
        self.session.return_loan(self.slot, self.generation);
    }
}

/// The attachments of a parcel that is being opened, each to be taken once.
pub(crate) struct Claims<'a> {
    origin: Origin<'a>,
}

enum Origin<'a> {
    /// Of the record at the ring's position.
    Ring { session: &'a Arc<Session>, table: &'a [u8] },
    /// Of a parcel that was set aside.
    Kept(std::vec::IntoIter<Attachment>),
}

impl Claims<'_> {
    pub(super) fn kept(attachments: Vec<Attachment>) -> Self {
        Self { origin: Origin::Kept(attachments.into_iter()) }
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
            Origin::Ring { session, table } => match table.split_first_chunk() {
                Some((descriptor, rest)) => {
                    *table = rest;
                    Some(attach(session, &Pooled::decode(descriptor))?)
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
fn attach(session: &Arc<Session>, descriptor: &Pooled) -> Result<Attachment> {
    let link = &session.link;
    let Pooled { segment: number, slot, offset, len, generation } = *descriptor;
    let fits = |capacity: u64| {
        if offset > capacity || len > capacity - offset {
            return Err(Fault::SegmentRange { offset, len, capacity });
        }
        Ok((offset as usize, len as usize))
    };
    if slot == NO_SLOT {
        descriptor.judge_place()?;
        let memory = link.arrivals().frozen(&link.socket, number)?;
        let (offset, len) = fits(memory.memory().len() as u64)?;
        return Ok(Attachment::Frozen { memory, offset, len });
    }
    descriptor.judge(u64::MAX, link.terms.own.loan_slots)?;
    let segment = link.arrivals().segment(&link.socket, number)?;
    let (offset, len) = fits(segment.len() as u64)?;
    let session = session.clone();
    Ok(Attachment::Lent(LentRange { segment, session, offset, len, generation, slot }))
}

impl Inbox {
    /// Judges a parcel's header.
    pub(super) fn judge_parcel(&self, header: Header) -> Result<(), Fault> {
        let table = (header.attachments() * pooled::LEN) as u64;
        if header.version() != Header::PARCEL_VERSION || header.len() < table {
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
        let mut claims = Claims { origin: Origin::Ring { session: &self.session, table } };
        let opened = open(description, &mut claims)
            .and_then(|opened| claims.finish().map(|()| opened))
            .map_err(|error| self.fail(error))?;
        self.stats.tensors += 1;
        self.discard(head.header);
        Ok(opened)
    }

    /// Takes the record at the ring's position out.
    pub(super) fn letter(&mut self, head: &Head, kind: MessageKind) -> Result<Letter> {
        if kind == MessageKind::Tensors {
            let (body, attachments) = self.keep(head)?;
            return Ok(Letter { kind, body, attachments });
        }
        let letter = Letter { kind, body: self.bytes(head).to_vec(), attachments: Vec::new() };
        self.release(head);
        Ok(letter)
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

impl Sender {
    /// The pool that this half lends from.
    pub(crate) fn pool(&self) -> &Pool {
        &self.session.core.pool
    }

    /// A block of `len` bytes for a copy.
    pub(crate) fn block(&mut self, len: usize, patience: Patience) -> Result<Block, TrySendError> {
        let start = Instant::now();
        loop {
            self.check()?;
            let spent = match self.session.core.pool.alloc(len)? {
                Ok(block) => return Ok(block),
                Err(spent) if spent.needed > spent.quota => return Err(Error::from(spent).into()),
                Err(spent) => spent,
            };
            let Some(deadline) = self.deadline(patience) else {
                let free = spent.quota.saturating_sub(spent.used);
                return Err(TrySendError::Full { free, needed: spent.needed });
            };
            self.await_pool(start, deadline)?;
        }
    }

    /// Sends a parcel. Where it cannot be sent now, the enclosures are as they were.
    #[inline]
    pub(crate) fn post(
        &mut self,
        enclosures: &mut [Enclosure<'_>],
        description: &[u8],
        patience: Patience,
    ) -> Result<(), TrySendError> {
        match self.try_post(enclosures, description) {
            Err(TrySendError::Full { free, needed }) => {
                self.await_post(enclosures, description, patience, (free, needed))
            }
            posted => posted,
        }
    }

    #[cold]
    fn await_post(
        &mut self,
        enclosures: &mut [Enclosure<'_>],
        description: &[u8],
        patience: Patience,
        (free, needed): (u64, u64),
    ) -> Result<(), TrySendError> {
        let header = self.parcel(enclosures.len(), description.len())?;
        let Some(deadline) = self.deadline(patience) else {
            if self.link.peer_left() {
                return Err(Error::from(ErrorKind::PeerClosed).into());
            }
            if !self.link.by_descriptor() {
                return Err(TrySendError::Full { free, needed });
            }
            self.arm()?;
            return self.try_post(enclosures, description);
        };
        let start = Instant::now();
        loop {
            self.room_in_ring(header, Patience::Until(deadline))?;
            match self.try_post(enclosures, description) {
                Err(TrySendError::Full { .. }) => self.await_pool(start, deadline)?,
                posted => return posted,
            }
        }
    }

    /// The header of a parcel.
    #[inline]
    fn parcel(&self, attachments: usize, description: usize) -> Result<Header> {
        let len = attachments * pooled::LEN + description;
        let max = crate::ring::largest_payload(self.link.terms.own.ring);
        if attachments > ATTACHMENTS {
            let fault = TensorFault::Count { count: attachments, expected: ATTACHMENTS };
            return Err(fault.into());
        }
        if len as u64 > max {
            let kind = ErrorKind::MessageTooLarge { len: len as u64, max };
            return Err(kind.into());
        }
        Ok(Header::parcel(attachments as u8, len as u32))
    }

    #[inline]
    fn try_post(
        &mut self,
        enclosures: &mut [Enclosure<'_>],
        description: &[u8],
    ) -> Result<(), TrySendError> {
        let header = self.parcel(enclosures.len(), description.len())?;
        let offset = self.room_for_parcel(header, enclosures)?;
        let (mut short, mut long) = ([0; SHORT], Vec::new());
        let len = header.len() as usize;
        let payload = if len <= SHORT {
            &mut short[..len]
        } else {
            long.resize(len, 0);
            &mut long[..]
        };
        let (table, rest) = payload.split_at_mut(enclosures.len() * pooled::LEN);
        rest.copy_from_slice(description);
        let mut bytes = 0;
        for (to, enclosure) in table.chunks_exact_mut(pooled::LEN).zip(enclosures) {
            let descriptor = self.enclose(enclosure)?;
            bytes += descriptor.len;
            to.copy_from_slice(&descriptor.encode());
        }
        self.ring.put(offset, payload);
        self.producer.publish(header);
        self.stats.tensors += 1;
        self.stats.bytes += bytes;
        Ok(self.announce()?)
    }

    /// Room for a parcel, with all that publishing it will need: segments that the peer knows, and loan
    /// slots.
    #[inline]
    fn room_for_parcel(
        &mut self,
        header: Header,
        enclosures: &[Enclosure<'_>],
    ) -> Result<usize, TrySendError> {
        loop {
            let offset = self.room_in_ring(header, Patience::None)?;
            let full = TrySendError::Full { free: 0, needed: header.len() };
            match self.offer_all(enclosures)? {
                Offered::Known => {
                    let loans = enclosures.iter().filter(|enclosure| enclosure.is_lent()).count();
                    let Session { link, core, .. } = &*self.session;
                    if loans > 0 && !core.pool.has_slots(link.borrower, loans) {
                        return Err(full);
                    }
                    return Ok(offset);
                }
                Offered::NoRoom => return Err(full),
                Offered::Unannounced => self.announce_packets()?,
            }
        }
    }

    #[inline]
    fn offer_all(&mut self, enclosures: &[Enclosure<'_>]) -> Result<Offered> {
        for enclosure in enclosures {
            let segment = enclosure.segment(&self.session);
            let offered = self.sent.offer(&self.session, segment)?;
            if offered != Offered::Known {
                return Ok(offered);
            }
        }
        Ok(Offered::Known)
    }

    /// Lends what is enclosed.
    #[inline]
    fn enclose(&self, enclosure: &mut Enclosure<'_>) -> Result<Pooled> {
        let Session { link, core, .. } = &*self.session;
        let (loan, len): (Option<Loan>, usize) = match enclosure {
            Enclosure::Block(block) => {
                let len = block.len();
                (core.pool.lend(block, link.borrower), len)
            }
            Enclosure::Shared(block) => {
                (core.pool.lend_shared(block, link.borrower), block.bytes().len())
            }
            Enclosure::Frozen { memory, offset, len } => {
                let segment = memory.number_in(&core.pool);
                return Ok(Pooled::frozen(segment, *offset as u64, *len as u64));
            }
        };
        // The account closes when the peer ends.
        let loan = loan.ok_or_else(|| Link::end(link))?;
        Ok(Pooled::new(&loan, len as u64))
    }
}

impl Enclosure<'_> {
    fn is_lent(&self) -> bool {
        !matches!(self, Self::Frozen { .. })
    }

    /// The number of its segment.
    #[inline]
    fn segment(&self, session: &Session) -> u32 {
        match self {
            Self::Block(block) => block.segment(),
            Self::Shared(block) => block.segment(),
            Self::Frozen { memory, .. } => memory.number_in(&session.core.pool),
        }
    }
}
