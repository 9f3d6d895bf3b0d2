//! A server of its own: addresses, connections, and an orderly end.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::triton::door::Socket;
use crate::triton::front::Front;
use crate::triton::{grpc, http};

/// The protocol that is spoken on an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Wire {
    /// HTTP/1.1.
    Http,
    /// gRPC.
    Grpc,
}

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Bound {
    /// An address and port of TCP.
    Tcp(SocketAddr),
    /// The path of a Unix socket.
    Unix(PathBuf),
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => fmt::Display::fmt(address, f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Told once that no more is to be taken up.
pub(super) type Ending = watch::Receiver<bool>;

/// A [`Front`] on addresses of its own. See [`http_router`](crate::triton::http_router)
/// for one inside of an application.
///
/// # Examples
///
/// ```
/// use slipring::triton::{Front, Server, Wire};
///
/// # async fn serve() -> Result<(), Box<dyn std::error::Error>> {
/// let front = Front::builder().build()?;
/// let mut server = Server::new(front);
/// let address = server.listen(Wire::Http, "127.0.0.1:0").await?;
/// println!("{address}");
/// server.serve(async { tokio::time::sleep(std::time::Duration::from_secs(60)).await }).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Server {
    front: Front,
    sockets: Vec<(Wire, Socket)>,
}

impl Server {
    /// A server without an address.
    pub fn new(front: Front) -> Self {
        Self { front, sockets: Vec::new() }
    }

    /// Listens on an address of TCP, such as `127.0.0.1:8000`; port 0 is any. Who can reach it can use the
    /// regions that clients register.
    ///
    /// # Errors
    ///
    /// The system's.
    pub async fn listen(&mut self, wire: Wire, address: &str) -> io::Result<Bound> {
        let listener = TcpListener::bind(address).await?;
        let bound = Bound::Tcp(listener.local_addr()?);
        self.sockets.push((wire, Socket::Tcp(listener)));
        Ok(bound)
    }

    /// Listens on a Unix socket at a path where nothing is yet. The socket's file stays when the server ends.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn listen_unix(&mut self, wire: Wire, path: impl AsRef<Path>) -> io::Result<Bound> {
        let path = path.as_ref();
        let listener = UnixListener::bind(path)?;
        self.sockets.push((wire, Socket::Unix(listener)));
        Ok(Bound::Unix(path.to_owned()))
    }

    /// Serves until `ended` is over; then takes no more connections and requests, and returns once the requests
    /// under way are answered, or [`Limits::grace`](crate::triton::Limits::grace) is over.
    ///
    /// # Errors
    ///
    /// A wire that cannot be served. The failure of a connection is none.
    pub async fn serve(self, ended: impl Future<Output = ()>) -> io::Result<()> {
        let (end, ending) = watch::channel(false);
        let mut wires = JoinSet::new();
        for (wire, socket) in self.sockets {
            let (front, ending) = (self.front.clone(), ending.clone());
            match wire {
                Wire::Http => wires.spawn(http::serve(front, socket, ending)),
                Wire::Grpc => wires.spawn(grpc::serve(front, socket, ending)),
            };
        }
        tokio::pin!(ended);
        loop {
            tokio::select! {
                () = &mut ended => break,
                Some(done) = wires.join_next() => done.map_err(io::Error::other)?,
            }
        }
        let _ = end.send(true);
        while let Some(done) = wires.join_next().await {
            done.map_err(io::Error::other)?;
        }
        Ok(())
    }
}
