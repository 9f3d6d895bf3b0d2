//! What was received while something else was waited for.

use std::collections::VecDeque;

use crate::channel::attachment::Attachment;
use crate::channel::message::MessageKind;
use crate::error::{ErrorKind, Result};

/// A message set aside, copied.
#[derive(Debug)]
pub(crate) struct Letter {
    pub(crate) kind: MessageKind,
    pub(crate) body: Vec<u8>,
    /// What came with it.
    pub(crate) attachments: Vec<Attachment>,
}

/// Bytes that each attachment counts: it keeps a page of the sender's at least, and maybe a mapping.
pub(crate) const PINNED: usize = 4096;

/// Bytes that a letter counts besides its body.
const OVERHEAD: usize = size_of::<Letter>();

#[derive(Debug)]
pub(crate) struct Backlog {
    letters: VecDeque<Letter>,
    bytes: usize,
    limit: usize,
    /// Letters that are parcels.
    tensors: usize,
}

impl Letter {
    /// Bytes that it counts.
    fn weight(&self) -> usize {
        self.body.len() + self.attachments.len() * PINNED + OVERHEAD
    }

    fn is_parcel(&self) -> bool {
        self.kind == MessageKind::Tensors
    }
}

impl Backlog {
    /// A backlog for `limit` bytes.
    pub(crate) fn new(limit: usize) -> Self {
        Self { letters: VecDeque::new(), bytes: 0, limit, tensors: 0 }
    }

    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.letters.is_empty()
    }

    /// Whether parcels were set aside.
    #[inline(always)]
    pub(crate) fn has_tensors(&self) -> bool {
        self.tensors > 0
    }

    /// Whether a letter with `len` bytes may be set aside. One always may.
    pub(crate) fn admit(&self, len: usize) -> Result<()> {
        let full = self.bytes.saturating_add(len).saturating_add(OVERHEAD) > self.limit;
        if full && !self.letters.is_empty() {
            let (messages, needed) = (self.letters.len(), len.saturating_add(OVERHEAD));
            let (used, limit) = (self.bytes, self.limit);
            return Err(ErrorKind::BacklogFull { messages, needed, used, limit }.into());
        }
        Ok(())
    }

    pub(crate) fn push(&mut self, letter: Letter) {
        self.bytes += letter.weight();
        self.tensors += usize::from(letter.is_parcel());
        self.letters.push_back(letter);
    }

    /// The oldest letter of the wanted kind.
    pub(crate) fn take(&mut self, wanted: impl Fn(&MessageKind) -> bool) -> Option<Letter> {
        let at = self.letters.iter().position(|letter| wanted(&letter.kind))?;
        let letter = self.letters.remove(at)?;
        self.bytes -= letter.weight();
        self.tensors -= usize::from(letter.is_parcel());
        Some(letter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::message::RequestId;

    fn letter(kind: MessageKind, len: usize) -> Letter {
        Letter { kind, body: vec![0; len], attachments: Vec::new() }
    }

    #[test]
    fn a_backlog_keeps_order_within_a_kind_and_its_limit() {
        let mut backlog = Backlog::new(1000);
        backlog.admit(5000).unwrap();
        backlog.push(letter(MessageKind::Message, 100));
        backlog.push(letter(MessageKind::Request(RequestId(9)), 200));
        backlog.push(letter(MessageKind::Message, 300));
        assert!(backlog.admit(500).is_err());
        assert_eq!(backlog.take(|kind| *kind == MessageKind::Message).unwrap().body.len(), 100);
        assert_eq!(backlog.take(|kind| *kind == MessageKind::Message).unwrap().body.len(), 300);
        assert!(backlog.take(|kind| *kind == MessageKind::Message).is_none());
        backlog.admit(500).unwrap();
    }
}
