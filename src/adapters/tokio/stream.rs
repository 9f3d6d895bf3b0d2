//! A byte stream over a connection.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::Result;
use crate::adapters::tokio::halves::{AsyncReceiver, AsyncSender, SLICE, spin_of};
use crate::adapters::tokio::shared::TaskTurn;
use crate::error::TryRecvError;
use crate::handshake::Peer;
use crate::wake::{Polling, SpinPolicy};

/// The longest message that a write becomes, in bytes.
const LONGEST: usize = 256 << 10;

type Sleep = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

/// A byte stream over an [`AsyncConnection`](super::AsyncConnection), for code that expects a socket with `AsyncRead` and
/// `AsyncWrite`. Each write, vectored or not, sends one message. Reads return the bytes of the messages in order.
///
/// `shutdown` ends the writing direction, and the peer then reads the end. Dropping the stream ends both directions in
/// order. After the death of the peer a read returns `ConnectionReset`. A tensor from the peer returns `InvalidData`.
///
/// # Examples
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// use slipring::tokio::{AsyncConnection, AsyncListener};
/// use slipring::{Address, Context};
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
///
/// let context = Context::new()?;
/// let address = Address::fresh();
/// let mut listener = AsyncListener::new(context.listen(&address)?)?;
/// let server = tokio::spawn(async move {
///     let mut stream = listener.accept().await?.into_stream();
///     stream.write_all(b"hello").await?;
///     stream.shutdown().await?;
///     Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
/// });
///
/// let mut stream = AsyncConnection::connect(&context, address).await?.into_stream();
/// let mut text = String::new();
/// stream.read_to_string(&mut text).await?;
/// assert_eq!(text, "hello");
/// server.await.unwrap().unwrap();
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
pub struct AsyncStream {
    sender: Option<AsyncSender>,
    receiver: AsyncReceiver,
    /// The bytes of the next message that the caller has read.
    read: usize,
    reading: Wait,
    writing: Wait,
}

/// The wait of one direction: it polls, with other tasks in between, and then sleeps.
struct Wait {
    polling: Polling,
    sleep: Option<Sleep>,
    turn: TaskTurn,
}

impl Wait {
    fn new(spin: SpinPolicy) -> Self {
        Self { polling: Polling::new(spin), sleep: None, turn: TaskTurn::default() }
    }

    /// Polls the sleep. Returns `Ready` if there is none or it has ended.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<()>> {
        if let Some(sleep) = &mut self.sleep {
            let woken = ready!(sleep.as_mut().poll(context));
            self.sleep = None;
            return Poll::Ready(woken);
        }
        Poll::Ready(Ok(()))
    }

    /// Returns whether the task lets others run first, and wakes it if so.
    fn yields(&mut self, context: &mut Context<'_>) -> bool {
        let yields = self.turn.is_over();
        if yields {
            context.waker().wake_by_ref();
        }
        yields
    }

    /// A poll has found nothing. Returns whether the task polls on, and wakes it if so.
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

    /// A poll has found something.
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
        let watching = || Wait::new(spin_of(receiver.half()));
        let (reading, writing) = (watching(), watching());
        Self { sender: Some(sender), receiver, read: 0, reading, writing }
    }

    /// Returns the peer.
    pub fn peer(&self) -> &Peer {
        self.receiver.half().session().link.identity()
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
            if this.reading.yields(context) {
                return Poll::Pending;
            }
            ready!(this.reading.poll(context)).map_err(io::Error::other)?;
            match this.receiver.inner().try_peek() {
                // A tensor stays in the ring.
                Ok(Some(received)) if received.kind().has_tensors() => {
                    let what = "a tensor was sent to a stream of bytes";
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, what)));
                }
                Ok(Some(received)) => {
                    let left = received.len() - this.read;
                    let count = left.min(buffer.remaining());
                    let bytes = received.bytes();
                    bytes.slice(this.read, count).copy_to(buffer.initialize_unfilled_to(count));
                    received.check().map_err(to_io)?;
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
                    if this.receiver.half().is_ready() {
                        if let Some(rest) = this.receiver.half().socket_rest() {
                            this.reading.sleep(async move {
                                ::tokio::time::sleep(rest).await;
                                Ok(())
                            });
                            continue;
                        }
                        // The rest of what has come takes another turn.
                        context.waker().wake_by_ref();
                        return Poll::Pending;
                    }
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
            if this.writing.yields(context) {
                return Poll::Pending;
            }
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
                // Room that came before the sender was armed makes no event.
                armed = true;
                continue;
            }
            armed = false;
            let shared = sender.shared().clone();
            this.writing.sleep(async move {
                // No event reports a block that another process returns.
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
