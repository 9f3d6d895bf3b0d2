//! What is watched on a runtime: listeners; and what both halves of a connection share, the socket and
//! who waits for which wake-up.

#![allow(unsafe_code)]

use std::future::{Future, poll_fn};
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;

use crate::link::LinkSocket;
use crate::wake::Polling;
use crate::{Error, Result};

/// A listener, as its one descriptor.
#[derive(Debug)]
pub(super) struct Listening(pub(super) crate::Listener);

impl AsRawFd for Listening {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

/// What knows which process it belongs to.
pub(super) trait Owned: AsRawFd {
    /// Whether no `fork` lies between the caller and that process.
    fn is_here(&self) -> bool;
}

impl Owned for Listening {
    fn is_here(&self) -> bool {
        self.0.is_here()
    }
}

impl Owned for LinkSocket {
    fn is_here(&self) -> bool {
        LinkSocket::is_here(self)
    }
}

/// What a runtime watches. A forked child has the runtime's `epoll` from its parent: a drop there would
/// end the watch of the parent, so it does nothing.
#[derive(Debug)]
pub(super) struct Watched<T: Owned>(ManuallyDrop<AsyncFd<T>>);

impl<T: Owned> Watched<T> {
    /// Watches on the current runtime.
    ///
    /// # Safety
    ///
    /// - The descriptor of `watched` is the same one, and open, for as long as it lives.
    unsafe fn new(watched: T) -> Result<Self> {
        // SAFETY: the caller promises what this asks for.
        let watched = unsafe { AsyncFd::register_with_interest(watched, Interest::READABLE) };
        let watched = watched.map_err(|error| Error::os("epoll_ctl", error.into_parts().1));
        watched.map(|watched| Self(ManuallyDrop::new(watched)))
    }
}

impl<T: Owned> Deref for Watched<T> {
    type Target = AsyncFd<T>;

    fn deref(&self) -> &AsyncFd<T> {
        &self.0
    }
}

impl<T: Owned> DerefMut for Watched<T> {
    fn deref_mut(&mut self) -> &mut AsyncFd<T> {
        &mut self.0
    }
}

impl<T: Owned> Drop for Watched<T> {
    fn drop(&mut self) {
        if self.0.get_ref().is_here() {
            // SAFETY: this is the one drop, and nobody uses it afterwards.
            unsafe { ManuallyDrop::drop(&mut self.0) };
        }
    }
}

/// Watches a listener on the current runtime.
pub(super) fn watch(listener: crate::Listener) -> Result<Watched<Listening>> {
    // SAFETY: a listener has one descriptor, which is open for as long as it lives.
    unsafe { Watched::new(Listening(listener)) }
}

/// Whoever of the two halves takes a packet from the socket may take the other's wake-up; it then
/// notifies the other.
#[derive(Debug)]
pub(super) struct Shared {
    socket: Watched<LinkSocket>,
    data: Notify,
    room: Notify,
}

impl Shared {
    pub(super) fn new(socket: LinkSocket) -> Result<Arc<Self>> {
        // SAFETY: a `LinkSocket` holds its link, which keeps one socket open for as long as it lives.
        let socket = unsafe { Watched::new(socket) }?;
        Ok(Arc::new(Self { socket, data: Notify::new(), room: Notify::new() }))
    }

    pub(super) fn socket(&self) -> &LinkSocket {
        self.socket.get_ref()
    }

    /// The receiving half has taken what had come.
    pub(super) fn pass_room(&self) {
        if self.socket().room_woken() {
            self.room.notify_one();
        }
    }

    /// The sending half has taken what had come.
    pub(super) fn pass_data(&self) {
        if self.socket().data_woken() {
            self.data.notify_one();
        }
    }

    /// Sleeps until there may be something to receive.
    pub(super) async fn sleep_for_data(&self) -> Result<()> {
        self.sleep(&self.data).await
    }

    /// Sleeps until there may be room.
    pub(super) async fn sleep_for_room(&self) -> Result<()> {
        self.sleep(&self.room).await
    }

    async fn sleep(&self, notify: &Notify) -> Result<()> {
        let mut readable = pin!(self.socket.readable());
        let mut notified = pin!(notify.notified());
        poll_fn(|context| {
            if let Poll::Ready(ready) = readable.as_mut().poll(context) {
                // Before the socket is emptied: what comes after that is told anew.
                ready.map_err(|error| Error::os("epoll_wait", error))?.clear_ready();
                return Poll::Ready(Ok(()));
            }
            notified.as_mut().poll(context).map(Ok)
        })
        .await
    }
}

/// Looks until `ready`, letting other tasks run between looks. `false`: it has looked for long enough.
pub(super) async fn watch_until(polling: &mut Polling, mut ready: impl FnMut() -> bool) -> bool {
    if polling.is_never() {
        return ready();
    }
    loop {
        if ready() {
            return true;
        }
        if !polling.goes_on(Instant::now(), false) {
            return false;
        }
        let mut yielded = false;
        poll_fn(|context| {
            if yielded {
                return Poll::Ready(());
            }
            yielded = true;
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }
}
