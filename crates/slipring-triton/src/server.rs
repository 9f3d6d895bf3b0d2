//! A server of its own: addresses, connections, and an orderly end.

use std::fmt;
use std::fs::{self, Permissions};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, socket_with};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::front::Front;
use crate::listener::Socket;
use crate::{grpc, http};

/// Connections to a Unix socket that wait to be accepted; as many as `std` and tokio let.
const BACKLOG: i32 = 1024;

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

/// A [`Front`] on addresses of its own. See [`http_router`](crate::http_router)
/// for one inside of an application.
///
/// # Examples
///
/// ```
/// use slipring_triton::{Front, Server, Wire};
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
    files: Vec<SocketFile>,
}

/// The file of a Unix socket, removed on drop.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    /// Device and inode: by now the path may be another one's.
    identity: (u64, u64),
}

impl SocketFile {
    fn of(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), identity: identity(path)? })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|identity| identity == self.identity) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

impl Server {
    /// A server without an address.
    pub fn new(front: Front) -> Self {
        Self { front, sockets: Vec::new(), files: Vec::new() }
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

    /// Listens on a Unix socket at a path where nothing is yet. Its file has the mode that the process's umask leaves,
    /// and is removed when the server ends. A server that was killed leaves it.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn listen_unix(&mut self, wire: Wire, path: impl AsRef<Path>) -> io::Result<Bound> {
        self.bind_unix(wire, path.as_ref(), None)
    }

    /// As [`listen_unix`](Self::listen_unix), with a file of this mode, such as `0o660`: whoever may write to it may
    /// connect. At no time may anybody else.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn listen_unix_mode(
        &mut self,
        wire: Wire,
        path: impl AsRef<Path>,
        mode: u32,
    ) -> io::Result<Bound> {
        self.bind_unix(wire, path.as_ref(), Some(mode))
    }

    fn bind_unix(&mut self, wire: Wire, path: &Path, mode: Option<u32>) -> io::Result<Bound> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        bind(&socket, &SocketAddrUnix::new(path)?)?;
        self.files.push(SocketFile::of(path)?);
        // Nobody can connect before it is listened on.
        if let Some(mode) = mode {
            fs::set_permissions(path, Permissions::from_mode(mode))?;
        }
        rustix::net::listen(&socket, BACKLOG)?;
        let listener = UnixListener::from_std(socket.into())?;
        self.sockets.push((wire, Socket::Unix(listener)));
        Ok(Bound::Unix(path.to_owned()))
    }

    /// Serves until `ended` is over; then takes no more connections and requests, and returns once the requests
    /// under way are answered, or [`Limits::shutdown_timeout`](crate::Limits::shutdown_timeout) is over.
    ///
    /// # Errors
    ///
    /// A wire that cannot be served. The failure of a connection is none.
    pub async fn serve(self, ended: impl Future<Output = ()>) -> io::Result<()> {
        let (end, shutdown) = watch::channel(false);
        // Until all are served.
        let _files = self.files;
        let mut wires = JoinSet::new();
        for (wire, socket) in self.sockets {
            let (front, shutdown) = (self.front.clone(), shutdown.clone());
            match wire {
                Wire::Http => wires.spawn(http::serve(front, socket, shutdown)),
                Wire::Grpc => wires.spawn(grpc::serve(front, socket, shutdown)),
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
