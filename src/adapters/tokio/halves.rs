//! The halves of a connection on a runtime.

use std::io::IoSlice;
use std::sync::Arc;
use std::time::Duration;

use crate::adapters::tokio::shared::{LinkWaits, TaskTurn, watch_until};
use crate::channel::{CallSpan, HalfStats, Metadata, Request, RequestId};
use crate::error::{TryRecvError, TrySendError};
use crate::handshake::Peer;
use crate::link::link::Link;
use crate::tensor::{Outgoing, TensorRequest};
use crate::wake::{Polling, SpinPolicy};
use crate::{ErrorKind, Result, Tensor, TensorSet};

/// The longest sleep for room. No event reports that another process has returned a block of the pool.
pub(super) const SLICE: Duration = Duration::from_millis(5);

/// The sending half of an [`AsyncConnection`](super::AsyncConnection), from
/// [`AsyncConnection::split`](super::AsyncConnection::split). Dropping it tells the receiver that nothing follows.
///
/// # Examples
///
/// One task sends while another one receives:
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// # use slipring::tokio::{AsyncConnection, AsyncListener};
/// # use slipring::{Address, Context};
/// # let (context, address) = (Context::new()?, Address::fresh());
/// # let mut listener = AsyncListener::new(context.listen(&address)?)?;
/// # let accepted = tokio::spawn(async move { listener.accept().await });
/// # let near = AsyncConnection::connect(&context, address).await?;
/// # let mut far = accepted.await.unwrap()?;
/// let (mut sender, mut receiver) = near.split();
/// let sending = tokio::spawn(async move {
///     for number in 0..100u8 {
///         sender.send(&[number]).await?;
///     }
///     Ok::<_, slipring::Error>(sender.stats().messages)
/// });
///
/// // The peer returns each message until nothing follows.
/// while let Some(message) = far.recv().await? {
///     far.send(&message).await?;
/// }
/// assert_eq!(sending.await.unwrap()?, 100);
/// assert_eq!(receiver.recv().await?, Some(vec![0]));
/// # Ok::<_, slipring::Error>(())
/// # })?;
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct AsyncSender {
    inner: crate::Sender,
    shared: Arc<LinkWaits>,
    turn: TaskTurn,
}

impl AsyncSender {
    pub(super) fn new(inner: crate::Sender, shared: Arc<LinkWaits>) -> Self {
        Self { inner, shared, turn: TaskTurn::default() }
    }

    /// Sends a message, and waits for room.
    ///
    /// # Errors
    ///
    /// As [`crate::Sender::send`].
    pub async fn send(&mut self, message: &[u8]) -> Result<()> {
        self.put(|sender| sender.try_send(message)).await
    }

    /// Sends a message with metadata, and waits for room.
    ///
    /// # Errors
    ///
    /// As [`crate::Sender::send_with`].
    pub async fn send_with(&mut self, message: &[u8], metadata: &Metadata) -> Result<()> {
        self.put(|sender| sender.try_send_with(message, metadata)).await
    }

    /// Sends the response to a request.
    ///
    /// # Errors
    ///
    /// As [`crate::Sender::respond`].
    pub async fn respond(&mut self, request: RequestId, body: &[u8]) -> Result<()> {
        self.put(|sender| sender.try_respond(request, body)).await
    }

    /// Sends a tensor, and waits for room. A dropped future has sent nothing. Its [`TensorMut`](crate::TensorMut) is
    /// dropped with it, and the pool has the memory.
    ///
    /// # Errors
    ///
    /// As [`crate::Sender::send_tensor`].
    pub async fn send_tensor<'a>(&mut self, tensor: impl Into<Outgoing<'a>>) -> Result<()> {
        let mut tensor = tensor.into();
        self.put(|sender| sender.try_put_tensor(&mut tensor)).await
    }

    /// Sends a set of tensors in one message, and waits for room.
    ///
    /// # Errors
    ///
    /// As [`crate::Sender::send_tensors`].
    pub async fn send_tensors(&mut self, tensors: &TensorSet) -> Result<()> {
        self.put(|sender| sender.try_send_tensors(tensors)).await
    }

    /// Sends tensors as the response to a request, and waits for room.
    ///
    /// # Errors
    ///
    /// As [`crate::Sender::respond_tensors`].
    pub async fn respond_tensors(&mut self, request: RequestId, tensors: &TensorSet) -> Result<()> {
        self.put(|sender| sender.try_respond_tensors(request, tensors)).await
    }

    pub(super) async fn request_tensors(
        &mut self,
        id: RequestId,
        request: (&TensorSet, &Metadata),
    ) -> Result<()> {
        self.put(|sender| sender.try_request_tensors(id, request)).await
    }

    pub(super) async fn request(
        &mut self,
        id: RequestId,
        request: (&[u8], &Metadata),
    ) -> Result<()> {
        self.put(|sender| sender.try_request(id, request)).await
    }

    /// Tries until there is room.
    async fn put(
        &mut self,
        mut attempt: impl FnMut(&mut crate::Sender) -> Result<(), TrySendError>,
    ) -> Result<()> {
        let mut armed = false;
        loop {
            if self.turn.is_over() {
                tokio::task::yield_now().await;
            }
            match attempt(&mut self.inner) {
                Ok(()) => {
                    self.inner.rouse();
                    return Ok(());
                }
                Err(TrySendError::Failed(error)) => return Err(error),
                // Room that came before the sender was armed makes no event.
                Err(TrySendError::Full { .. }) if !armed => {
                    self.arm()?;
                    armed = true;
                    continue;
                }
                Err(TrySendError::Full { .. }) => armed = false,
            }
            if let Ok(slept) = tokio::time::timeout(SLICE, self.shared.sleep_for_room()).await {
                slept?;
            }
        }
    }

    /// Sends the first `len` bytes of the parts as one message. Returns whether there was room.
    pub(super) fn try_send_parts(&mut self, parts: &[IoSlice<'_>], len: usize) -> Result<bool> {
        let sent = match parts {
            [part] => self.inner.try_send(&part[..len]),
            parts => self.inner.try_reserve(len).and_then(|mut message| {
                let mut rest = &mut message[..];
                for part in parts {
                    let (here, behind) = rest.split_at_mut(part.len().min(rest.len()));
                    here.copy_from_slice(&part[..here.len()]);
                    rest = behind;
                }
                Ok(message.publish()?)
            }),
        };
        match sent {
            Ok(()) => {
                self.inner.rouse();
                Ok(true)
            }
            Err(TrySendError::Full { .. }) => Ok(false),
            Err(TrySendError::Failed(error)) => Err(error),
        }
    }

    /// Has the peer send a packet when there is room.
    pub(super) fn arm(&mut self) -> Result<()> {
        if self.inner.arm()? {
            self.shared.wake_receiver();
        }
        Ok(())
    }

    pub(super) fn max_message(&self) -> usize {
        usize::try_from(self.inner.max_message()).unwrap_or(usize::MAX)
    }

    pub(super) fn shared(&self) -> &Arc<LinkWaits> {
        &self.shared
    }

    /// Returns the peer.
    pub fn peer(&self) -> &Peer {
        self.inner.session().link.identity()
    }

    /// Returns the counters of this half.
    pub fn stats(&self) -> HalfStats {
        self.inner.stats()
    }

    pub(super) fn half(&self) -> &crate::Sender {
        &self.inner
    }

    pub(super) fn into_inner(self) -> crate::Sender {
        self.inner
    }
}

/// The receiving half of an [`AsyncConnection`](super::AsyncConnection), from
/// [`AsyncConnection::split`](super::AsyncConnection::split).
///
/// # Examples
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// # use slipring::tokio::{AsyncConnection, AsyncListener};
/// # use slipring::{Address, Context};
/// # let (context, address) = (Context::new()?, Address::fresh());
/// # let mut listener = AsyncListener::new(context.listen(&address)?)?;
/// # let accepted = tokio::spawn(async move { listener.accept().await });
/// # let mut near = AsyncConnection::connect(&context, address).await?;
/// # let far = accepted.await.unwrap()?;
/// let (_sender, mut receiver) = far.split();
/// let counting = tokio::spawn(async move {
///     let mut bytes = 0;
///     while let Some(message) = receiver.recv().await? {
///         bytes += message.len();
///     }
///     Ok::<_, slipring::Error>(bytes)
/// });
///
/// near.send(b"hello").await?;
/// near.send(b"world").await?;
/// near.close()?;
/// assert_eq!(counting.await.unwrap()?, 10);
/// # Ok::<_, slipring::Error>(())
/// # })?;
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct AsyncReceiver {
    inner: crate::Receiver,
    shared: Arc<LinkWaits>,
    polling: Polling,
    turn: TaskTurn,
}

impl AsyncReceiver {
    pub(super) fn new(mut inner: crate::Receiver, shared: Arc<LinkWaits>) -> Self {
        let polling = Polling::new(spin_of(&inner));
        inner.take_turns();
        Self { inner, shared, polling, turn: TaskTurn::default() }
    }

    /// Receives the next message. Returns `None` if the peer has closed in order.
    ///
    /// # Errors
    ///
    /// As [`crate::Receiver::recv`].
    pub async fn recv(&mut self) -> Result<Option<Vec<u8>>> {
        self.get(crate::Receiver::try_recv).await
    }

    /// Receives the next request. Returns `None` if the peer has closed in order.
    ///
    /// # Errors
    ///
    /// As [`crate::Receiver::recv_request`].
    pub async fn recv_request(&mut self) -> Result<Option<Request>> {
        self.get(crate::Receiver::try_recv_request).await
    }

    /// Receives the next tensor. Returns `None` if the peer has closed in order.
    ///
    /// # Errors
    ///
    /// As [`crate::Receiver::recv_tensor`].
    pub async fn recv_tensor(&mut self) -> Result<Option<Tensor>> {
        self.get(crate::Receiver::try_recv_tensor).await
    }

    /// Receives the tensors of the next message. Returns `None` if the peer has closed in order.
    ///
    /// # Errors
    ///
    /// As [`crate::Receiver::recv_tensors`].
    pub async fn recv_tensors(&mut self) -> Result<Option<TensorSet>> {
        let set = self.get(crate::Receiver::try_recv_tensors).await?;
        self.turn.took(set.as_ref().map_or(0, TensorSet::len));
        Ok(set)
    }

    /// Receives the next request with tensors. Returns `None` if the peer has closed in order.
    ///
    /// # Errors
    ///
    /// As [`crate::Receiver::recv_tensor_request`].
    pub async fn recv_tensor_request(&mut self) -> Result<Option<TensorRequest>> {
        let request = self.get(crate::Receiver::try_recv_tensor_request).await?;
        self.turn.took(request.as_ref().map_or(0, |request| request.tensors.len()));
        Ok(request)
    }

    /// Receives the next message and its metadata. Returns `None` if the peer has closed in order.
    ///
    /// # Errors
    ///
    /// As [`crate::Receiver::recv_with`].
    pub async fn recv_with(&mut self) -> Result<Option<(Vec<u8>, Metadata)>> {
        self.get(crate::Receiver::try_recv_with).await
    }

    pub(super) async fn tensor_response(&mut self, id: RequestId) -> Result<TensorSet> {
        let response = self.get(|receiver| receiver.try_tensor_response(id).map(Some)).await?;
        self.turn.took(response.as_ref().map_or(0, TensorSet::len));
        response.ok_or_else(|| ErrorKind::PeerClosed.into())
    }

    pub(super) async fn response(&mut self, id: RequestId) -> Result<Vec<u8>> {
        let response = self.get(|receiver| receiver.try_response(id)).await?;
        response.ok_or_else(|| ErrorKind::PeerClosed.into())
    }

    /// Tries until there is something.
    async fn get<T>(
        &mut self,
        mut attempt: impl FnMut(&mut crate::Receiver) -> Result<Option<T>, TryRecvError>,
    ) -> Result<Option<T>> {
        // A future that was dropped leaves its wait behind.
        self.polling.abandon();
        loop {
            // Before the attempt: a future that is dropped here has received nothing.
            if self.turn.is_over() {
                tokio::task::yield_now().await;
            }
            match attempt(&mut self.inner) {
                Ok(received) => {
                    self.polling.end();
                    return Ok(received);
                }
                Err(TryRecvError::Failed(error)) => return Err(error),
                // The rest of what has come takes another turn.
                Err(TryRecvError::Empty) if self.inner.is_ready() => match self.inner.socket_rest()
                {
                    Some(rest) => tokio::time::sleep(rest).await,
                    None => tokio::task::yield_now().await,
                },
                Err(TryRecvError::Empty) => self.wait().await?,
            }
        }
    }

    /// Waits until there may be something.
    async fn wait(&mut self) -> Result<()> {
        let Self { inner, polling, .. } = self;
        if watch_until(polling, || inner.is_ready()).await || self.arm()? {
            return Ok(());
        }
        self.shared.sleep_for_data().await?;
        Ok(())
    }

    /// Has the peer send a packet with the next message. Returns whether there is a message already.
    pub(super) fn arm(&mut self) -> Result<bool> {
        let armed = self.inner.inbox.arm();
        if self.inner.session().link.control_socket().room_woken() {
            self.shared.wake_sender();
        }
        armed
    }

    pub(super) fn half(&self) -> &crate::Receiver {
        &self.inner
    }

    pub(super) fn inner(&mut self) -> &mut crate::Receiver {
        &mut self.inner
    }

    pub(super) fn shared(&self) -> &Arc<LinkWaits> {
        &self.shared
    }

    pub(super) fn into_inner(self) -> crate::Receiver {
        self.inner
    }

    /// Starts the span of a call, if the caller has one.
    pub(super) fn begin_span(&self) -> CallSpan {
        CallSpan::begin(|| Some(self.link()))
    }

    pub(super) fn link(&self) -> Arc<Link> {
        self.inner.session().link.clone()
    }

    pub(super) fn start_call(&mut self) -> Result<RequestId> {
        self.inner.start_call()
    }

    pub(super) fn cancel_call(&mut self, id: RequestId) {
        self.inner.cancel_call(id);
    }

    pub(super) fn abandon(&mut self, id: RequestId) {
        self.inner.abandon(id);
    }

    /// Returns the counters of this half.
    pub fn stats(&self) -> HalfStats {
        self.inner.stats()
    }
}

/// Returns the spin policy of a connection's waits.
pub(super) fn spin_of(receiver: &crate::Receiver) -> SpinPolicy {
    SpinPolicy::new(receiver.session().env.options().spin)
}
