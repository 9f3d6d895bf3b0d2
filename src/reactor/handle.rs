//! The handle of a reactor.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::{Arc, Weak};

use rustix::event::epoll::EventFlags;

use crate::broadcast::{Sample, Subscriber};
use crate::error::{Error, Result};
use crate::reactor::command::Command;
use crate::reactor::event_loop::EventLoop;
use crate::reactor::link::Link;
use crate::reactor::mailbox::Mailbox;
use crate::reactor::stats::ReactorStats;
use crate::reactor::subscribers::EVENTS;
use crate::reactor::totals::Totals;
use crate::transport::{Connection, Context, Listener};

/// The handle of a reactor, which serves any number of connections on one thread. Any thread may use it.
///
/// Cloning returns another handle of the same reactor.
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
#[derive(Clone)]
pub struct Reactor {
    owner: Arc<Owner>,
}

/// The part that all handles share. The end of the last handle wakes the loop.
struct Owner {
    mailbox: Arc<Mailbox<Command>>,
    totals: Arc<Totals>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        Command::Nudge.post(&self.mailbox);
    }
}

/// The loop's view of its handles.
#[derive(Default)]
pub(super) struct Handles {
    owner: Weak<Owner>,
}

impl Handles {
    /// Returns a handle.
    pub(super) fn handle(
        &mut self,
        mailbox: &Arc<Mailbox<Command>>,
        totals: &Arc<Totals>,
    ) -> Reactor {
        let owner = self.owner.upgrade().unwrap_or_else(|| {
            let owner = Owner { mailbox: mailbox.clone(), totals: totals.clone() };
            let owner = Arc::new(owner);
            self.owner = Arc::downgrade(&owner);
            owner
        });
        Reactor { owner }
    }

    /// Returns whether no handle is left.
    pub(super) fn is_empty(&self) -> bool {
        self.owner.strong_count() == 0
    }
}

impl Reactor {
    /// Starts a thread, `slipring-reactor`, that serves links. It ends at [`shutdown`](Self::shutdown), or when no
    /// handle, no link, no listener and no subscriber of the reactor is left.
    ///
    /// [`Options::spin`](crate::Options::spin) of the context says how long the thread polls before it sleeps.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::DescriptorLimit`](crate::ErrorKind::DescriptorLimit): the process has no descriptor left.
    /// - [`ErrorKind::Os`](crate::ErrorKind::Os): the kernel refuses the thread or a descriptor.
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

    /// Serves a connection from now on. Returns the handle of its link.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Os`](crate::ErrorKind::Os): the kernel cannot watch one more descriptor.
    /// - [`ErrorKind::Forked`](crate::ErrorKind::Forked): the caller is a forked child.
    pub fn adopt(&self, connection: Connection) -> Result<Link> {
        let mailbox = &self.owner.mailbox;
        mailbox.generation().check()?;
        let socket = connection.socket();
        let peer = connection.peer().without_pidfd();
        let events = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
        let key = mailbox.watch(&socket, events)?;
        let (deferred_limit, write_limit) = connection.limits();
        let (sender, receiver) = connection.split();
        let link = Link::new(mailbox.clone(), key, peer, sender, write_limit);
        let receiver = Box::new(receiver);
        Command::Adopt { link: link.clone(), receiver, socket, deferred_limit }.post(mailbox);
        Ok(link)
    }

    /// Accepts connections on the reactor's thread. The thread hands each connection, or the error, to `accept`, until
    /// `accept` returns `Break`.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Os`](crate::ErrorKind::Os): the kernel cannot watch one more descriptor.
    /// - [`ErrorKind::Forked`](crate::ErrorKind::Forked): the caller is a forked child.
    pub fn accept_with(
        &self,
        listener: Listener,
        accept: impl FnMut(Result<Connection>) -> ControlFlow<()> + Send + 'static,
    ) -> Result<()> {
        let mailbox = &self.owner.mailbox;
        mailbox.generation().check()?;
        let key = mailbox.watch(&listener, EventFlags::IN)?;
        let (listener, accept) = (Box::new(listener), Box::new(accept));
        Command::Accept { key, listener, accept }.post(mailbox);
        Ok(())
    }

    /// Receives the messages of a topic on the reactor's thread. The thread hands each one to `callback`, as
    /// [`Subscriber::recv`] would return it, until `callback` returns `Break` or panics. `Ok(None)` and an error are the last
    /// answer, except [`ErrorKind::HoldLimit`](crate::ErrorKind::HoldLimit) and
    /// [`ErrorKind::HoldBytes`](crate::ErrorKind::HoldBytes).
    ///
    /// A silent subscriber costs no time. One that [reconnects](crate::broadcast::SubscribeOptions::reconnect) waits for the
    /// next publisher without holding up the reactor.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::ops::ControlFlow;
    ///
    /// use slipring::broadcast::{PublishOptions, SubscribeOptions};
    /// use slipring::{Address, Context, Reactor};
    ///
    /// let (context, address) = (Context::new()?, Address::fresh());
    /// let mut camera = context.publish(&address, PublishOptions::default())?;
    /// let reactor = Reactor::spawn(&context)?;
    /// let (seen, all) = std::sync::mpsc::channel();
    /// for _ in 0..10 {
    ///     let seen = seen.clone();
    ///     let subscriber = context.subscribe(&address, SubscribeOptions::every())?;
    ///     reactor.subscribe(subscriber, move |sample| {
    ///         let sample = sample.ok().flatten().expect("a message");
    ///         seen.send(sample.to_vec()).unwrap();
    ///         ControlFlow::Continue(())
    ///     })?;
    /// }
    /// camera.send(b"frame")?;
    /// for _ in 0..10 {
    ///     assert_eq!(all.recv().unwrap()?, b"frame");
    /// }
    /// # Ok::<(), slipring::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Os`](crate::ErrorKind::Os): the kernel cannot watch one more descriptor.
    /// - [`ErrorKind::Forked`](crate::ErrorKind::Forked): the caller is a forked child.
    pub fn subscribe(
        &self,
        subscriber: Subscriber,
        callback: impl FnMut(Result<Option<Sample<'_>>>) -> ControlFlow<()> + Send + 'static,
    ) -> Result<()> {
        let mailbox = &self.owner.mailbox;
        mailbox.generation().check()?;
        let socket = subscriber.socket();
        let key = match &socket {
            Some(socket) => mailbox.watch(socket, EVENTS)?,
            None => mailbox.key(),
        };
        let (subscriber, callback) = (Box::new(subscriber), Box::new(callback));
        Command::Subscribe { key, subscriber, socket, callback }.post(mailbox);
        Ok(())
    }

    /// Runs `work` on the reactor's thread, soon.
    pub fn defer(&self, work: impl FnOnce() + Send + 'static) {
        Command::Run(Box::new(work)).post(&self.owner.mailbox);
    }

    /// Ends the reactor. It closes every link in order, drops the writes that wait for room, and
    /// [`EventLoop::run`] returns. The caller does not wait for it.
    pub fn shutdown(&self) {
        Command::Shutdown.post(&self.owner.mailbox);
    }

    /// Returns the sums of the counters of the reactor's links. A link counts from when the loop adopts it. After a
    /// fork, the child's counters are zero.
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
    /// let stats = reactor.stats();
    /// assert_eq!((stats.links, stats.messages_sent, stats.bytes_sent), (1, 1, 5));
    /// # Ok::<(), slipring::Error>(())
    /// ```
    pub fn stats(&self) -> ReactorStats {
        if !self.owner.mailbox.generation().is_current() {
            return ReactorStats::default();
        }
        self.owner.totals.stats()
    }
}

/// Shows the number of links.
impl fmt::Debug for Reactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reactor").field("links", &self.stats().links).finish_non_exhaustive()
    }
}
