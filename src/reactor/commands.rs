//! What handles ask of the loop.

use std::fmt;
use std::ops::ControlFlow;

use crate::channel::Receiver;
use crate::error::{Error, ErrorKind, Result, contain};
use crate::link::LinkSocket;
use crate::reactor::link::{Link, Message};
use crate::tensor::TensorSet;
use crate::transport::Connection;
use crate::transport::Listener;

pub(super) type MessageFn = Box<dyn FnMut(&Link, Message<'_>) + Send>;
pub(super) type TensorsFn = Box<dyn FnMut(&Link, TensorSet) + Send>;
pub(super) type ClosedFn = Box<dyn FnOnce(&Link, Result<()>) + Send>;
pub(super) type ReadFn = Box<dyn FnOnce(&Link, Result<Option<Vec<u8>>>) + Send>;
pub(super) type WriteFn = Box<dyn FnOnce(&Link, Result<()>) + Send>;
pub(super) type CallFn = Box<dyn FnOnce(&Link, Result<Vec<u8>>) + Send>;
pub(super) type TokenFn = Box<dyn FnMut(&Link) + Send>;
pub(super) type AcceptFn = Box<dyn FnMut(Result<Connection>) -> ControlFlow<()> + Send>;

pub(super) enum Command {
    Adopt(Box<Adopted>),
    Accept(Box<Accepting>),
    OnMessage(Link, MessageFn),
    OnTensors(Link, TensorsFn),
    OnClosed(Link, ClosedFn),
    Read(Link, ReadFn),
    Call(Link, Vec<u8>, CallFn),
    /// A write that was done on the caller's thread has its completion.
    Written(Link, WriteFn, Result<()>),
    /// A link is over.
    Closed(Link, ClosedFn, Result<()>),
    /// Writes wait for room.
    Flush(Link),
    /// Something waits that no header shows, or the link may be over.
    Look(Link),
    Close(Link),
    /// Ends the link at once; with an error, if there is one.
    Abort(Link, Option<Error>),
    Run(Box<dyn FnOnce() + Send>),
    /// The last handle may be gone.
    Nudge,
    Shutdown,
}

/// A connection that becomes a link.
pub(super) struct Adopted {
    pub(super) link: Link,
    pub(super) receiver: Receiver,
    pub(super) socket: LinkSocket,
    /// Bytes of messages that may be set aside while calls wait for their responses.
    pub(super) set_aside: usize,
}

/// A listener, and what is done with its connections.
pub(super) struct Accepting {
    pub(super) key: u64,
    pub(super) listener: Listener,
    pub(super) accept: AcceptFn,
}

impl Command {
    /// Nobody does it: tells those who wait for an answer.
    pub(super) fn refuse(self, why: &ErrorKind) {
        let refused = || why.clone().into();
        match self {
            Self::Adopt(adopted) => adopted.link.end(why.clone()).complete(),
            Self::OnClosed(link, closed) => drop(link.guard(|| closed(&link, Err(refused())))),
            Self::Read(link, read) => drop(link.guard(|| read(&link, Err(refused())))),
            Self::Call(link, _, call) => drop(link.guard(|| call(&link, Err(refused())))),
            Self::Written(link, written, result) => drop(link.guard(|| written(&link, result))),
            Self::Closed(link, closed, result) => drop(link.guard(|| closed(&link, result))),
            Self::OnMessage(link, callback) => link.discard(callback),
            Self::OnTensors(link, callback) => link.discard(callback),
            Self::Accept(accepting) => drop(contain(|| drop(accepting))),
            Self::Run(work) => drop(contain(|| drop(work))),
            Self::Flush(_) | Self::Look(_) | Self::Close(_) => {}
            Self::Abort(..) | Self::Nudge | Self::Shutdown => {}
        }
    }
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Command")
    }
}
