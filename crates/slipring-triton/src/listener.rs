//! The sockets that accept clients.

use std::io;

use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

/// A listening socket.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// An accepted connection.
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// Accepts connections.
pub(crate) struct Listener(Socket);

impl Listener {
    pub(crate) fn new(socket: Socket) -> Self {
        Self(socket)
    }

    /// Returns the next connection. A caller may drop the future without loss, and may try again after an error.
    pub(crate) async fn accept(&self) -> io::Result<Stream> {
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
