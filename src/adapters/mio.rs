//! `event::Source` of mio for connections, listeners and subscribers.

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};

use mio::event::Source;
use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};

use crate::broadcast::Subscriber;
use crate::{Connection, Listener};

macro_rules! source {
    ($(#[$doc:meta])* $type:ty) => {
        $(#[$doc])*
        impl Source for $type {
            fn register(
                &mut self,
                registry: &Registry,
                token: Token,
                _: Interest,
            ) -> io::Result<()> {
                SourceFd(&self.as_fd().as_raw_fd()).register(registry, token, Interest::READABLE)
            }

            fn reregister(
                &mut self,
                registry: &Registry,
                token: Token,
                _: Interest,
            ) -> io::Result<()> {
                SourceFd(&self.as_fd().as_raw_fd()).reregister(registry, token, Interest::READABLE)
            }

            fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
                SourceFd(&self.as_fd().as_raw_fd()).deregister(registry)
            }
        }
    };
}

source! {
    /// The connection is readable when there is a message to receive, room to send, or an end, whatever the interest.
    /// The rules are those of `AsFd for Connection`: register the connection first, then receive until it is empty.
    ///
    /// # Examples
    ///
    /// ```
    /// use mio::{Events, Interest, Poll, Token};
    /// use slipring::error::TryRecvError;
    /// use slipring::{Address, Context};
    ///
    /// let address = Address::fresh();
    /// let context = Context::new()?;
    /// let mut listener = context.listen(&address)?;
    /// let peer = std::thread::spawn(move || {
    ///     let mut peer = listener.accept()?;
    ///     peer.send(b"hello")?;
    ///     peer.recv()
    /// });
    ///
    /// let mut connection = context.connect(&address)?;
    /// let mut poll = Poll::new()?;
    /// poll.registry().register(&mut connection, Token(0), Interest::READABLE)?;
    /// let mut events = Events::with_capacity(8);
    /// let message = loop {
    ///     match connection.receiver().try_recv() {
    ///         Ok(message) => break message,
    ///         Err(TryRecvError::Empty) => poll.poll(&mut events, None)?,
    ///         Err(TryRecvError::Failed(error)) => return Err(error.into()),
    ///     }
    /// };
    /// assert_eq!(message.as_deref(), Some(&b"hello"[..]));
    /// connection.close()?;
    /// peer.join().unwrap()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    Connection
}

source! {
    /// The listener is readable when [`try_accept`](Listener::try_accept) has something to do. Call it until it returns
    /// `None`.
    ///
    /// # Examples
    ///
    /// ```
    /// use mio::{Events, Interest, Poll, Token};
    /// use slipring::{Address, Context};
    ///
    /// let (context, address) = (Context::new()?, Address::fresh());
    /// let mut listener = context.listen(&address)?;
    /// let mut poll = Poll::new()?;
    /// poll.registry().register(&mut listener, Token(0), Interest::READABLE)?;
    /// let peer = std::thread::spawn(move || context.connect(&address));
    ///
    /// let mut events = Events::with_capacity(8);
    /// let mut connection = loop {
    ///     match listener.try_accept()? {
    ///         Some(connection) => break connection,
    ///         None => poll.poll(&mut events, None)?,
    ///     }
    /// };
    /// connection.send(b"hello")?;
    /// assert_eq!(peer.join().unwrap()?.recv()?.as_deref(), Some(&b"hello"[..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    Listener
}

/// The subscriber is readable when [`try_recv`](Subscriber::try_recv) has something to do, whatever the interest. Register the
/// subscriber first, then receive until it is empty.
///
/// Each publisher has a descriptor of its own, so only a subscriber that does not
/// [reconnect](crate::broadcast::SubscribeOptions::reconnect) can be registered. For the same reason a subscriber has no
/// `AsFd`: [`Subscriber::descriptor`] returns the descriptor of the present publisher, if there is one.
///
/// # Examples
///
/// ```
/// use mio::{Events, Interest, Poll, Token};
/// use slipring::broadcast::{PublishOptions, SubscribeOptions};
/// use slipring::error::TryRecvError;
/// use slipring::{Address, Context};
///
/// let (context, address) = (Context::new()?, Address::fresh());
/// let mut clock = context.publish(&address, PublishOptions::default())?;
/// let mut log = context.subscribe(&address, SubscribeOptions::every().reconnect(false))?;
/// let mut poll = Poll::new()?;
/// poll.registry().register(&mut log, Token(0), Interest::READABLE)?;
///
/// let ticking = std::thread::spawn(move || clock.send(b"tick"));
/// let mut events = Events::with_capacity(8);
/// let tick = loop {
///     match log.try_recv() {
///         Ok(Some(sample)) => break sample.to_vec()?,
///         Ok(None) => panic!("the clock has ended"),
///         Err(TryRecvError::Empty) => {}
///         Err(TryRecvError::Failed(error)) => return Err(error.into()),
///     }
///     poll.poll(&mut events, None)?;
/// };
/// assert_eq!(tick, b"tick");
/// ticking.join().unwrap()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// [`io::ErrorKind::Unsupported`]: the subscriber reconnects.
impl Source for Subscriber {
    fn register(&mut self, registry: &Registry, token: Token, _: Interest) -> io::Result<()> {
        SourceFd(&lasting(self)?).register(registry, token, Interest::READABLE)
    }

    fn reregister(&mut self, registry: &Registry, token: Token, _: Interest) -> io::Result<()> {
        SourceFd(&lasting(self)?).reregister(registry, token, Interest::READABLE)
    }

    fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        SourceFd(&lasting(self)?).deregister(registry)
    }
}

fn lasting(subscriber: &Subscriber) -> io::Result<RawFd> {
    let why = "the descriptor of a subscriber that reconnects changes: set SubscribeOptions::reconnect(false)";
    let unsupported = || io::Error::new(io::ErrorKind::Unsupported, why);
    let descriptor = if subscriber.reconnects() { None } else { subscriber.descriptor() };
    Ok(descriptor.ok_or_else(unsupported)?.as_raw_fd())
}
