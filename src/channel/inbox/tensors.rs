//! Tensors records as the inbox receives them: records with attachments.

use crate::channel::attachment::{
    Claims, DESCRIPTION, LONGEST, LentRange, SHORT, SINGLE, SINGLE_LENS, find_cached,
    long_description,
};
use crate::channel::backlog::KeptMessage;
use crate::channel::inbox::receiver::Receiver;
use crate::channel::inbox::{Inbox, RecordHead};
use crate::channel::loan_descriptor::{self as pooled, LoanDescriptor};
use crate::channel::message::MessageKind;
use crate::error::{Fault, Result, TryRecvError, memory};
use crate::patience::RecvPatience;
use crate::ring::Header;
use crate::shm::Bytes;

/// A tensors record with one loan and a short description. Nearly every tensors record is one, so the receiver takes it
/// apart in registers: bytes that go through memory in several widths wait for each other. No call gets a reference to it.
///
/// A caller that does not [take](Receiver::take_single) it [leaves](Receiver::leave_single) it.
#[derive(Clone, Copy)]
pub(crate) struct Single {
    header: Header,
    loan: LoanDescriptor,
    /// In little-endian words; what lies behind its length means nothing.
    pub(crate) description: [u64; SINGLE],
    /// The description's length in bytes.
    pub(crate) len: usize,
}

/// Bytes of its payload in the line of its header, if the header starts a line.
const IN_LINE: usize = 56;

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
        let word = self.inbox.poll(patience);
        let header = match word.and_then(|word| self.inbox.consumer.single(word, SINGLE_LENS)) {
            Some(header) => header,
            None => match self.inbox.await_single(patience)? {
                Some(header) => header,
                None => return Ok(None),
            },
        };
        let (payload, len) = (self.inbox.single_payload(), header.len() as usize);
        let Some([a, b, c, d, e, f, g]) = payload.words() else { return Ok(None) };
        // Few records have the last word. A load of it takes the line that the sender writes next.
        let last = if len > IN_LINE { payload.slice(IN_LINE, 8).words() } else { Some([0]) };
        let Some([h]) = last else { return Ok(None) };
        let (loan, description) = (LoanDescriptor::of_words([a, b, c, d]), [e, f, g, h]);
        Ok(Some(Single { header, loan, description, len: len - pooled::LEN }))
    }

    /// Leaves a single tensor in the ring.
    #[inline(always)]
    pub(crate) fn leave_single(&mut self, single: Single) {
        self.inbox.hold_single(single.header);
    }

    /// Takes the loan of a single tensor, and releases the record. `None`: its segment is not at hand, or its descriptor is
    /// wrong. The record stays in the ring, and [`open_tensors`](Self::open_tensors) finds out.
    #[inline(always)]
    pub(crate) fn take_single(&mut self, single: Single) -> Option<LentRange> {
        let (inbox, loan) = (&mut self.inbox, single.loan);
        let Some(range) = find_cached(&inbox.session, &inbox.segments, loan) else {
            inbox.hold_single(single.header);
            return None;
        };
        inbox.session.keep_loan(loan.slot);
        inbox.last_segment = Some(loan.segment);
        inbox.last_slot = Some(loan.slot);
        inbox.stats.tensors += 1;
        inbox.discard(single.header);
        // Last: a handle that is alive across a call that may panic lies in memory, and a move of it waits for its store.
        let segment = inbox.segments.handle(loan.segment).expect("it is cached");
        Some(LentRange::new(segment, range, loan))
    }
}

impl Inbox {
    /// Checks the header of a tensors record. How long a description in the last attachment is, it reads once: what is counted
    /// is what is copied.
    pub(crate) fn check_tensors(&mut self, head: &RecordHead) -> Result<(), Fault> {
        let RecordHead { header, offset, len } = *head;
        let table = header.attachments() * pooled::LEN;
        let is_bounded = table <= len && header.len() <= LONGEST;
        // A description in the last attachment leaves none in the ring.
        let is_whole = !header.is_pooled() || header.attachments() > 0 && table == len;
        if header.version() != Header::TENSORS_VERSION || !is_bounded || !is_whole {
            return Err(Fault::RecordHeader { header: header.to_word() });
        }
        if header.is_pooled() {
            let last = self.ring.bytes(offset + table - pooled::LEN, pooled::LEN).words();
            let len = last.map_or(u64::MAX, |words| LoanDescriptor::of_words(words).len);
            if len > DESCRIPTION {
                return Err(Fault::MessageLength { len, max: DESCRIPTION });
            }
            self.description = len;
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
        let long;
        let (claimed, description) = match table.split_last_chunk() {
            Some((rest, last)) if head.header.is_pooled() => {
                long =
                    long_description((&self.session, &mut self.segments), last, self.description)
                        .map_err(|error| self.fail(error))?;
                (rest, &long[..])
            }
            _ => (table, description),
        };
        let memory = (&self.session, &mut self.segments);
        let mut claims = Claims::in_ring(memory, claimed, metadata, &mut self.extension);
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

    /// Waits for the record at the ring's position, if it is a single tensor. `None`: it is another one, or there is none.
    #[cold]
    #[inline(never)]
    fn await_single(&mut self, patience: RecvPatience) -> Result<Option<Header>, TryRecvError> {
        let Some(head) = self.head(patience)? else { return Ok(None) };
        let header = self.consumer.single(head.header.to_word(), SINGLE_LENS);
        if header.is_none() {
            self.hold(head);
        }
        Ok(header)
    }

    /// Keeps the head of a single tensor that is left in the ring.
    #[cold]
    #[inline(never)]
    fn hold_single(&mut self, header: Header) {
        let offset = self.consumer.payload(header);
        self.hold(RecordHead { header, offset, len: header.len() as usize });
    }

    /// The bytes of the longest payload of a single tensor, which are mapped whatever the record's length.
    #[inline(always)]
    fn single_payload(&self) -> Bytes<'_> {
        let offset = self.consumer.next_header() + size_of::<u64>();
        self.ring.bytes(offset, pooled::LEN + 8 * SINGLE)
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
        self.open(head, |description, claims| {
            let attachments: Result<_> = (0..claims.left()).map(|_| claims.claim()).collect();
            let (body, metadata) = (memory::copied(description)?, claims.take_metadata());
            Ok(KeptMessage { kind, body, metadata, attachments: attachments?, charge: None })
        })
    }
}
