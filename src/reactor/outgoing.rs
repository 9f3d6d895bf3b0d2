//! A link's sending half, and the writes that wait for room in it.

use std::collections::VecDeque;

use crate::error::{Error, ErrorKind, Result};
use crate::reactor::commands::{CallFn, WriteFn};
use crate::reactor::link::Link;
use crate::transport::{RequestId, Sender, Token, TrySendError};

/// What a write that waits counts beside its bytes.
const OVERHEAD: usize = 64;

/// What is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    Message,
    Request(RequestId),
    Response(RequestId),
    Trigger(Token),
}

/// A write that waits for room.
pub(super) struct Write {
    pub(super) what: What,
    pub(super) body: Vec<u8>,
    pub(super) done: Option<WriteFn>,
}

/// The sending half. Any thread may write, one at a time; no callback runs meanwhile.
pub(super) struct Outgoing {
    /// `None`: the link is over.
    sender: Option<Sender>,
    waiting: VecDeque<Write>,
    /// Bytes of these, and how many there may be.
    bytes: usize,
    limit: usize,
    /// No more writes are taken; the link ends after the waiting ones.
    closing: bool,
    /// The sender has said that it sleeps on the socket.
    dozing: bool,
}

/// What became of a write at once.
pub(super) enum Submitted {
    /// It is done, in this way. Its completion has yet to be called.
    Done(Option<WriteFn>, Result<()>),
    /// It waits; it is the first one that does.
    First,
    Behind,
}

impl Outgoing {
    pub(super) fn new(sender: Sender, limit: usize) -> Self {
        let waiting = VecDeque::new();
        Self { sender: Some(sender), waiting, bytes: 0, limit, closing: false, dozing: false }
    }

    /// Sends at once, or not at all.
    pub(super) fn try_put(&mut self, what: What, body: &[u8]) -> Result<(), TrySendError> {
        if !self.waiting.is_empty() {
            return Err(TrySendError::Full { free: 0, needed: body.len() as u64 });
        }
        if self.closing {
            return Err(Error::from(ErrorKind::LinkClosed).into());
        }
        self.put(what, body)
    }

    fn put(&mut self, what: What, body: &[u8]) -> Result<(), TrySendError> {
        let Some(sender) = &mut self.sender else {
            return Err(Error::from(ErrorKind::LinkClosed).into());
        };
        match what {
            What::Message => sender.try_send(body),
            What::Request(id) => sender.try_request(id, body),
            What::Response(id) => sender.try_respond(id, body),
            What::Trigger(token) => sender.try_trigger(token),
        }
    }

    /// Sends at once, or later.
    pub(super) fn submit(&mut self, what: What, body: Vec<u8>, done: Option<WriteFn>) -> Submitted {
        match self.try_put(what, &body) {
            Ok(()) => Submitted::Done(done, Ok(())),
            Err(TrySendError::Failed(error)) => Submitted::Done(done, Err(error)),
            Err(TrySendError::Full { .. }) if self.closing => {
                Submitted::Done(done, Err(ErrorKind::LinkClosed.into()))
            }
            Err(TrySendError::Full { .. }) => {
                let (bytes, limit) = (self.bytes + body.len() + OVERHEAD, self.limit);
                if bytes > limit && !self.waiting.is_empty() {
                    return Submitted::Done(
                        done,
                        Err(ErrorKind::WritesFull { bytes, limit }.into()),
                    );
                }
                self.bytes = bytes;
                self.waiting.push_back(Write { what, body, done });
                if self.waiting.len() == 1 { Submitted::First } else { Submitted::Behind }
            }
        }
    }

    /// Sends the first write that waits, if there is room. Gives it, and what became of it.
    pub(super) fn flush_one(&mut self) -> Option<(Write, Result<()>)> {
        let write = self.waiting.pop_front()?;
        let result = match self.put(write.what, &write.body) {
            Ok(()) => Ok(()),
            Err(TrySendError::Failed(error)) => Err(error),
            Err(TrySendError::Full { .. }) => {
                self.waiting.push_front(write);
                return None;
            }
        };
        self.rouse();
        self.bytes -= write.body.len() + OVERHEAD;
        Some((write, result))
    }

    /// Bytes of the writes that wait.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether writes wait.
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Takes no more writes. True: none wait.
    pub(super) fn close(&mut self) -> bool {
        self.closing = true;
        self.waiting.is_empty()
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing
    }

    /// Says that the sender sleeps on the socket until there is room. The caller passes a heavy
    /// barrier, and looks once more.
    pub(super) fn doze(&mut self) {
        if let Some(sender) = &mut self.sender {
            self.dozing = true;
            sender.doze();
        }
    }

    fn rouse(&mut self) {
        if let Some(sender) = &mut self.sender
            && self.dozing
        {
            self.dozing = false;
            sender.rouse();
        }
    }

    /// The link is over. Gives what is to be dropped and told without the lock.
    pub(super) fn end(&mut self) -> (Option<Sender>, VecDeque<Write>) {
        self.closing = true;
        (self.sender.take(), std::mem::take(&mut self.waiting))
    }
}

/// What a link leaves behind: its sender, and completions to be called.
pub(super) struct Remains {
    pub(super) link: Link,
    pub(super) kind: ErrorKind,
    pub(super) sender: Option<Sender>,
    pub(super) writes: VecDeque<Write>,
    pub(super) calls: Vec<CallFn>,
}

impl Remains {
    /// Closes the link for the peer, and tells everybody who waits.
    pub(super) fn complete(self) {
        let Self { link, kind, sender, writes, calls } = self;
        drop(sender);
        let error = || Error::from(kind.clone());
        for write in writes {
            link.settle(Submitted::Done(write.done, Err(error())));
        }
        for call in calls {
            link.guard(|| call(&link, Err(error())));
        }
    }
}
