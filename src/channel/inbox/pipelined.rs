//! A long message that the receiver copies out while the sender still copies it in; see `pipeline`.

use std::time::Instant;

use crate::channel::inbox::{Inbox, RecordHead};
use crate::channel::pipeline::{BEHIND_ID, CopyAhead, STEP, Wanted, told};
use crate::error::TryRecvError;
use crate::handshake::layout;
use crate::patience::RecvPatience;
use crate::ring::{Header, Record};

impl Inbox {
    /// As [`head`](Self::head), for a caller that wants a copy in `buffer`, of a message of up to `room` bytes. Also returns
    /// how many bytes are copied already. A buffer that grew for an announcement is freed unless the record is the
    /// announced one.
    pub(crate) fn head_ahead(
        &mut self,
        patience: RecvPatience,
        (wanted, room): (Wanted, usize),
        buffer: &mut Vec<u8>,
    ) -> Result<Option<(RecordHead, usize)>, TryRecvError> {
        if wanted.is_none() || matches!(patience, RecvPatience::None) || !self.data.may_poll() {
            return Ok(self.rare_head(patience)?.map(|head| (head, 0)));
        }
        let before = buffer.capacity();
        *self.ahead = CopyAhead::new((wanted, room), std::mem::take(buffer));
        self.data.set_eager(true);
        let head = self.rare_head(patience);
        self.data.set_eager(false);
        let ahead = std::mem::take(&mut *self.ahead);
        *buffer = ahead.buffer;
        let counts = matches!(head, Ok(Some(_))) && self.lent.is_some();
        let copied = if counts && self.lent == ahead.descriptor { ahead.copied } else { 0 };
        if copied < ahead.copied {
            // The length of the record that has come decides what the caller sets aside, not the announced one.
            buffer.clear();
            if buffer.capacity() > before {
                *buffer = Vec::new();
            }
        }
        Ok(head?.map(|head| (head, copied)))
    }

    /// As [`head_ahead`](Self::head_ahead), and polls first.
    pub(crate) fn head_for_copy(
        &mut self,
        patience: RecvPatience,
        wanted: (Wanted, usize),
        buffer: &mut Vec<u8>,
    ) -> Result<Option<(RecordHead, usize)>, TryRecvError> {
        if self.poll(patience).is_some_and(|word| word != 0) {
            return Ok(self.rare_head(patience)?.map(|head| (head, 0)));
        }
        self.head_ahead(patience, wanted, buffer)
    }

    /// Copies the bytes that the peer announces, as long as no record has come. Stops copying ahead for this wait if the
    /// announcement is of no use, or at the deadline.
    #[cold]
    pub(crate) fn copy_ahead(&mut self, patience: RecvPatience) {
        let told = told(self.link.peer(), layout::FILLED);
        self.ahead.told = told;
        let before = self.ahead.copied;
        loop {
            if self.consumer.is_ready() {
                // The announcement may belong to another record.
                return;
            }
            let Some(is_all) = self.copy_step(told) else { break };
            if matches!(patience, RecvPatience::Until(deadline) if Instant::now() >= deadline) {
                break;
            }
            if is_all {
                return self.data.comes();
            }
        }
        self.ahead.wanted = None;
        if self.ahead.copied == before {
            self.data.set_eager(false);
        }
    }

    /// Copies up to [`STEP`] of the announced bytes. Returns whether these were all. `None`: there is nothing to copy.
    fn copy_step(&mut self, told: u64) -> Option<bool> {
        if self.ahead.wanted != Some(told & BEHIND_ID) {
            return None;
        }
        if self.ahead.descriptor.is_none() {
            let header = Header::POOLED_MESSAGE;
            let record = Record { header, offset: self.consumer.payload(header) };
            // A descriptor that is not valid is a fault once its record has come.
            self.ahead.descriptor = self.descriptor(record, 8 * (told & BEHIND_ID) as usize).ok();
        }
        let Self { ahead, segments, session, .. } = self;
        let descriptor = ahead.descriptor.as_ref()?;
        let cached = segments.current(session, descriptor.segment)?;
        let (offset, len) = descriptor.range_in(cached.segment.len() as u64).ok()?;
        let all = usize::try_from(told & !63).unwrap_or(len).min(len);
        let end = all.min(ahead.copied + STEP);
        if end <= ahead.copied || !ahead.admits(len) {
            return None;
        }
        if ahead.buffer.len() != len {
            // Only the copied bytes of the buffer are touched.
            ahead.buffer.truncate(len);
            // Without memory the copy waits for the record, and the receive returns the error.
            ahead.buffer.try_reserve_exact(len - ahead.buffer.len()).ok()?;
            ahead.buffer.resize(end.max(ahead.buffer.len()), 0);
        }
        let out = &mut ahead.buffer[ahead.copied..end];
        cached.segment.mapping().bytes(offset + ahead.copied, out.len()).copy_to(out);
        ahead.copied = end;
        Some(end == all)
    }
}
