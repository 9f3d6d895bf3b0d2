//! Descriptors on a runtime: a listener's, and the socket that both halves of a connection wait on.

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
use crate::patience::TASK_TURN;
use crate::shm::fork::Generation;
use crate::wake::Polling;
use crate::{Error, Result};

/// A listener, which has one descriptor.
#[derive(Debug)]
pub(super) struct Listening(pub(super) crate::Listener);

impl AsRawFd for Listening {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

/// A descriptor that a runtime watches. A forked child shares the runtime's `epoll` with its parent. A drop in the child
/// would end the parent's watch, so it does nothing.
#[derive(Debug)]
pub(super) struct Watched<T: AsRawFd> {
    watched: ManuallyDrop<AsyncFd<T>>,
    /// The process whose runtime watches it.
    generation: Generation,
}

impl<T: AsRawFd> Watched<T> {
    /// Watches a descriptor on the current runtime.
    ///
    /// # Safety
    ///
    /// - `watched` keeps one descriptor, and keeps it open, for as long as it lives.
    unsafe fn new(watched: T) -> Result<Self> {
        let generation = Generation::current()?;
        // SAFETY: the caller promises that `watched` keeps its descriptor open.
        let watched = unsafe { AsyncFd::register_with_interest(watched, Interest::READABLE) };
        let watched = watched.map_err(|error| Error::os("epoll_ctl", error.into_parts().1));
        watched.map(|watched| Self { watched: ManuallyDrop::new(watched), generation })
    }
}

impl<T: AsRawFd> Deref for Watched<T> {
    type Target = AsyncFd<T>;

    fn deref(&self) -> &AsyncFd<T> {
        &self.watched
    }
}

impl<T: AsRawFd> DerefMut for Watched<T> {
    fn deref_mut(&mut self) -> &mut AsyncFd<T> {
        &mut self.watched
    }
}

impl<T: AsRawFd> Drop for Watched<T> {
    fn drop(&mut self) {
        if self.generation.is_current() {
            // SAFETY: this is the only drop, and no code uses the value after it.
            unsafe { ManuallyDrop::drop(&mut self.watched) };
        }
    }
}

/// Watches a listener on the current runtime.
pub(super) fn watch(listener: crate::Listener) -> Result<Watched<Listening>> {
    // SAFETY: a listener keeps its one descriptor open for as long as it lives.
    unsafe { Watched::new(Listening(listener)) }
}

/// Watches the socket of a link on the current runtime.
pub(super) fn watch_link(socket: LinkSocket) -> Result<Watched<LinkSocket>> {
    // SAFETY: a `LinkSocket` holds its link, which keeps one socket open for as long as it lives.
    unsafe { Watched::new(socket) }
}

/// The socket of a link, and the halves that wait on it. The half that reads a packet from the socket may read the other
/// half's wake-up. It then notifies the other half.
#[derive(Debug)]
pub(super) struct LinkWaits {
    socket: Watched<LinkSocket>,
    data: Notify,
    room: Notify,
}

impl LinkWaits {
    pub(super) fn new(socket: LinkSocket) -> Result<Arc<Self>> {
        let socket = watch_link(socket)?;
        Ok(Arc::new(Self { socket, data: Notify::new(), room: Notify::new() }))
    }

    /// Wakes the sending half, whose wake-up the receiving half has read.
    pub(super) fn wake_sender(&self) {
        self.room.notify_one();
    }

    /// Wakes the receiving half, whose wake-up the sending half has read.
    pub(super) fn wake_receiver(&self) {
        self.data.notify_one();
    }

    /// Sleeps until there may be something to receive.
    pub(super) async fn sleep_for_data(&self) -> Result<()> {
        self.sleep(&self.data, &self.room).await
    }

    /// Sleeps until there may be room.
    pub(super) async fn sleep_for_room(&self) -> Result<()> {
        self.sleep(&self.room, &self.data).await
    }

    async fn sleep(&self, notify: &Notify, other: &Notify) -> Result<()> {
        let mut readable = pin!(self.socket.readable());
        let mut notified = pin!(notify.notified());
        poll_fn(|context| {
            if let Poll::Ready(ready) = readable.as_mut().poll(context) {
                ready.map_err(|error| Error::os("epoll_wait", error))?.clear_ready();
                // This half may find what it waits for without reading the socket, on which the other half's wake-up may
                // lie. The other half looks for itself.
                other.notify_one();
                return Poll::Ready(Ok(()));
            }
            notified.as_mut().poll(context).map(Ok)
        })
        .await
    }
}

/// The turn of a task. A peer that sends without end does not keep other tasks from running.
#[derive(Debug, Default)]
pub(super) struct TaskTurn {
    done: u32,
}

/// Bytes whose copy counts as a step.
const STEP: usize = 4096;

impl TaskTurn {
    /// Counts the copy of so many bytes.
    pub(super) fn copied(&mut self, bytes: usize) {
        self.done += (bytes / STEP) as u32;
    }

    /// Counts the tensors of a message, each as a step.
    pub(super) fn took(&mut self, tensors: usize) {
        self.done += tensors as u32;
    }

    /// Counts a step. Returns whether the task lets others run first.
    #[inline]
    pub(super) fn is_over(&mut self) -> bool {
        self.done += 1;
        let is_over = self.done > TASK_TURN;
        if is_over {
            self.done = 0;
        }
        is_over
    }
}

/// Polls until `ready`, and lets other tasks run between two polls. Returns `false` if it has polled for long enough.
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
