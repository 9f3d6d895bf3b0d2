//! `event::Source` of mio for connections and listeners.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use mio::event::Source;
use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};

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
