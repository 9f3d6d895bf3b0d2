//! The callbacks that wait for the messages of a link.

use std::collections::{HashMap, VecDeque};

use crate::channel::{Copied, HandlerSpan, MessageKind, Metadata, RequestId, SLICE};
use crate::error::{ErrorKind, Result, contain};
use crate::reactor::command::{
    CallFn, ClosedFn, Command, Content, LongFn, MessageFn, ReadFn, Response, TensorRequestFn,
    TensorsFn,
};
use crate::reactor::link::Link;
use crate::reactor::message::Message;
use crate::tensor::{TensorRequest, TensorSet};

/// The callbacks that wait for the messages of a link.
#[derive(Default)]
pub(super) struct InterestSet {
    message: Option<MessageFn>,
    /// Takes copies of the long messages of living peers that `message` would take.
    long: Option<LongFn>,
    tensors: Option<TensorsFn>,
    tensor_requests: Option<TensorRequestFn>,
    closed: Option<ClosedFn>,
    reads: VecDeque<ReadFn>,
    calls: HashMap<RequestId, CallFn>,
}

/// How a callback takes a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wish {
    /// In the peer's memory.
    InPlace,
    /// As a copy of its own.
    Copy,
    /// Not at all: its peer has ended.
    LeftOut,
    /// No callback waits for the message.
    Nobody,
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

    pub(super) fn set_long(&mut self, callback: LongFn) {
        discard(self.long.replace(callback));
    }

    pub(super) fn set_tensors(&mut self, callback: TensorsFn) {
        discard(self.tensors.replace(callback));
    }

    pub(super) fn set_tensor_requests(&mut self, callback: TensorRequestFn) {
        discard(self.tensor_requests.replace(callback));
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

    /// Returns whether a callback waits for tensors of this kind.
    #[inline]
    pub(super) fn wants_tensors(&self, kind: MessageKind) -> bool {
        match kind {
            MessageKind::TensorRequest(_) => self.tensor_requests.is_some(),
            // A response that no call waits for is a fault, which its opening returns.
            MessageKind::TensorResponse(_) => true,
            _ => self.tensors.is_some(),
        }
    }

    /// Fails every call: the peer sends no further response.
    pub(super) fn fail_calls(&mut self, link: &Link) {
        for call in std::mem::take(&mut self.calls).into_values() {
            contain(|| call(link, Err(ErrorKind::PeerClosed.into())));
        }
    }

    /// Returns how the callback that waits for messages of a kind takes the next one, of `len` bytes. `is_alive` says whether
    /// its peer lives.
    #[inline]
    pub(super) fn wish(
        &self,
        kind: MessageKind,
        len: usize,
        is_alive: impl FnOnce() -> bool,
    ) -> Wish {
        match kind {
            MessageKind::Response(id) if self.calls.contains_key(&id) => Wish::Copy,
            // Nobody reads it. Its release returns the fault.
            MessageKind::Response(_) => Wish::InPlace,
            MessageKind::Message if !self.reads.is_empty() => Wish::Copy,
            _ if self.message.is_some() && len > SLICE && self.long.is_some() => {
                if is_alive() {
                    Wish::Copy
                } else {
                    Wish::LeftOut
                }
            }
            _ if self.message.is_some() => Wish::InPlace,
            _ => Wish::Nobody,
        }
    }

    /// Returns the callback that takes every plain message in place, if there is one now.
    #[inline(always)]
    pub(super) fn plain(&mut self) -> Option<&mut MessageFn> {
        let takes_all = self.reads.is_empty() && self.long.is_none();
        self.message.as_mut().filter(|_| takes_all)
    }

    /// Offers a message to the callback that takes it in place. Tensors go to [`offer_tensors`](Self::offer_tensors).
    #[inline]
    pub(super) fn offer(&mut self, link: &Link, message: Message<'_>) -> Offered {
        match &mut self.message {
            _ if matches!(message.kind(), MessageKind::Response(_)) => Offered::Taken,
            Some(callback) => {
                let span = contain(|| HandlerSpan::begin(message.kind(), message.metadata()));
                Offered::of(within(span, || callback(link, message)))
            }
            None => Offered::Unwanted,
        }
    }

    /// Offers a copy of a message, or why there is none, to the callback that waits for it.
    pub(super) fn offer_copy(
        &mut self,
        link: &Link,
        kind: MessageKind,
        copy: Result<Copied>,
    ) -> Offered {
        let ran = match kind {
            MessageKind::Response(id) => match self.calls.remove(&id) {
                Some(call) => {
                    let response = copy.map(|(body, _)| {
                        Response::new(kind, Content::Bytes(body, Metadata::new()))
                    });
                    contain(|| call(link, response))
                }
                None => Some(()),
            },
            MessageKind::Message if !self.reads.is_empty() => {
                let read = self.reads.pop_front();
                read.map_or(Some(()), |read| {
                    contain(|| read(link, copy.map(|(body, _)| Some(body))))
                })
            }
            _ => match &mut self.long {
                Some(callback) => contain(|| callback(link, kind, copy)),
                None => return Offered::Unwanted,
            },
        };
        Offered::of(ran)
    }

    /// Offers tensors to the callback that [wants](Self::wants_tensors) them.
    pub(super) fn offer_tensors(
        &mut self,
        link: &Link,
        kind: MessageKind,
        tensors: TensorSet,
    ) -> Offered {
        let ran = match (kind, &mut self.tensors, &mut self.tensor_requests) {
            (MessageKind::TensorResponse(id), ..) => match self.calls.remove(&id) {
                Some(call) => {
                    let response = Response::new(kind, Content::Tensors(tensors));
                    contain(|| call(link, Ok(response)))
                }
                None => contain(|| drop(tensors)),
            },
            (MessageKind::TensorRequest(id), _, Some(callback)) => {
                let span = contain(|| HandlerSpan::begin(kind, tensors.metadata()));
                within(span, || callback(link, TensorRequest { id, tensors }))
            }
            (MessageKind::Tensors, Some(callback), _) => contain(|| callback(link, tensors)),
            _ => contain(|| drop(tensors)),
        };
        Offered::of(ran)
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
        discard(self.long);
        discard(self.tensors);
        discard(self.tensor_requests);
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

/// Handles a request inside of its span. Returns `None` if the handler panics. What a span runs of the application's may panic,
/// too, and then nothing is noted.
fn within(span: Option<HandlerSpan>, handle: impl FnOnce()) -> Option<()> {
    let ran = contain(handle);
    contain(|| {
        if let Some(span) = span {
            span.end(ran);
        }
    });
    ran
}
