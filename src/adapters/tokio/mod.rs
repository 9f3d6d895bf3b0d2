//! Async connections for tokio (feature `tokio`).
//!
//! [`AsyncListener`], [`AsyncConnection`] and its halves do what the crate's own types do, and `await` where those block. A
//! waiting half polls its ring for as long as [`Options::spin`](crate::Options::spin) says, and lets other tasks run
//! between two polls. Then it sleeps on the link's socket.
//! Every future here is cancel-safe: a dropped future has received and sent either nothing or everything.
//!
//! [`AsyncCaller`] makes calls of several tasks at a time on one connection. [`AsyncStream`] is a byte stream over a connection, for code that expects a socket.
//!
//! [`AsyncSubscriber`] receives what a [`Publisher`](crate::broadcast::Publisher) publishes. A publisher needs no type of its
//! own here: [`Publisher::try_send`](crate::broadcast::Publisher::try_send) never waits, and
//! [`Publisher::send`](crate::broadcast::Publisher::send) only for subscribers that want every message.
//! [`PublishOptions::every`](crate::broadcast::PublishOptions::every) refuses those.
//!
//! The runtime needs its I/O and time drivers (`enable_all`).
//!
//! # Examples
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! use slipring::tokio::{AsyncConnection, AsyncListener};
//! use slipring::{Address, Context};
//!
//! let context = Context::new()?;
//! let address = Address::fresh();
//! let mut listener = AsyncListener::new(context.listen(&address)?)?;
//! let server = tokio::spawn(async move {
//!     let mut link = listener.accept().await?;
//!     while let Some(message) = link.recv().await? {
//!         link.send(&message).await?;
//!     }
//!     Ok::<_, slipring::Error>(())
//! });
//!
//! let mut link = AsyncConnection::connect(&context, address).await?;
//! link.send(b"hello").await?;
//! assert_eq!(link.recv().await?.as_deref(), Some(&b"hello"[..]));
//! link.close()?;
//! server.await.unwrap()?;
//! # Ok::<_, slipring::Error>(())
//! # })?;
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```

mod caller;
mod halves;
mod shared;
mod stream;
mod subscriber;

use crate::adapters::tokio::shared::{LinkWaits, Listening, Watched};
use crate::channel::{Metadata, Request, RequestId};
use crate::handshake::Peer;
use crate::tensor::{Outgoing, TensorRequest};
use crate::transport::Stats;
use crate::{Address, Context, Error, Result, Tensor, TensorSet};

pub use caller::AsyncCaller;
pub use halves::{AsyncReceiver, AsyncSender};
pub use stream::AsyncStream;
pub use subscriber::AsyncSubscriber;

/// Accepts connections: [`crate::Listener`] on a tokio runtime.
///
/// # Examples
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// use slipring::tokio::{AsyncConnection, AsyncListener};
/// use slipring::{Address, Context};
///
/// let (context, address) = (Context::new()?, Address::fresh());
/// let mut listener = AsyncListener::new(context.listen(&address)?)?;
/// let clients = [(); 2].map(|()| {
///     let (context, address) = (context.clone(), address.clone());
///     tokio::spawn(async move { AsyncConnection::connect(&context, address).await })
/// });
///
/// for _ in &clients {
///     let mut link = listener.accept().await?;
///     link.send(b"welcome").await?;
/// }
/// for client in clients {
///     assert_eq!(client.await.unwrap()?.recv().await?.as_deref(), Some(&b"welcome"[..]));
/// }
/// assert_eq!(listener.get_ref().stats().accepted, 2);
/// # Ok::<_, slipring::Error>(())
/// # })?;
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct AsyncListener {
    inner: Watched<Listening>,
}

impl AsyncListener {
    /// Puts a listener on the current runtime.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Os`](crate::ErrorKind::Os): it cannot be watched.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime with I/O.
    pub fn new(listener: crate::Listener) -> Result<Self> {
        Ok(Self { inner: shared::watch(listener)? })
    }

    /// Waits for a peer and connects with it.
    ///
    /// # Errors
    ///
    /// As [`crate::Listener::accept`].
    pub async fn accept(&mut self) -> Result<AsyncConnection> {
        loop {
            let listener = &mut self.inner.get_mut().0;
            match listener.try_accept() {
                Ok(Some(connection)) => return AsyncConnection::new(connection),
                Ok(None) => {}
                Err(error) => {
                    if listener.is_stuck() {
                        // A caller that retries at once would starve the task that can free a descriptor.
                        ::tokio::time::sleep(crate::transport::ACCEPT_PAUSE).await;
                    }
                    return Err(error);
                }
            }
            let ready = self.inner.readable().await;
            ready.map_err(|error| Error::os("epoll_wait", error))?.clear_ready();
        }
    }

    /// Returns the listener.
    pub fn get_ref(&self) -> &crate::Listener {
        &self.inner.get_ref().0
    }
}

/// A link to another process: [`crate::Connection`] on a tokio runtime.
#[derive(Debug)]
pub struct AsyncConnection {
    sender: AsyncSender,
    receiver: AsyncReceiver,
}

impl AsyncConnection {
    /// Puts a connection on the current runtime.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Os`](crate::ErrorKind::Os): it cannot be watched.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime with I/O.
    pub fn new(connection: crate::Connection) -> Result<Self> {
        let shared = LinkWaits::new(connection.socket())?;
        let (sender, receiver) = connection.split();
        Ok(Self {
            sender: AsyncSender::new(sender, shared.clone()),
            receiver: AsyncReceiver::new(receiver, shared),
        })
    }

    /// Connects to a listener, on a thread for blocking work: the handshake takes as long as the
    /// listener does.
    ///
    /// # Errors
    ///
    /// As [`Context::connect`].
    pub async fn connect<A>(context: &Context, address: A) -> Result<Self>
    where
        A: TryInto<Address>,
        Error: From<A::Error>,
    {
        let address = address.try_into()?;
        let context = context.clone();
        let connecting = tokio::task::spawn_blocking(move || context.connect::<Address>(address));
        let connected = connecting.await.map_err(|error| Error::os("connect", error))?;
        Self::new(connected?)
    }

    /// Returns both halves, for two tasks.
    pub fn split(self) -> (AsyncSender, AsyncReceiver) {
        (self.sender, self.receiver)
    }

    /// Returns a handle for calls of several tasks at a time.
    pub fn into_caller(self) -> AsyncCaller {
        AsyncCaller::new(self.sender, self.receiver)
    }

    /// Returns a byte stream over this connection.
    pub fn into_stream(self) -> AsyncStream {
        AsyncStream::new(self.sender, self.receiver)
    }

    /// Sends a message, and waits for room.
    ///
    /// # Errors
    ///
    /// As [`crate::Sender::send`].
    pub async fn send(&mut self, message: &[u8]) -> Result<()> {
        self.sender.send(message).await
    }

    /// Receives the next message. `None`: the peer has finished in order.
    ///
    /// # Errors
    ///
    /// As [`crate::Receiver::recv`].
    pub async fn recv(&mut self) -> Result<Option<Vec<u8>>> {
        self.receiver.recv().await
    }

    /// Makes a request and waits for its response. Plain messages and requests that come before it
    /// are kept for later. Dropped, it does not wait for the response any more.
    ///
    /// # Errors
    ///
    /// As [`crate::Connection::call`], but there is no deadline: use `tokio::time::timeout`.
    pub async fn call(&mut self, request: &[u8]) -> Result<Vec<u8>> {
        let (mut span, none) = (self.receiver.begin_span(), Metadata::new());
        let carried = span.carry(&none);
        let response = self.call_in((request, carried.as_ref().unwrap_or(&none))).await;
        span.end(&response);
        response
    }

    async fn call_in(&mut self, request: (&[u8], &Metadata)) -> Result<Vec<u8>> {
        let id = self.receiver.start_call()?;
        let mut call = Call { receiver: &mut self.receiver, id, step: CallStep::Unsent };
        self.sender.request(id, request).await?;
        call.step = CallStep::Sent;
        let response = call.receiver.response(id).await?;
        call.step = CallStep::Answered;
        Ok(response)
    }

    /// Makes a request with tensors and waits for its response with tensors, as [`call`](Self::call) does.
    ///
    /// # Examples
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// use slipring::tokio::{AsyncConnection, AsyncListener};
    /// use slipring::{Address, Context, Tensor, TensorSet};
    ///
    /// let (context, address) = (Context::new()?, Address::fresh());
    /// let mut listener = AsyncListener::new(context.listen(&address)?)?;
    /// let server = tokio::spawn(async move {
    ///     let mut link = listener.accept().await?;
    ///     while let Some(request) = link.recv_tensor_request().await? {
    ///         link.respond_tensors(request.id, &request.tensors).await?;
    ///     }
    ///     Ok::<_, slipring::Error>(())
    /// });
    ///
    /// let mut link = AsyncConnection::connect(&context, address).await?;
    /// let mut inputs = TensorSet::new();
    /// inputs.insert("ids", Tensor::from_slice([2], &[7, 8])?)?;
    /// let outputs = link.call_tensors(&inputs).await?;
    /// assert_eq!(outputs["ids"].to_vec::<i32>()?, [7, 8]);
    /// link.close()?;
    /// server.await.unwrap()?;
    /// # Ok::<_, slipring::Error>(())
    /// # })?;
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`crate::Connection::call_tensors`], but there is no deadline: use `tokio::time::timeout`.
    pub async fn call_tensors(&mut self, tensors: &TensorSet) -> Result<TensorSet> {
        let mut span = self.receiver.begin_span();
        let carried = span.carry(tensors.metadata());
        let request = (tensors, carried.as_ref().unwrap_or(tensors.metadata()));
        let response = self.call_tensors_in(request).await;
        span.end(&response);
        response
    }

    async fn call_tensors_in(&mut self, request: (&TensorSet, &Metadata)) -> Result<TensorSet> {
        let id = self.receiver.start_call()?;
        let mut call = Call { receiver: &mut self.receiver, id, step: CallStep::Unsent };
        self.sender.request_tensors(id, request).await?;
        call.step = CallStep::Sent;
        let response = call.receiver.tensor_response(id).await?;
        call.step = CallStep::Answered;
        Ok(response)
    }

    /// Receives the next request with tensors. Returns `None` if the peer has closed in order.
    ///
    /// # Errors
    ///
    /// As [`crate::Receiver::recv_tensor_request`].
    pub async fn recv_tensor_request(&mut self) -> Result<Option<TensorRequest>> {
        self.receiver.recv_tensor_request().await
    }

    /// Sends tensors as the response to a request.
    ///
    /// # Errors
    ///
    /// As [`crate::Sender::respond_tensors`].
    pub async fn respond_tensors(&mut self, request: RequestId, tensors: &TensorSet) -> Result<()> {
        self.sender.respond_tensors(request, tensors).await
    }

    /// Receives the next request. `None`: the peer has finished in order.
    ///
    /// # Errors
    ///
    /// As [`crate::Receiver::recv_request`].
    pub async fn recv_request(&mut self) -> Result<Option<Request>> {
        self.receiver.recv_request().await
    }

    /// Sends the response to a request.
    ///
    /// # Errors
    ///
    /// As [`crate::Sender::respond`].
    pub async fn respond(&mut self, request: RequestId, body: &[u8]) -> Result<()> {
        self.sender.respond(request, body).await
    }

    /// Sends a tensor, and waits for room. A dropped future has sent nothing. Its [`TensorMut`](crate::TensorMut) is
    /// dropped with it, and the pool has the memory.
    ///
    /// # Examples
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// use slipring::tokio::{AsyncConnection, AsyncListener};
    /// use slipring::{Address, Context};
    ///
    /// let context = Context::new()?;
    /// let address = Address::fresh();
    /// let mut listener = AsyncListener::new(context.listen(&address)?)?;
    /// let server = tokio::spawn(async move {
    ///     let mut link = listener.accept().await?;
    ///     while let Some(tensor) = link.recv_tensor().await? {
    ///         println!("{} {:?}", tensor.dtype(), tensor.shape().dims());
    ///         link.send_tensor(&tensor).await?;
    ///     }
    ///     Ok::<_, slipring::Error>(())
    /// });
    ///
    /// let mut link = AsyncConnection::connect(&context, address).await?;
    /// let mut image = context.alloc::<f32>([1, 3, 224, 224])?;
    /// image.fill(0.5);
    /// link.send_tensor(image).await?;
    /// let back = link.recv_tensor().await?.expect("an answer");
    /// assert_eq!(back.to_vec::<f32>()?[7], 0.5);
    /// link.close()?;
    /// server.await.unwrap()?;
    /// # Ok::<_, slipring::Error>(())
    /// # })?;
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`crate::Sender::send_tensor`].
    pub async fn send_tensor<'a>(&mut self, tensor: impl Into<Outgoing<'a>>) -> Result<()> {
        self.sender.send_tensor(tensor).await
    }

    /// Sends a set of tensors in one message, and waits for room.
    ///
    /// # Errors
    ///
    /// As [`crate::Sender::send_tensors`].
    pub async fn send_tensors(&mut self, tensors: &TensorSet) -> Result<()> {
        self.sender.send_tensors(tensors).await
    }

    /// Receives the next tensor. Returns `None` if the peer has closed in order.
    ///
    /// # Errors
    ///
    /// As [`crate::Receiver::recv_tensor`].
    pub async fn recv_tensor(&mut self) -> Result<Option<Tensor>> {
        self.receiver.recv_tensor().await
    }

    /// Receives the tensors of the next message. Returns `None` if the peer has closed in order.
    ///
    /// # Errors
    ///
    /// As [`crate::Receiver::recv_tensors`].
    pub async fn recv_tensors(&mut self) -> Result<Option<TensorSet>> {
        self.receiver.recv_tensors().await
    }

    /// Returns the peer.
    pub fn peer(&self) -> &Peer {
        self.sender.peer()
    }

    /// Returns what [`Connection::stats`](crate::Connection::stats) returns.
    pub fn stats(&self) -> Stats {
        Stats::of(self.sender.half(), self.receiver.half())
    }

    /// Ends the connection in order, as [`crate::Connection::close`]. It does not wait.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn close(self) -> Result<()> {
        let joined = crate::Connection::join(self.sender.into_inner(), self.receiver.into_inner());
        joined.map_err(|_| Error::from(crate::ErrorKind::PeerClosed))?.close()
    }

    /// Ends the connection, and takes back at once all memory that the peer holds, as [`crate::Connection::abort`].
    pub fn abort(self) {
        self.sender.into_inner().abort();
    }
}

/// A request that waits for its response. Dropping it gives the response up.
struct Call<'a> {
    receiver: &'a mut AsyncReceiver,
    id: RequestId,
    step: CallStep,
}

/// How far a call has come.
enum CallStep {
    Unsent,
    Sent,
    Answered,
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        match self.step {
            CallStep::Unsent => self.receiver.cancel_call(self.id),
            CallStep::Sent => self.receiver.abandon(self.id),
            CallStep::Answered => {}
        }
    }
}
