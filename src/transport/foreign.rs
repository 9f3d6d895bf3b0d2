//! What a peer has a hand in and this process closes: its socket, and the descriptors that it sent.
//!
//! The last `close` of a descriptor can wait as long as somebody else likes: of a TCP socket with
//! `SO_LINGER` for a reader, of a file for the server of its filesystem. A socket's last `close` closes what
//! lies unread in its queue, and so on. A listener must not wait there, nor a thread that serves other links.
//! So nothing of the kind is closed where it is met: a thread of its own [does](discard).

use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Barrier;

use rustix::fs::OFlags;

use crate::error::ErrorKind;
use crate::transport::hello::PACKET;
use crate::transport::socket::{self, Incoming};

/// Packets that are taken from a socket before it is closed: more than its queue holds.
const PACKETS: usize = 4096;

/// A socket towards a peer.
#[derive(Debug)]
pub(super) struct Socket {
    /// There until the drop.
    fd: Option<OwnedFd>,
    process: u32,
}

impl Socket {
    pub(super) fn new(fd: OwnedFd) -> Self {
        Self { fd: Some(fd), process: std::process::id() }
    }
}

impl Deref for Socket {
    type Target = OwnedFd;

    fn deref(&self) -> &OwnedFd {
        self.fd.as_ref().expect("there until the drop")
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.deref().as_fd()
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let Some(fd) = self.fd.take() else { return };
        // A forked child has another handle of its parent's socket, and just closes it.
        if self.process == std::process::id() {
            // Nothing more can come. What has come is closed here, not by the socket's close.
            socket::end(&fd);
            for _ in 0..PACKETS {
                match socket::receive::<PACKET>(&fd) {
                    Ok(Incoming::Packet(_)) => {}
                    Err(error) if matches!(error.kind(), ErrorKind::Fault(_)) => {}
                    Ok(Incoming::Nothing | Incoming::End) => return,
                    Err(_) => break,
                }
            }
            discard(vec![fd]);
        }
    }
}

/// What came along with a packet: descriptors of whatever the peer likes.
#[derive(Debug, Default)]
pub(super) struct Foreigners(Vec<OwnedFd>);

impl Foreigners {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn push(&mut self, fd: OwnedFd) {
        self.0.push(fd);
    }

    pub(super) fn pop(&mut self) -> Option<Foreign> {
        self.0.pop().map(|fd| Foreign(Some(fd)))
    }
}

impl Drop for Foreigners {
    fn drop(&mut self) {
        // All at once: a packet can bring 253.
        self.0.retain(|fd| !is_tame(fd));
        discard(std::mem::take(&mut self.0));
    }
}

/// One of them.
#[derive(Debug)]
pub(crate) struct Foreign(Option<OwnedFd>);

impl AsFd for Foreign {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_ref().expect("there until it is taken").as_fd()
    }
}

impl From<Foreign> for OwnedFd {
    fn from(mut foreign: Foreign) -> Self {
        foreign.0.take().expect("there until it is taken")
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        drop(Foreigners(self.0.take().into_iter().collect()));
    }
}

/// Whether its last `close` waits for nobody: a memfd, or a mere name of a file.
fn is_tame(fd: &OwnedFd) -> bool {
    rustix::fs::fcntl_get_seals(fd).is_ok()
        || rustix::fs::fcntl_getfl(fd).is_ok_and(|flags| flags.contains(OFlags::PATH))
}

/// Closes descriptors in a thread that nobody waits for.
///
/// Their last handles are those of a second thread, in a table of its own, which ends: the kernel lingers for
/// no thread that ends (`PF_EXITING`), so sockets of whatever number keep no thread. Where a table of one's own
/// is forbidden, the first thread waits.
fn discard(fds: Vec<OwnedFd>) {
    if fds.is_empty() {
        return;
    }
    let close = move || {
        let mut numbers: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
        numbers.sort_unstable();
        let meet = Barrier::new(2);
        std::thread::scope(|scope| {
            let keep = || {
                socket::keep_only(&numbers);
                meet.wait();
                meet.wait();
            };
            let kept = small("slipring-keep").spawn_scoped(scope, keep).is_ok();
            if kept {
                meet.wait();
            }
            drop(fds);
            if kept {
                meet.wait();
            }
        });
    };
    // Where no thread can be made, what is to be closed goes with the closure, here.
    let _ = small("slipring-close").spawn(close);
}

fn small(name: &str) -> std::thread::Builder {
    std::thread::Builder::new().name(name.into()).stack_size(64 << 10)
}
