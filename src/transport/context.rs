//! A context: it listens, connects, and makes every connection of its options and pool.
//!
//! The context owns one [`Core`], which its listeners and the links' environment share with it.
//!
//! 1. A clone is another handle of the same context.
//! 2. No descriptor of this side leaves before the peer policy has admitted the process that made the other end.
//! 3. A forked child's handle makes no connection.

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
use crate::handshake::role::{Admission, Policy, Role, Service};
use crate::handshake::{exchange, socket};
use crate::pool::Pool;
use crate::transport::connection::Connection;
use crate::transport::core::Core;
use crate::transport::establish::{End, Established};
use crate::transport::listener::Listener;
use crate::transport::options::Options;
use crate::wake::{Spin, SpinPolicy};

/// The pause before the next attempt, while nobody listens on an address.
const RETRY: Duration = Duration::from_millis(2);

/// The options, the pool of blocks and the watcher thread that all connections of one context share.
///
/// The first connection starts the watcher, which sleeps until a peer ends. A clone is another handle of the same
/// context. Connections outlive their context.
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
    /// Returns a context with default options.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Os`]: the kernel is older than Linux 5.1.
    pub fn new() -> Result<Self> {
        Self::with_options(Options::default())
    }

    /// Returns a context with these options.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::InvalidOption`]: an option has a value that it may not have. The error names all three.
    /// - [`ErrorKind::Os`]: the kernel is older than Linux 5.1.
    pub fn with_options(options: Options) -> Result<Self> {
        options.check()?;
        Ok(Self { core: Arc::new(Core::new(options)?) })
    }

    /// Raises this process's limit on descriptors (`RLIMIT_NOFILE`) to its hard limit, and returns that limit. A link
    /// takes two descriptors; [`ErrorKind::DescriptorLimit`] names the limit that an operation met.
    ///
    /// # Examples
    ///
    /// ```
    /// assert!(slipring::Context::raise_descriptor_limit()? > 0);
    /// # Ok::<(), slipring::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Os`]: the kernel refused the new limit.
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
    /// - [`ErrorKind::AddressEmpty`], [`ErrorKind::AddressTooLong`], [`ErrorKind::AddressNul`], [`ErrorKind::AddressEscape`]:
    ///   the text is no address.
    /// - [`ErrorKind::AddressInUse`]: another socket has the address.
    /// - [`ErrorKind::DescriptorLimit`]: this process may open no more descriptors.
    /// - [`ErrorKind::Forked`]: this process is a fork of the one that made the context.
    /// - [`ErrorKind::Os`]: the kernel refused a call.
    pub fn listen<A>(&self, address: A) -> Result<Listener>
    where
        A: TryInto<Address>,
        Error: From<A::Error>,
    {
        self.core.generation().check()?;
        Listener::bind(self.core.clone(), address.try_into()?, Service::Links)
    }

    /// Listens on a `SOCK_SEQPACKET` Unix socket that already listens, such as one that a service manager passed.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::NotSeqpacket`]: the descriptor is no such socket.
    /// - [`ErrorKind::DescriptorLimit`], [`ErrorKind::Forked`], [`ErrorKind::Os`]: as [`listen`](Self::listen).
    pub fn listen_on(&self, socket: OwnedFd) -> Result<Listener> {
        self.core.generation().check()?;
        socket::adopt(&socket, true)?;
        Listener::adopt(self.core.clone(), socket)
    }

    /// Connects to a listener. Waits for its Hello at most for [`Options::handshake_timeout`].
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::AddressEmpty`], [`ErrorKind::AddressTooLong`], [`ErrorKind::AddressNul`], [`ErrorKind::AddressEscape`]:
    ///   the text is no address.
    /// - [`ErrorKind::NobodyListens`]: no socket listens on the address.
    /// - [`ErrorKind::TimedOut`]: the listener did not answer in time.
    /// - [`ErrorKind::PeerNotAdmitted`]: this side's peer policy does not admit the listener.
    /// - [`ErrorKind::NotAdmittedByPeer`], [`ErrorKind::RefusedByPeer`]: the listener refused this side.
    /// - [`ErrorKind::NoCommonVersion`], [`ErrorKind::Fault`]: the listener's Hello does not fit.
    /// - [`ErrorKind::PeerClosed`], [`ErrorKind::PeerDied`]: the listener went away.
    /// - [`ErrorKind::DescriptorLimit`], [`ErrorKind::OutOfMemory`], [`ErrorKind::FileSizeLimit`]: this process lacks what
    ///   a link needs.
    /// - [`ErrorKind::Forked`]: this process is a fork of the one that made the context.
    /// - [`ErrorKind::Os`]: the kernel refused a call.
    pub fn connect<A>(&self, address: A) -> Result<Connection>
    where
        A: TryInto<Address>,
        Error: From<A::Error>,
    {
        self.connect_deadline(address, self.core.options().handshake_deadline())
    }

    /// Connects as [`connect`](Self::connect) does, until `deadline`.
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

    /// Connects as [`connect_deadline`](Self::connect_deadline) does, and retries every few milliseconds while nobody
    /// listens.
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

    /// Connects over a connected `SOCK_SEQPACKET` Unix socket, such as one end of a `socketpair`. The other end
    /// [accepts](Self::accept_socket).
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect).
    pub fn connect_socket(&self, socket: OwnedFd) -> Result<Connection> {
        self.core.generation().check()?;
        socket::adopt(&socket, false)?;
        socket::receive_credentials(&socket)?;
        let socket = Socket::new(socket);
        self.core.options().admit(&socket::maker(&socket)?)?;
        let deadline = self.core.options().handshake_deadline();
        let times = (Instant::now(), deadline);
        Ok(self.core.connect(socket, self.core.take_ours()?, times)?.into_connection())
    }

    /// Accepts over a connected `SOCK_SEQPACKET` Unix socket. The other end [connects](Self::connect_socket).
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect).
    pub fn accept_socket(&self, socket: OwnedFd) -> Result<Connection> {
        self.core.generation().check()?;
        socket::adopt(&socket, false)?;
        let socket = Socket::new(socket);
        let maker = socket::maker(&socket)?;
        let admitted = self.core.options().admit(&maker);
        admitted.map_err(|error| exchange::refuse(&socket, error))?;
        let start = Instant::now();
        let deadline = self.core.options().handshake_deadline();
        socket::receive_credentials(&socket)?;
        loop {
            match self.core.accept(&socket, Service::Links, |_, _| true)? {
                Offer::Accepted(sides) => {
                    return Ok(self
                        .core
                        .establish(socket, *sides, End::Accepting)?
                        .into_connection());
                }
                Offer::Overdrawn(error) => return Err(error),
                Offer::Silent => {
                    if !socket::wait_readable(&socket, Some(deadline))? {
                        let late = Error::from(ErrorKind::TimedOut { after: start.elapsed() });
                        let what = "the process on the other end of the socket sends no Hello";
                        return Err(late.waiting_for(what));
                    }
                }
            }
        }
    }

    /// Gives unused memory of the pool back to the system. Returns its bytes. A peer unmaps the memory when this side
    /// next sends it memory that it has not mapped.
    pub fn trim(&self) -> u64 {
        if self.core.generation().is_current() { self.core.pool().trim() } else { 0 }
    }

    pub(crate) fn check(&self) -> Result<()> {
        self.core.generation().check()
    }

    pub(crate) fn pool(&self) -> &Pool {
        self.core.pool()
    }

    /// Returns the bytes that count for [`Options::pool_quota`].
    pub fn pool_bytes(&self) -> u64 {
        if self.core.generation().is_current() { self.core.pool().used() } else { 0 }
    }

    /// Returns how long a loop of this context polls before it sleeps.
    pub(crate) fn spin(&self) -> SpinPolicy {
        self.core.options().spin_policy()
    }

    fn connect_to(&self, address: &Address, deadline: Instant) -> Result<Connection> {
        let start = Instant::now();
        let target = address.to_socket_address()?;
        // This side comes first, so that the listener finds the Hello when it wakes up.
        let ours = self.core.take_ours()?;
        let socket = match self.reach(address, &target, (start, deadline)) {
            Ok(socket) => socket,
            Err(error) => {
                self.core.keep_ours(ours);
                return Err(error);
            }
        };
        Ok(self.core.connect(socket, ours, (start, deadline))?.into_connection())
    }

    /// Listens on an address for subscribers.
    pub(crate) fn listen_for(&self, address: Address, admission: Admission) -> Result<Listener> {
        self.core.generation().check()?;
        Listener::bind(self.core.clone(), address, Service::Broadcast(admission))
    }

    /// Connects to a publisher, until `deadline`.
    pub(crate) fn join(
        &self,
        address: &Address,
        policy: Policy,
        deadline: Instant,
    ) -> Result<Established> {
        self.core.generation().check()?;
        let start = Instant::now();
        let target = address.to_socket_address()?;
        let ours = self.core.make_small(Role::Subscriber(policy))?;
        let socket = self.reach(address, &target, (start, deadline))?;
        self.core.connect(socket, ours, (start, deadline))
    }

    /// Returns how long a peer may keep what it was lent after the end. `None`: as long as it lives.
    pub(crate) fn release_grace(&self) -> Option<Duration> {
        self.core.options().grace()
    }

    /// Returns how long a thread of this context polls before it sleeps.
    pub(crate) fn spin_option(&self) -> Spin {
        self.core.options().spin_option()
    }

    /// Returns when a handshake that begins now is late.
    pub(crate) fn handshake_deadline(&self) -> Instant {
        self.core.options().handshake_deadline()
    }

    /// Returns a socket connected to a listener that the peer policy admits.
    fn reach(
        &self,
        address: &Address,
        target: &SocketAddrUnix,
        (start, deadline): (Instant, Instant),
    ) -> Result<Socket> {
        let socket = Socket::new(socket::open()?);
        // Between the connect and the Hello the listener would find this side silent.
        socket::receive_credentials(&socket)?;
        let connected = match socket::connect(&socket, target) {
            // The listener's queue is full.
            Err(Errno::AGAIN) => socket::connect_until(&socket, target, deadline),
            other => other,
        };
        match connected {
            Ok(()) => {}
            Err(Errno::AGAIN) => {
                let late = Error::from(ErrorKind::TimedOut { after: start.elapsed() });
                let what = "the queue of the listener is full: it accepts too slowly";
                return Err(late.waiting_for(format!("{address}: {what}")));
            }
            Err(errno @ (Errno::CONNREFUSED | Errno::NOENT)) => {
                let kind = ErrorKind::NobodyListens { address: address.to_string() };
                return Err(Error::with_source(kind, errno));
            }
            Err(errno) => return Err(Error::os("connect", errno)),
        }
        // The policy checks the listener before any descriptor leaves.
        self.core.options().admit(&socket::maker(&socket)?)?;
        Ok(socket)
    }
}
