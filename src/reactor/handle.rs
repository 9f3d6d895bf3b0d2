//! The handle of a reactor.

use std::ops::ControlFlow;
use std::sync::{Arc, Weak};

use rustix::event::epoll::{self, EventData, EventFlags};

use crate::error::{Error, Result};
use crate::reactor::commands::{Accepting, Adopted, Command};
use crate::reactor::event_loop::EventLoop;
use crate::reactor::link::Link;
use crate::reactor::shared::Shared;
use crate::transport::Connection;
use crate::transport::Context;
use crate::transport::Listener;

/// Serves any number of connections on one thread: this is its handle, for every thread.
///
/// Cloning gives another handle of the same reactor.
///
/// # Examples
///
/// ```
/// use slipring::{Address, Context, Reactor};
///
/// let address = Address::fresh();
/// let context = Context::new()?;
/// let reactor = Reactor::spawn(&context)?;
/// let serving = reactor.clone();
/// reactor.accept_with(context.listen(&address)?, move |accepted| {
///     if let Ok(link) = accepted.and_then(|connection| serving.adopt(connection)) {
///         link.on_message(|link, message| link.write(message.to_vec()));
///     }
///     std::ops::ControlFlow::Continue(())
/// })?;
///
/// let mut client = context.connect(&address)?;
/// client.send(b"hello")?;
/// assert_eq!(client.recv()?.as_deref(), Some(&b"hello"[..]));
/// # Ok::<(), slipring::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Reactor {
    owner: Arc<Owner>,
}

/// What all handles share: the loop is nudged when the last of them goes.
#[derive(Debug)]
pub(super) struct Owner {
    shared: Arc<Shared>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.shared.post(Command::Nudge);
    }
}

impl Reactor {
    /// A handle beside those of `owner`, if there are some.
    pub(super) fn new(owner: &mut Weak<Owner>, shared: &Arc<Shared>) -> Self {
        let owner = owner.upgrade().unwrap_or_else(|| {
            let fresh = Arc::new(Owner { shared: shared.clone() });
            *owner = Arc::downgrade(&fresh);
            fresh
        });
        Self { owner }
    }

    /// Starts a thread (`slipring-reactor`) that serves links. It ends with
    /// [`shutdown`](Self::shutdown), and when no handle of the reactor is left and its last link and
    /// listener are gone.
    ///
    /// How long it watches before it sleeps is the context's
    /// [`Options::spin`](crate::Options::spin).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::DescriptorLimit`](crate::ErrorKind::DescriptorLimit),
    /// [`ErrorKind::Os`](crate::ErrorKind::Os).
    pub fn spawn(context: &Context) -> Result<Self> {
        let mut events = EventLoop::new(context)?;
        let reactor = events.reactor();
        std::thread::Builder::new()
            .name("slipring-reactor".into())
            .spawn(move || {
                let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
                if let Err(error) = events.run() {
                    tracing::error!(error = format_args!("{error:#}"), "the reactor stopped");
                }
            })
            .map_err(|error| Error::os("thread spawn", error))?;
        Ok(reactor)
    }

    /// Serves a connection from now on.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Os`](crate::ErrorKind::Os): the kernel cannot watch one more;
    /// [`ErrorKind::Forked`](crate::ErrorKind::Forked).
    pub fn adopt(&self, connection: Connection) -> Result<Link> {
        let shared = &self.owner.shared;
        shared.generation().check()?;
        let socket = connection.socket();
        let credentials = socket.credentials();
        let key = shared.key();
        let events = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
        epoll::add(&shared.epoll, &socket, EventData::new_u64(key), events)
            .map_err(|errno| Error::os("epoll_ctl", errno))?;
        let (set_aside, writes) = connection.limits();
        let (sender, receiver) = connection.split();
        let link = Link::new(shared.clone(), key, credentials, sender, writes);
        let adopted = Adopted { link: link.clone(), receiver, socket, set_aside };
        shared.post(Command::Adopt(Box::new(adopted)));
        Ok(link)
    }

    /// Accepts connections on the reactor's thread and gives each to `accept`, or why there is none,
    /// until it answers `Break`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Os`](crate::ErrorKind::Os): the kernel cannot watch one more;
    /// [`ErrorKind::Forked`](crate::ErrorKind::Forked).
    pub fn accept_with(
        &self,
        listener: Listener,
        accept: impl FnMut(Result<Connection>) -> ControlFlow<()> + Send + 'static,
    ) -> Result<()> {
        let shared = &self.owner.shared;
        shared.generation().check()?;
        let key = shared.key();
        epoll::add(&shared.epoll, &listener, EventData::new_u64(key), EventFlags::IN)
            .map_err(|errno| Error::os("epoll_ctl", errno))?;
        let accepting = Accepting { key, listener, accept: Box::new(accept) };
        shared.post(Command::Accept(Box::new(accepting)));
        Ok(())
    }

    /// Runs `work` on the reactor's thread, soon.
    pub fn defer(&self, work: impl FnOnce() + Send + 'static) {
        self.owner.shared.post(Command::Run(Box::new(work)));
    }

    /// Ends the reactor: every link is closed in order, without the writes that still wait for room,
    /// and [`EventLoop::run`] returns. Does not wait for it.
    pub fn shutdown(&self) {
        self.owner.shared.post(Command::Shutdown);
    }
}
