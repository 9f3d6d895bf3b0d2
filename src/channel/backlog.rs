//! What was received while something else was waited for.

use std::collections::VecDeque;

use crate::channel::attachment::Attachment;
use crate::channel::message::MessageKind;
use crate::error::{ErrorKind, Result};

/// A message set aside, copied.
#[derive(Debug)]
pub(crate) struct KeptMessage {
    pub(crate) kind: MessageKind,
    pub(crate) body: Vec<u8>,
    /// What came with it.
    pub(crate) attachments: Vec<Attachment>,
}

/// Bytes that each attachment counts: it keeps a page of the sender's at least, and maybe a mapping.
pub(crate) const PINNED: usize = 4096;

/// Bytes that a letter counts besides its body.
const OVERHEAD: usize = size_of::<KeptMessage>();

#[derive(Debug)]
pub(crate) struct Backlog {
    kept: VecDeque<KeptMessage>,
    bytes: usize,
    limit: usize,
    /// Letters that are parcels.
    tensors: usize,
}

impl KeptMessage {
    /// Bytes that it counts.
    fn size(&self) -> usize {
        self.body.len() + self.attachments.len() * PINNED + OVERHEAD
    }

    fn is_tensors(&self) -> bool {
        self.kind == MessageKind::Tensors
    }
}

impl Backlog {
    /// A backlog for `limit` bytes.
    pub(crate) fn new(limit: usize) -> Self {
        Self { kept: VecDeque::new(), bytes: 0, limit, tensors: 0 }
    }

    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// Whether parcels were set aside.
    #[inline(always)]
    pub(crate) fn has_tensors(&self) -> bool {
        self.tensors > 0
    }

    /// Whether a letter with `len` bytes may be set aside. One always may.
    pub(crate) fn admit(&self, len: usize) -> Result<()> {
        let full = self.bytes.saturating_add(len).saturating_add(OVERHEAD) > self.limit;
        if full && !self.kept.is_empty() {
            let (messages, needed) = (self.kept.len(), len.saturating_add(OVERHEAD));
            let (used, limit) = (self.bytes, self.limit);
            return Err(ErrorKind::BacklogFull { messages, needed, used, limit }.into());
        }
        Ok(())
    }

    pub(crate) fn push(&mut self, kept: KeptMessage) {
        self.bytes += kept.size();
        self.tensors += usize::from(kept.is_tensors());
        self.kept.push_back(kept);
    }

    /// The oldest letter of the wanted kind.
    pub(crate) fn take(&mut self, wanted: impl Fn(&MessageKind) -> bool) -> Option<KeptMessage> {
        let at = self.kept.iter().position(|kept| wanted(&kept.kind))?;
        let kept = self.kept.remove(at)?;
        self.bytes -= kept.size();
        self.tensors -= usize::from(kept.is_tensors());
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
