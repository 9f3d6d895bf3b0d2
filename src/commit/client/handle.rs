//! The handle of a connection to a server.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::commit::client::link::{ClientLink, unexpected};
use crate::commit::client::model::Model;
use crate::commit::client::state::{Pending, Reply};
use crate::commit::wire::message::{self, Request};
use crate::error::{Error, Result};
use crate::handshake::Address;
use crate::patience::after;
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
    timeout: Option<Duration>,
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
        Ok(Self {
            link: Arc::new(ClientLink::new(connection)?),
            max_sessions: SESSIONS,
            timeout: None,
        })
    }

    /// Sets how many sessions a model may have that this handle loads: 16 by default, 1024 at most.
    pub fn max_sessions(mut self, max: u32) -> Self {
        self.max_sessions = max.clamp(1, message::MOST_IDS as u32);
        self
    }

    /// Sets how long a load of this handle, and every request on a model that it loads, waits for the server: without a limit
    /// by default. A request that has timed out goes on at the server: its session is busy until the answer comes, and a
    /// model that is loaded too late is unloaded. An execution that takes longer than the timeout is no fault: it times out,
    /// too.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// use slipring::Context;
    /// use slipring::commit::Client;
    ///
    /// let client = Client::connect(&Context::new()?, "npu")?.timeout(Duration::from_secs(5));
    /// let model = client.load(b"model")?; // 5 s at most, as every request on the model
    /// # Ok::<(), slipring::Error>(())
    /// ```
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
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
    /// - [`ErrorKind::TimedOut`](crate::ErrorKind::TimedOut): see [`timeout`](Self::timeout).
    pub fn load(&self, bytes: &[u8]) -> Result<Model> {
        self.load_until(bytes, self.timeout.map(after))
    }

    /// Loads as [`load`](Self::load) does. It waits until `deadline`.
    ///
    /// # Errors
    ///
    /// As for [`load`](Self::load).
    pub fn load_deadline(&self, bytes: &[u8], deadline: Instant) -> Result<Model> {
        self.load_until(bytes, Some(deadline))
    }

    fn load_until(&self, bytes: &[u8], until: Option<Instant>) -> Result<Model> {
        let begun = self.link.begin(until, |_| Ok(Pending::Load))?;
        let ticket = self.link.send_with_bytes(begun, &Request::Load, bytes)?;
        self.loaded(ticket, until)
    }

    /// Loads a model from `len` bytes at `offset` of a memfd, or of another file on tmpfs. The file must be sealed
    /// against shrinking, unless the server [allows](crate::commit::ServerOptions::allow_unsealed) others.
    ///
    /// # Errors
    ///
    /// As for [`load`](Self::load), and [`CommitFault::Model`](crate::error::CommitFault::Model),
    /// [`CommitFault::Range`](crate::error::CommitFault::Range).
    pub fn load_descriptor(&self, fd: impl AsFd, offset: u64, len: u64) -> Result<Model> {
        self.load_descriptor_until(fd.as_fd(), (offset, len), self.timeout.map(after))
    }

    /// Loads as [`load_descriptor`](Self::load_descriptor) does. It waits until `deadline`.
    ///
    /// # Errors
    ///
    /// As for [`load_descriptor`](Self::load_descriptor).
    pub fn load_descriptor_deadline(
        &self,
        fd: impl AsFd,
        offset: u64,
        len: u64,
        deadline: Instant,
    ) -> Result<Model> {
        self.load_descriptor_until(fd.as_fd(), (offset, len), Some(deadline))
    }

    fn load_descriptor_until(
        &self,
        fd: BorrowedFd<'_>,
        (offset, len): (u64, u64),
        until: Option<Instant>,
    ) -> Result<Model> {
        let begun = self.link.begin(until, |_| Ok(Pending::Load))?;
        let ticket = self.link.send_with_descriptors(begun, &[fd], |passed| {
            Request::LoadDescriptor { passed: passed.first, offset, len }
        })?;
        self.loaded(ticket, until)
    }

    fn loaded(&self, ticket: u64, until: Option<Instant>) -> Result<Model> {
        match self.link.wait_for(ticket, until)? {
            Reply::Loaded { key, model, layout } => Ok(Model::new(
                self.link.clone(),
                (key, model),
                layout,
                (self.max_sessions, self.timeout),
            )),
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
