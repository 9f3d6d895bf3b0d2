//! `event::Source` of mio, for connections and listeners.

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
    /// Readable when there is something to receive, room to send, or an end; whatever the interest.
    /// The rules are those of `AsFd for Connection`: register first, then look, until there is
    /// nothing.
    Connection
}

source! {
    /// Readable when [`try_accept`](Listener::try_accept) has something to do. Call it until it gives
    /// `None`.
    Listener
}
