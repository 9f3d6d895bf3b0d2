//! Publish and subscribe: one writer, any number of readers, one copy.
//!
//! ```text
//!   publisher                                    subscribers, each in its own process
//!   topic: newest, bell, slots ═══ mapped ═════▶ read, copy, check
//!   pool: blocks ═════════════════ mapped ═════▶ hold, read, give back
//!      ▲                                           │
//!      └── position, state, holds ◀══ mapped ══════┘  words of the subscriber's own segment
//! ```
//!
//! A [`Publisher`] writes each message once. Each [`Subscriber`] says what it wants: [every](SubscribeOptions::every) message,
//! the [newest](SubscribeOptions::newest) few, or the [latest](SubscribeOptions::latest) one. A subscriber that is slow,
//! stopped, dead or lying costs nobody else anything, except that a publisher waits for those that want every message, until they
//! have read nothing for [`PublishOptions::stall_after`].
//!
//! 1. The publisher writes the topic and its pool, a subscriber its own segment, and nobody else either of them.
//! 2. A subscriber is a link without messages: its handshake, its end, its segments and its accounts are those of a link.
//! 3. A message lies in its slot, or its slot names the blocks of the pool that it lies in. The publisher owns these blocks
//!    as long as the message keeps them: `docs/broadcast.md` has the rules.
//!
//! # Examples
//!
//! ```
//! use slipring::broadcast::{PublishOptions, SubscribeOptions};
//! use slipring::{Address, Context};
//!
//! let (context, address) = (Context::new()?, Address::fresh());
//! let mut camera = context.publish(&address, PublishOptions::default())?;
//! let mut display = context.subscribe(&address, SubscribeOptions::latest())?;
//! let mut recorder = context.subscribe(&address, SubscribeOptions::every())?;
//! for frame in 0..3u8 {
//!     camera.send(&[frame])?;
//! }
//! assert_eq!(display.recv()?.unwrap().to_vec()?, [2]);
//! assert_eq!(recorder.recv()?.unwrap().to_vec()?, [0]);
//! # Ok::<(), slipring::Error>(())
//! ```

mod audience;
mod batch;
mod cursor;
mod event;
mod feed;
mod host;
mod info;
mod layout;
#[cfg(all(test, slipring_loom))]
mod models;
mod opening;
mod options;
mod payload;
mod publisher;
mod record;
mod reservation;
mod sample;
mod seat;
mod slots;
mod stall;
mod subscriber;
mod topic;

pub use crate::handshake::Policy;
pub use event::{Event, EventKind};
pub(crate) use feed::Feed;
pub use info::{SubscriberInfo, SubscriberState};
pub use options::{PublishOptions, SubscribeOptions};
pub use publisher::Publisher;
pub use reservation::PublishReservation;
pub use sample::{OwnedSample, Sample};
pub(crate) use seat::UNRECEIVED;
pub use subscriber::Subscriber;
pub(crate) use subscriber::{Joining, is_absent};
