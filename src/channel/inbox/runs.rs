//! Runs of plain messages that are in the ring now: what holds for all of them is checked once, and they are counted together.

use crate::channel::inbox::{Flow, Inbox, RecordHead};
use crate::ring::{Header, Record};
use crate::shm::Bytes;

/// A run of messages that a caller looks at, one after the other. If the caller panics, the message that it looks at stays
/// the next one, as it was checked.
struct Run<'a> {
    inbox: &'a mut Inbox,
    /// The message that the caller looks at.
    shown: Option<RecordHead>,
    /// The last message that was released.
    last: Header,
    /// The messages that were released, and those of them that are not counted yet, with their bytes.
    count: usize,
    uncounted: u64,
    bytes: u64,
}

/// The most messages that are counted together, so that a monitor sees how a long run goes on.
const SHOWN: u64 = 16;

impl Inbox {
    /// Calls `each` with the plain messages that come next in the ring, up to `max` of them, and releases each one after its call.
    /// Returns their count. It stops at the first record of another kind, and after a message for which `each` returns false.
    /// `gives_way`: it lets the sender get ahead, as [`Consumer::give_way`](crate::ring::Consumer::give_way) says.
    #[inline(always)]
    pub(super) fn drain_run(
        &mut self,
        (max, gives_way): (usize, bool),
        mut each: impl FnMut(Bytes<'_>) -> bool,
    ) -> usize {
        if !self.generation.is_current() || self.lent.is_some() {
            return 0;
        }
        let mut run =
            Run { inbox: self, shown: None, last: Header::EMPTY, count: 0, uncounted: 0, bytes: 0 };
        while run.count < max && run.inbox.flow == Flow::Open {
            let Inbox { consumer, ring, plain_max, .. } = &mut *run.inbox;
            if gives_way {
                consumer.give_way();
            }
            let Some(Record { header, offset }) = consumer.plain(consumer.word(), *plain_max)
            else {
                consumer.caught_up();
                break;
            };
            let len = header.len() as usize;
            run.shown = Some(RecordHead { header, offset, len });
            let goes_on = each(ring.bytes(offset, len));
            run.shown = None;
            run.release(header);
            if !goes_on {
                break;
            }
        }
        run.count
    }
}

impl Run<'_> {
    #[inline(always)]
    fn release(&mut self, header: Header) {
        self.last = header;
        self.count += 1;
        self.uncounted += 1;
        self.bytes += header.len();
        if self.inbox.consumer.release(header) {
            self.inbox.published();
        }
        if self.uncounted == SHOWN {
            self.settle();
        }
    }

    /// Counts the messages that were released since the last call.
    #[inline(always)]
    fn settle(&mut self) {
        self.inbox.stats.messages += std::mem::take(&mut self.uncounted);
        self.inbox.stats.bytes += std::mem::take(&mut self.bytes);
        self.inbox.pass(self.last);
    }
}

impl Drop for Run<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.uncounted > 0 {
            self.settle();
        }
        if let Some(head) = self.shown {
            self.inbox.hold(head);
        }
    }
}
