//! Tensors records as the inbox receives them: records with attachments.

use crate::channel::attachment::{Claims, LONGEST, LentRange, SHORT, SINGLE, SINGLE_LENS, borrow};
use crate::channel::backlog::KeptMessage;
use crate::channel::inbox::receiver::Receiver;
use crate::channel::inbox::{Inbox, RecordHead};
use crate::channel::loan_descriptor::{self as pooled, LoanDescriptor, NO_SLOT};
use crate::channel::message::MessageKind;
use crate::error::{Fault, Result, TryRecvError, memory};
use crate::patience::RecvPatience;
use crate::ring::Header;
use crate::shm::Bytes;

/// A tensors record with one loan and a short description. Nearly every tensors record is one, so the receiver takes it
/// apart in registers: bytes that go through memory in several widths wait for each other.
///
/// A caller that does not [take](Receiver::take_single) it [leaves](Receiver::leave_single) it.
pub(crate) struct Single {
    head: RecordHead,
    loan: LoanDescriptor,
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
    /// Returns the single tensor at the ring's position, and leaves the record there. `None`: the record is another one,
    /// or there is none, and [`open_tensors`](Self::open_tensors) finds out.
    #[inline(always)]
    pub(crate) fn single(
        &mut self,
        patience: RecvPatience,
    ) -> Result<Option<Single>, TryRecvError> {
        if self.backlog.has_unasked() {
            return Ok(None);
        }
        let Some(head) = self.inbox.head(patience)? else { return Ok(None) };
        if head.header.is_single()
            && SINGLE_LENS.contains(&head.len)
            // The line of the header, which is mapped whatever the record's length.
            && let Some([a, b, c, d, description @ ..]) =
                self.inbox.line(&head).words::<{ 4 + SINGLE }>()
        {
            let loan = LoanDescriptor::of_words([a, b, c, d]);
            let len = head.len - pooled::LEN;
            if loan.slot != NO_SLOT {
                return Ok(Some(Single { head, loan, description, len }));
            }
        }
        self.inbox.hold(head);
        Ok(None)
    }

    /// Leaves a single tensor in the ring.
    #[cold]
    pub(crate) fn leave_single(&mut self, single: Single) {
        self.inbox.hold(single.head);
    }

    /// Takes the loan of a single tensor, and releases the record.
    #[inline(always)]
    pub(crate) fn take_single(
        &mut self,
        single: &Single,
        patience: RecvPatience,
    ) -> Result<LentRange, TryRecvError> {
        if self.inbox.segments.current(&self.inbox.session, single.loan.segment).is_none() {
            self.await_single(single, patience)?;
        }
        let inbox = &mut self.inbox;
        let attached = borrow(&inbox.session, &mut inbox.segments, &single.loan);
        let range = attached.map_err(|error| inbox.fail(error))?;
        inbox.stats.tensors += 1;
        inbox.discard(single.head.header);
        Ok(range)
    }

    /// Allows one new segment to be read from the socket. Leaves the tensor in the ring, and finds nothing, if the caller
    /// takes turns, does not wait, and the socket rests before the segment has come.
    #[cold]
    fn await_single(
        &mut self,
        single: &Single,
        patience: RecvPatience,
    ) -> Result<(), TryRecvError> {
        self.await_attachments(&single.head, patience)?;
        self.inbox.link.control_socket().open_window();
        Ok(())
    }
}

impl Inbox {
    /// Checks the header of a tensors record, which has `len` bytes behind its envelope.
    pub(crate) fn check_tensors(&self, header: Header, len: usize) -> Result<(), Fault> {
        let is_bounded = header.attachments() * pooled::LEN <= len && header.len() <= LONGEST;
        if header.version() != Header::TENSORS_VERSION || !is_bounded {
            return Err(Fault::RecordHeader { header: header.to_word() });
        }
        Ok(())
    }

    /// Calls `open` with the tensors record at the ring's position, and releases the record. If `open` fails or leaves an
    /// attachment, the link ends.
    #[inline]
    pub(crate) fn open<T>(
        &mut self,
        head: &RecordHead,
        open: impl FnOnce(&[u8], &mut Claims<'_>) -> Result<T>,
    ) -> Result<T> {
        let (mut short, mut long) = ([0; SHORT], Vec::new());
        let payload = if head.len <= SHORT {
            &mut short[..head.len]
        } else {
            memory::reserve(&mut long, head.len).map_err(|error| self.fail(error))?;
            long.resize(head.len, 0);
            &mut long[..]
        };
        self.ring.bytes(head.offset, head.len).copy_to(payload);
        let (table, description) = payload.split_at(head.header.attachments() * pooled::LEN);
        self.link.control_socket().open_window();
        let metadata = self.take_metadata(head.header);
        let memory = (&self.session, &mut self.segments);
        let mut claims = Claims::in_ring(memory, table, metadata, &mut self.extension);
        let opened = open(description, &mut claims)
            .and_then(|opened| claims.finish().map(|()| opened))
            .map_err(|error| self.fail(error))?;
        self.stats.tensors += 1;
        self.discard(head.header);
        if table.chunks_exact(pooled::LEN).any(LoanDescriptor::is_frozen) {
            // The sender can have these mappings retired once it knows that the record was read.
            self.publish_position();
        }
        Ok(opened)
    }

    /// Returns whether the memory that a tensors record names [is at hand](Self::is_at_hand). The peer may change what this
    /// reads: opening the record reads and checks it.
    pub(crate) fn are_attachments_at_hand(&self, head: &RecordHead) -> Result<bool> {
        for index in 0..head.header.attachments() {
            let at = head.offset + index * pooled::LEN;
            let words = self.ring.bytes(at, pooled::LEN).words();
            let descriptor = words.map(LoanDescriptor::of_words);
            if let Some(descriptor) = descriptor
                && !self.is_at_hand(descriptor.segment)?
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The bytes from a record's payload on, up to the end of the line behind its header at least.
    #[inline(always)]
    fn line(&self, head: &RecordHead) -> Bytes<'_> {
        self.ring.bytes(head.offset, pooled::LEN + 8 * SINGLE)
    }

    /// Takes the record at the ring's position out.
    pub(crate) fn kept(
        &mut self,
        head: &RecordHead,
        kind: MessageKind,
        (mut body, copied): (Vec<u8>, usize),
    ) -> Result<KeptMessage> {
        if kind.has_tensors() {
            return self.keep(head, kind);
        }
        self.copy_rest(head, &mut body, copied)?;
        let metadata = self.take_metadata(head.header);
        Ok(KeptMessage { kind, body, metadata, attachments: Vec::new(), charge: None })
    }

    /// Takes the tensors record at the ring's position out: its description and its attachments.
    pub(crate) fn keep(&mut self, head: &RecordHead, kind: MessageKind) -> Result<KeptMessage> {
        let count = head.header.attachments();
        self.open(head, |description, claims| {
            let attachments: Result<_> = (0..count).map(|_| claims.claim()).collect();
            let (body, metadata) = (memory::copied(description)?, claims.take_metadata());
            Ok(KeptMessage { kind, body, metadata, attachments: attachments?, charge: None })
        })
    }
}
