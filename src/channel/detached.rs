//! Reservations, batches and peeked messages without their borrow of the half, for a caller that cannot keep one: C.
//!
//! 1. What was detached is attached to the half that it came from, before that half does anything else. Otherwise the
//!    half sends bytes that nobody wrote, reads other ones, or panics; no memory beyond its own is touched.
//! 2. The parts are kept and read in their own widths. A move as a whole would wait for their stores.

use std::mem::ManuallyDrop;

use crate::channel::inbox::RecordHead;
use crate::channel::inbox::receiver::{Received, Receiver};
use crate::channel::sender::Sender;
use crate::channel::sender::reservation::{Batch, Reservation};
use crate::error::Result;
use crate::ring::Header;

/// A reservation without its sender. Dropped, it sends nothing, and a block of the pool stays with the sender.
#[derive(Debug)]
pub struct DetachedReservation {
    offset: usize,
    header: Header,
    next: u64,
    len: usize,
}

impl DetachedReservation {
    /// Takes a reservation off its sender.
    #[inline(always)]
    pub fn of(reservation: Reservation<'_>) -> Self {
        // The drop would give a block of the pool back.
        let Reservation { offset, header, next, len, .. } = *ManuallyDrop::new(reservation);
        Self { offset, header, next, len }
    }

    /// Returns the length of the message in bytes.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the message has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the reservation of its sender.
    #[inline(always)]
    pub fn attach<'a>(&self, sender: &'a mut Sender) -> Reservation<'a> {
        let Self { offset, header, next, len } = *self;
        Reservation { offset, header, next, len, sender }
    }
}

/// Returns the batch that was left open on its sender.
#[inline(always)]
pub fn attach_batch(sender: &mut Sender) -> Batch<'_> {
    Batch { sender }
}

/// A peeked message without its receiver. It stays the next one.
#[derive(Debug)]
pub struct DetachedReceived(RecordHead);

impl DetachedReceived {
    /// Takes a peeked message off its receiver.
    #[inline(always)]
    pub fn of(received: Received<'_>) -> Self {
        Self(received.head)
    }

    /// As [`Received::release`].
    ///
    /// # Errors
    ///
    /// As [`Received::release`].
    #[inline(always)]
    pub fn release(&self, receiver: &mut Receiver) -> Result<()> {
        receiver.release(&self.0)
    }
}
