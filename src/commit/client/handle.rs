//! The handle of a connection to a server.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use crate::commit::client::link::{Begun, ClientLink, unexpected};
use crate::commit::client::model::Model;
use crate::commit::client::state::{Pending, Reply};
use crate::commit::wire::message::{self, Request};
use crate::error::{Error, Result};
use crate::handshake::Address;
use crate::transport::{Connection, Context};

/// The largest number of sessions of a model, unless [`Client::max_sessions`] sets another.
const SESSIONS: u32 = 16;

/// A connection to a [`Server`](crate::commit::Server). Clones are handles of the same connection, for any thread.
///
/// The connection ends when the last handle is dropped: of the client, of its models, and of their sessions.
///
/// # Examples
///
/// See [`Server`](crate::commit::Server).
#[derive(Debug, Clone)]
pub struct Client {
    link: Arc<ClientLink>,
    max_sessions: u32,
}

impl Client {
    /// Connects to a server. The ENN document's `EnnInitialize`.
    ///
    /// # Errors
    ///
    /// Those of [`Context::connect`].
    pub fn connect<A>(context: &Context, address: A) -> Result<Self>
    where
        A: TryInto<Address>,
        Error: From<A::Error>,
    {
        Self::new(context.connect(address)?)
    }

    /// Takes over a connection to a server. No message may have been exchanged over it before.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Forked`](crate::ErrorKind::Forked) in a forked child.
    pub fn new(connection: Connection) -> Result<Self> {
        Ok(Self { link: Arc::new(ClientLink::new(connection)?), max_sessions: SESSIONS })
    }

    /// Sets how many sessions a model may have that this handle loads: 16 by default, 1024 at most.
    pub fn max_sessions(mut self, max: u32) -> Self {
        self.max_sessions = max.clamp(1, message::MOST_IDS as u32);
        self
    }

    /// Loads a model from bytes, which travel in one message. The document's `EnnOpenModel`.
    ///
    /// # Errors
    ///
    /// - [`CommitFault::Refused`](crate::error::CommitFault::Refused): the service refuses the model.
    /// - [`CommitFault::Description`](crate::error::CommitFault::Description): the service's description is inconsistent.
    /// - [`CommitFault::Quota`](crate::error::CommitFault::Quota)
    /// - [`ErrorKind::PeerClosed`](crate::ErrorKind::PeerClosed),
    ///   [`ErrorKind::PeerDied`](crate::ErrorKind::PeerDied), and those of [`Sender::send`](crate::Sender::send).
    pub fn load(&self, bytes: &[u8]) -> Result<Model> {
        let begun = self.begin()?;
        let ticket = self.link.send_with_bytes(begun, &Request::Load, bytes)?;
        self.loaded(ticket)
    }

    /// Loads a model from `len` bytes at `offset` of a memfd, or of another file on tmpfs. The file must be sealed
    /// against shrinking, unless the server [allows](crate::commit::ServerOptions::allow_unsealed) others.
    ///
    /// # Errors
    ///
    /// As for [`load`](Self::load), and [`CommitFault::Memory`](crate::error::CommitFault::Memory).
    pub fn load_descriptor(&self, fd: impl AsFd, offset: u64, len: u64) -> Result<Model> {
        let begun = self.begin()?;
        let ticket = self.link.send_with_descriptors(begun, &[fd.as_fd()], |passed| {
            Request::LoadDescriptor { passed: passed.first, offset, len }
        })?;
        self.loaded(ticket)
    }

    fn begin(&self) -> Result<Begun<'_>> {
        self.link.begin(|_| Ok(Pending::Load))
    }

    fn loaded(&self, ticket: u64) -> Result<Model> {
        match self.link.wait_for(ticket)? {
            Reply::Loaded { key, model, layout } => {
                Ok(Model::new(self.link.clone(), (key, model), layout, self.max_sessions))
            }
            _ => Err(unexpected()),
        }
    }
}

/// Readable when an answer may have come: see [`Execution`](crate::commit::Execution).
impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.fd()
    }
}
