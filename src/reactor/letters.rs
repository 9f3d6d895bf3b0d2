//! What came and waits outside of the ring: from before the connection was adopted, or from behind which
//! calls wait for their responses.

use std::collections::VecDeque;

use crate::channel::MessageKind;
use crate::channel::Receiver;
use crate::channel::SetAside;
use crate::tensor::TensorSet;

/// A message that was set aside, or tensors, with their loans.
pub(super) type Letter = SetAside<TensorSet>;

/// Bytes that a letter counts besides its body.
const OVERHEAD: usize = size_of::<Letter>();

/// Messages that were set aside, in order.
pub(super) struct Letters {
    queue: VecDeque<Letter>,
    bytes: usize,
    limit: usize,
}

impl Letters {
    /// What the connection had set aside, and room for `limit` bytes.
    pub(super) fn of(receiver: &mut Receiver, limit: usize) -> Self {
        let mut letters = Self { queue: VecDeque::new(), bytes: 0, limit };
        // Where one of them cannot be, the link has ended: its next look at the ring says how.
        while let Ok(Some(letter)) = receiver.pop_set_aside() {
            letters.push(letter);
        }
        letters
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether `len` bytes more may be set aside. One letter always may.
    pub(super) fn admits(&self, len: usize) -> bool {
        self.queue.is_empty() || self.bytes + len + OVERHEAD <= self.limit
    }

    pub(super) fn push(&mut self, letter: Letter) {
        self.bytes += len(&letter);
        self.queue.push_back(letter);
    }

    pub(super) fn push_message(&mut self, kind: MessageKind, body: Vec<u8>) {
        self.push(SetAside::Message(kind, body));
    }

    pub(super) fn pop(&mut self) -> Option<Letter> {
        let letter = self.queue.pop_front()?;
        self.bytes -= len(&letter);
        Some(letter)
    }

    /// Puts the first one back.
    pub(super) fn put_back(&mut self, letter: Letter) {
        self.bytes += len(&letter);
        self.queue.push_front(letter);
    }
}

fn len(letter: &Letter) -> usize {
    let len = match letter {
        SetAside::Message(_, body) => body.len(),
        SetAside::Tensors { len, .. } => *len,
    };
    len + OVERHEAD
}
