//! Room for one message of a topic, which the publisher's owner writes in place.
//!
//! 1. Dropped without `publish`, it publishes nothing, and the next message has its number.
//! 2. The slot that it writes is empty for readers: those that are so far behind go on with a later message.

use std::ops::{Deref, DerefMut};

use crate::broadcast::publisher::Publisher;
use crate::error::Result;
use crate::pool::Block;

/// Room for one message, which the caller writes where the subscribers read it. [`Publisher::reserve`] makes it. Its bytes are
/// those of earlier messages until the caller has written them.
///
/// Dropped without [`publish`](Self::publish), it publishes nothing.
///
/// # Examples
///
/// ```
/// use slipring::broadcast::{PublishOptions, SubscribeOptions};
/// use slipring::{Address, Context};
///
/// let (context, address) = (Context::new()?, Address::fresh());
/// let mut prices = context.publish(&address, PublishOptions::default())?;
/// let mut log = context.subscribe(&address, SubscribeOptions::every())?;
///
/// let mut room = prices.reserve(8)?;
/// room.copy_from_slice(&7u64.to_le_bytes());
/// room.publish()?;
/// assert_eq!(log.recv()?.unwrap().to_vec()?, 7u64.to_le_bytes());
/// # Ok::<(), slipring::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "a reservation sends nothing before it is published"]
pub struct PublishReservation<'a> {
    publisher: &'a mut Publisher,
    room: Room,
}

/// Where the message is written.
#[derive(Debug)]
enum Room {
    /// In the next slot: `range` is the start and the length of its bytes behind the metadata.
    Slot {
        header: u64,
        range: (usize, usize),
    },
    Block {
        metadata: Vec<u8>,
        block: Block,
    },
}

impl<'a> PublishReservation<'a> {
    #[inline(always)]
    pub(super) fn in_slot(
        publisher: &'a mut Publisher,
        header: u64,
        range: (usize, usize),
    ) -> Self {
        Self { publisher, room: Room::Slot { header, range } }
    }

    pub(super) fn in_block(publisher: &'a mut Publisher, metadata: Vec<u8>, block: Block) -> Self {
        Self { publisher, room: Room::Block { metadata, block } }
    }

    /// Publishes the message.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::PoolExhausted`](crate::ErrorKind::PoolExhausted): the message lies in the pool with metadata that does
    ///   not fit into a slot, and all of the pool is in use.
    /// - [`ErrorKind::Forked`](crate::ErrorKind::Forked): this process is a fork of the one that made the publisher.
    #[inline]
    pub fn publish(self) -> Result<()> {
        let Self { publisher, room } = self;
        match room {
            Room::Slot { header, .. } => {
                publisher.publish_slot(header);
                Ok(())
            }
            Room::Block { metadata, block } => publisher.publish_block(&metadata, block),
        }
    }
}

impl Deref for PublishReservation<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.room {
            Room::Slot { range, .. } => self.publisher.in_slots(*range),
            Room::Block { block, .. } => block.bytes(),
        }
    }
}

impl DerefMut for PublishReservation<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.room {
            Room::Slot { range, .. } => self.publisher.in_slots_mut(*range),
            Room::Block { block, .. } => block.bytes_mut(),
        }
    }
}
