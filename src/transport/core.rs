//! What a context and its listeners share: the options, the environment of links, and a spare side.
//!
//! 1. The spare is this side of one future link. A listener makes it while it waits, or while a peer reads its answer. A
//!    connecting context makes it while the listener answers.
//! 2. A spare that no link took stays for the next one.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crate::error::Result;
use crate::handshake::exchange::{self, Offer, Ours};
use crate::handshake::owned_socket::Socket;
use crate::handshake::packet::Hello;
use crate::handshake::peer::Credentials;
use crate::handshake::role::{Role, Service};
use crate::link::env::LinkEnv;
use crate::pool::Pool;
use crate::shm::fork::Generation;
use crate::shm::node_of_caller;
use crate::transport::establish::{
    End, Established, LINK_DESCRIPTORS, LinkCharges, Sides, establish,
};
use crate::transport::options::Options;
use crate::wake;

#[derive(Debug)]
pub(super) struct Core {
    options: Options,
    env: Arc<LinkEnv>,
    /// This side of the next link, if it is made.
    spare: Mutex<Option<Ours>>,
    /// Whether this context has connected. Such a context is likely to connect once more.
    has_connected: AtomicBool,
    generation: Generation,
}

impl Core {
    /// Returns the core of a new context.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Os`](crate::ErrorKind::Os): the kernel is older than Linux 5.1.
    pub(super) fn new(options: Options) -> Result<Self> {
        let env = Arc::new(LinkEnv::new(options.channel(), Pool::new(options.pool())));
        let generation = Generation::current()?;
        let (spare, has_connected) = (Mutex::new(None), AtomicBool::new(false));
        Ok(Self { options, env, spare, has_connected, generation })
    }

    #[inline(always)]
    pub(super) fn options(&self) -> &Options {
        &self.options
    }

    #[inline(always)]
    pub(super) fn pool(&self) -> &Pool {
        self.env.pool()
    }

    pub(super) fn generation(&self) -> &Generation {
        &self.generation
    }

    /// Connects over a connected socket.
    pub(super) fn connect(
        &self,
        socket: Socket,
        ours: Ours,
        times: (Instant, Instant),
    ) -> Result<Established> {
        let meanwhile = || {
            // From the second connect on, the context uses the time until the listener answers.
            if self.has_connected.swap(true, Ordering::Relaxed) {
                self.prepare();
            }
        };
        // Only a listener's links are those that peers make.
        let charge =
            |peer: &Credentials, hello: &Hello| LinkCharges::new(&self.options, peer, hello, 0);
        let rules = self.options.rules(Service::Links);
        let (theirs, charges) = exchange::connect(rules, &socket, &ours, times, meanwhile, charge)?;
        self.establish(socket, (ours, theirs, charges), End::Connecting)
    }

    /// Accepts a peer over a connected socket, if its Hello has come and its user `may_cost` so much.
    pub(super) fn accept(
        &self,
        socket: &OwnedFd,
        service: Service,
        may_cost: impl FnOnce(u32, u64) -> bool,
    ) -> Result<Offer<LinkCharges>> {
        let charge = |peer: &Credentials, hello: &Hello| {
            LinkCharges::new(&self.options, peer, hello, LINK_DESCRIPTORS)
        };
        let rules = self.options.rules(service);
        exchange::accept(rules, socket, may_cost, charge, || match service.role() {
            Role::Link => self.take_ours(),
            role => self.make_small(role),
        })
    }

    /// Makes the link of a handshake.
    pub(super) fn establish(&self, socket: Socket, sides: Sides, end: End) -> Result<Established> {
        establish(&self.options, &self.env, (socket, end), sides)
    }

    /// Returns this side of a new link.
    pub(super) fn take_ours(&self) -> Result<Ours> {
        let spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner).take();
        spare.map_or_else(|| self.make_ours(), Ok)
    }

    /// Keeps the side of a link that did not come about, for the next one.
    pub(super) fn keep_ours(&self, ours: Ours) {
        *self.spare.lock().unwrap_or_else(PoisonError::into_inner) = Some(ours);
    }

    /// Makes this side of the next link, if none is ready. An error is reported when the side is needed.
    pub(super) fn prepare(&self) {
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        if spare.is_none() {
            *spare = self.make_ours().ok();
        }
    }

    /// Returns this side of a new link of a broadcast, which carries no messages.
    pub(super) fn make_small(&self, role: Role) -> Result<Ours> {
        let hello = self.options.hello(wake::is_registered(), node_of_caller());
        Ours::create(hello.of_broadcast(role), self.options.backing())
    }

    fn make_ours(&self) -> Result<Ours> {
        let hello = self.options.hello(wake::is_registered(), node_of_caller());
        Ours::create(hello, self.options.backing())
    }
}
