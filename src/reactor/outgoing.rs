//! A link's sending half, and the writes that wait for room in it.

use std::collections::VecDeque;

use crate::channel::RequestId;
use crate::channel::Sender;
use crate::channel::Token;
use crate::error::TrySendError;
use crate::error::{Error, ErrorKind, Result};
use crate::handshake::UntrustedFd;
use crate::reactor::commands::{CallFn, WriteFn};
use crate::reactor::link::Link;
use crate::tensor::{self, TensorSet};

/// What a write that waits counts beside its bytes.
const OVERHEAD: usize = 64;

/// What is written.
#[derive(Debug)]
pub(super) enum What<'a> {
    Message,
    Request(RequestId),
    Response(RequestId),
    Trigger(Token),
    Tensor(Box<tensor::Outgoing<'a>>),
    Tensors(TensorSet),
}

impl What<'_> {
    /// As it waits.
    fn into_owned(self) -> What<'static> {
        match self {
            Self::Message => What::Message,
            Self::Request(id) => What::Request(id),
            Self::Response(id) => What::Response(id),
            Self::Trigger(token) => What::Trigger(token),
            Self::Tensor(tensor) => What::Tensor(Box::new(tensor.into_owned())),
            Self::Tensors(tensors) => What::Tensors(tensors),
        }
    }

    /// Bytes that it takes while it waits, beside a body.
    fn private_len(&self) -> usize {
        match self {
            Self::Tensor(tensor) => tensor.private_len(),
            Self::Tensors(tensors) => tensors.private_len(),
            Self::Message | Self::Request(_) | Self::Response(_) | Self::Trigger(_) => 0,
        }
    }
}

/// A write that waits for room.
pub(super) struct Write {
    pub(super) what: What<'static>,
    pub(super) body: Vec<u8>,
    pub(super) done: Option<WriteFn>,
    /// What it counts.
    bytes: usize,
}

impl Write {
    /// What is left of it once it was sent, or will not be: memory of tensors goes back before the
    /// completion is called.
    pub(super) fn into_done(self) -> Option<WriteFn> {
        self.done
    }
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
    pub(super) fn try_with(
        &mut self,
        needed: usize,
        send: impl FnOnce(&mut Sender) -> Result<(), TrySendError>,
    ) -> Result<(), TrySendError> {
        if !self.waiting.is_empty() {
            return Err(TrySendError::Full { free: 0, needed: needed as u64 });
        }
        if self.closing {
            return Err(Error::from(ErrorKind::LinkClosed).into());
        }
        self.put_with(send)
    }

    fn put_with(
        &mut self,
        send: impl FnOnce(&mut Sender) -> Result<(), TrySendError>,
    ) -> Result<(), TrySendError> {
        let Some(sender) = &mut self.sender else {
            return Err(Error::from(ErrorKind::LinkClosed).into());
        };
        send(sender)
    }

    /// Sends at once, or later: then it is taken. What is left of it is to be dropped without the lock.
    pub(super) fn submit(
        &mut self,
        write: &mut Option<What<'_>>,
        body: Vec<u8>,
        done: Option<WriteFn>,
    ) -> Submitted {
        let Some(what) = write else { return Submitted::Done(done, Ok(())) };
        match self.try_with(body.len(), |sender| put(sender, what, &body)) {
            Ok(()) => Submitted::Done(done, Ok(())),
            Err(TrySendError::Failed(error)) => Submitted::Done(done, Err(error)),
            Err(TrySendError::Full { .. }) if self.closing => {
                Submitted::Done(done, Err(ErrorKind::LinkClosed.into()))
            }
            Err(TrySendError::Full { .. }) => {
                let more = OVERHEAD.saturating_add(body.len()).saturating_add(what.private_len());
                let (bytes, limit) = (self.bytes.saturating_add(more), self.limit);
                if bytes > limit && !self.waiting.is_empty() {
                    return Submitted::Done(
                        done,
                        Err(ErrorKind::WritesFull { bytes, limit }.into()),
                    );
                }
                self.bytes = bytes;
                if let Some(what) = write.take() {
                    let what = what.into_owned();
                    self.waiting.push_back(Write { what, body, done, bytes: more });
                }
                if self.waiting.len() == 1 { Submitted::First } else { Submitted::Behind }
            }
        }
    }

    /// As [`Sender::take_descriptors`].
    pub(super) fn take_descriptors(&self, first: u64, count: usize) -> Result<Vec<UntrustedFd>> {
        let sender = self.sender.as_ref().ok_or(ErrorKind::LinkClosed)?;
        sender.take_descriptors(first, count)
    }

    /// Sends the first write that waits, if there is room. Gives it, and what became of it.
    pub(super) fn flush_one(&mut self) -> Option<(Write, Result<()>)> {
        let mut write = self.waiting.pop_front()?;
        let Write { what, body, .. } = &mut write;
        let result = match self.put_with(|sender| put(sender, what, body)) {
            Ok(()) => Ok(()),
            Err(TrySendError::Failed(error)) => Err(error),
            Err(TrySendError::Full { .. }) => {
                self.waiting.push_front(write);
                return None;
            }
        };
        self.rouse();
        self.bytes -= write.bytes;
        Some((write, result))
    }

    /// Whether nothing has ended the link, as far as the sender knows. What else has is told behind what has come.
    pub(super) fn is_alive(&self) -> bool {
        self.sender.as_ref().is_some_and(Sender::is_alive)
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

    /// Says that the sender sleeps on the socket until there is room. Returns whether the sender was hot. The caller
    /// passes [`before_last_look`](crate::wake::before_last_look), and looks once more.
    #[must_use]
    pub(super) fn doze(&mut self) -> bool {
        let Some(sender) = &mut self.sender else { return false };
        self.dozing = true;
        sender.doze()
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

/// Sends at once, or not at all: then `what` is as it was.
fn put(sender: &mut Sender, what: &mut What<'_>, body: &[u8]) -> Result<(), TrySendError> {
    match what {
        What::Message => sender.try_send(body),
        What::Request(id) => sender.try_request(*id, body),
        What::Response(id) => sender.try_respond(*id, body),
        What::Trigger(token) => sender.try_trigger(*token),
        What::Tensor(tensor) => sender.try_put_tensor(tensor),
        What::Tensors(tensors) => sender.try_send_tensors(tensors),
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
            link.settle(Submitted::Done(write.into_done(), Err(error())));
        }
        for call in calls {
            link.guard(|| call(&link, Err(error())));
        }
    }
}
