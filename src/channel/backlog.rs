//! The backlog: messages that the receiver took out of the ring while the caller waited for a response, and responses.
//!
//! 1. Messages of one kind stay in the order in which they came.
//! 2. The sum of their sizes stays within `Options::backlog_limit`, except that one message always fits.
//! 3. Each message is charged to the link's account until it is dropped or the caller has it.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::account::{Account, Charge, Resource};
use crate::channel::attachment::Attachment;
use crate::channel::message::MessageKind;
use crate::channel::metadata::Metadata;
use crate::error::{ErrorKind, Result, memory};

/// A message in the backlog, copied. Tensors stay in their described form, which takes about the bytes that they count.
#[derive(Debug)]
pub(crate) struct KeptMessage {
    pub(crate) kind: MessageKind,
    pub(crate) body: Vec<u8>,
    pub(crate) metadata: Metadata,
    /// The memory that came with it.
    pub(crate) attachments: Vec<Attachment>,
    /// What the account holds for it, while it is set aside.
    pub(crate) charge: Option<Charge>,
}

/// The size of an attachment in the backlog, in bytes: it pins at least one page of the sender's pool.
pub(crate) const PINNED: usize = 4096;

/// The size of a message in the backlog beside its body and attachments, in bytes.
pub(crate) const OVERHEAD: usize = size_of::<KeptMessage>();

/// The messages that were set aside, oldest first.
#[derive(Debug)]
pub(crate) struct Backlog {
    kept: VecDeque<KeptMessage>,
    bytes: usize,
    limit: usize,
    account: Arc<Account>,
    /// The count of messages that are no responses.
    unasked: usize,
}

impl KeptMessage {
    /// Returns the size that counts against the limit, in bytes.
    pub(crate) fn size(&self) -> usize {
        let metadata = self.metadata.section().len();
        self.body.len() + metadata + self.attachments.len() * PINNED + OVERHEAD
    }

    fn is_unasked(&self) -> bool {
        self.kind.answers().is_none()
    }
}

impl Backlog {
    /// Returns an empty backlog of at most `limit` bytes.
    pub(crate) fn new(limit: usize, account: Arc<Account>) -> Self {
        Self { kept: VecDeque::new(), bytes: 0, limit, account, unasked: 0 }
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

    /// Returns the oldest message that is no response.
    pub(crate) fn oldest_unasked(&self) -> Option<&KeptMessage> {
        self.kept.iter().find(|kept| kept.is_unasked())
    }

    /// Takes the oldest message that is no response out.
    pub(crate) fn take_unasked(&mut self) -> Option<KeptMessage> {
        self.take(|kind| kind.answers().is_none())
    }

    /// Checks that a message of `len` bytes may be set aside, and if `charges`, charges the link's account with it. An empty
    /// backlog takes any message.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::BacklogFull`]: the message would exceed the limit.
    /// - [`ErrorKind::AccountFull`]: the message would exceed a limit of an account.
    /// - [`ErrorKind::OutOfMemory`]: the allocator has no memory for its place.
    pub(crate) fn admit(&mut self, len: usize, charges: bool) -> Result<Option<Charge>> {
        let full = self.bytes.saturating_add(len).saturating_add(OVERHEAD) > self.limit;
        if full && !self.kept.is_empty() {
            let (messages, needed) = (self.kept.len(), len.saturating_add(OVERHEAD));
            let (used, limit) = (self.bytes, self.limit);
            return Err(ErrorKind::BacklogFull { messages, needed, used, limit }.into());
        }
        let reserved = self.kept.try_reserve(1);
        reserved.map_err(|_| memory::no_memory::<KeptMessage>(self.kept.len() + 1))?;
        let charge = || self.account.charge(Resource::Memory, len.saturating_add(OVERHEAD) as u64);
        charges.then(charge).transpose()
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

    /// Returns the kind of the oldest message of a wanted kind.
    pub(crate) fn find(&self, wanted: impl Fn(&MessageKind) -> bool) -> Option<MessageKind> {
        self.kept.iter().map(|kept| kept.kind).find(|kind| wanted(kind))
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
mod tests;
