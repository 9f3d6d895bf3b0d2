//! Where clients come in.

use std::io;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

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

/// A socket that is listened on.
pub(super) struct Listener(Socket);

impl Listener {
    pub(super) fn new(socket: Socket) -> Self {
        Self(socket)
    }

    /// The next connection. Who stops waiting has lost nothing.
    pub(super) async fn accept(&self) -> Stream {
        loop {
            match self.try_accept().await {
                Ok(stream) => return stream,
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
        }
    }

    async fn try_accept(&self) -> io::Result<Stream> {
        match &self.0 {
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
