//! The commands of handles to the loop.

use std::fmt;
use std::ops::ControlFlow;

use crate::broadcast::{Feed, Sample, Subscriber};
use crate::channel::{CallSpan, Copied, MessageKind, Metadata, Receiver};
use crate::error::{Error, ErrorKind, Result, contain};
use crate::link::LinkSocket;
use crate::reactor::link::Link;
use crate::reactor::mailbox::Mailbox;
use crate::reactor::message::Message;
use crate::tensor::{TensorRequest, TensorSet};
use crate::transport::{Connection, Listener};

pub(super) type MessageFn = Box<dyn FnMut(&Link, Message<'_>) + Send>;
pub(super) type LongFn = Box<dyn FnMut(&Link, MessageKind, Result<Copied>) + Send>;
pub(super) type TensorsFn = Box<dyn FnMut(&Link, TensorSet) + Send>;
pub(super) type ClosedFn = Box<dyn FnOnce(&Link, Result<()>) + Send>;
pub(super) type ReadFn = Box<dyn FnOnce(&Link, Result<Option<Vec<u8>>>) + Send>;
pub(super) type WriteFn = Box<dyn FnOnce(&Link, Result<()>) + Send>;
pub(super) type TensorRequestFn = Box<dyn FnMut(&Link, TensorRequest) + Send>;
pub(super) type CallFn = Box<dyn FnOnce(&Link, Result<Response>) + Send>;
pub(super) type TokenFn = Box<dyn FnMut(&Link) + Send>;
pub(super) type SampleFn = Box<dyn FnMut(Result<Option<Sample<'_>>>) -> ControlFlow<()> + Send>;
pub(super) type AcceptFn = Box<dyn FnMut(Result<Connection>) -> ControlFlow<()> + Send>;

/// A request of a call, or its response. Bytes have their metadata beside them.
pub(super) enum Content {
    Bytes(Vec<u8>, Metadata),
    Tensors(TensorSet),
}

impl Content {
    /// Has a request carry the span of its call.
    pub(super) fn carry(&mut self, span: &mut CallSpan) {
        let metadata = match self {
            Self::Bytes(_, metadata) => &*metadata,
            Self::Tensors(tensors) => tensors.metadata(),
        };
        match (span.carry(metadata), self) {
            (Some(carried), Self::Bytes(_, metadata)) => *metadata = carried,
            (Some(carried), Self::Tensors(tensors)) => tensors.set_metadata(carried),
            (None, _) => {}
        }
    }
}

/// The response to a call.
pub(super) struct Response {
    kind: MessageKind,
    content: Content,
}

impl Response {
    pub(super) fn new(kind: MessageKind, content: Content) -> Self {
        Self { kind, content }
    }

    /// Returns the bytes.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OtherKind`]: the response has tensors.
    pub(super) fn into_bytes(self) -> Result<Vec<u8>> {
        match self.content {
            Content::Bytes(bytes, _) => Ok(bytes),
            Content::Tensors(_) => Err(self.kind.other_kind().into()),
        }
    }

    /// Returns the tensors.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OtherKind`]: the response has none.
    pub(super) fn into_tensors(self) -> Result<TensorSet> {
        match self.content {
            Content::Tensors(tensors) => Ok(tensors),
            Content::Bytes(..) => Err(self.kind.other_kind().into()),
        }
    }
}

/// A command of a handle to the loop.
pub(super) enum Command {
    /// Serve a connection.
    Adopt {
        link: Link,
        receiver: Box<Receiver>,
        socket: LinkSocket,
        /// The most bytes of messages to defer while calls wait for their responses.
        deferred_limit: usize,
    },
    /// Accept the connections of a listener.
    Accept {
        key: u64,
        listener: Box<Listener>,
        accept: AcceptFn,
    },
    /// Serve a subscriber. Epoll watches the socket under the key, if there is one.
    Subscribe {
        key: u64,
        subscriber: Box<Subscriber>,
        socket: Option<LinkSocket>,
        callback: SampleFn,
    },
    /// Go on with the publisher that a thread has joined for the subscriber with this key.
    Joined(u64, Result<Box<Feed>>),
    OnMessage(Link, MessageFn),
    OnLong(Link, LongFn),
    OnTensors(Link, TensorsFn),
    OnTensorRequest(Link, TensorRequestFn),
    OnClosed(Link, ClosedFn),
    Read(Link, ReadFn),
    Call(Link, Content, CallFn),
    /// Call the completion of a write that the caller's thread has done.
    Written(Link, WriteFn, Result<()>),
    /// Call the last callback of a link that has ended.
    Closed(Link, ClosedFn, Result<()>),
    /// Flush the writes that wait for room.
    Flush(Link),
    /// Serve the link: it may have ended, or hold work that no header shows. A link has at most one such command in the
    /// mailbox ([`Link::post_poll`]).
    Poll(Link),
    Close(Link),
    /// End the link at once, with the error if there is one.
    Abort(Link, Option<Error>),
    Run(Box<dyn FnOnce() + Send>),
    /// Check whether a handle is left.
    Nudge,
    Shutdown,
}

impl Command {
    /// Hands the command to the loop. If the loop cannot take it, this thread refuses it.
    pub(super) fn post(self, mailbox: &Mailbox<Self>) {
        if let Err((command, why)) = mailbox.send(self) {
            command.refuse(&why);
        }
    }

    /// Calls the completions that wait for the command with `why`: no loop will do it.
    pub(super) fn refuse(self, why: &ErrorKind) {
        let refused = || why.clone().into();
        match self {
            Self::Adopt { link, receiver, .. } => {
                let remains = link.end(why.clone());
                drop(receiver);
                remains.complete(Vec::new());
            }
            Self::OnClosed(link, closed) => drop(contain(|| closed(&link, Err(refused())))),
            Self::Read(link, read) => drop(contain(|| read(&link, Err(refused())))),
            Self::Call(link, _, call) => drop(contain(|| call(&link, Err(refused())))),
            Self::Written(link, written, result) => drop(contain(|| written(&link, result))),
            Self::Closed(link, closed, result) => drop(contain(|| closed(&link, result))),
            Self::OnMessage(_, callback) => drop(contain(|| drop(callback))),
            Self::OnLong(_, callback) => drop(contain(|| drop(callback))),
            Self::OnTensors(_, callback) => drop(contain(|| drop(callback))),
            Self::OnTensorRequest(_, callback) => drop(contain(|| drop(callback))),
            Self::Accept { listener, accept, .. } => {
                contain(|| drop(accept));
                contain(|| drop(listener));
            }
            Self::Subscribe { subscriber, mut callback, .. } => {
                contain(|| callback(Err(refused())));
                contain(|| drop(callback));
                drop(subscriber);
            }
            Self::Joined(_, joined) => drop(joined),
            Self::Run(work) => drop(contain(|| drop(work))),
            Self::Flush(_) | Self::Poll(_) | Self::Close(_) => {}
            Self::Abort(..) | Self::Nudge | Self::Shutdown => {}
        }
    }
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Command")
    }
}
