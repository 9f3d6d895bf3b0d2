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
use crate::ring::Header;
use crate::shm::{Bytes, PeerSegment};
use crate::transport::backlog::Letter;
use crate::transport::inbox::{Head, Inbox};
use crate::transport::link::Session;
use crate::transport::pooled::{self, NO_SLOT, Pooled};
use crate::transport::receiver::MessageKind;

/// Payloads up to so many bytes are put together on the stack.
pub(super) const SHORT: usize = 256;

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
        if table.chunks_exact(pooled::LEN).any(Pooled::is_frozen) {
            // The sender can have these mappings retired once it knows that the record was read.
            self.tell_position();
        }
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
