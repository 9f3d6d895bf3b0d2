//! A byte stream over a connection.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::adapters::tokio::halves::{Receiver, Sender};
use crate::{Peer, Result, TryRecvError};

/// The longest message that a write becomes, in bytes.
const LONGEST: usize = 256 << 10;

/// Looks, with other tasks in between, before a read or write sleeps.
const LOOKS: u32 = 200;

type Sleep = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

/// A byte stream over a [`Connection`](super::Connection): each write is a message, reads take them
/// apart. What speaks to a socket by `AsyncRead` and `AsyncWrite` speaks to it.
///
/// Shutting it down ends its writing; the other side then reads the end. Dropping it ends both
/// directions in order; a peer that died gives `ConnectionReset`.
pub struct Stream {
    sender: Option<Sender>,
    receiver: Receiver,
    /// Bytes of the next message that were read.
    read: usize,
    reading: Wait,
    writing: Wait,
}

/// Where a direction stands in its waiting.
#[derive(Default)]
struct Wait {
    looks: u32,
    sleep: Option<Sleep>,
}

impl Wait {
    /// Looks again at once for a while, and is asleep then.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<()>> {
        match &mut self.sleep {
            Some(sleep) => {
                let woken = ready!(sleep.as_mut().poll(context));
                *self = Self::default();
                Poll::Ready(woken)
            }
            None => Poll::Ready(Ok(())),
        }
    }

    /// Nothing was there. True: look again later, which was arranged.
    fn looks_again(&mut self, context: &mut Context<'_>) -> bool {
        self.looks += 1;
        if self.looks < LOOKS {
            context.waker().wake_by_ref();
        }
        self.looks < LOOKS
    }
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream").field("peer", self.peer()).finish_non_exhaustive()
    }
}

impl Stream {
    pub(super) fn new(sender: Sender, receiver: Receiver) -> Self {
        let (reading, writing) = (Wait::default(), Wait::default());
        Self { sender: Some(sender), receiver, read: 0, reading, writing }
    }

    /// Who is on the other side.
    pub fn peer(&self) -> &Peer {
        self.receiver.shared().socket().peer()
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            ready!(this.reading.poll(context)).map_err(io::Error::other)?;
            match this.receiver.inner().try_peek() {
                Ok(Some(received)) => {
                    let left = received.len() - this.read;
                    let count = left.min(buffer.remaining());
                    let bytes = received.bytes();
                    bytes.slice(this.read, count).copy_to(buffer.initialize_unfilled_to(count));
                    buffer.advance(count);
                    this.read += count;
                    this.reading.looks = 0;
                    if count == left {
                        this.read = 0;
                        received.release().map_err(to_io)?;
                    }
                    // An empty message is not the end.
                    if count > 0 || left > 0 {
                        return Poll::Ready(Ok(()));
                    }
                }
                Ok(None) => return Poll::Ready(Ok(())),
                Err(TryRecvError::Failed(error)) => return Poll::Ready(Err(to_io(error))),
                Err(TryRecvError::Empty) => {
                    if this.reading.looks_again(context) {
                        return Poll::Pending;
                    }
                    if !this.receiver.arm().map_err(to_io)? {
                        let shared = this.receiver.shared().clone();
                        this.reading.sleep =
                            Some(Box::pin(async move { shared.sleep_for_data().await }));
                    }
                }
            }
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let Some(sender) = &mut this.sender else {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        };
        let message = &bytes[..bytes.len().min(LONGEST)];
        if message.is_empty() {
            return Poll::Ready(Ok(0));
        }
        loop {
            ready!(this.writing.poll(context)).map_err(io::Error::other)?;
            if sender.try_send_armed(message).map_err(to_io)? {
                return Poll::Ready(Ok(message.len()));
            }
            let shared = sender.shared().clone();
            this.writing.sleep = Some(Box::pin(async move { shared.sleep_for_room().await }));
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().sender = None;
        Poll::Ready(Ok(()))
    }
}

fn to_io(error: crate::Error) -> io::Error {
    let kind = match error.kind() {
        crate::ErrorKind::PeerDied => io::ErrorKind::ConnectionReset,
        crate::ErrorKind::PeerClosed => io::ErrorKind::BrokenPipe,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error)
}
