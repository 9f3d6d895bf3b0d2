//! The role of a side: of a link, or of a broadcast.

use crate::error::{Error, ErrorKind, Result};

/// What a subscriber wants of the messages of a publisher.
///
/// # Examples
///
/// ```
/// use slipring::broadcast::{Policy, SubscribeOptions};
///
/// assert_eq!(SubscribeOptions::newest(8).policy(), Policy::Newest(8));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Policy {
    /// Every message. The publisher waits for this subscriber, and evicts it when it makes no progress.
    Every,
    /// The last so many messages. The publisher does not wait.
    Newest(u32),
    /// The newest message. The publisher does not wait.
    Latest,
}

/// The role of a side, as its Hello tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// A link: messages both ways.
    Link,
    /// One writer of a broadcast.
    Publisher,
    /// One reader of a broadcast.
    Subscriber(Policy),
}

/// The roles that a listener answers, and its own.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Service {
    /// Links.
    Links,
    /// Subscribers.
    Broadcast(Admission),
}

/// The subscribers that a publisher admits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Admission {
    /// Whether it waits for subscribers that want every message.
    pub(crate) every: bool,
    /// The most messages of [`Policy::Newest`].
    pub(crate) newest_limit: u32,
}

impl Service {
    /// Returns this side's role in a handshake.
    pub(crate) fn role(&self) -> Role {
        match self {
            Self::Links => Role::Link,
            Self::Broadcast(_) => Role::Publisher,
        }
    }

    /// Checks the role of a peer that connects.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WrongService`], [`ErrorKind::PolicyRefused`]
    pub(crate) fn check(&self, theirs: Role) -> Result<()> {
        match (self, theirs) {
            (Self::Links, Role::Link) => Ok(()),
            (Self::Links, _) => Err(ErrorKind::WrongService { publishes: false }.into()),
            (Self::Broadcast(admission), Role::Subscriber(policy)) => admission.check(policy),
            (Self::Broadcast(_), _) => Err(ErrorKind::WrongService { publishes: true }.into()),
        }
    }
}

impl Admission {
    fn check(&self, policy: Policy) -> Result<()> {
        let is_admitted = match policy {
            Policy::Every => self.every,
            Policy::Newest(count) => (1..=self.newest_limit).contains(&count),
            Policy::Latest => true,
        };
        if is_admitted { Ok(()) } else { Err(ErrorKind::PolicyRefused.into()) }
    }
}

/// Checks the role of the side that answers a Hello of role `ours`.
///
/// # Errors
///
/// [`ErrorKind::WrongService`]
pub(crate) fn check_answer(ours: Role, theirs: Role) -> Result<(), Error> {
    match (ours, theirs) {
        (Role::Link, Role::Link) | (Role::Subscriber(_), Role::Publisher) => Ok(()),
        _ => Err(ErrorKind::WrongService { publishes: theirs == Role::Publisher }.into()),
    }
}
