//! Who wants what comes.

use std::collections::{HashMap, VecDeque};

use crate::channel::MessageKind;
use crate::channel::RequestId;
use crate::error::ErrorKind;
use crate::reactor::commands::{CallFn, ClosedFn, MessageFn, ReadFn, TensorsFn};
use crate::reactor::link::{Link, Message};
use crate::shm::Bytes;
use crate::tensor::TensorSet;

/// The callbacks of a link.
#[derive(Default)]
pub(super) struct Wants {
    pub(super) on_message: Option<MessageFn>,
    pub(super) on_tensors: Option<TensorsFn>,
    pub(super) on_closed: Option<ClosedFn>,
    pub(super) reads: VecDeque<ReadFn>,
    pub(super) calls: HashMap<RequestId, CallFn>,
}

/// What became of a message.
pub(super) enum Offered {
    Taken,
    Unwanted,
    Panicked,
}

impl Offered {
    fn of(ran: Option<()>) -> Self {
        if ran.is_some() { Self::Taken } else { Self::Panicked }
    }
}

impl Wants {
    /// No response will come.
    pub(super) fn fail_calls(&mut self, link: &Link) {
        for call in std::mem::take(&mut self.calls).into_values() {
            link.guard(|| call(link, Err(ErrorKind::PeerClosed.into())));
        }
    }

    /// Gives a message to whoever wants it. Tensors have a way of their own.
    #[inline]
    pub(super) fn offer(&mut self, link: &Link, kind: MessageKind, bytes: Bytes<'_>) -> Offered {
        let ran = match kind {
            MessageKind::Response(id) => match self.calls.remove(&id) {
                Some(call) => link.guard(|| call(link, Ok(bytes.to_vec()))),
                // Its release says what is wrong with it.
                None => Some(()),
            },
            MessageKind::Message if !self.reads.is_empty() => {
                let read = self.reads.pop_front();
                read.map_or(Some(()), |read| link.guard(|| read(link, Ok(Some(bytes.to_vec())))))
            }
            _ => match &mut self.on_message {
                Some(callback) => link.guard(|| callback(link, Message::new(kind, bytes))),
                None => return Offered::Unwanted,
            },
        };
        Offered::of(ran)
    }

    /// Gives tensors to whoever wants them. Nobody: they come back.
    pub(super) fn offer_tensors(
        &mut self,
        link: &Link,
        tensors: TensorSet,
    ) -> Result<Offered, TensorSet> {
        match &mut self.on_tensors {
            Some(callback) => Ok(Offered::of(link.guard(|| callback(link, tensors)))),
            None => Err(tensors),
        }
    }
}
