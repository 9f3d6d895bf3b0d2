//! Calls of several tasks on one connection.
//!
//! 1. No lock of the receiver is held while a task waits. A task takes all that has come, sets responses of others aside,
//!    and notifies the other tasks before it waits or returns.
//! 2. A task asks for the notification before it looks, so it misses none.
//! 3. A dropped call gives its id back: at once if the request was not sent, or when the response comes.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use tokio::sync::Notify;

use crate::adapters::tokio::halves::{AsyncReceiver, AsyncSender};
use crate::adapters::tokio::shared::{LinkWaits, TaskTurn};
use crate::channel::{CallSpan, Metadata, RequestId};
use crate::error::TryRecvError;
use crate::handshake::Peer;
use crate::{ErrorKind, Result, TensorSet};

/// Makes calls from any number of tasks at a time, on one connection. From
/// [`AsyncConnection::into_caller`](super::AsyncConnection::into_caller). Clones make calls on the same connection, which
/// closes when the last one is dropped.
///
/// A waiting call sleeps at once, whatever [`Options::spin`](crate::Options::spin) says. Messages of the peer that are no
/// responses are set aside, and nobody receives them: more than
/// [`Options::backlog_limit`](crate::Options::backlog_limit) bytes of them fail the calls.
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
/// let server = tokio::spawn(async move {
///     let mut link = listener.accept().await?;
///     while let Some(request) = link.recv_request().await? {
///         link.respond(request.id, &request.body).await?;
///     }
///     Ok::<_, slipring::Error>(())
/// });
///
/// let caller = AsyncConnection::connect(&context, address).await?.into_caller();
/// let calls = [b"one", b"two"].map(|request| {
///     let caller = caller.clone();
///     tokio::spawn(async move { caller.call(request).await })
/// });
/// for (call, request) in calls.into_iter().zip([b"one", b"two"]) {
///     assert_eq!(call.await.unwrap()?, request);
/// }
/// drop(caller);
/// server.await.unwrap()?;
/// # Ok::<_, slipring::Error>(())
/// # })?;
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct AsyncCaller {
    core: Arc<CallerCore>,
}

#[derive(Debug)]
struct CallerCore {
    sender: tokio::sync::Mutex<AsyncSender>,
    receiver: Mutex<AsyncReceiver>,
    shared: Arc<LinkWaits>,
    peer: Peer,
    /// Notified when a task has taken something that other tasks may wait for.
    arrived: Notify,
}

impl AsyncCaller {
    pub(super) fn new(sender: AsyncSender, receiver: AsyncReceiver) -> Self {
        let (shared, peer) = (sender.shared().clone(), sender.peer().clone());
        let (sender, receiver) = (tokio::sync::Mutex::new(sender), Mutex::new(receiver));
        let arrived = Notify::new();
        Self { core: Arc::new(CallerCore { sender, receiver, shared, peer, arrived }) }
    }

    /// Makes a request and waits for its response. Dropped, it does not wait for the response any more.
    ///
    /// # Errors
    ///
    /// As [`crate::Connection::call`], but there is no deadline: use `tokio::time::timeout`.
    pub async fn call(&self, request: &[u8]) -> Result<Vec<u8>> {
        let (mut span, none) = (self.core.begin_span(), Metadata::new());
        let carried = span.carry(&none);
        let response = self.call_in((request, carried.as_ref().unwrap_or(&none))).await;
        span.end(&response);
        response
    }

    async fn call_in(&self, request: (&[u8], &Metadata)) -> Result<Vec<u8>> {
        let mut call = self.core.start()?;
        self.core.sender.lock().await.request(call.id, request).await?;
        call.step = CallStep::Sent;
        let response = self.core.response(|receiver| receiver.try_response(call.id)).await?;
        call.step = CallStep::Answered;
        response.ok_or_else(|| ErrorKind::PeerClosed.into())
    }

    /// Makes a request with tensors and waits for its response with tensors, as [`call`](Self::call) does.
    ///
    /// # Errors
    ///
    /// As [`crate::Connection::call_tensors`], but there is no deadline: use `tokio::time::timeout`.
    pub async fn call_tensors(&self, tensors: &TensorSet) -> Result<TensorSet> {
        let mut span = self.core.begin_span();
        let carried = span.carry(tensors.metadata());
        let request = (tensors, carried.as_ref().unwrap_or(tensors.metadata()));
        let response = self.call_tensors_in(request).await;
        span.end(&response);
        response
    }

    async fn call_tensors_in(&self, request: (&TensorSet, &Metadata)) -> Result<TensorSet> {
        let mut call = self.core.start()?;
        self.core.sender.lock().await.request_tensors(call.id, request).await?;
        call.step = CallStep::Sent;
        let response = self.core.response(|receiver| receiver.try_tensor_response(call.id)).await?;
        call.step = CallStep::Answered;
        Ok(response)
    }

    /// Returns the peer.
    pub fn peer(&self) -> &Peer {
        &self.core.peer
    }
}

impl CallerCore {
    fn receiver(&self) -> MutexGuard<'_, AsyncReceiver> {
        // Nothing panics under the lock unless the library has a bug.
        self.receiver.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the span of a call, if the caller has one.
    fn begin_span(&self) -> CallSpan {
        // The lock is given back before the span starts, which runs the application's code.
        CallSpan::begin(|| Some(self.receiver().link()))
    }

    fn start(&self) -> Result<Call<'_>> {
        let id = self.receiver().start_call()?;
        Ok(Call { core: self, id, step: CallStep::Unsent })
    }

    /// Tries until the response is there.
    async fn response<T>(
        &self,
        mut attempt: impl FnMut(&mut crate::Receiver) -> Result<T, TryRecvError>,
    ) -> Result<T> {
        let mut turn = TaskTurn::default();
        loop {
            if turn.is_over() {
                tokio::task::yield_now().await;
            }
            let mut arrived = pin!(self.arrived.notified());
            arrived.as_mut().enable();
            let is_armed = {
                let mut receiver = self.receiver();
                let before = received(&receiver);
                let answer = attempt(receiver.inner());
                match answer {
                    Err(TryRecvError::Empty) => {}
                    Err(TryRecvError::Failed(error)) => {
                        self.arrived.notify_waiters();
                        return Err(error);
                    }
                    Ok(response) => {
                        // This task has disarmed the receiver.
                        self.arrived.notify_waiters();
                        return Ok(response);
                    }
                }
                if received(&receiver) != before {
                    // The response of another task was set aside. The peer sends no packet for it.
                    self.arrived.notify_waiters();
                }
                !receiver.half().is_ready() && !receiver.arm()?
            };
            if !is_armed {
                // The rest of what has come takes another turn, of this task or another one.
                self.arrived.notify_waiters();
                tokio::task::yield_now().await;
                continue;
            }
            let mut slept = pin!(self.shared.sleep_for_data());
            let slept = poll_fn(|context| match slept.as_mut().poll(context) {
                Poll::Ready(slept) => Poll::Ready(Some(slept)),
                Poll::Pending => arrived.as_mut().poll(context).map(|()| None),
            });
            if let Some(slept) = slept.await {
                // The other tasks look, too: this one may end here.
                self.arrived.notify_waiters();
                slept?;
            }
        }
    }
}

/// Returns how many messages were taken out of the ring.
fn received(receiver: &AsyncReceiver) -> u64 {
    let stats = receiver.stats();
    stats.messages + stats.tensors
}

/// A call of one task. Dropping it gives the response up.
struct Call<'a> {
    core: &'a CallerCore,
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
            CallStep::Unsent => self.core.receiver().cancel_call(self.id),
            CallStep::Sent => self.core.receiver().abandon(self.id),
            CallStep::Answered => {}
        }
    }
}
