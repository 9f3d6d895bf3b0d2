//! A server: addresses, connections, and an orderly end.

use std::fmt;
use std::fs::{self, Permissions};
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, socket_with};
use slipring::seam::SocketPath;
use tokio::net::{TcpListener, TcpSocket, UnixListener};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::descriptors;
use crate::front::Front;
use crate::listener::Socket;
use crate::{grpc, http, metrics};

/// Connections that wait for `accept`. tokio's own value for TCP is 128.
const BACKLOG: u32 = 1024;

/// The protocol of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// HTTP/1.1.
    Http,
    /// gRPC.
    Grpc,
    /// The [metrics](Front::metrics): `GET /metrics` over HTTP/1.1.
    Metrics,
}

/// A bound address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Bound {
    /// A TCP address and port.
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

/// Serves a [`Front`] on addresses of its own. [`http_router`](crate::http_router) serves one inside of an
/// application.
///
/// # Examples
///
/// ```
/// use slipring_triton::{Front, Server, Protocol};
///
/// # async fn serve() -> Result<(), Box<dyn std::error::Error>> {
/// let front = Front::builder().build()?;
/// let mut server = Server::new(front);
/// let address = server.listen(Protocol::Http, "127.0.0.1:0").await?;
/// println!("{address}");
/// server.serve(async { tokio::time::sleep(std::time::Duration::from_secs(60)).await }).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Server {
    front: Front,
    sockets: Vec<(Protocol, Socket)>,
    files: Vec<SocketFile>,
}

/// The file of a Unix socket. It is removed on drop.
#[derive(Debug)]
struct SocketFile(Option<SocketPath>);

impl Drop for SocketFile {
    fn drop(&mut self) {
        if let Some(path) = self.0.take() {
            path.remove();
        }
    }
}

/// Listens on the first address of a name that is free.
async fn bind_tcp(name: &str) -> io::Result<TcpListener> {
    let mut failure = io::Error::new(io::ErrorKind::InvalidInput, "the name has no address");
    for address in tokio::net::lookup_host(name).await? {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.set_reuseaddr(true)?;
        match socket.bind(address).and_then(|()| socket.listen(BACKLOG)) {
            Ok(listener) => return Ok(listener),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

/// Gives a mode to the file to which this process has just bound a socket.
///
/// A process that may write the folder can have replaced the file. So the mode goes to the file that was opened and looked at,
/// and never to one that a link leads to.
fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = fs::File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let found = file.metadata()?;
    let is_ours = found.file_type().is_socket()
        && found.nlink() == 1
        && found.uid() == rustix::process::geteuid().as_raw();
    if !is_ours {
        let what = format!("another file has taken the place of the socket {}", path.display());
        return Err(io::Error::other(what));
    }
    // `fchmod` takes no descriptor of this kind.
    let opened = format!("/proc/self/fd/{}", file.as_raw_fd());
    fs::set_permissions(opened, Permissions::from_mode(mode))
}

impl Server {
    /// Returns a server without an address.
    pub fn new(front: Front) -> Self {
        Self { front, sockets: Vec::new(), files: Vec::new() }
    }

    /// Listens on a TCP address such as `127.0.0.1:8000`. Port 0 is any free port. Every process that can reach the
    /// address can use the regions that clients register.
    ///
    /// # Errors
    ///
    /// The error of the system call.
    pub async fn listen(&mut self, protocol: Protocol, address: &str) -> io::Result<Bound> {
        let listener = bind_tcp(address).await?;
        let bound = Bound::Tcp(listener.local_addr()?);
        self.sockets.push((protocol, Socket::Tcp(listener)));
        Ok(bound)
    }

    /// Listens on a Unix socket at a free path. The process's umask sets the mode of the file. The server removes the
    /// file when it ends. A killed server leaves it, and the next server that listens on the path replaces it.
    ///
    /// # Errors
    ///
    /// The error of the system call.
    pub fn listen_unix(&mut self, protocol: Protocol, path: impl AsRef<Path>) -> io::Result<Bound> {
        self.bind_unix(protocol, path.as_ref(), None)
    }

    /// Listens on a Unix socket whose file has this mode, such as `0o660`. Only a process with write permission can
    /// connect, at any moment.
    ///
    /// # Errors
    ///
    /// The error of the system call.
    pub fn listen_unix_mode(
        &mut self,
        protocol: Protocol,
        path: impl AsRef<Path>,
        mode: u32,
    ) -> io::Result<Bound> {
        self.bind_unix(protocol, path.as_ref(), Some(mode))
    }

    fn bind_unix(
        &mut self,
        protocol: Protocol,
        path: &Path,
        mode: Option<u32>,
    ) -> io::Result<Bound> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        let target = SocketAddrUnix::new(path)?;
        let bind_and_listen = || -> io::Result<()> {
            bind(&socket, &target)?;
            // No client can connect before `listen`.
            mode.map_or(Ok(()), |mode| set_mode(path, mode))?;
            Ok(rustix::net::listen(&socket, BACKLOG as i32)?)
        };
        let is_in_use = |error: &io::Error| error.kind() == io::ErrorKind::AddrInUse;
        self.files.push(SocketFile(SocketPath::bind(path, bind_and_listen, is_in_use)?));
        let listener = UnixListener::from_std(socket.into())?;
        self.sockets.push((protocol, Socket::Unix(listener)));
        Ok(Bound::Unix(path.to_owned()))
    }

    /// Serves until `ended` completes. The server then takes no further connections and requests, and returns once it
    /// has answered the requests in flight, at most after
    /// [`Limits::shutdown_timeout`](crate::Limits::shutdown_timeout).
    ///
    /// # Errors
    ///
    /// A protocol task has failed. A failed connection is no error.
    pub async fn serve(self, ended: impl Future<Output = ()>) -> io::Result<()> {
        let (end, shutdown) = watch::channel(false);
        // The files stay until all protocols have ended.
        let _files = self.files;
        let mut protocols = JoinSet::new();
        let most = descriptors::connections(self.front.limits().connections, self.sockets.len());
        for (protocol, socket) in self.sockets {
            let (front, shutdown) = (self.front.clone(), shutdown.clone());
            match protocol {
                Protocol::Http => protocols.spawn(http::serve(front, socket, most, shutdown)),
                Protocol::Grpc => protocols.spawn(grpc::serve(front, socket, most, shutdown)),
                Protocol::Metrics => protocols.spawn(metrics::serve(front, socket, most, shutdown)),
            };
        }
        tokio::pin!(ended);
        loop {
            tokio::select! {
                () = &mut ended => break,
                Some(done) = protocols.join_next() => done.map_err(io::Error::other)?,
            }
        }
        let _ = end.send(true);
        while let Some(done) = protocols.join_next().await {
            done.map_err(io::Error::other)?;
        }
        Ok(())
    }
}
