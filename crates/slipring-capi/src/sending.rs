//! The sending half of a connection, and what is open on it.
//!
//! 1. At most one reservation or batch is open. While it is, the half sends nothing else.
//! 2. In a forked child what is open is left as it is: its memory is not there.

use std::ptr::NonNull;
use std::time::Instant;

use slipring::seam::{AtOnce, DetachedReservation, Generation, SendPatience, attach_batch, halves};
use slipring::{ErrorKind, Reservation, Sender};

use crate::failure::{Answer, Failure};
use crate::receiving::Receiving;
use crate::status::slipring_status::{SLIPRING_INVALID_ARGUMENT, SLIPRING_WRONG_STATE};
use crate::tensor::Held;
use crate::tensor_set::Set;
use crate::timeout::Timeout;

/// The sending half of a connection.
pub(crate) struct Sending {
    sender: Sender,
    open: Open,
    generation: Generation,
}

enum Open {
    Nothing,
    /// A message of so many bytes, for which there was room at once.
    AtOnce(u32),
    Message(DetachedReservation),
    Batch,
}

fn wrong_state<T>(text: &'static str) -> Answer<T> {
    Err(Failure::Border(SLIPRING_WRONG_STATE, text))
}

impl Sending {
    pub(crate) fn new(sender: Sender, generation: Generation) -> Self {
        Self { sender, open: Open::Nothing, generation }
    }

    /// Returns the sender, on which nothing is open.
    #[inline(always)]
    pub(crate) fn sender(&mut self) -> Answer<&mut Sender> {
        match self.open {
            Open::Nothing => Ok(&mut self.sender),
            _ => Err(self.is_open()),
        }
    }

    #[cold]
    fn is_open(&self) -> Failure {
        if let Err(forked) = self.check_process() {
            return forked;
        }
        let text = match self.open {
            Open::Batch => "a batch is open: publish or discard it first",
            _ => "a message is reserved: publish or discard it first",
        };
        Failure::Border(SLIPRING_WRONG_STATE, text)
    }

    /// Sends a message, if that is done at once.
    #[inline(always)]
    pub(crate) fn send_at_once(&mut self, message: &[u8]) -> AtOnce {
        match self.open {
            Open::Nothing => self.sender.send_at_once(message),
            _ => AtOnce::No,
        }
    }

    /// Returns the room of a message of `len` bytes, if there is one at once.
    #[inline(always)]
    pub(crate) fn reserve_at_once(&mut self, len: usize) -> Option<NonNull<u8>> {
        let Open::Nothing = self.open else { return None };
        let room = self.sender.reserve_at_once(len)?;
        self.open = Open::AtOnce(len as u32);
        Some(room)
    }

    /// Publishes the reserved message, if that is done at once.
    #[inline(always)]
    pub(crate) fn publish_at_once(&mut self) -> AtOnce {
        let Open::AtOnce(len) = self.open else { return AtOnce::No };
        let published = self.sender.publish_at_once(len as usize);
        if published != AtOnce::No {
            self.open = Open::Nothing;
        }
        published
    }

    /// Wakes the receiver of a message that was published at once.
    pub(crate) fn announce(&mut self) -> Answer {
        Ok(self.sender.announce_it()?)
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
        self.sender()?;
        // Each arm keeps its reservation by itself. One that the arms had in common would be moved through memory, and
        // wait for the stores of its parts.
        match Timeout::new(timeout)? {
            Timeout::Default => Ok(keep(self.sender.reserve(len)?, &mut self.open)),
            Timeout::None => Ok(keep(self.sender.try_reserve(len)?, &mut self.open)),
            time => self.reserve_for(len, time),
        }
    }

    fn reserve_for(&mut self, len: usize, time: Timeout) -> Answer<*mut u8> {
        match self.sender.try_reserve(len).map_err(Failure::from) {
            Ok(room) => return Ok(keep(room, &mut self.open)),
            Err(Failure::WouldBlock) => {}
            Err(failure) => return Err(failure),
        }
        Ok(keep(self.sender.reserve_deadline(len, time.deadline())?, &mut self.open))
    }

    /// Sends a tensor. If it fails, `held` keeps it.
    #[inline]
    pub(crate) fn send_tensor(&mut self, held: &mut Held, timeout: i64) -> Answer {
        let sender = self.sender()?;
        in_time(timeout, |patience| held.send(sender, patience))
    }

    /// Sends a set of tensors. If it fails, `set` keeps them.
    pub(crate) fn send_tensors(&mut self, set: &mut Set, timeout: i64) -> Answer {
        let sender = self.sender()?;
        let time = Timeout::new(timeout)?;
        set.send(|tensors| match time {
            Timeout::Default => Ok(sender.send_tensors(tensors)?),
            Timeout::None => Ok(sender.try_send_tensors(tensors)?),
            time => match sender.try_send_tensors(tensors).map_err(Failure::from) {
                Err(Failure::WouldBlock) => {
                    Ok(sender.send_tensors_deadline(tensors, time.deadline())?)
                }
                answer => answer,
            },
        })
    }

    /// Sends a request. Returns its number.
    pub(crate) fn submit(
        &mut self,
        receiving: &mut Receiving,
        request: &[u8],
        timeout: i64,
    ) -> Answer<u64> {
        let sender = self.sender()?;
        let deadline = deadline(sender, timeout)?;
        Ok(halves::submit((sender, receiving.receiver()), request, deadline)?)
    }

    /// Sends a request with tensors. Returns its number. If it fails, `set` keeps them.
    pub(crate) fn submit_tensors(
        &mut self,
        receiving: &mut Receiving,
        set: &mut Set,
        timeout: i64,
    ) -> Answer<u64> {
        let sender = self.sender()?;
        let (deadline, mut id) = (deadline(sender, timeout)?, 0);
        set.send(|tensors| {
            id = halves::submit_tensors((sender, receiving.receiver()), tensors, deadline)?;
            Ok(())
        })?;
        Ok(id)
    }

    /// Answers a request.
    pub(crate) fn respond(&mut self, id: u64, response: &[u8], timeout: i64) -> Answer {
        let sender = self.sender()?;
        in_time(timeout, |patience| Ok(halves::respond(sender, id, response, patience)?))
    }

    /// Answers a request with tensors. If it fails, `set` keeps them.
    pub(crate) fn respond_tensors(&mut self, id: u64, set: &mut Set, timeout: i64) -> Answer {
        let sender = self.sender()?;
        set.send(|tensors| {
            in_time(timeout, |patience| Ok(halves::respond_tensors(sender, id, tensors, patience)?))
        })
    }

    /// Triggers a token of the peer.
    pub(crate) fn trigger(&mut self, token: u32, timeout: i64) -> Answer {
        let sender = self.sender()?;
        in_time(timeout, |patience| Ok(sender.put_trigger(token.into(), patience)?))
    }

    /// Starts a batch.
    pub(crate) fn begin(&mut self) -> Answer {
        let sender = self.sender()?;
        // The caller may write several rooms at a time, and they must not move.
        sender.settle_ring();
        let _batch = sender.batch()?;
        self.open = Open::Batch;
        Ok(())
    }

    /// Adds a message of `len` bytes to the batch. Returns its room.
    #[inline(always)]
    pub(crate) fn add(&mut self, len: usize, timeout: i64) -> Answer<*mut u8> {
        self.check_process()?;
        let Open::Batch = self.open else {
            return wrong_state("no batch is open: slipring_batch_begin");
        };
        let mut batch = attach_batch(&mut self.sender);
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
        let published = match &self.open {
            // The same room once more.
            Open::AtOnce(len) => self.sender.reserve(*len as usize).and_then(Reservation::publish),
            Open::Message(message) => message.attach(&mut self.sender).publish(),
            Open::Batch => attach_batch(&mut self.sender).publish(),
            Open::Nothing => return wrong_state("nothing is reserved, and no batch is open"),
        };
        self.open = Open::Nothing;
        Ok(published?)
    }

    /// Publishes the first `len` bytes of the reserved message.
    pub(crate) fn publish_first(&mut self, len: usize) -> Answer {
        self.check_process()?;
        let reserved = match &self.open {
            Open::AtOnce(len) => *len as usize,
            Open::Message(message) => message.len(),
            _ => return wrong_state("no message is reserved"),
        };
        if len > reserved {
            let text = "the length is more than was reserved";
            return Err(Failure::Border(SLIPRING_INVALID_ARGUMENT, text));
        }
        let message = match std::mem::replace(&mut self.open, Open::Nothing) {
            Open::Message(message) => Ok(message.attach(&mut self.sender)),
            // The same room once more.
            _ => self.sender.reserve(reserved),
        };
        let mut message = message?;
        message.truncate(len);
        Ok(message.publish()?)
    }

    /// Drops what is open, which sends nothing.
    pub(crate) fn discard(&mut self) -> Answer {
        self.check_process()?;
        if let Open::Nothing = self.open {
            return wrong_state("nothing is reserved, and no batch is open");
        }
        self.give_back();
        Ok(())
    }

    /// Gives a block of the pool back, where one is reserved.
    fn give_back(&mut self) {
        if let Open::Message(message) = &self.open {
            drop(message.attach(&mut self.sender));
        }
        self.open = Open::Nothing;
    }

    /// Returns the sender of a connection that ends.
    pub(crate) fn end(mut self) -> Sender {
        if self.generation.is_current() {
            self.give_back();
        }
        self.sender
    }

    /// Checks that no `fork` lies between the caller and the process of the connection.
    #[inline(always)]
    pub(crate) fn check_process(&self) -> Answer {
        if self.generation.is_current() { Ok(()) } else { Err(ErrorKind::Forked.into()) }
    }
}

/// Tries once, and reads the clock only if it has to wait.
#[inline(always)]
pub(crate) fn in_time(timeout: i64, mut act: impl FnMut(SendPatience) -> Answer) -> Answer {
    let time = Timeout::new(timeout)?;
    let now = if let Timeout::Default = time { SendPatience::Default } else { SendPatience::None };
    match act(now) {
        Err(Failure::WouldBlock) if !matches!(time, Timeout::None) => {
            act(SendPatience::Until(time.deadline()))
        }
        answer => answer,
    }
}

/// Returns when a request must be sent.
fn deadline(sender: &Sender, timeout: i64) -> Answer<Instant> {
    Ok(match Timeout::new(timeout)? {
        Timeout::Default => sender.default_deadline(),
        time => time.deadline(),
    })
}

/// Keeps a reservation. Returns its room.
#[inline(always)]
fn keep(mut room: Reservation<'_>, open: &mut Open) -> *mut u8 {
    let start = room.as_mut_ptr();
    *open = Open::Message(DetachedReservation::of(room));
    start
}
