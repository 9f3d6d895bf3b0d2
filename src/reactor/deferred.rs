//! The messages of a link that the loop has taken out of the ring and not yet dispatched.
//!
//! They come from two sources: the connection held them back before the reactor adopted it, or they stood before the
//! response of a call that waits.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::account::{Account, Charge, Resource};
use crate::channel::{KeptMessage, OVERHEAD, Receiver};
use crate::error::{Result, memory};

/// Deferred messages, in order. Tensors stay in their described form until they are dispatched.
pub(super) struct DeferredMessages {
    /// Each with what the link's account holds for it.
    queue: VecDeque<KeptMessage>,
    bytes: usize,
    /// The most bytes.
    limit: usize,
    account: Arc<Account>,
}

impl DeferredMessages {
    /// Takes over the messages that the connection holds back. `limit` is the most bytes.
    pub(super) fn of(receiver: &mut Receiver, limit: usize) -> Self {
        let account = receiver.session().link.account().clone();
        let mut deferred = Self { queue: VecDeque::new(), bytes: 0, limit, account };
        // The next poll of the ring returns the error.
        while let Some(message) = receiver.pop_kept() {
            if let Err(error) = deferred.push(message) {
                receiver.end(error);
            }
        }
        deferred
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Returns whether a message of `len` bytes fits. An empty queue admits any message.
    pub(super) fn admits(&self, len: usize) -> bool {
        self.queue.is_empty() || self.bytes + len + OVERHEAD <= self.limit
    }

    /// Charges the link's account with a message of `len` bytes. Returns `None` if the account is full.
    pub(super) fn charge(&self, len: usize) -> Option<Charge> {
        self.account.charge(Resource::Memory, (len + OVERHEAD) as u64).ok()
    }

    /// Appends a message.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfMemory`](crate::ErrorKind::OutOfMemory): the allocator has no memory for its place.
    pub(super) fn push(&mut self, message: KeptMessage) -> Result<()> {
        let reserved = self.queue.try_reserve(1);
        reserved.map_err(|_| memory::no_memory::<KeptMessage>(self.queue.len() + 1))?;
        self.bytes += message.size();
        self.queue.push_back(message);
        Ok(())
    }

    pub(super) fn pop(&mut self) -> Option<KeptMessage> {
        let message = self.queue.pop_front()?;
        self.bytes -= message.size();
        Some(message)
    }

    /// Makes a message that was popped the first one.
    pub(super) fn push_front(&mut self, message: KeptMessage) {
        self.bytes += message.size();
        self.queue.push_front(message);
    }
}
