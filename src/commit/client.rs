//! A connection to a service.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use crate::commit::book::{Reply, What};
use crate::commit::desk::{Asked, Patience, Shared, unexpected};
use crate::commit::message::{self, Request};
use crate::commit::model::Model;
use crate::error::{Error, Result};
use crate::transport::{Address, Connection, Context};

/// Sessions that a model may have, unless [`Client::max_sessions`] says otherwise.
const SESSIONS: u32 = 16;

/// A connection to a [`Server`](crate::commit::Server). Clones are handles of the same one, for any thread.
///
/// It ends when the last handle, of it, of its models and of their sessions, is dropped.
#[derive(Debug, Clone)]
pub struct Client {
    shared: Arc<Shared>,
    max_sessions: u32,
}

impl Client {
    /// Connects to a service. The document's `EnnInitialize`.
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

    /// Over a connection of any kind. Nothing may have been exchanged over it before.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Forked`](crate::ErrorKind::Forked) in a forked child.
    pub fn new(connection: Connection) -> Result<Self> {
        let socket = connection.socket();
        let (sender, receiver) = connection.split();
        let shared = Arc::new(Shared::new(sender, receiver, socket)?);
        Ok(Self { shared, max_sessions: SESSIONS })
    }

    /// With so many sessions of each model at most, of those that are loaded by this handle; 16 by default.
    pub fn max_sessions(mut self, max: u32) -> Self {
        self.max_sessions = max.clamp(1, message::MOST_IDS as u32);
        self
    }

    /// Loads a model from bytes, which travel in one message. The document's `EnnOpenModel`.
    ///
    /// # Errors
    ///
    /// - [`CommitFault::Refused`](crate::error::CommitFault::Refused): the service does not want it.
    /// - [`CommitFault::Description`](crate::error::CommitFault::Description): the service describes it in a way that cannot be.
    /// - [`CommitFault::Quota`](crate::error::CommitFault::Quota)
    /// - [`ErrorKind::PeerClosed`](crate::ErrorKind::PeerClosed), [`ErrorKind::PeerDied`](crate::ErrorKind::PeerDied), and those of [`Sender::send`](crate::Sender::send).
    pub fn load(&self, bytes: &[u8]) -> Result<Model> {
        let Asked { desk, ticket } = self.shared.ask(|_| Ok(What::Load))?;
        // The copy may take long: not under the lock.
        let sent = self.shared.send_patiently(desk, ticket, |sender| {
            let mut message = Request::Load.encode(ticket);
            message.extend_from_slice(bytes);
            sender.send(&message)
        });
        drop(sent?);
        self.loaded(ticket)
    }

    /// Loads a model from `len` bytes at `offset` of a memfd, or of another file on tmpfs; sealed against shrinking,
    /// unless the service takes other ones.
    ///
    /// # Errors
    ///
    /// As for [`load`](Self::load), and [`CommitFault::Memory`](crate::error::CommitFault::Memory).
    pub fn load_descriptor(&self, fd: impl AsFd, offset: u64, len: u64) -> Result<Model> {
        let asked = self.shared.ask(|_| Ok(What::Load))?;
        let ticket = self.shared.send_with(asked, &[fd.as_fd()], |passed| {
            Request::LoadDescriptor { passed: passed.first, offset, len }
        })?;
        self.loaded(ticket)
    }

    fn loaded(&self, ticket: u64) -> Result<Model> {
        match self.shared.wait(ticket, Patience::Forever)? {
            Some(Reply::Loaded { key, model, layout }) => {
                Ok(Model::new(self.shared.clone(), (key, model), layout, self.max_sessions))
            }
            _ => Err(unexpected()),
        }
    }
}

/// Readable when an answer may have come: see [`Execution`](crate::commit::Execution).
impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.fd()
    }
}
