//! The subscriber: one reader of a topic, over any number of publishers that come after each other.
//!
//! 1. The subscriber owns the feed of the publisher that it has joined. Without one it looks for the next publisher.
//! 2. Samples outlive the feed that they came from: their memory stays mapped.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use crate::broadcast::feed::Feed;
use crate::broadcast::options::SubscribeOptions;
use crate::broadcast::sample::Sample;
use crate::channel::Watch;
use crate::error::{Error, ErrorKind, Result, TryRecvError};
use crate::handshake::{Address, Peer, Policy};
use crate::link::LinkSocket;
use crate::patience::{RecvPatience, after};
use crate::transport::Context;
use crate::wake::SpinPolicy;

/// The least time for the handshake with the next publisher: its process may have to wait for a processor.
const HANDSHAKE: Duration = Duration::from_millis(100);

/// The pause before the next look for a publisher.
const RETRY: Duration = Duration::from_millis(2);

/// One reader of a topic. A [`Context`] makes it with [`subscribe`](Context::subscribe).
///
/// # Examples
///
/// ```
/// use slipring::broadcast::{PublishOptions, SubscribeOptions};
/// use slipring::{Address, Context};
///
/// let (context, address) = (Context::new()?, Address::fresh());
/// let mut clock = context.publish(&address, PublishOptions::default())?;
/// let mut log = context.subscribe(&address, SubscribeOptions::every().reconnect(false))?;
/// clock.send(b"tick")?;
/// clock.send(b"tock")?;
/// drop(clock);
///
/// let mut seen = Vec::new();
/// while let Some(sample) = log.recv()? {
///     seen.push(sample.to_vec()?);
/// }
/// assert_eq!(seen, [b"tick", b"tock"]);
/// # Ok::<(), slipring::Error>(())
/// ```
pub struct Subscriber {
    feed: Option<Feed>,
    address: Address,
    options: SubscribeOptions,
    /// No sample of the present publisher was returned, and there was another publisher before.
    restarted: bool,
    received: u64,
    missed: u64,
    /// The thread that receives serves several peers.
    takes_turns: bool,
    context: Context,
}

/// Shows the policy and the number of messages on one line.
impl fmt::Debug for Subscriber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscriber")
            .field("policy", &self.options.policy())
            .field("received", &self.received)
            .field("missed", &self.missed)
            .finish_non_exhaustive()
    }
}

impl Context {
    /// Subscribes to the topic of a publisher.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::NobodyListens`]: there is no publisher, nor did one come in the time of
    ///   [`SubscribeOptions::wait_for_publisher`].
    /// - [`ErrorKind::WrongService`]: the address has a listener for links.
    /// - [`ErrorKind::PolicyRefused`]: the publisher does not admit the policy.
    /// - [`ErrorKind::RefusedByPeer`]: the publisher has as many subscribers as it may have.
    /// - Otherwise as [`connect`](Context::connect).
    pub fn subscribe<A>(&self, address: A, options: SubscribeOptions) -> Result<Subscriber>
    where
        A: TryInto<Address>,
        Error: From<A::Error>,
    {
        let until = options.waits().map(after);
        let mut subscriber = Subscriber::apart(self, address.try_into()?, options);
        loop {
            match subscriber.join() {
                Ok(()) => return Ok(subscriber),
                Err(error) if is_absent(&error) => match until {
                    Some(until) if Instant::now() + RETRY < until => std::thread::sleep(RETRY),
                    _ => return Err(error),
                },
                Err(error) => return Err(error),
            }
        }
    }
}

/// A join of a publisher, which waits for the answer of the publisher's process. Any thread may do it.
#[derive(Debug)]
pub(crate) struct Joining {
    context: Context,
    address: Address,
    policy: Policy,
}

impl Subscriber {
    /// Returns a subscriber that has joined no publisher.
    pub(crate) fn apart(context: &Context, address: Address, options: SubscribeOptions) -> Self {
        let (context, restarted, takes_turns) = (context.clone(), false, false);
        let (feed, received, missed) = (None, 0, 0);
        Self { feed, address, options, restarted, received, missed, takes_turns, context }
    }

    /// Receives the next message. It waits for it. Returns `None` after the publisher has ended in order, unless the subscriber
    /// [reconnects](SubscribeOptions::reconnect).
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::PeerDied`]: the publisher died, and the subscriber does not reconnect.
    /// - [`ErrorKind::Evicted`]: the publisher has evicted this subscriber.
    /// - [`ErrorKind::HoldLimit`], [`ErrorKind::HoldBytes`]: this subscriber wants every message, and holds as many in the pool, or
    ///   as many bytes of it, as it may. The message stays the next one.
    /// - [`ErrorKind::Fault`]: the publisher broke the protocol.
    #[inline]
    pub fn recv(&mut self) -> Result<Option<Sample<'_>>> {
        match self.take(RecvPatience::Forever) {
            Ok(()) => Ok(self.sample()),
            Err(error) => self.over(error),
        }
    }

    /// Receives as [`recv`](Self::recv) does. It waits until `deadline`, or some 100 ms longer if somebody has the address who does
    /// not answer.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TimedOut`], and as [`recv`](Self::recv).
    pub fn recv_deadline(&mut self, deadline: Instant) -> Result<Option<Sample<'_>>> {
        match self.take(RecvPatience::Until(deadline)) {
            Ok(()) => Ok(self.sample()),
            Err(error) => self.over(error),
        }
    }

    /// Receives as [`recv`](Self::recv) does. It does not wait. While there is no publisher it looks for one, which takes a
    /// handshake.
    ///
    /// # Errors
    ///
    /// - [`TryRecvError::Empty`]: no message is there.
    /// - Otherwise as [`recv`](Self::recv).
    #[inline]
    pub fn try_recv(&mut self) -> Result<Option<Sample<'_>>, TryRecvError> {
        match self.take(RecvPatience::None) {
            Ok(()) => Ok(self.sample()),
            Err(TryRecvError::Empty) => Err(TryRecvError::Empty),
            Err(error) => Ok(self.over(error)?),
        }
    }

    /// Tells the publisher that this subscriber is done with the last sample, as the next receive does. A message that lies
    /// [in its slot](crate::broadcast::PublishOptions::slot_len) can be overwritten from here on.
    pub fn release(&mut self) {
        if let Some(feed) = &mut self.feed {
            feed.leave_slot();
        }
    }

    /// Returns what this subscriber has asked for.
    pub fn policy(&self) -> Policy {
        self.options.policy()
    }

    /// Returns the process of the present publisher.
    pub fn publisher(&self) -> Option<&Peer> {
        self.feed.as_ref().map(Feed::peer)
    }

    /// Returns how many messages were received, and how many were missed.
    pub fn counts(&self) -> (u64, u64) {
        (self.received, self.missed)
    }

    /// Returns how many messages in the publisher's pool this subscriber holds.
    pub fn held(&self) -> usize {
        self.feed.as_ref().map_or(0, Feed::held)
    }

    #[inline(always)]
    fn take(&mut self, patience: RecvPatience) -> Result<(), TryRecvError> {
        match &mut self.feed {
            Some(feed) => match feed.receive(patience) {
                Err(error) if is_end(&error) && self.options.reconnects() => {
                    self.feed = None;
                    self.take_anew(patience)
                }
                taken => taken,
            },
            None => self.take_anew(patience),
        }
    }

    /// Looks for the next publisher, and takes a message of it.
    #[cold]
    fn take_anew(&mut self, patience: RecvPatience) -> Result<(), TryRecvError> {
        self.restarted = true;
        let start = Instant::now();
        let until = if let RecvPatience::Until(until) = patience { Some(until) } else { None };
        loop {
            match self.joining().join_until(until) {
                Ok(feed) => match self.install(feed).receive(patience) {
                    Err(error) if is_end(&error) => self.feed = None,
                    taken => return taken,
                },
                // Somebody who does not answer has the address.
                Err(error) if is_absent(&error) || error.is_timeout() => {}
                Err(error) => return Err(error.into()),
            }
            patience.check(start)?;
            if matches!(patience, RecvPatience::None) {
                return Err(TryRecvError::Empty);
            }
            std::thread::sleep(RETRY);
        }
    }

    fn join(&mut self) -> Result<()> {
        self.feed = Some(self.joining().join()?);
        Ok(())
    }

    /// Returns the join of the next publisher, for a thread that may wait for it.
    pub(crate) fn joining(&self) -> Joining {
        let (context, address) = (self.context.clone(), self.address.clone());
        Joining { context, address, policy: self.options.policy() }
    }

    /// Receives from the publisher that this subscriber has joined, and neither waits nor arms. Without one it is empty.
    pub(crate) fn poll_joined(&mut self) -> Result<Option<Sample<'_>>, TryRecvError> {
        self.take_joined(Feed::poll)
    }

    /// As [`poll_joined`](Self::poll_joined). If there is nothing, the publisher sends a packet with the next message.
    pub(crate) fn arm_joined(&mut self) -> Result<Option<Sample<'_>>, TryRecvError> {
        self.take_joined(|feed| feed.take(RecvPatience::None))
    }

    fn take_joined(
        &mut self,
        take: impl FnOnce(&mut Feed) -> Result<(), TryRecvError>,
    ) -> Result<Option<Sample<'_>>, TryRecvError> {
        let Some(feed) = &mut self.feed else { return Err(TryRecvError::Empty) };
        match take(feed) {
            Ok(()) => Ok(self.sample()),
            Err(error) if is_end(&error) && self.options.reconnects() => {
                (self.feed, self.restarted) = (None, true);
                Err(TryRecvError::Empty)
            }
            Err(TryRecvError::Empty) => Err(TryRecvError::Empty),
            Err(error) => Ok(self.over(error)?),
        }
    }

    /// Returns how long the caller lets the publisher rest before the next poll, if the last one has left something or the
    /// publisher has spent its share of the thread's time.
    pub(crate) fn take_rest(&mut self) -> Option<Duration> {
        self.feed.as_mut()?.take_rest()
    }

    /// Returns whether [`take_rest`](Self::take_rest) returns a rest.
    #[cfg_attr(not(feature = "tokio"), expect(dead_code, reason = "a reactor takes it at once"))]
    pub(crate) fn has_rest(&self) -> bool {
        self.feed.as_ref().is_some_and(Feed::has_rest)
    }

    /// Returns whether [`poll_joined`](Self::poll_joined) has something to do, as the publisher says.
    pub(crate) fn is_due(&self) -> bool {
        self.feed.as_ref().is_none_or(Feed::is_due)
    }

    /// Returns how long a loop polls before it sleeps.
    #[cfg_attr(not(feature = "tokio"), expect(dead_code, reason = "a reactor has its own"))]
    pub(crate) fn spin(&self) -> SpinPolicy {
        self.context.spin()
    }

    /// Returns a watch of the next message, or `None` without a publisher.
    pub(crate) fn watch(&self) -> Option<Watch> {
        self.feed.as_ref().map(Feed::watch)
    }

    /// Has the publisher send a packet with the next message. Returns whether this side was hot. The caller passes
    /// [`before_last_look`](crate::wake::before_last_look), and then [`finish_arm`](Self::finish_arm).
    #[must_use]
    pub(crate) fn begin_arm(&mut self) -> bool {
        self.feed.as_mut().is_some_and(Feed::begin_arm)
    }

    /// Looks once more after [`begin_arm`](Self::begin_arm). Returns whether the subscriber is armed. Otherwise something has
    /// come.
    pub(crate) fn finish_arm(&mut self) -> bool {
        self.feed.as_mut().is_some_and(Feed::finish_arm)
    }

    /// Reads from the publisher that a [`Joining`] has joined.
    pub(crate) fn install(&mut self, mut feed: Feed) -> &mut Feed {
        if self.takes_turns {
            feed.take_turns();
        }
        self.feed.insert(feed)
    }

    /// Returns the socket to sleep on, or `None` while there is no publisher.
    pub(crate) fn socket(&self) -> Option<LinkSocket> {
        let feed = self.feed.as_ref()?;
        feed.use_descriptor();
        Some(feed.socket())
    }

    /// Returns the sample of the message that was taken last.
    #[inline(always)]
    fn sample(&mut self) -> Option<Sample<'_>> {
        let sample = self.feed.as_mut()?.sample(std::mem::take(&mut self.restarted));
        self.received += 1;
        self.missed += sample.missed();
        Some(sample)
    }

    /// Returns the answer of a receive that has taken nothing.
    #[cold]
    fn over(&self, error: TryRecvError) -> Result<Option<Sample<'_>>> {
        match error {
            TryRecvError::Failed(error) if *error.kind() == ErrorKind::PeerClosed => Ok(None),
            TryRecvError::Failed(error) => Err(error),
            TryRecvError::Empty => Err(ErrorKind::TimedOut { after: Duration::ZERO }.into()),
        }
    }
}

/// The descriptor is readable when [`try_recv`](Subscriber::try_recv) has something to do. Receive until it is empty before
/// you wait for it. While there is no publisher, the descriptor is that of the last one, and is readable.
impl Subscriber {
    /// Returns the descriptor to wait for, or `None` while there is no publisher: call [`try_recv`](Self::try_recv) every few
    /// milliseconds then.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        let feed = self.feed.as_ref()?;
        feed.use_descriptor();
        Some(feed.as_fd())
    }

    /// Notes that the thread that receives serves other peers, too: what a publisher has it do has a share of its time, as with
    /// [`Receiver::take_turns`](crate::Receiver::take_turns).
    pub fn take_turns(&mut self) {
        self.takes_turns = true;
        if let Some(feed) = &mut self.feed {
            feed.take_turns();
        }
    }

    /// Returns how long what is left waits after [`try_recv`](Self::try_recv) was empty, as
    /// [`Receiver::rest`](crate::Receiver::rest) does.
    pub fn rest(&self) -> Option<Duration> {
        self.feed.as_ref()?.rest()
    }

    /// Returns whether the subscriber looks for another publisher after the present one. Its descriptor changes then.
    pub fn reconnects(&self) -> bool {
        self.options.reconnects()
    }
}

impl Joining {
    /// Joins the publisher.
    ///
    /// # Errors
    ///
    /// As [`Context::subscribe`].
    pub(crate) fn join(&self) -> Result<Feed> {
        self.join_until(None)
    }

    /// As [`join`](Self::join), no longer than until then.
    fn join_until(&self, until: Option<Instant>) -> Result<Feed> {
        let Self { context, address, policy } = self;
        let (since, longest) = (Instant::now(), context.handshake_deadline());
        // Short deadlines would end each handshake before the publisher's process has a turn.
        let deadline = until.map_or(longest, |until| until.max(since + HANDSHAKE).min(longest));
        let session = context.join(address, *policy, deadline)?.session;
        Feed::join(session, *policy, context.spin_option(), (since, deadline))
    }
}

/// Returns whether the publisher has ended.
fn is_end(error: &TryRecvError) -> bool {
    matches!(error, TryRecvError::Failed(error) if error.is_disconnected())
}

/// Returns whether there is no publisher now.
pub(crate) fn is_absent(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NobodyListens { .. }) || error.is_disconnected()
}
