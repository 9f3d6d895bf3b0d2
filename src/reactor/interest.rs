//! The callbacks that wait for the messages of a link.

use std::collections::{HashMap, VecDeque};

use crate::channel::{MessageKind, RequestId};
use crate::error::{ErrorKind, Result, contain};
use crate::reactor::command::{CallFn, ClosedFn, Command, MessageFn, ReadFn, TensorsFn};
use crate::reactor::link::Link;
use crate::reactor::message::Message;
use crate::shm::Bytes;
use crate::tensor::TensorSet;

/// The callbacks that wait for the messages of a link.
#[derive(Default)]
pub(super) struct InterestSet {
    message: Option<MessageFn>,
    tensors: Option<TensorsFn>,
    closed: Option<ClosedFn>,
    reads: VecDeque<ReadFn>,
    calls: HashMap<RequestId, CallFn>,
}

/// The answer to a message that was offered.
pub(super) enum Offered {
    Taken,
    /// No callback waits for it.
    Unwanted,
    Panicked,
}

impl Offered {
    fn of(ran: Option<()>) -> Self {
        if ran.is_some() { Self::Taken } else { Self::Panicked }
    }
}

impl InterestSet {
    pub(super) fn set_message(&mut self, callback: MessageFn) {
        discard(self.message.replace(callback));
    }

    pub(super) fn set_tensors(&mut self, callback: TensorsFn) {
        discard(self.tensors.replace(callback));
    }

    pub(super) fn set_closed(&mut self, callback: ClosedFn) {
        discard(self.closed.replace(callback));
    }

    pub(super) fn push_read(&mut self, callback: ReadFn) {
        self.reads.push_back(callback);
    }

    pub(super) fn insert_call(&mut self, id: RequestId, callback: CallFn) {
        self.calls.insert(id, callback);
    }

    pub(super) fn remove_call(&mut self, id: RequestId) -> Option<CallFn> {
        self.calls.remove(&id)
    }

    /// Returns whether a call waits for its response.
    #[inline]
    pub(super) fn has_calls(&self) -> bool {
        !self.calls.is_empty()
    }

    /// Returns whether a callback waits for tensors.
    #[inline]
    pub(super) fn has_tensors(&self) -> bool {
        self.tensors.is_some()
    }

    /// Fails every call: the peer sends no further response.
    pub(super) fn fail_calls(&mut self, link: &Link) {
        for call in std::mem::take(&mut self.calls).into_values() {
            contain(|| call(link, Err(ErrorKind::PeerClosed.into())));
        }
    }

    /// Offers a message to the callback that waits for its kind. Tensors go to
    /// [`offer_tensors`](Self::offer_tensors).
    #[inline]
    pub(super) fn offer(&mut self, link: &Link, kind: MessageKind, bytes: Bytes<'_>) -> Offered {
        let ran = match kind {
            MessageKind::Response(id) => match self.calls.remove(&id) {
                Some(call) => contain(|| call(link, bytes.try_to_vec())),
                // The release of an unknown response returns the fault.
                None => Some(()),
            },
            MessageKind::Message if !self.reads.is_empty() => {
                let read = self.reads.pop_front();
                read.map_or(Some(()), |read| contain(|| read(link, bytes.try_to_vec().map(Some))))
            }
            _ => match &mut self.message {
                Some(callback) => contain(|| callback(link, Message::new(kind, bytes))),
                None => return Offered::Unwanted,
            },
        };
        Offered::of(ran)
    }

    /// Offers tensors to the callback that waits for them. Returns the tensors if there is none.
    pub(super) fn offer_tensors(
        &mut self,
        link: &Link,
        tensors: TensorSet,
    ) -> Result<Offered, TensorSet> {
        match &mut self.tensors {
            Some(callback) => Ok(Offered::of(contain(|| callback(link, tensors)))),
            None => Err(tensors),
        }
    }

    /// Takes the calls that wait. Their link ends.
    pub(super) fn take_calls(&mut self) -> Vec<CallFn> {
        std::mem::take(&mut self.calls).into_values().collect()
    }

    /// Answers the reads that wait for a link that has ended.
    pub(super) fn end_reads(&mut self, link: &Link) {
        for read in std::mem::take(&mut self.reads) {
            contain(|| read(link, link.read_after_end()));
        }
    }

    /// Drops the callbacks for messages and tensors, and has the loop call the last callback with `result`.
    pub(super) fn close(self, link: &Link, result: Result<()>) {
        discard(self.message);
        discard(self.tensors);
        if let Some(closed) = self.closed {
            // The command stands behind the completions that wait in the queue.
            link.post(Command::Closed(link.clone(), closed, result));
        }
    }
}

/// Drops a callback, whose drop may panic.
fn discard<T>(callback: T) {
    contain(|| drop(callback));
}
