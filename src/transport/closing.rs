//! Closing what a peer can make slow to close.
//!
//! The last `close` of a file may wait: for the daemon that serves it (FUSE), for a connection that
//! lingers (`SO_LINGER`), for a disk. So may the close of a socket in which such descriptors lie that
//! nobody has taken. None of them is closed on a thread that others wait for.

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::fs::OFlags;

use crate::error::{DescriptorFault, Error, ErrorKind, Result};
use crate::shm::fork::Generation;
use crate::transport::hello::PACKET;
use crate::transport::socket::{self, Incoming};

/// Threads that close at a time. What comes beyond them stays open, and counts for the process's limit.
const CLOSERS: usize = 16;

/// Packets that are taken from a socket before it is closed: far more than its queue holds.
const PACKETS: usize = 4096;

static CLOSING: AtomicUsize = AtomicUsize::new(0);

/// A descriptor that a peer has sent.
#[derive(Debug)]
pub(super) struct Handed {
    /// `None` once it was taken for memory.
    fd: Option<OwnedFd>,
}

impl Handed {
    pub(super) fn new(fd: OwnedFd) -> Self {
        Self { fd: Some(fd) }
    }

    /// Memory, whose close does not wait.
    ///
    /// # Errors
    ///
    /// [`Fault::Descriptor`](crate::Fault::Descriptor): it is something else.
    pub(super) fn into_memory(mut self) -> Result<OwnedFd> {
        if let Some(fd) = self.fd.take_if(|fd| is_memory(fd)) {
            return Ok(fd);
        }
        let flags = match &self.fd {
            Some(fd) => rustix::fs::fcntl_getfl(fd),
            None => Ok(OFlags::PATH),
        };
        let flags = flags.map_err(|errno| Error::os("F_GETFL", errno))?;
        let unreadable = flags.contains(OFlags::PATH) || flags & OFlags::RWMODE == OFlags::WRONLY;
        let fault =
            if unreadable { DescriptorFault::AccessMode } else { DescriptorFault::NotMemfd };
        Err(fault.into())
    }
}

impl Drop for Handed {
    fn drop(&mut self) {
        if let Some(fd) = self.fd.take()
            && !is_memory(&fd)
        {
            close_elsewhere(fd);
        }
    }
}

/// Only memory has seals.
fn is_memory(fd: &OwnedFd) -> bool {
    rustix::fs::fcntl_get_seals(fd).is_ok()
}

/// Closes a descriptor on a thread of its own.
fn close_elsewhere(fd: OwnedFd) {
    // Not dropped here, whatever becomes of the thread.
    let fd = ManuallyDrop::new(fd);
    if CLOSING.fetch_add(1, Ordering::Relaxed) < CLOSERS {
        let close = || {
            drop(ManuallyDrop::into_inner(fd));
            CLOSING.fetch_sub(1, Ordering::Relaxed);
        };
        let thread = std::thread::Builder::new().name("slipring-close".into());
        if thread.spawn(close).is_ok() {
            return;
        }
    }
    CLOSING.fetch_sub(1, Ordering::Relaxed);
    tracing::debug!("a descriptor that a peer has sent stays open");
}

/// The socket of a link, or of a peer that may become one.
#[derive(Debug)]
pub(super) struct PeerSocket {
    socket: OwnedFd,
    generation: Option<Generation>,
}

impl PeerSocket {
    pub(super) fn new(socket: OwnedFd) -> Self {
        Self { socket, generation: Generation::current().ok() }
    }
}

impl Deref for PeerSocket {
    type Target = OwnedFd;

    #[inline(always)]
    fn deref(&self) -> &OwnedFd {
        &self.socket
    }
}

impl AsFd for PeerSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for PeerSocket {
    fn drop(&mut self) {
        // A forked child shares it with its parent, who goes on.
        if !self.generation.as_ref().is_some_and(Generation::is_current) {
            return;
        }
        // Nothing more comes, and what has come is taken: a close would drop it.
        socket::end(&self.socket);
        for _ in 0..PACKETS {
            match socket::receive::<PACKET>(&self.socket) {
                Ok(Incoming::Packet(_)) => {}
                Err(error) if matches!(error.kind(), ErrorKind::Fault(_)) => {}
                Ok(Incoming::Nothing | Incoming::End) | Err(_) => return,
            }
        }
    }
}
