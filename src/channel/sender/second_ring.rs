//! The second ring: a sender whose ring is full for the first time goes on in a longer one.
//!
//! 1. A link has one second ring a direction at most. The Hello tells its length.
//! 2. Its segment is on the socket before the record that leads there is published.
//! 3. A sender that cannot make it stays where it is.

use std::os::fd::AsFd;

use crate::channel::announced::Offered;
use crate::channel::sender::Sender;
use crate::error::Result;
use crate::ring::{Full, batch_limit};
use crate::shm::Segment;

impl Sender {
    /// Goes on in the second ring, if there is one and this half has not moved there. Returns whether it did: then `full` has
    /// room. A batch that is being written moves, too.
    ///
    /// # Errors
    ///
    /// The second ring cannot be made, and the ring is shorter than what has no room.
    #[cold]
    pub(crate) fn move_for(&mut self, full: Full) -> Result<bool> {
        let fits = full.needed <= batch_limit(self.producer.capacity());
        if self.second_ring == 0 {
            return Ok(false);
        }
        match self.move_ring() {
            Ok(is_moved) => Ok(is_moved),
            Err(error) if fits => {
                self.second_ring = 0;
                tracing::debug!(error = format_args!("{error:#}"), "the ring stays short");
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Returns `false` if the socket takes no packet now.
    fn move_ring(&mut self) -> Result<bool> {
        let capacity = self.second_ring;
        let len = capacity as usize;
        let segment = Segment::create("slipring.ring", (len, 0), self.link.terms().backing)?;
        let (mapping, mut ring, fd) = segment.into_parts(0);
        if self.announced.offer_ring(&self.link, capacity, fd.as_fd())? != Offered::Known {
            return Ok(false);
        }
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
        self.second_ring = 0;
        self.announce()?;
        Ok(true)
    }
}
