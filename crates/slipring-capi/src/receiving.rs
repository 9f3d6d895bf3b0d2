//! The receiving half of a connection, and the message that is peeked at.
//!
//! 1. A peeked message borrows the receiver. Every other use of the receiver ends the peek first, and the message stays
//!    the next one.
//! 2. In a forked child a peeked message is not released: its memory is not there.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ptr::NonNull;
use std::time::Duration;

use slipring::message::MessageKind;
use slipring::seam::Generation;
use slipring::{Error, ErrorKind, Received, Receiver};

use crate::failure::{Answer, Failure};
use crate::messages::{slipring_kind, slipring_message};
use crate::status::slipring_status::SLIPRING_WRONG_STATE;
use crate::timeout::Timeout;

/// The receiving half of a connection.
pub(crate) struct Receiving {
    /// From a box. A pointer, because `peeked` borrows it.
    receiver: NonNull<Receiver>,
    peeked: Option<Received<'static>>,
    generation: Generation,
}

// SAFETY: the pointer is that of a box which this half owns.
unsafe impl Send for Receiving {}

/// Returns the length of a message that did not fit.
fn needed(error: &Error) -> Option<usize> {
    match error.kind() {
        ErrorKind::BufferTooShort { len, .. } => Some(*len),
        _ => None,
    }
}

impl Receiving {
    pub(crate) fn new(receiver: Receiver, generation: Generation) -> Self {
        let receiver = NonNull::from(Box::leak(Box::new(receiver)));
        Self { receiver, peeked: None, generation }
    }

    /// Returns the receiver. It ends a peek.
    #[inline(always)]
    fn receiver(&mut self) -> &'static mut Receiver {
        // The message stays the next one.
        self.peeked = None;
        // SAFETY: it is of a box that lives as long as this half, and nothing borrows it. The callers keep it no
        // longer than their own borrow of this half, or keep it in `peeked`.
        unsafe { self.receiver.as_mut() }
    }

    /// Receives into a buffer. Returns the length, and whether the message fits.
    #[inline(always)]
    pub(crate) fn recv(&mut self, buffer: &mut [u8], timeout: i64) -> (usize, Answer) {
        match self.receive(buffer, timeout) {
            Ok(Some(len)) => (len, Ok(())),
            Ok(None) => (0, Err(Failure::End)),
            Err(Failure::Library(error)) => (needed(&error).unwrap_or(0), Err(error.into())),
            Err(failure) => (0, Err(failure)),
        }
    }

    #[inline(always)]
    fn receive(&mut self, buffer: &mut [u8], timeout: i64) -> Answer<Option<usize>> {
        let timeout = Timeout::new(timeout)?;
        let receiver = self.receiver();
        match timeout {
            Timeout::Default | Timeout::Forever => Ok(receiver.recv_to(buffer)?),
            Timeout::None => Ok(receiver.try_recv_to(buffer)?),
            time => match receiver.try_recv_to(buffer).map_err(Failure::from) {
                Err(Failure::WouldBlock) => Ok(receiver.recv_to_deadline(buffer, time.deadline())?),
                answer => answer,
            },
        }
    }

    /// Returns the next message in place.
    #[inline(always)]
    pub(crate) fn peek(&mut self, timeout: i64) -> Answer<slipring_message> {
        let timeout = Timeout::new(timeout)?;
        let receiver = self.receiver();
        let received = match timeout {
            Timeout::Default | Timeout::Forever => receiver.peek()?,
            Timeout::None => receiver.try_peek()?,
            time => match receiver.try_peek().map_err(Failure::from) {
                Err(Failure::WouldBlock) => self.receiver().peek_deadline(time.deadline())?,
                received => received?,
            },
        };
        let Some(received) = received else { return Err(Failure::End) };
        let bytes = received.bytes();
        let message = slipring_message {
            data: bytes.as_ptr().cast::<c_void>(),
            len: bytes.len(),
            kind: kind(received.kind()),
        };
        self.peeked = Some(received);
        Ok(message)
    }

    /// Returns the memory of the peeked message to the peer.
    #[inline(always)]
    pub(crate) fn release(&mut self) -> Answer {
        self.check_process()?;
        match self.peeked.take() {
            Some(received) => Ok(received.release()?),
            None => {
                let text = "no message is peeked at: slipring_peek first";
                Err(Failure::Border(SLIPRING_WRONG_STATE, text))
            }
        }
    }

    pub(crate) fn take_turns(&mut self) -> Answer {
        self.check_process()?;
        self.receiver().take_turns();
        Ok(())
    }

    pub(crate) fn rest(&mut self) -> Answer<Option<Duration>> {
        self.check_process()?;
        Ok(self.receiver().rest())
    }

    fn check_process(&self) -> Answer {
        if self.generation.is_current() { Ok(()) } else { Err(ErrorKind::Forked.into()) }
    }

    /// Returns the receiver, while no message is peeked at.
    pub(crate) fn idle(&self) -> Answer<&Receiver> {
        if self.peeked.is_some() {
            let text = "a message is peeked at: release it first";
            return Err(Failure::Border(SLIPRING_WRONG_STATE, text));
        }
        // SAFETY: it is of a box that lives as long as this half, and nothing borrows it.
        Ok(unsafe { self.receiver.as_ref() })
    }

    /// Returns the receiver of a connection that ends.
    pub(crate) fn end(mut self) -> Box<Receiver> {
        self.receiver();
        // SAFETY: the pointer comes from a box, and nothing borrows it any more.
        unsafe { Box::from_raw(self.receiver.as_ptr()) }
    }
}

#[inline(always)]
fn kind(kind: MessageKind) -> slipring_kind {
    use slipring_kind::*;
    match kind {
        MessageKind::Message => SLIPRING_KIND_MESSAGE,
        MessageKind::Request(_) => SLIPRING_KIND_REQUEST,
        MessageKind::Response(_) => SLIPRING_KIND_RESPONSE,
        MessageKind::Tensors => SLIPRING_KIND_TENSORS,
        MessageKind::TensorRequest(_) => SLIPRING_KIND_TENSOR_REQUEST,
        MessageKind::TensorResponse(_) => SLIPRING_KIND_TENSOR_RESPONSE,
        _ => SLIPRING_KIND_OTHER,
    }
}
