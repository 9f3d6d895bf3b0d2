//! A message as it is published: its header, its payload, and the memory that it keeps.
//!
//! ```text
//!   message:          metadata │ bytes
//!   long message:     metadata │ descriptor of its block (32 bytes)
//!   tensors:          metadata │ descriptor … (32 bytes for each attachment) │ description
//!   spilled payload:  descriptor of the block that has the payload
//! ```
//!
//! 1. A payload that does not fit into a slot *spills*: it lies in a block, and the slot has the block's descriptor.
//! 2. Metadata stands in a payload only if the header says so, and takes a multiple of 8 bytes.
//! 3. Every descriptor names slot 0 and generation 0: a subscriber holds the message, not its blocks.

use std::sync::Arc;

use crate::channel::loan_descriptor as pooled;
use crate::channel::loan_descriptor::{LoanDescriptor, NO_SLOT};
use crate::channel::{LentRange, Metadata, OutgoingAttachment, SINGLE, SINGLE_LENS};
use crate::error::{ErrorKind, Fault, Result};
use crate::pool::{Block, FrozenBlock, Pool, SharedBlock};
use crate::ring::{Header, Kind};
use crate::shm::Bytes;
use crate::tensor::{Described, SingleTensor};

/// A bit of a header: the payload lies in a block.
const SPILLED: u64 = 1 << 12;

/// The longest payload, in its slot or spilled, in bytes. Part of the wire format.
pub(super) const LONGEST: u64 = 1 << 20;

/// The most attachments of a message.
const ATTACHMENTS: usize = 255;

/// Returns the block for so many bytes.
pub(super) type Alloc<'a> = &'a mut dyn FnMut(usize) -> Result<Block>;

/// Memory that a published message keeps.
#[derive(Debug)]
pub(super) enum Kept {
    Block(SharedBlock),
    /// The memory of a frozen segment, with its number in the pool.
    Frozen(#[expect(dead_code, reason = "it keeps the segment")] Arc<FrozenBlock>, u32),
}

impl Kept {
    /// Returns the number of its segment.
    pub(super) fn segment(&self) -> u32 {
        match self {
            Self::Block(block) => block.segment(),
            Self::Frozen(_, number) => *number,
        }
    }

    /// Returns the bytes of the pool that it keeps.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::Block(block) => block.block_len(),
            Self::Frozen(..) => 0,
        }
    }
}

/// Returns the bytes of a message that lie in blocks: those that its descriptors name.
pub(super) fn bytes_in_blocks(kept: &[Kept]) -> u64 {
    let len = |kept: &Kept| match kept {
        Kept::Block(block) => block.len() as u64,
        Kept::Frozen(..) => 0,
    };
    kept.iter().map(len).sum()
}

/// Returns the bytes of blocks that a message keeps, or 0 if it keeps memory that the pool does not hand out in turn.
pub(super) fn rotating_bytes(kept: &[Kept]) -> u64 {
    let is_frozen = kept.iter().any(|kept| matches!(kept, Kept::Frozen(..)));
    if is_frozen { 0 } else { kept.iter().map(Kept::bytes).sum() }
}

/// A message that is about to be published.
#[derive(Debug)]
pub(super) struct Draft {
    pub(crate) header: u64,
    pub(crate) payload: Vec<u8>,
    pub(crate) kept: Vec<Kept>,
}

impl Draft {
    /// Returns the draft of a message that goes into a block.
    pub(super) fn long(metadata: &[u8], message: &[u8], alloc: Alloc<'_>) -> Result<Self> {
        let mut block = alloc(message.len())?;
        block.bytes_mut().copy_from_slice(message);
        Self::of_block(metadata, block)
    }

    /// Returns the draft of a message that is in a block.
    pub(super) fn of_block(metadata: &[u8], block: Block) -> Result<Self> {
        let mut draft = Self { header: 0, payload: metadata.to_vec(), kept: Vec::new() };
        draft.attach(block)?;
        draft.header = header(Header::pooled(Kind::Message, draft.payload.len() as u32), metadata);
        Ok(draft)
    }

    /// Returns the draft of a message of tensors.
    pub(super) fn tensors(
        metadata: &[u8],
        described: Described<'_>,
        pool: &Pool,
        alloc: Alloc<'_>,
    ) -> Result<Self> {
        let Described { description, attachments, .. } = described;
        let count = attachments.len();
        let len = metadata.len() + count * pooled::LEN + description.len();
        if count > ATTACHMENTS || len as u64 > LONGEST {
            return Err(ErrorKind::MessageTooLarge { len: len as u64, max: LONGEST }.into());
        }
        let (payload, kept) = (Vec::with_capacity(len), Vec::with_capacity(count));
        let mut draft = Self { header: 0, payload, kept };
        draft.payload.extend_from_slice(metadata);
        for attachment in attachments {
            draft.keep(attachment, pool, alloc)?;
        }
        draft.payload.extend_from_slice(&description);
        draft.header = header(Header::tensors(Kind::Tensors, count as u8, len as u32), metadata);
        Ok(draft)
    }

    fn keep(
        &mut self,
        attachment: OutgoingAttachment<'_>,
        pool: &Pool,
        alloc: Alloc<'_>,
    ) -> Result<()> {
        match attachment {
            OutgoingAttachment::Block(block) => {
                self.attach(std::mem::replace(block, Block::empty()))
            }
            OutgoingAttachment::Shared(block) => {
                self.attach_shared(block.clone());
                Ok(())
            }
            OutgoingAttachment::Ticket { block, .. } => {
                self.attach_shared(block);
                Ok(())
            }
            OutgoingAttachment::Frozen { memory, offset, len } => {
                let number = pool.number_of(memory)?;
                let descriptor = LoanDescriptor::frozen(number, offset as u64, len as u64);
                self.payload.extend_from_slice(&descriptor.encode());
                self.kept.push(Kept::Frozen(memory.clone(), number));
                Ok(())
            }
            OutgoingAttachment::Copy { bytes, lender, .. } => {
                let mut block = alloc(bytes.len())?;
                bytes.copy_to(block.bytes_mut());
                lender.map_or(Ok(()), LentRange::check)?;
                self.attach(block)
            }
        }
    }

    fn attach(&mut self, block: Block) -> Result<()> {
        // A block without memory was sent before.
        let lost = || ErrorKind::PoolExhausted { needed: 0, used: 0, quota: 0 };
        self.attach_shared(block.share().ok_or_else(lost)?);
        Ok(())
    }

    fn attach_shared(&mut self, block: SharedBlock) {
        self.payload.extend_from_slice(&descriptor_of(&block).encode());
        self.kept.push(Kept::Block(block));
    }

    /// Moves a payload that is longer than `room` into a block.
    pub(super) fn fit(mut self, room: usize, alloc: Alloc<'_>) -> Result<Self> {
        if self.payload.len() <= room {
            return Ok(self);
        }
        let mut block = alloc(self.payload.len())?;
        block.bytes_mut().copy_from_slice(&self.payload);
        self.payload.clear();
        self.attach(block)?;
        self.header |= SPILLED;
        Ok(self)
    }
}

/// Returns the header of a message that has one tensor in a block and nothing else, whose description takes so many bytes.
pub(super) fn single_header(len: usize) -> u64 {
    Header::tensors(Kind::Tensors, 1, (pooled::LEN + len) as u32).to_word()
}

/// Returns the payload of such a message: the descriptor of the block, the description, and what is left of its words.
pub(super) fn single_payload(
    block: &SharedBlock,
    description: [u64; SINGLE],
) -> [u8; pooled::LEN + 8 * SINGLE] {
    let mut payload = [0; pooled::LEN + 8 * SINGLE];
    let (descriptor, rest) = payload.split_at_mut(pooled::LEN);
    descriptor.copy_from_slice(&descriptor_of(block).encode());
    for (to, word) in rest.as_chunks_mut().0.iter_mut().zip(description) {
        *to = word.to_ne_bytes();
    }
    payload
}

fn descriptor_of(block: &SharedBlock) -> LoanDescriptor {
    let (segment, offset) = block.place();
    LoanDescriptor { segment, slot: 0, offset, len: block.len() as u64, generation: 0 }
}

/// Returns the header of a message without metadata that fits into a slot.
#[inline(always)]
pub(super) fn plain_header(len: usize) -> u64 {
    Header::new(Kind::Message, len as u32).to_word()
}

/// Returns the length of the message with this header, if it is without metadata and as long as a slot's `room` at most. The
/// header is right then, as [`Published::of_word`] judges it.
#[inline(always)]
pub(super) fn plain_len(word: u64, room: usize) -> Option<usize> {
    let header = Header::plain_from_word(word).filter(|header| !header.more())?;
    let len = header.len() as usize;
    (len <= room).then_some(len)
}

/// Returns the header of a message of `len` bytes behind its metadata, all of which is in its slot.
pub(super) fn header_in_slot(metadata: &[u8], len: usize) -> u64 {
    header(Header::new(Kind::Message, (metadata.len() + len) as u32), metadata)
}

fn header(header: Header, metadata: &[u8]) -> u64 {
    if metadata.is_empty() { header.to_word() } else { header.with_metadata().to_word() }
}

/// A header as a subscriber has read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Published {
    pub(crate) header: Header,
    /// The payload lies in a block.
    pub(crate) is_spilled: bool,
}

impl Published {
    /// Checks a publisher's header. `room` is the longest payload of a slot.
    ///
    /// # Errors
    ///
    /// [`Fault::RecordHeader`]
    #[inline(always)]
    pub(super) fn of_word(word: u64, room: usize) -> Result<Self, Fault> {
        let lie = Fault::RecordHeader { header: word };
        let header = Header::from_word(word & !SPILLED)?;
        let is_spilled = word & SPILLED != 0;
        let is_known = match header.kind() {
            Kind::Message => !header.more(),
            Kind::Tensors => {
                !header.more() && !header.is_pooled() && header.version() == Header::TENSORS_VERSION
            }
            _ => false,
        };
        // A reader keeps the buffer of a spilled payload for the slots after it.
        let is_fitting = header.len() <= room as u64;
        let is_right = is_fitting != is_spilled && header.len() <= LONGEST;
        if is_known && is_right { Ok(Self { header, is_spilled }) } else { Err(lie) }
    }

    /// Returns the loan and the tensor of a message that has one tensor and nothing else, as nearly every message of tensors.
    /// `payload` is the slot's. `None`: the message is another one, or impossible, and opening it finds out.
    #[inline]
    pub(super) fn single(&self, payload: &[u8]) -> Option<(LoanDescriptor, SingleTensor)> {
        let len = self.len_in_slot();
        if self.is_spilled || !self.header.is_single() || !SINGLE_LENS.contains(&len) {
            return None;
        }
        let [a, b, c, d, description @ ..] = Bytes::of(payload).words::<{ 4 + SINGLE }>()?;
        let loan = LoanDescriptor::of_words([a, b, c, d]);
        let tensor = SingleTensor::decode(description, len - pooled::LEN, loan.len)?;
        (loan.slot != NO_SLOT).then_some((loan, tensor))
    }

    /// Returns the payload bytes in the slot.
    pub(super) fn len_in_slot(&self) -> usize {
        if self.is_spilled { pooled::LEN } else { self.header.len() as usize }
    }

    /// Returns whether the message has memory of the pool.
    #[inline(always)]
    pub(super) fn has_memory(&self) -> bool {
        self.is_spilled || self.header.is_pooled() || self.header.attachments() > 0
    }

    /// Takes the metadata off the front of a payload. Returns it and what is left.
    ///
    /// # Errors
    ///
    /// [`Fault::RecordHeader`], [`Fault::Metadata`], and [`ErrorKind::OutOfMemory`].
    pub(super) fn split<'a>(&self, payload: &'a [u8]) -> Result<(Metadata, &'a [u8])> {
        let mut metadata = Metadata::new();
        if !self.header.has_metadata() {
            return Ok((metadata, payload));
        }
        let lie = Fault::RecordHeader { header: self.header.to_word() };
        let head = payload.first_chunk().ok_or(lie)?;
        let len = Metadata::section_len(*head).map_err(Fault::Metadata)?;
        let (section, rest) = payload.split_at_checked(len).ok_or(lie)?;
        metadata.replace(section)?;
        Ok((metadata, rest))
    }
}
