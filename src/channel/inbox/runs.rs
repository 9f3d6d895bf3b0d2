//! Runs of plain messages that are in the ring now: what holds for all of them is checked once.

use crate::channel::inbox::{Flow, Inbox, RecordHead};
use crate::error::Result;
use crate::ring::Record;
use crate::shm::Bytes;

/// A message that a caller looks at. If the caller panics, it stays the next one, as it was checked.
struct Shown<'a> {
    inbox: &'a mut Inbox,
    head: RecordHead,
    is_seen: bool,
}

impl Drop for Shown<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if !self.is_seen {
            self.inbox.hold(self.head);
        }
    }
}

impl Inbox {
    /// Calls `each` with the plain messages that come next in the ring, up to `max` of them, and releases each one after its call.
    /// Returns their count. It stops at the first record of another kind, and after a message for which `each` returns false.
    #[inline(always)]
    pub(super) fn drain_run(
        &mut self,
        max: usize,
        mut each: impl FnMut(Bytes<'_>) -> bool,
    ) -> Result<usize> {
        if !self.generation.is_current() || self.lent.is_some() {
            return Ok(0);
        }
        let mut count = 0;
        while count < max && self.flow == Flow::Open {
            let record = self.consumer.plain(self.consumer.word(), self.plain_max);
            let Some(Record { header, offset }) = record else { break };
            let head = RecordHead { header, offset, len: header.len() as usize };
            let mut shown = Shown { inbox: self, head, is_seen: false };
            let goes_on = each(shown.inbox.ring.bytes(offset, head.len));
            shown.is_seen = true;
            shown.inbox.release(&head)?;
            count += 1;
            if !goes_on {
                break;
            }
        }
        Ok(count)
    }
}
