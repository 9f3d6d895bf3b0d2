//! The sending half of a connection, and what is open on it.
//!
//! 1. At most one reservation or batch is open. While it is, the half sends nothing else.
//! 2. An open reservation or batch borrows the sender, which nothing else touches meanwhile.
//! 3. In a forked child what is open is left as it is: its memory is not there.

#![allow(unsafe_code)]

use std::ptr::NonNull;

use slipring::seam::Generation;
use slipring::{Batch, ErrorKind, Reservation, Sender};

use crate::failure::{Answer, Failure};
use crate::status::slipring_status::{SLIPRING_INVALID_ARGUMENT, SLIPRING_WRONG_STATE};
use crate::timeout::Timeout;

/// The sending half of a connection.
pub(crate) struct Sending {
    /// From a box. A pointer, because `open` borrows it.
    sender: NonNull<Sender>,
    open: Open,
    generation: Generation,
}

enum Open {
    Nothing,
    Message(Reservation<'static>),
    Batch(Batch<'static>),
}

// SAFETY: the pointer is that of a box which this half owns.
unsafe impl Send for Sending {}

fn wrong_state<T>(text: &'static str) -> Answer<T> {
    Err(Failure::Border(SLIPRING_WRONG_STATE, text))
}

impl Sending {
    pub(crate) fn new(sender: Sender, generation: Generation) -> Self {
        let sender = NonNull::from(Box::leak(Box::new(sender)));
        Self { sender, open: Open::Nothing, generation }
    }

    /// Returns the sender, on which nothing is open.
    #[inline(always)]
    pub(crate) fn sender(&mut self) -> Answer<&'static mut Sender> {
        match self.open {
            // SAFETY: it is of a box that lives as long as this half, and nothing borrows it. The callers keep it no
            // longer than their own borrow of this half, or keep it in `open`.
            Open::Nothing => Ok(unsafe { self.sender.as_mut() }),
            Open::Message(_) => wrong_state("a message is reserved: publish or discard it first"),
            Open::Batch(_) => wrong_state("a batch is open: publish or discard it first"),
        }
    }

    #[inline(always)]
    pub(crate) fn send(&mut self, message: &[u8], timeout: i64) -> Answer {
        let sender = self.sender()?;
        match Timeout::new(timeout)? {
            Timeout::Default => Ok(sender.send(message)?),
            Timeout::None => Ok(sender.try_send(message)?),
            time => match sender.try_send(message).map_err(Failure::from) {
                Err(Failure::WouldBlock) => Ok(sender.send_deadline(message, time.deadline())?),
                answer => answer,
            },
        }
    }

    /// Returns the room of a message of `len` bytes.
    #[inline(always)]
    pub(crate) fn reserve(&mut self, len: usize, timeout: i64) -> Answer<*mut u8> {
        let sender = self.sender()?;
        let mut room = match Timeout::new(timeout)? {
            Timeout::Default => sender.reserve(len)?,
            Timeout::None => sender.try_reserve(len)?,
            time => match sender.try_reserve(len).map_err(Failure::from) {
                Err(Failure::WouldBlock) => {
                    self.sender()?.reserve_deadline(len, time.deadline())?
                }
                room => room?,
            },
        };
        let start = room.as_mut_ptr();
        self.open = Open::Message(room);
        Ok(start)
    }

    /// Starts a batch.
    pub(crate) fn begin(&mut self) -> Answer {
        self.open = Open::Batch(self.sender()?.batch()?);
        Ok(())
    }

    /// Adds a message of `len` bytes to the batch. Returns its room.
    #[inline(always)]
    pub(crate) fn add(&mut self, len: usize, timeout: i64) -> Answer<*mut u8> {
        self.check_process()?;
        let Open::Batch(batch) = &mut self.open else {
            return wrong_state("no batch is open: slipring_batch_begin");
        };
        let room = match Timeout::new(timeout)? {
            Timeout::Default => batch.reserve(len)?,
            Timeout::None => batch.try_reserve(len)?,
            time => match batch.try_reserve(len).map_err(Failure::from) {
                Ok(room) => return Ok(room.as_mut_ptr()),
                Err(Failure::WouldBlock) => batch.reserve_deadline(len, time.deadline())?,
                Err(failure) => return Err(failure),
            },
        };
        Ok(room.as_mut_ptr())
    }

    /// Publishes what is open.
    #[inline(always)]
    pub(crate) fn publish(&mut self) -> Answer {
        self.check_process()?;
        match std::mem::replace(&mut self.open, Open::Nothing) {
            Open::Message(message) => Ok(message.publish()?),
            Open::Batch(batch) => Ok(batch.publish()?),
            Open::Nothing => wrong_state("nothing is reserved, and no batch is open"),
        }
    }

    /// Publishes the first `len` bytes of the reserved message.
    pub(crate) fn publish_first(&mut self, len: usize) -> Answer {
        self.check_process()?;
        let Open::Message(message) = &mut self.open else {
            return wrong_state("no message is reserved");
        };
        if len > message.len() {
            let text = "the length is more than was reserved";
            return Err(Failure::Border(SLIPRING_INVALID_ARGUMENT, text));
        }
        message.truncate(len);
        self.publish()
    }

    /// Drops what is open, which sends nothing.
    pub(crate) fn discard(&mut self) -> Answer {
        self.check_process()?;
        match std::mem::replace(&mut self.open, Open::Nothing) {
            Open::Nothing => wrong_state("nothing is reserved, and no batch is open"),
            _ => Ok(()),
        }
    }

    /// Returns the sender of a connection that ends.
    pub(crate) fn end(mut self) -> Box<Sender> {
        let open = std::mem::replace(&mut self.open, Open::Nothing);
        if !self.generation.is_current() {
            std::mem::forget(open);
        } else {
            drop(open);
        }
        // SAFETY: the pointer comes from a box, and nothing borrows it any more.
        unsafe { Box::from_raw(self.sender.as_ptr()) }
    }

    /// Checks that no `fork` lies between the caller and the process of the connection.
    #[inline(always)]
    pub(crate) fn check_process(&self) -> Answer {
        if self.generation.is_current() { Ok(()) } else { Err(ErrorKind::Forked.into()) }
    }
}
