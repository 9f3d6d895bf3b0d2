//! A context: options, the pool, the watcher, and the making of connections.

use crate::handshake::exchange;
use crate::transport::core::Core;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::SocketAddrUnix;
use rustix::process::{Resource, Rlimit};

use crate::error::{Error, ErrorKind, Result};
use crate::handshake::address::Address;
use crate::handshake::exchange::Offer;
use crate::handshake::owned_socket::Socket;
use crate::handshake::socket;
use crate::patience::after;
use crate::pool::Pool;
use crate::transport::connection::Connection;
use crate::transport::listener::Listener;
use crate::transport::options::Options;
use crate::wake::SpinPolicy;

/// How long to wait before connecting again to an address on which nobody listens.
const RETRY: Duration = Duration::from_millis(2);

/// Where connections come from: options, a pool of blocks, and one thread that watches for the end
/// of peers (started with the first connection, asleep until then).
///
/// Cloning gives another handle of the same context. Connections go on after their context was
/// dropped.
///
/// # Examples
///
/// ```
/// use slipring::Context;
///
/// let context = Context::new()?;
/// let listener = context.listen("doc-camera")?; // abstract socket @doc-camera
/// # Ok::<(), slipring::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Context {
    core: Arc<Core>,
}

impl Context {
    /// A context with default options.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Os`]: the kernel is older than Linux 5.1.
    pub fn new() -> Result<Self> {
        Self::with_options(Options::default())
    }

    /// A context with these options.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::InvalidOption`] names the option, its value, and what it may be.
    /// - [`ErrorKind::Os`]: the kernel is older than Linux 5.1.
    pub fn with_options(options: Options) -> Result<Self> {
        options.check()?;
        Ok(Self { core: Arc::new(Core::new(options)?) })
    }

    /// Raises this process's limit on descriptors (`RLIMIT_NOFILE`) as far as it may, and gives it: a
    /// link takes two. Errors name the limit where it is met
    /// ([`ErrorKind::DescriptorLimit`]).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Os`]: the kernel refused.
    pub fn raise_descriptor_limit() -> Result<u64> {
        let limit = rustix::process::getrlimit(Resource::Nofile);
        let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
        rustix::process::setrlimit(Resource::Nofile, raised)
            .map_err(|errno| Error::os("setrlimit(RLIMIT_NOFILE)", errno))?;
        Ok(limit.maximum.unwrap_or(u64::MAX))
    }

    /// Listens on an address: a name for an abstract socket, or any [`Address`].
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Address`], [`ErrorKind::AddressInUse`].
    /// - [`ErrorKind::DescriptorLimit`], [`ErrorKind::Os`].
    pub fn listen<A>(&self, address: A) -> Result<Listener>
    where
        A: TryInto<Address>,
        Error: From<A::Error>,
    {
        self.core.generation().check()?;
        Listener::bind(self.core.clone(), address.try_into()?)
    }

    /// Listens on a `SOCK_SEQPACKET` Unix socket that already listens: inherited from a service
    /// manager, say.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Address`]: the descriptor is something else.
    pub fn listen_on(&self, socket: OwnedFd) -> Result<Listener> {
        self.core.generation().check()?;
        socket::adopt(&socket, true)?;
        Listener::adopt(self.core.clone(), socket)
    }

    /// Connects to a listener. Waits for its Hello for as long as
    /// [`Options::handshake_timeout`] allows.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Address`], [`ErrorKind::NobodyListens`].
    /// - [`ErrorKind::TimedOut`]: the listener did not answer.
    /// - [`ErrorKind::PeerNotAdmitted`], [`ErrorKind::RefusedByPeer`],
    ///   [`ErrorKind::NoCommonVersion`], [`ErrorKind::Fault`].
    /// - [`ErrorKind::PeerClosed`]: the listener went away.
    /// - [`ErrorKind::DescriptorLimit`], [`ErrorKind::OutOfMemory`], [`ErrorKind::Os`].
    pub fn connect<A>(&self, address: A) -> Result<Connection>
    where
        A: TryInto<Address>,
        Error: From<A::Error>,
    {
        self.connect_deadline(address, after(self.core.options().handshake_timeout))
    }

    /// As [`connect`](Self::connect), until `deadline`.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect).
    pub fn connect_deadline<A>(&self, address: A, deadline: Instant) -> Result<Connection>
    where
        A: TryInto<Address>,
        Error: From<A::Error>,
    {
        self.core.generation().check()?;
        let address = address.try_into()?;
        self.connect_to(&address, deadline)
    }

    /// As [`connect_deadline`](Self::connect_deadline), but tries again while nobody listens.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect).
    pub fn connect_retry<A>(&self, address: A, deadline: Instant) -> Result<Connection>
    where
        A: TryInto<Address>,
        Error: From<A::Error>,
    {
        self.core.generation().check()?;
        let address = address.try_into()?;
        loop {
            match self.connect_to(&address, deadline) {
                Err(error) if matches!(error.kind(), ErrorKind::NobodyListens { .. }) => {
                    if Instant::now() + RETRY >= deadline {
                        return Err(error);
                    }
                    std::thread::sleep(RETRY);
                }
                answer => return answer,
            }
        }
    }

    /// Connects over a connected `SOCK_SEQPACKET` Unix socket (one end of a `socketpair`, say)
    /// whose other end [accepts](Self::accept_socket).
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect).
    pub fn connect_socket(&self, socket: OwnedFd) -> Result<Connection> {
        self.core.generation().check()?;
        socket::adopt(&socket, false)?;
        let socket = Socket::new(socket);
        self.core.options().peer_policy.check(&socket::maker(&socket)?)?;
        let deadline = after(self.core.options().handshake_timeout);
        self.core.connect(socket, self.core.take_ours()?, (Instant::now(), deadline))
    }

    /// Accepts over a connected `SOCK_SEQPACKET` Unix socket whose other end
    /// [connects](Self::connect_socket).
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect).
    pub fn accept_socket(&self, socket: OwnedFd) -> Result<Connection> {
        self.core.generation().check()?;
        socket::adopt(&socket, false)?;
        let socket = Socket::new(socket);
        let maker = socket::maker(&socket)?;
        let admitted = self.core.options().peer_policy.check(&maker);
        admitted.map_err(|error| exchange::refuse(&socket, error))?;
        let start = Instant::now();
        let deadline = after(self.core.options().handshake_timeout);
        socket::receive_credentials(&socket)?;
        loop {
            match self.core.accept(&socket)? {
                Offer::Accepted(sides) => return self.core.establish(socket, *sides),
                Offer::Silent => {
                    if !socket::wait_readable(&socket, Some(deadline))? {
                        return Err(ErrorKind::TimedOut { after: start.elapsed() }.into());
                    }
                }
            }
        }
    }

    /// Gives memory of the pool that is not in use back to the system. Returns its bytes. A peer
    /// that has mapped it lets go of it when it is next sent memory that is new to it.
    pub fn trim(&self) -> u64 {
        if self.core.generation().is_current() { self.core.pool().trim() } else { 0 }
    }

    pub(crate) fn check(&self) -> Result<()> {
        self.core.generation().check()
    }

    pub(crate) fn pool(&self) -> &Pool {
        self.core.pool()
    }

    /// Bytes that the pool holds.
    pub fn pool_bytes(&self) -> u64 {
        if self.core.generation().is_current() { self.core.pool().used() } else { 0 }
    }

    /// How long a loop of this context watches before it sleeps.
    pub(crate) fn spin(&self) -> SpinPolicy {
        SpinPolicy::new(self.core.options().spin)
    }

    fn connect_to(&self, address: &Address, deadline: Instant) -> Result<Connection> {
        let start = Instant::now();
        let target = address.to_socket_address()?;
        // Made first, so that the listener finds the Hello when it wakes up.
        let ours = self.core.take_ours()?;
        let socket = match self.reach(address, &target, (start, deadline)) {
            Ok(socket) => socket,
            Err(error) => {
                self.core.keep_ours(ours);
                return Err(error);
            }
        };
        self.core.connect(socket, ours, (start, deadline))
    }

    /// A socket that is connected to a listener that the peer policy admits.
    fn reach(
        &self,
        address: &Address,
        target: &SocketAddrUnix,
        (start, deadline): (Instant, Instant),
    ) -> Result<Socket> {
        let socket = loop {
            let socket = Socket::new(socket::open()?);
            match socket::connect(&socket, target) {
                Ok(()) => break socket,
                // The listener's queue is full.
                Err(Errno::AGAIN) if Instant::now() < deadline => std::thread::sleep(RETRY),
                Err(Errno::AGAIN) => {
                    return Err(ErrorKind::TimedOut { after: start.elapsed() }.into());
                }
                Err(errno @ (Errno::CONNREFUSED | Errno::NOENT)) => {
                    let kind = ErrorKind::NobodyListens { address: address.to_string() };
                    return Err(Error::with_source(kind, errno));
                }
                Err(errno) => return Err(Error::os("connect", errno)),
            }
        };
        // Before any descriptor leaves: who listens here.
        self.core.options().peer_policy.check(&socket::maker(&socket)?)?;
        Ok(socket)
    }
}
