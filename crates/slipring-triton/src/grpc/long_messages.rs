//! Long messages of a request, which pass tonic by.
//!
//! tonic copies a message into memory of its own. The body puts a long message together instead, and hands an empty one to
//! tonic in its place. The decoder takes the message from here.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

/// The messages of a call that tonic has not yet decoded, one entry for each. `None`: tonic has the message itself.
#[derive(Debug, Clone, Default)]
pub(super) struct LongMessages(Arc<Mutex<VecDeque<Option<Bytes>>>>);

impl LongMessages {
    pub(super) fn push(&self, message: Option<Bytes>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push_back(message);
    }

    /// Returns the next message, if it is one that passes tonic by.
    pub(super) fn pop(&self) -> Option<Bytes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop_front().flatten()
    }
}
