//! What happens to the subscribers of a publisher.

use crate::error::Eviction;
use crate::handshake::Peer;

/// What has happened to a subscriber.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum EventKind {
    /// It has joined.
    Joined,
    /// It has left in order.
    Left,
    /// It has died, or its end of the socket went away.
    Died,
    /// The publisher has evicted it.
    Evicted(Eviction),
}

/// Something that has happened to a subscriber.
///
/// # Examples
///
/// ```
/// use slipring::broadcast::{EventKind, PublishOptions, SubscribeOptions};
/// use slipring::{Address, Context};
///
/// let (context, address) = (Context::new()?, Address::fresh());
/// let camera = context.publish(&address, PublishOptions::default())?;
/// let viewer = context.subscribe(&address, SubscribeOptions::latest())?;
/// let events = camera.take_events();
/// assert_eq!(events[0].kind(), EventKind::Joined);
/// assert_eq!(events[0].pid(), Some(std::process::id()));
/// # Ok::<(), slipring::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    kind: EventKind,
    subscriber: u64,
    pid: Option<u32>,
    uid: u32,
}

impl Event {
    pub(super) fn new(kind: EventKind, subscriber: u64, peer: &Peer) -> Self {
        Self { kind, subscriber, pid: peer.pid(), uid: peer.uid() }
    }

    /// Returns what has happened.
    pub fn kind(&self) -> EventKind {
        self.kind
    }

    /// Returns the number of the subscriber.
    pub fn subscriber(&self) -> u64 {
        self.subscriber
    }

    /// Returns the subscriber's process, if it is in this process's pid namespace.
    pub fn pid(&self) -> Option<u32> {
        self.pid
    }

    /// Returns the subscriber's effective user id.
    pub fn uid(&self) -> u32 {
        self.uid
    }
}
