//! What a context, its listeners and its connections share.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crate::error::Result;
use crate::handshake::exchange::{self, Offer, Ours, Rules, Theirs};
use crate::handshake::layout;
use crate::handshake::owned_socket::Socket;
use crate::handshake::packet::Hello;
use crate::link::env::LinkEnv;
use crate::pool::Pool;
use crate::shm::fork::Generation;
use crate::shm::node_of_caller;
use crate::transport::connection::Connection;
use crate::transport::establish::establish;
use crate::transport::options::Options;
use crate::wake::{self, Spin};

#[derive(Debug)]
pub(super) struct Core {
    options: Options,
    env: Arc<LinkEnv>,
    /// This side of the next link, made while nobody waited for it.
    spare: Mutex<Option<Ours>>,
    /// This context has connected before: it is likely to do so again.
    has_connected: AtomicBool,
    generation: Generation,
}

impl Core {
    /// # Errors
    ///
    /// [`ErrorKind::Os`](crate::ErrorKind::Os): the kernel has no `MADV_WIPEONFORK`.
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
    ) -> Result<Connection> {
        let meanwhile = || {
            // A context that connects for the second time uses the time until the listener answers.
            if self.has_connected.swap(true, Ordering::Relaxed) {
                self.prepare();
            }
        };
        let theirs = exchange::connect(self.rules(), &socket, &ours, times, meanwhile)?;
        self.establish(socket, (ours, theirs))
    }

    /// Accepts a peer over a connected socket, if it has said Hello.
    pub(super) fn accept(&self, socket: &OwnedFd) -> Result<Offer> {
        exchange::accept(self.rules(), socket, || self.take_ours())
    }

    /// Makes the connection of a handshake.
    pub(super) fn establish(&self, socket: Socket, sides: (Ours, Theirs)) -> Result<Connection> {
        establish(&self.options, &self.env, socket, sides)
    }

    /// Returns this side of a new link.
    pub(super) fn take_ours(&self) -> Result<Ours> {
        let spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner).take();
        spare.map_or_else(|| self.make_ours(), Ok)
    }

    /// Keeps this side of a link that was not made for the next one.
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

    fn make_ours(&self) -> Result<Ours> {
        let options = &self.options;
        let hello = Hello {
            issues_membarrier: wake::is_registered(),
            control_len: layout::len(options.loan_slots),
            ring_capacity: options.ring_capacity,
            loan_slots: options.loan_slots,
            numa_node: node_of_caller(),
            max_message: options.max_message,
            pool_limit: options.peer_pool_limit,
        };
        Ours::create(hello, options.backing())
    }

    fn rules(&self) -> Rules<'_> {
        Rules {
            policy: &self.options.peer_policy,
            prefault: self.options.prefault,
            polls: self.options.spin != Spin::Never,
        }
    }
}
