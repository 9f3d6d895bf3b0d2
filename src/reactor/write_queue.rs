//! The sending half of a link, and the writes that wait for room.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::account::{Charge, Resource};
use crate::channel::{HalfStats, LackingRoom, Metadata, RequestId, Sender, Token};
use crate::error::{Error, ErrorKind, Result, TrySendError};
use crate::handshake::UntrustedFd;
use crate::link::link::Link;
use crate::tensor::{self, TensorSet};

/// The bytes that a write that waits counts besides its body.
const OVERHEAD: usize = 64;

/// The bytes by which the charge for waiting writes grows: a charge costs as much as several short writes.
const STEP: usize = 64 << 10;

/// What a write sends, besides its body.
#[derive(Debug)]
pub(super) enum Payload<'a> {
    Message,
    Request(RequestId, Metadata),
    Response(RequestId),
    Trigger(Token),
    Tensor(Box<tensor::Outgoing<'a>>),
    Tensors(TensorSet),
    TensorRequest(RequestId, TensorSet),
    TensorResponse(RequestId, TensorSet),
}

impl Payload<'_> {
    /// Makes the payload fit to wait: copies the tensor that it borrows.
    fn into_owned(self) -> Payload<'static> {
        match self {
            Self::Message => Payload::Message,
            Self::Request(id, metadata) => Payload::Request(id, metadata),
            Self::Response(id) => Payload::Response(id),
            Self::Trigger(token) => Payload::Trigger(token),
            Self::Tensor(tensor) => Payload::Tensor(Box::new(tensor.into_owned())),
            Self::Tensors(tensors) => Payload::Tensors(tensors),
            Self::TensorRequest(id, tensors) => Payload::TensorRequest(id, tensors),
            Self::TensorResponse(id, tensors) => Payload::TensorResponse(id, tensors),
        }
    }

    /// Returns the private bytes that the payload takes while it waits.
    fn private_len(&self) -> usize {
        match self {
            Self::Tensor(tensor) => tensor.private_len(),
            Self::Tensors(tensors)
            | Self::TensorRequest(_, tensors)
            | Self::TensorResponse(_, tensors) => tensors.private_len(),
            Self::Request(_, metadata) => metadata.section().len(),
            Self::Message | Self::Response(_) | Self::Trigger(_) => 0,
        }
    }

    /// Returns the bytes of this process's pool that the payload keeps while it waits.
    fn pool_len(&self) -> usize {
        match self {
            Self::Tensor(tensor) => tensor.pool_len(),
            Self::Tensors(tensors)
            | Self::TensorRequest(_, tensors)
            | Self::TensorResponse(_, tensors) => tensors.pool_len(),
            Self::Message | Self::Request(..) | Self::Response(_) | Self::Trigger(_) => 0,
        }
    }

    /// Sends the payload at once, or leaves it as it was.
    fn try_send(&mut self, sender: &mut Sender, body: &[u8]) -> Result<(), TrySendError> {
        match self {
            Self::Message => sender.try_send(body),
            Self::Request(id, metadata) => sender.try_request(*id, (body, metadata)),
            Self::Response(id) => sender.try_respond(*id, body),
            Self::Trigger(token) => sender.try_trigger(*token),
            Self::Tensor(tensor) => sender.try_put_tensor(tensor),
            Self::Tensors(tensors) => sender.try_send_tensors(tensors),
            Self::TensorRequest(id, tensors) => {
                sender.try_request_tensors(*id, (tensors, tensors.metadata()))
            }
            Self::TensorResponse(id, tensors) => sender.try_respond_tensors(*id, tensors),
        }
    }
}

/// A write that waits for room. `D` is its completion.
pub(super) struct Write<D> {
    payload: Payload<'static>,
    body: Vec<u8>,
    done: Option<D>,
    /// The bytes that it counts.
    bytes: usize,
    /// Of these, the bytes of private memory.
    private: usize,
    /// What its tensors lacked at the last try. They are described and lent for the next one when it is there.
    lacking: Option<LackingRoom>,
}

impl<D> Write<D> {
    /// Returns the request that the write sends, if it sends one.
    pub(super) fn request(&self) -> Option<RequestId> {
        match self.payload {
            Payload::Request(id, _) | Payload::TensorRequest(id, _) => Some(id),
            _ => None,
        }
    }

    /// Sends the write at once, or leaves it as it was.
    fn try_send(&mut self, sender: &mut Sender) -> Result<(), TrySendError> {
        if self.lacking.is_some_and(|lacking| !sender.may_have_room(lacking)) {
            return Err(TrySendError::Full { free: 0, needed: self.body.len() as u64 });
        }
        sender.take_lacking();
        let sent = self.payload.try_send(sender, &self.body);
        self.lacking = sender.take_lacking();
        sent
    }

    /// Returns the bytes that the write counts.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Drops the payload and returns the completion: memory of tensors is free before the completion runs.
    pub(super) fn into_done(self) -> Option<D> {
        self.done
    }
}

/// The answer to a write.
pub(super) enum Submitted<D> {
    /// The write is done, with this result. The caller calls its completion.
    Done(Option<D>, Result<()>),
    /// The write waits, and is the first that does.
    First,
    /// The write waits behind others.
    Behind,
}

/// The sending half of a link, and the writes that wait for room. Any thread may write, one at a time. No callback runs
/// under the lock that guards the queue.
pub(super) struct WriteQueue<D> {
    /// `None` after the end of the link.
    sender: Option<Sender>,
    /// The counts of the sender when the link ended.
    last_stats: HalfStats,
    waiting: VecDeque<Write<D>>,
    /// The bytes that the waiting writes keep: private memory, and blocks of the pool.
    bytes: usize,
    /// Of these, the bytes of private memory.
    private: usize,
    /// The most of these bytes.
    limit: usize,
    /// What the link's account holds for them, until none waits.
    charge: Charge,
    /// Whether the queue takes no further write. The link ends after the waiting ones.
    closing: bool,
}

impl<D> WriteQueue<D> {
    pub(super) fn new(sender: Sender, limit: usize) -> Self {
        let charge = Charge::none(sender.session().link.account(), Resource::Memory);
        Self {
            sender: Some(sender),
            last_stats: HalfStats::default(),
            waiting: VecDeque::new(),
            bytes: 0,
            private: 0,
            limit,
            charge,
            closing: false,
        }
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
        match &mut self.sender {
            Some(sender) if !self.closing => send(sender),
            _ => Err(Error::from(ErrorKind::LinkClosed).into()),
        }
    }

    /// Sends at once, or takes the payload to send it later. The caller drops a payload that remains without the lock.
    pub(super) fn submit(
        &mut self,
        remaining: &mut Option<Payload<'_>>,
        body: Vec<u8>,
        done: Option<D>,
    ) -> Submitted<D> {
        let Some(payload) = remaining else { return Submitted::Done(done, Ok(())) };
        self.take_lacking();
        match self.try_with(body.len(), |sender| payload.try_send(sender, &body)) {
            Ok(()) => return Submitted::Done(done, Ok(())),
            Err(TrySendError::Failed(error)) => return Submitted::Done(done, Err(error)),
            Err(TrySendError::Full { .. }) if self.closing => {
                return Submitted::Done(done, Err(ErrorKind::LinkClosed.into()));
            }
            Err(TrySendError::Full { .. }) => {}
        }
        let private = OVERHEAD.saturating_add(body.len()).saturating_add(payload.private_len());
        let cost = private.saturating_add(payload.pool_len());
        let (bytes, limit) = (self.bytes.saturating_add(cost), self.limit);
        if bytes > limit && !self.waiting.is_empty() {
            return Submitted::Done(done, Err(ErrorKind::WritesFull { bytes, limit }.into()));
        }
        let all = self.private.saturating_add(private);
        if let Err(error) = self.charge.raise_to(all.div_ceil(STEP).saturating_mul(STEP) as u64) {
            return Submitted::Done(done, Err(error));
        }
        (self.bytes, self.private) = (bytes, all);
        if let Some(payload) = remaining.take() {
            let payload = payload.into_owned();
            let lacking = self.take_lacking();
            self.waiting.push_back(Write { payload, body, done, bytes: cost, private, lacking });
        }
        if self.waiting.len() == 1 { Submitted::First } else { Submitted::Behind }
    }

    fn take_lacking(&mut self) -> Option<LackingRoom> {
        self.sender.as_mut().and_then(Sender::take_lacking)
    }

    /// Sends the first write that waits, if there is room. Returns the write and its result.
    pub(super) fn flush_one(&mut self) -> Option<(Write<D>, Result<()>)> {
        let mut write = self.waiting.pop_front()?;
        let sent = match &mut self.sender {
            Some(sender) => write.try_send(sender),
            None => Err(Error::from(ErrorKind::LinkClosed).into()),
        };
        let result = match sent {
            Ok(()) => Ok(()),
            Err(TrySendError::Failed(error)) => Err(error),
            Err(TrySendError::Full { .. }) => {
                self.waiting.push_front(write);
                return None;
            }
        };
        if let Some(sender) = &mut self.sender {
            sender.rouse();
        }
        self.bytes -= write.bytes;
        self.private -= write.private;
        if self.waiting.is_empty() {
            self.charge.clear();
        }
        Some((write, result))
    }

    /// Returns the link, until its end.
    pub(super) fn link(&self) -> Option<Arc<Link>> {
        self.sender.as_ref().map(|sender| sender.session().link.clone())
    }

    /// As [`Sender::take_descriptors`].
    pub(super) fn take_descriptors(&self, first: u64, count: usize) -> Result<Vec<UntrustedFd>> {
        let sender = self.sender.as_ref().ok_or(ErrorKind::LinkClosed)?;
        sender.take_descriptors(first, count)
    }

    /// Returns whether the sender has seen no end of the link. The loop learns of an end that the peer caused after the
    /// messages before it.
    pub(super) fn is_alive(&self) -> bool {
        self.sender.as_ref().is_some_and(Sender::is_alive)
    }

    /// Returns the counts of the sender.
    pub(super) fn stats(&self) -> HalfStats {
        self.sender.as_ref().map_or(self.last_stats, Sender::stats)
    }

    /// Returns the bytes that the waiting writes count.
    pub(super) fn waiting_bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the number of writes that wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Admits no further write. Returns whether none waits.
    pub(super) fn close(&mut self) -> bool {
        self.closing = true;
        self.waiting.is_empty()
    }

    /// Takes back all memory that the peer holds, and admits no further write.
    pub(super) fn revoke(&mut self) {
        self.closing = true;
        if let Some(sender) = &self.sender {
            sender.revoke();
        }
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing
    }

    /// Says to the peer that the sender sleeps on the socket until there is room. Returns whether the sender was hot.
    /// The caller passes [`before_last_look`](crate::wake::before_last_look), and tries once more.
    #[must_use]
    pub(super) fn arm(&mut self) -> bool {
        self.sender.as_mut().is_some_and(Sender::doze)
    }

    /// Ends the queue. Returns what the caller drops and completes without the lock.
    pub(super) fn end(&mut self) -> (Option<Sender>, VecDeque<Write<D>>) {
        self.last_stats = self.stats();
        self.closing = true;
        (self.bytes, self.private) = (0, 0);
        self.charge.clear();
        (self.sender.take(), std::mem::take(&mut self.waiting))
    }
}
