//! The file of a listener's socket.
//!
//! 1. A listener binds a path, and removes a file, while it holds the lock of the folder (`flock(2)`). So it never takes
//!    another's file for one that a dead process left: neither between the other's `bind` and its `listen`, nor between
//!    its own check and its own removal.
//! 2. The folder is opened once. The check and the removal name the file relative to it, so a link that replaces a part
//!    of the path leads nowhere else.
//! 3. Without the lock a file stays where it is.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::SocketAddrUnix;

use crate::handshake::socket;

/// Attempts to take the lock, with a millisecond in between. A listener holds it for a few system calls. A process that
/// holds it for longer keeps the others from removing their files.
const ATTEMPTS: u32 = 50;

/// Device and inode of a file.
type Identity = (u64, u64);

/// A folder, locked until the drop.
struct Folder<'a> {
    fd: OwnedFd,
    /// The name of the socket in it.
    name: &'a Path,
}

impl<'a> Folder<'a> {
    /// Opens and locks the folder of a path. Returns `None` if this process may not, or another one keeps the lock.
    fn lock(path: &'a Path) -> Option<Self> {
        let name = Path::new(path.file_name()?);
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(CWD, parent.unwrap_or(Path::new(".")), flags, Mode::empty());
        let fd = fd.ok()?;
        for _ in 0..ATTEMPTS {
            match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Some(Self { fd, name }),
                Err(Errno::WOULDBLOCK | Errno::INTR) => {}
                Err(_) => return None,
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        None
    }

    /// Returns the identity of the file, if it is a socket.
    fn socket(&self) -> Option<Identity> {
        let file = rustix::fs::statat(&self.fd, self.name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let is_socket = FileType::from_raw_mode(file.st_mode) == FileType::Socket;
        is_socket.then_some((file.st_dev, file.st_ino))
    }

    /// Returns whether the file is a socket on which nobody listens. A file of another kind refuses connections too, and
    /// is not the listener's to remove.
    fn is_stale(&self) -> bool {
        if self.socket().is_none() {
            return false;
        }
        let path = Path::new("/proc/self/fd").join(self.fd.as_raw_fd().to_string()).join(self.name);
        let Ok(target) = SocketAddrUnix::new(path) else { return false };
        let Ok(probe) = socket::open() else { return false };
        socket::connect(&probe, &target) == Err(Errno::CONNREFUSED)
    }

    fn remove(&self) -> bool {
        rustix::fs::unlinkat(&self.fd, self.name, AtFlags::empty()).is_ok()
    }
}

/// The file of a bound socket.
#[derive(Debug)]
pub struct SocketPath {
    path: PathBuf,
    /// The file is removed only while it is this one.
    identity: Identity,
}

impl SocketPath {
    /// Calls `bind`, which binds a socket to the path and listens on it. If a file is in the way that a dead process left,
    /// removes the file and calls `bind` once more. Returns `None` if this process cannot remove the file later.
    ///
    /// # Errors
    ///
    /// That of `bind`. `is_in_use` says whether a file is in the way.
    pub fn bind<E>(
        path: &Path,
        bind: impl Fn() -> Result<(), E>,
        is_in_use: impl Fn(&E) -> bool,
    ) -> Result<Option<Self>, E> {
        let folder = Folder::lock(path);
        let mut bound = bind();
        if bound.as_ref().is_err_and(is_in_use)
            && folder.as_ref().is_some_and(|folder| folder.is_stale() && folder.remove())
        {
            bound = bind();
        }
        bound?;
        let identity = folder.and_then(|folder| folder.socket());
        Ok(identity.map(|identity| Self { path: path.to_owned(), identity }))
    }

    /// Removes the file, unless another one has its place.
    pub fn remove(self) {
        if let Some(folder) = Folder::lock(&self.path)
            && folder.socket() == Some(self.identity)
        {
            folder.remove();
        }
    }
}
