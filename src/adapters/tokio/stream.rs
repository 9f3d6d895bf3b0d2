//! A byte stream over a connection.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::Result;
use crate::adapters::tokio::halves::{AsyncReceiver, AsyncSender, SLICE};
use crate::channel::MessageKind;
use crate::error::TryRecvError;
use crate::handshake::Peer;
use crate::wake::{Polling, SpinPolicy};

/// The longest message that a write becomes, in bytes.
const LONGEST: usize = 256 << 10;

type Sleep = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

/// A byte stream over an [`AsyncConnection`](super::AsyncConnection): each write is a message (a vectored one,
/// too), reads take them apart. What speaks to a socket by `AsyncRead` and `AsyncWrite` speaks to it.
///
/// Shutting it down ends its writing; the other side then reads the end. Dropping it ends both
/// directions in order; a peer that died gives `ConnectionReset`, one that sends tensors `InvalidData`.
pub struct AsyncStream {
    sender: Option<AsyncSender>,
    receiver: AsyncReceiver,
    /// Bytes of the next message that were read.
    read: usize,
    reading: Wait,
    writing: Wait,
}

/// Where a direction stands in its waiting: it watches, with other tasks in between, then sleeps.
struct Wait {
    polling: Polling,
    sleep: Option<Sleep>,
}

impl Wait {
    fn new(spin: SpinPolicy) -> Self {
        Self { polling: Polling::new(spin), sleep: None }
    }

    /// Whether it need not sleep any more.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<()>> {
        if let Some(sleep) = &mut self.sleep {
            let woken = ready!(sleep.as_mut().poll(context));
            self.sleep = None;
            return Poll::Ready(woken);
        }
        Poll::Ready(Ok(()))
    }

    /// Nothing was there. True: look again soon, which was arranged. False: it has watched for long
    /// enough.
    fn looks_again(&mut self, context: &mut Context<'_>) -> bool {
        if self.polling.is_never() {
            return false;
        }
        let again = self.polling.goes_on(Instant::now(), false);
        if again {
            context.waker().wake_by_ref();
        }
        again
    }

    fn sleep(&mut self, sleep: impl Future<Output = Result<()>> + Send + 'static) {
        self.sleep = Some(Box::pin(sleep));
    }

    /// Something was there.
    fn is_over(&mut self) {
        self.polling.end();
    }
}

impl std::fmt::Debug for AsyncStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AsyncStream").field("peer", self.peer()).finish_non_exhaustive()
    }
}

impl AsyncStream {
    pub(super) fn new(sender: AsyncSender, receiver: AsyncReceiver) -> Self {
        let watching = || Wait::new(receiver.shared().socket().spin());
        let (reading, writing) = (watching(), watching());
        Self { sender: Some(sender), receiver, read: 0, reading, writing }
    }

    /// Who is on the other side.
    pub fn peer(&self) -> &Peer {
        self.receiver.shared().socket().peer()
    }
}

impl AsyncRead for AsyncStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            ready!(this.reading.poll(context)).map_err(io::Error::other)?;
            match this.receiver.inner().try_peek() {
                // What is no bytes stays where it is.
                Ok(Some(received)) if received.kind() == MessageKind::Tensors => {
                    let what = "a tensor was sent to a stream of bytes";
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, what)));
                }
                Ok(Some(received)) => {
                    let left = received.len() - this.read;
                    let count = left.min(buffer.remaining());
                    let bytes = received.bytes();
                    bytes.slice(this.read, count).copy_to(buffer.initialize_unfilled_to(count));
                    buffer.advance(count);
                    this.read += count;
                    this.reading.is_over();
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
                        this.reading.sleep(async move { shared.sleep_for_data().await });
                    }
                }
            }
        }
    }
}

impl AsyncWrite for AsyncStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let Some(sender) = &mut this.sender else {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        };
        let whole = parts.iter().fold(0usize, |sum, part| sum.saturating_add(part.len()));
        let len = whole.min(LONGEST).min(sender.max_message());
        if len == 0 {
            return Poll::Ready(Ok(0));
        }
        let mut armed = false;
        loop {
            ready!(this.writing.poll(context)).map_err(io::Error::other)?;
            if sender.try_send_parts(parts, len).map_err(to_io)? {
                this.writing.is_over();
                return Poll::Ready(Ok(len));
            }
            if !armed {
                if this.writing.looks_again(context) {
                    return Poll::Pending;
                }
                sender.arm().map_err(to_io)?;
                // Armed, it looks once more.
                armed = true;
                continue;
            }
            armed = false;
            let shared = sender.shared().clone();
            this.writing.sleep(async move {
                // Blocks that other peers hold are not told of.
                tokio::time::timeout(SLICE, shared.sleep_for_room()).await.unwrap_or(Ok(()))
            });
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
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
