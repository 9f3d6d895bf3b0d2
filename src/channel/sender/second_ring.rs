//! The second ring: a sender whose ring is full for the first time goes on in a longer one.
//!
//! 1. A link has one second ring a direction at most. The Hello tells its length.
//! 2. Its segment is on the socket before the record that leads there is published.
//! 3. A sender that cannot make it stays in the first ring for good. One whose peer leaves it no room on the socket keeps what
//!    it has made, and tries again.

use std::os::fd::AsFd;

use crate::channel::sender::Sender;
use crate::error::Result;
use crate::ring::{Full, batch_limit};

impl Sender {
    /// Goes on in the second ring, if there is one and this half has not moved there. Returns whether it did: then what found the
    /// ring `full` has room. A batch that is being written moves, too.
    ///
    /// # Errors
    ///
    /// The second ring cannot be made, and the ring is shorter than what has no room.
    #[cold]
    pub(crate) fn move_for(&mut self, full: Full) -> Result<bool> {
        if self.second_ring.is_none() {
            return Ok(false);
        }
        match self.move_ring() {
            Ok(is_moved) => Ok(is_moved),
            Err(error) if self.fits(full) => {
                self.second_ring = None;
                tracing::debug!(error = format_args!("{error:#}"), "the ring stays short");
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Returns whether what found no room fits into this ring.
    pub(crate) fn fits(&self, full: Full) -> bool {
        full.needed <= batch_limit(self.producer.capacity())
    }

    /// Returns the length of the longest ring that this half may come to, in bytes.
    pub(crate) fn longest_ring(&self) -> u64 {
        let second = self.second_ring.as_ref().map_or(0, |ring| ring.capacity());
        self.producer.capacity().max(second)
    }

    /// Moves now or never. The rooms of a batch stay where they are from now on, also while the caller writes several.
    #[doc(hidden)]
    pub fn settle_ring(&mut self) {
        if self.second_ring.is_some() {
            let _ = self.move_ring();
            self.second_ring = None;
        }
    }

    /// Returns `false` if the socket takes no packet now.
    fn move_ring(&mut self) -> Result<bool> {
        self.check()?;
        let Self { second_ring, link, announced, .. } = self;
        let Some(second) = second_ring else { return Ok(false) };
        let capacity = second.capacity();
        let (_, _, fd) = second.make(link.terms().backing)?;
        if !announced.offer_ring(link, capacity, fd.as_fd())? {
            return Ok(false);
        }
        let made = second_ring.take().and_then(|second| second.take());
        let Some((mapping, mut ring, _)) = made else { return Ok(false) };
        let batch = self.producer.find_batch(&self.batch);
        if let Some((start, len)) = batch {
            ring.put(0, self.ring.bytes(start, len));
        }
        self.producer.move_to(&mapping, 0, capacity);
        if batch.is_some() {
            self.producer.resume(&mut self.batch);
        } else {
            self.producer.start(&mut self.batch);
        }
        self.ring = ring;
        self.announce()?;
        Ok(true)
    }
}
