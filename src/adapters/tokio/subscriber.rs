//! A subscriber on a runtime.
//!
//! 1. The task polls for a while, and lets others run between two polls. Then it sleeps on the socket of the publisher that the
//!    subscriber has joined. The next publisher has another one.
//! 2. A join waits for another process, so a thread for blocking work does it.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{self, Poll, ready};
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;
use tokio::time::Sleep;

use crate::adapters::tokio::shared::{TaskTurn, Watched, watch_link};
use crate::broadcast::{Feed, OwnedSample, Policy, SubscribeOptions, Subscriber, is_absent};
use crate::error::TryRecvError;
use crate::link::LinkSocket;
use crate::patience::after;
use crate::wake::{Polling, before_last_look};
use crate::{Address, Context, Error, Result};

/// The pause before the next look for a publisher.
const RETRY: Duration = Duration::from_millis(5);

/// One reader of a topic: [`Subscriber`] on a tokio runtime.
///
/// It polls before it sleeps, as [`Options::spin`](crate::Options::spin) says. While there is no publisher it looks for one every
/// 5 ms.
///
/// # Examples
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// use slipring::broadcast::{PublishOptions, SubscribeOptions};
/// use slipring::tokio::AsyncSubscriber;
/// use slipring::{Address, Context};
///
/// let (context, address) = (Context::new()?, Address::fresh());
/// let mut clock = context.publish(&address, PublishOptions::default())?;
/// let options = SubscribeOptions::every().reconnect(false);
/// let mut log = AsyncSubscriber::subscribe(&context, &address, options).await?;
/// clock.send(b"tick")?;
/// drop(clock);
/// while let Some(sample) = log.recv().await? {
///     assert_eq!(sample.to_vec()?, b"tick");
/// }
/// # Ok::<_, slipring::Error>(())
/// # })?;
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct AsyncSubscriber {
    inner: Subscriber,
    /// The socket of the present publisher.
    watched: Option<Watched<LinkSocket>>,
    /// The look for the next publisher.
    joining: Option<JoinHandle<Result<Feed>>>,
    /// The pause before it, or before the next look at a publisher that has spent its share of the thread's time.
    pause: Option<Pin<Box<Sleep>>>,
    turn: TaskTurn,
    polling: Polling,
    /// The publisher sends a packet with the next message.
    is_armed: bool,
}

impl AsyncSubscriber {
    /// Puts a subscriber on the runtime of the tasks that receive from it.
    pub fn new(mut subscriber: Subscriber) -> Self {
        subscriber.take_turns();
        let (watched, joining, pause, turn) = (None, None, None, TaskTurn::default());
        let polling = Polling::new(subscriber.spin());
        Self { inner: subscriber, watched, joining, pause, turn, polling, is_armed: false }
    }

    /// Subscribes to the topic of a publisher. The task sleeps while it waits for one.
    ///
    /// # Errors
    ///
    /// As [`Context::subscribe`].
    pub async fn subscribe<A>(
        context: &Context,
        address: A,
        options: SubscribeOptions,
    ) -> Result<Self>
    where
        A: TryInto<Address>,
        Error: From<A::Error>,
    {
        let until = options.waits().map(after);
        let mut subscriber = Self::new(Subscriber::apart(context, address.try_into()?, options));
        loop {
            match poll_fn(|context| subscriber.poll_join(context)).await {
                Ok(()) => return Ok(subscriber),
                Err(error) if !is_absent(&error) => return Err(error),
                Err(error) if until.is_none_or(|until| Instant::now() + RETRY >= until) => {
                    return Err(error);
                }
                Err(_) => ::tokio::time::sleep(RETRY).await,
            }
        }
    }

    /// Receives the next message, and waits for it. Returns `None` after the publisher has ended in order, unless the
    /// subscriber [reconnects](SubscribeOptions::reconnect). A dropped future has received nothing.
    ///
    /// # Errors
    ///
    /// As [`Subscriber::recv`].
    pub async fn recv(&mut self) -> Result<Option<OwnedSample>> {
        poll_fn(|context| self.poll_recv(context)).await
    }

    /// Receives as [`recv`](Self::recv) does, for those who write futures and streams.
    ///
    /// # Examples
    ///
    /// A stream of samples:
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # use slipring::broadcast::{PublishOptions, SubscribeOptions};
    /// # use slipring::tokio::AsyncSubscriber;
    /// # use slipring::{Address, Context};
    /// use futures_util::stream::{self, StreamExt};
    ///
    /// # let (context, address) = (Context::new()?, Address::fresh());
    /// # let mut clock = context.publish(&address, PublishOptions::default())?;
    /// let mut log = AsyncSubscriber::subscribe(&context, &address, SubscribeOptions::every()).await?;
    /// let mut samples =
    ///     stream::poll_fn(move |context| log.poll_recv(context).map(Result::transpose));
    /// clock.send(b"tick")?;
    /// assert_eq!(samples.next().await.expect("a sample")?.to_vec()?, b"tick");
    /// # Ok::<_, slipring::Error>(())
    /// # })?;
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Subscriber::recv`].
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime with I/O and time.
    pub fn poll_recv(
        &mut self,
        context: &mut task::Context<'_>,
    ) -> Poll<Result<Option<OwnedSample>>> {
        let mut in_vain = false;
        loop {
            if self.turn.is_over() {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            ready!(self.poll_pause(context));
            match self.inner.take_rest() {
                None => {}
                Some(Duration::ZERO) => {
                    context.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Some(rest) => {
                    self.is_armed = false;
                    self.pause = Some(Box::pin(::tokio::time::sleep(rest)));
                    continue;
                }
            }
            if !self.is_armed {
                // A publisher that says that there is something, and there is nothing, lies.
                let taken =
                    if in_vain { self.inner.arm_joined() } else { self.inner.poll_joined() };
                match taken {
                    Ok(sample) => {
                        self.polling.end();
                        let owned = sample.map(|sample| {
                            self.turn.copied(sample.len_in_slot());
                            sample.into_owned()
                        });
                        // Nobody else has the sample.
                        self.inner.release();
                        return Poll::Ready(owned.transpose());
                    }
                    Err(TryRecvError::Failed(error)) => return Poll::Ready(Err(error)),
                    Err(TryRecvError::Empty) => {
                        // The rest of a look comes first.
                        if self.inner.has_rest() {
                            continue;
                        }
                        self.is_armed = in_vain;
                    }
                }
            }
            match (&self.watched, self.inner.socket()) {
                (Some(_), Some(_)) if !self.is_armed => {
                    if self.polling.goes_on(Instant::now(), false) {
                        context.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                    before_last_look(self.inner.begin_arm());
                    self.is_armed = self.inner.finish_arm();
                    in_vain = !self.is_armed;
                }
                (Some(watched), Some(_)) => {
                    let ready = ready!(watched.poll_read_ready(context));
                    ready.map_err(|error| Error::os("epoll_wait", error))?.clear_ready();
                    self.is_armed = false;
                    self.polling.end();
                }
                // Before the subscriber is armed: what comes then makes an event.
                (None, Some(socket)) => self.watched = Some(watch_link(socket)?),
                (_, None) => {
                    self.watched = None;
                    self.is_armed = false;
                    ready!(self.poll_next(context))?;
                }
            }
        }
    }

    /// Waits for the end of the pause, if there is one.
    fn poll_pause(&mut self, context: &mut task::Context<'_>) -> Poll<()> {
        if let Some(pause) = &mut self.pause {
            ready!(pause.as_mut().poll(context));
            self.pause = None;
        }
        Poll::Ready(())
    }

    /// Joins the next publisher, and waits until there is one.
    fn poll_next(&mut self, context: &mut task::Context<'_>) -> Poll<Result<()>> {
        loop {
            ready!(self.poll_pause(context));
            match ready!(self.poll_join(context)) {
                Err(error) if is_absent(&error) => {
                    self.pause = Some(Box::pin(::tokio::time::sleep(RETRY)));
                }
                joined => return Poll::Ready(joined),
            }
        }
    }

    /// Joins the publisher that is there.
    fn poll_join(&mut self, context: &mut task::Context<'_>) -> Poll<Result<()>> {
        let joining = self.joining.get_or_insert_with(|| {
            let joining = self.inner.joining();
            ::tokio::task::spawn_blocking(move || joining.join())
        });
        let joined = ready!(Pin::new(joining).poll(context));
        self.joining = None;
        let feed = joined.map_err(|error| Error::os("connect", error))??;
        self.inner.install(feed);
        Poll::Ready(Ok(()))
    }

    /// Returns what this subscriber has asked for.
    pub fn policy(&self) -> Policy {
        self.inner.policy()
    }

    /// Returns the subscriber.
    pub fn get_ref(&self) -> &Subscriber {
        &self.inner
    }
}
