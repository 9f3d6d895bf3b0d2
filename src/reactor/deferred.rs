//! The messages of a link that the loop has taken out of the ring and not yet dispatched.
//!
//! They come from two sources: the connection held them back before the reactor adopted it, or they stood before the
//! response of a call that waits.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::account::{Account, Charge, Resource};
use crate::channel::{Charged, Receiver, SetAside};
use crate::error::{Result, memory};
use crate::tensor::TensorSet;

/// A message, or tensors with their loans.
pub(super) type Deferred = SetAside<TensorSet>;

/// The bytes that a deferred message counts besides its body.
const OVERHEAD: usize = size_of::<Deferred>();

/// Deferred messages, in order.
pub(super) struct DeferredMessages {
    /// Each with what the link's account holds for it.
    queue: VecDeque<Charged<TensorSet>>,
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
        // A message that cannot be opened ends the link. The next poll of the ring returns the error.
        while let Ok(Some((message, charge))) = receiver.pop_set_aside() {
            if let Err(error) = deferred.push(message, charge) {
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
    pub(super) fn push(&mut self, message: Deferred, charge: Option<Charge>) -> Result<()> {
        let reserved = self.queue.try_reserve(1);
        reserved.map_err(|_| memory::no_memory::<Deferred>(self.queue.len() + 1))?;
        self.bytes += cost(&message);
        self.queue.push_back((message, charge));
        Ok(())
    }

    pub(super) fn pop(&mut self) -> Option<Charged<TensorSet>> {
        let (message, charge) = self.queue.pop_front()?;
        self.bytes -= cost(&message);
        Some((message, charge))
    }

    /// Makes a message that was popped the first one.
    pub(super) fn push_front(&mut self, message: Deferred, charge: Option<Charge>) {
        self.bytes += cost(&message);
        self.queue.push_front((message, charge));
    }
}

fn cost(message: &Deferred) -> usize {
    let len = match message {
        SetAside::Message { body, metadata, .. } => body.len() + metadata.section().len(),
        SetAside::Tensors { len, .. } => *len,
    };
    len + OVERHEAD
}
