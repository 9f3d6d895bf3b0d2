//! The options of publishers and of subscribers.

use std::time::Duration;

use crate::error::{ErrorKind, Result};
use crate::handshake::Policy;
use crate::handshake::packet::{HOLDS, SLOT_LEN, Topic};
use crate::handshake::role::Admission;

/// The most bytes of all slots.
const TOPIC: u64 = 1 << 30;

/// The options of a publisher.
///
/// # Examples
///
/// ```
/// use slipring::broadcast::PublishOptions;
/// use slipring::{Address, Context};
/// use std::time::Duration;
///
/// let options = PublishOptions::new().history(4).stall_after(Duration::from_millis(200));
/// let camera = Context::new()?.publish(Address::fresh(), options)?;
/// assert_eq!(camera.subscribers().len(), 0);
/// # Ok::<(), slipring::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct PublishOptions {
    slots: u32,
    slot_len: u32,
    history: u32,
    every: bool,
    newest_limit: Option<u32>,
    hold_limit: u32,
    hold_bytes: Option<u64>,
    subscriber_limit: usize,
    stall_after: Duration,
}

impl Default for PublishOptions {
    fn default() -> Self {
        Self {
            slots: 256,
            slot_len: 256,
            history: 0,
            every: true,
            newest_limit: None,
            hold_limit: 4,
            hold_bytes: None,
            subscriber_limit: 1024,
            stall_after: Duration::from_secs(1),
        }
    }
}

impl PublishOptions {
    /// Returns the default options.
    pub fn new() -> Self {
        Self::default()
    }

    /// The messages that the topic has places for: a power of two from 2 to 65536. Default 256. A subscriber that wants every
    /// message may be one less behind before the publisher waits for it. One that looks at a message of more than 1 KiB holds its
    /// slot, so topics of such messages take at least 4.
    pub fn slots(mut self, slots: u32) -> Self {
        self.slots = slots;
        self
    }

    /// Bytes of a slot: a power of two from 64 to 2 MiB. Default 256. A message that is at most 16 bytes shorter, and at most 1 MiB
    /// long, lies in its slot, and a longer one in a block of the pool.
    ///
    /// Long slots are the fastest way for messages of one length to subscribers that want every message: nobody allocates, holds or
    /// copies anything. All slots take memory from the start on, and other subscribers copy each message out of its slot.
    pub fn slot_len(mut self, bytes: u32) -> Self {
        self.slot_len = bytes;
        self
    }

    /// The messages before its join that a new subscriber gets: fewer than [`slots`](Self::slots). Default 0.
    pub fn history(mut self, messages: u32) -> Self {
        self.history = messages;
        self
    }

    /// Whether subscribers may ask for [`Policy::Every`]. Default yes.
    pub fn every(mut self, yes: bool) -> Self {
        self.every = yes;
        self
    }

    /// The most messages that a subscriber may ask for with [`Policy::Newest`]: up to three quarters of [`slots`](Self::slots). The pool
    /// keeps as many messages as the subscriber with the highest number asked for. Default 64, or as many as there can be.
    pub fn newest_limit(mut self, messages: u32) -> Self {
        self.newest_limit = Some(messages);
        self
    }

    /// The messages in the pool that one subscriber may hold at a time: 1 to 64. Default 4. A subscriber that holds so many
    /// misses further ones; one that wants every message is waited for, and then evicted.
    pub fn hold_limit(mut self, messages: u32) -> Self {
        self.hold_limit = messages;
        self
    }

    /// The bytes of the pool that one subscriber may hold at a time, beside the number of messages: up to
    /// [`Options::pool_quota`](crate::Options::pool_quota). Default: no further limit. A subscriber may hold any message alone. Over the
    /// limit it misses messages, or is waited for, as with [`hold_limit`](Self::hold_limit). One that takes more than it may is
    /// evicted.
    pub fn hold_bytes(mut self, bytes: u64) -> Self {
        self.hold_bytes = Some(bytes);
        self
    }

    /// The most subscribers. Default 1024.
    pub fn subscriber_limit(mut self, subscribers: usize) -> Self {
        self.subscriber_limit = subscribers;
        self
    }

    /// How long the publisher waits for a subscriber that wants every message and reads nothing. Then it evicts the subscriber.
    /// One send waits at most four times as long in all, and then evicts those that have not read enough. For those that join
    /// meanwhile it waits eight times as long. Default 1 s.
    pub fn stall_after(mut self, time: Duration) -> Self {
        self.stall_after = time;
        self
    }

    /// Checks the options of a publisher whose pool has `quota` bytes.
    pub(super) fn check(&self, quota: u64) -> Result<()> {
        let wrong = |name, value: u32, must| {
            Err(ErrorKind::InvalidOption { name, value: value.into(), must }.into())
        };
        let Self { slots, slot_len, history, hold_limit, .. } = *self;
        let newest_limit = self.most_newest();
        if !slots.is_power_of_two() || !(2..=1 << 16).contains(&slots) {
            return wrong("slots", slots, "a power of two from 2 to 65536");
        }
        if !slot_len.is_power_of_two() || !(64..=SLOT_LEN).contains(&slot_len) {
            return wrong("slot_len", slot_len, "a power of two from 64 to 2097152");
        }
        if u64::from(slots) * u64::from(slot_len) > TOPIC {
            return wrong("slot_len", slot_len, "at most 1 GiB divided by slots");
        }
        if history >= slots {
            return wrong("history", history, "less than slots");
        }
        if newest_limit > most_newest(slots) {
            return wrong("newest_limit", newest_limit, "at most three quarters of slots");
        }
        if !(1..=HOLDS).contains(&hold_limit) {
            return wrong("hold_limit", hold_limit, "1 to 64");
        }
        if let Some(value) = self.hold_bytes.filter(|bytes| !(1..=quota).contains(bytes)) {
            let (name, must) = ("hold_bytes", "1 to the publisher's Options::pool_quota");
            return Err(ErrorKind::InvalidOption { name, value, must }.into());
        }
        Ok(())
    }

    pub(crate) fn topic(&self) -> Topic {
        let Self { slots, slot_len, hold_limit, history, .. } = *self;
        let hold_bytes = self.hold_bytes.unwrap_or(0);
        Topic { slots, slot_len, hold_limit, history, hold_bytes, first: 0 }
    }

    pub(super) fn admission(&self) -> Admission {
        Admission { every: self.every, newest_limit: self.most_newest() }
    }

    /// Returns the most messages that a subscriber may ask for.
    fn most_newest(&self) -> u32 {
        self.newest_limit.unwrap_or(64.min(most_newest(self.slots)))
    }

    pub(super) fn most_subscribers(&self) -> usize {
        self.subscriber_limit
    }

    pub(super) fn patience(&self) -> Duration {
        self.stall_after
    }
}

/// Returns the most messages that a subscriber can ask for: it needs room between its oldest one and the next that is written.
fn most_newest(slots: u32) -> u32 {
    let capacity = slots.saturating_sub(1);
    capacity - capacity / 4
}

/// The options of a subscriber.
///
/// # Examples
///
/// ```
/// use slipring::broadcast::{PublishOptions, SubscribeOptions};
/// use slipring::{Address, Context};
///
/// let (context, address) = (Context::new()?, Address::fresh());
/// let mut camera = context.publish(&address, PublishOptions::new().history(1))?;
/// camera.send(b"tick")?;
/// let mut viewer = context.subscribe(&address, SubscribeOptions::latest().reconnect(false))?;
/// assert_eq!(viewer.recv()?.unwrap().to_vec()?, b"tick");
/// # Ok::<(), slipring::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct SubscribeOptions {
    policy: Policy,
    reconnect: bool,
    wait_for_publisher: Option<Duration>,
}

impl SubscribeOptions {
    fn of(policy: Policy) -> Self {
        Self { policy, reconnect: true, wait_for_publisher: None }
    }

    /// Asks for every message. The publisher waits for this subscriber, and evicts it after
    /// [`PublishOptions::stall_after`].
    pub fn every() -> Self {
        Self::of(Policy::Every)
    }

    /// Asks for the last so many messages. [`Sample::missed`](super::Sample::missed) tells how many were skipped.
    pub fn newest(messages: u32) -> Self {
        Self::of(Policy::Newest(messages))
    }

    /// Asks for the newest message, and never for one that a later one follows.
    pub fn latest() -> Self {
        Self::of(Policy::Latest)
    }

    /// Whether the subscriber looks for a publisher again after the last one has ended. Default yes. Then a receive waits for
    /// the next publisher, and [`Sample::restarted`](super::Sample::restarted) tells of it. If not, a receive returns `None`
    /// after an orderly end, and [`ErrorKind::PeerDied`] after another one.
    pub fn reconnect(mut self, yes: bool) -> Self {
        self.reconnect = yes;
        self
    }

    /// How long [`Context::subscribe`](crate::Context::subscribe) waits for a publisher that is not there yet. Default: it
    /// does not wait.
    pub fn wait_for_publisher(mut self, time: Duration) -> Self {
        self.wait_for_publisher = Some(time);
        self
    }

    /// Returns what the subscriber asks for.
    pub fn policy(&self) -> Policy {
        self.policy
    }

    pub(super) fn reconnects(&self) -> bool {
        self.reconnect
    }

    pub(crate) fn waits(&self) -> Option<Duration> {
        self.wait_for_publisher
    }
}
