//! The backlog: messages that the receiver took out of the ring while the caller waited for a response, and responses.
//!
//! 1. Messages of one kind stay in the order in which they came.
//! 2. The sum of their sizes stays within `Options::backlog_limit`, except that one message always fits.

use std::collections::VecDeque;

use crate::channel::attachment::Attachment;
use crate::channel::message::MessageKind;
use crate::error::{ErrorKind, Result, memory};

/// A message in the backlog, copied.
#[derive(Debug)]
pub(crate) struct KeptMessage {
    pub(crate) kind: MessageKind,
    pub(crate) body: Vec<u8>,
    /// The memory that came with it.
    pub(crate) attachments: Vec<Attachment>,
}

/// The size of an attachment in the backlog, in bytes: it pins at least one page of the sender's pool.
pub(crate) const PINNED: usize = 4096;

/// The size of a message in the backlog beside its body and attachments, in bytes.
const OVERHEAD: usize = size_of::<KeptMessage>();

/// The messages that were set aside, oldest first.
#[derive(Debug)]
pub(crate) struct Backlog {
    kept: VecDeque<KeptMessage>,
    bytes: usize,
    limit: usize,
    /// The count of messages that are no responses.
    unasked: usize,
}

impl KeptMessage {
    /// Returns the size that counts against the limit, in bytes.
    fn size(&self) -> usize {
        self.body.len() + self.attachments.len() * PINNED + OVERHEAD
    }

    fn is_unasked(&self) -> bool {
        !matches!(self.kind, MessageKind::Response(_))
    }
}

impl Backlog {
    /// Returns an empty backlog of at most `limit` bytes.
    pub(crate) fn new(limit: usize) -> Self {
        Self { kept: VecDeque::new(), bytes: 0, limit, unasked: 0 }
    }

    /// Returns whether no message was set aside.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// Returns whether a message was set aside that is no response.
    #[inline(always)]
    pub(crate) fn has_unasked(&self) -> bool {
        self.unasked > 0
    }

    /// Returns the kind of the oldest message that is no response.
    pub(crate) fn oldest_unasked(&self) -> Option<MessageKind> {
        self.kept.iter().find(|kept| kept.is_unasked()).map(|kept| kept.kind)
    }

    /// Checks that a message of `len` bytes may be set aside. An empty backlog takes any message.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::BacklogFull`]: the message would exceed the limit.
    /// - [`ErrorKind::OutOfMemory`]: the allocator has no memory for its place.
    pub(crate) fn admit(&mut self, len: usize) -> Result<()> {
        let full = self.bytes.saturating_add(len).saturating_add(OVERHEAD) > self.limit;
        if full && !self.kept.is_empty() {
            let (messages, needed) = (self.kept.len(), len.saturating_add(OVERHEAD));
            let (used, limit) = (self.bytes, self.limit);
            return Err(ErrorKind::BacklogFull { messages, needed, used, limit }.into());
        }
        let reserved = self.kept.try_reserve(1);
        reserved.map_err(|_| memory::no_memory::<KeptMessage>(self.kept.len() + 1))
    }

    /// Returns the length of the longest message that may be set aside. An empty backlog takes any message.
    pub(crate) fn room(&self) -> usize {
        if self.kept.is_empty() {
            return usize::MAX;
        }
        self.limit.saturating_sub(self.bytes).saturating_sub(OVERHEAD)
    }

    /// Sets a message aside. [`admit`](Self::admit) has allowed it.
    pub(crate) fn push(&mut self, kept: KeptMessage) {
        self.bytes += kept.size();
        self.unasked += usize::from(kept.is_unasked());
        self.kept.push_back(kept);
    }

    /// Puts back the message that was taken out last.
    pub(crate) fn put_back(&mut self, kept: KeptMessage) {
        self.bytes += kept.size();
        self.unasked += usize::from(kept.is_unasked());
        self.kept.push_front(kept);
    }

    /// Takes the oldest message of a wanted kind out.
    pub(crate) fn take(&mut self, wanted: impl Fn(&MessageKind) -> bool) -> Option<KeptMessage> {
        let at = self.kept.iter().position(|kept| wanted(&kept.kind))?;
        let kept = self.kept.remove(at)?;
        self.bytes -= kept.size();
        self.unasked -= usize::from(kept.is_unasked());
        Some(kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::message::RequestId;

    fn kept(kind: MessageKind, len: usize) -> KeptMessage {
        KeptMessage { kind, body: vec![0; len], attachments: Vec::new() }
    }

    #[test]
    fn a_backlog_keeps_order_within_a_kind_and_its_limit() {
        let mut backlog = Backlog::new(1000);
        backlog.admit(5000).unwrap();
        backlog.push(kept(MessageKind::Message, 100));
        backlog.push(kept(MessageKind::Request(RequestId(9)), 200));
        backlog.push(kept(MessageKind::Message, 300));
        assert!(backlog.admit(500).is_err());
        assert_eq!(backlog.take(|kind| *kind == MessageKind::Message).unwrap().body.len(), 100);
        assert_eq!(backlog.take(|kind| *kind == MessageKind::Message).unwrap().body.len(), 300);
        assert!(backlog.take(|kind| *kind == MessageKind::Message).is_none());
        backlog.admit(500).unwrap();
    }
}
