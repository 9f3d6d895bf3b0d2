//! Where clients come in.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// After an error of `accept`, such as a limit on descriptors: how long until the next try.
const PAUSE: Duration = Duration::from_millis(20);

/// A socket that clients connect to.
#[derive(Debug)]
pub(super) enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// A connection.
pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// A place among the connections of an address, until it is dropped.
pub(super) struct Place {
    _permit: Option<OwnedSemaphorePermit>,
}

/// A socket, and how many connections it may have at a time.
pub(super) struct Door {
    socket: Socket,
    places: Arc<Semaphore>,
}

impl Door {
    pub(super) fn new(socket: Socket, connections: usize) -> Self {
        Self { socket, places: Arc::new(Semaphore::new(connections)) }
    }

    /// The next connection, once there is a place for it. Who stops waiting has lost nothing.
    pub(super) async fn next(&self) -> (Place, Stream) {
        // Never closed, so there is always one to wait for.
        let place = Place { _permit: self.places.clone().acquire_owned().await.ok() };
        loop {
            match self.accept().await {
                Ok(stream) => return (place, stream),
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
        }
    }

    async fn accept(&self) -> io::Result<Stream> {
        match &self.socket {
            Socket::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // A response must not wait for an acknowledgement.
                let _ = stream.set_nodelay(true);
                Ok(Stream::Tcp(stream))
            }
            Socket::Unix(listener) => Ok(Stream::Unix(listener.accept().await?.0)),
        }
    }
}
