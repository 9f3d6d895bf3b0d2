//! The receiving half of a connection, and the message that is peeked at.
//!
//! 1. Every other use of the receiver ends a peek, and the message stays the next one.
//! 2. In a forked child a peeked message is not released: its memory is not there.

use std::ffi::c_void;
use std::time::{Duration, Instant};

use slipring::error::TryRecvError;
use slipring::message::{MessageKind, Request, TensorRequest};
use slipring::seam::{DetachedReceived, Generation, halves};
use slipring::{ErrorKind, Received, Receiver, Tensor, TensorSet};

use crate::failure::{Answer, Failure};
use crate::messages::{slipring_kind, slipring_message};
use crate::pointers::Out;
use crate::status::slipring_status::SLIPRING_WRONG_STATE;
use crate::tensor::{Held, slipring_tensor};
use crate::timeout::Timeout;

/// The receiving half of a connection.
pub(crate) struct Receiving {
    receiver: Receiver,
    peeked: Peeked,
    /// The bytes of the last call that C got.
    call: Vec<u8>,
    generation: Generation,
}

/// The message that is peeked at.
enum Peeked {
    Nothing,
    /// One that was there at once.
    AtOnce,
    Message(DetachedReceived),
}

/// Returns the length of a message that did not fit.
#[cold]
fn needed(failure: &Failure) -> Option<usize> {
    let Failure::Library(error) = failure else { return None };
    if let ErrorKind::BufferTooShort { len, .. } = error.kind() { Some(*len) } else { None }
}

impl Receiving {
    pub(crate) fn new(receiver: Receiver, generation: Generation) -> Self {
        Self { receiver, peeked: Peeked::Nothing, call: Vec::new(), generation }
    }

    /// Returns the receiver. It ends a peek.
    #[inline(always)]
    pub(crate) fn receiver(&mut self) -> &mut Receiver {
        // The message stays the next one.
        self.peeked = Peeked::Nothing;
        &mut self.receiver
    }

    /// Receives into a buffer, if that is done at once. Returns the length of the message.
    #[inline(always)]
    pub(crate) fn recv_at_once(&mut self, buffer: &mut [u8]) -> Option<usize> {
        match self.peeked {
            Peeked::Nothing => self.receiver.receive_at_once(buffer),
            _ => None,
        }
    }

    /// Returns the next message in place, if it is a plain one and there at once.
    #[inline(always)]
    pub(crate) fn peek_at_once(&mut self) -> Option<slipring_message> {
        let Peeked::Nothing = self.peeked else { return None };
        let bytes = self.receiver.peek_at_once()?;
        self.peeked = Peeked::AtOnce;
        Some(slipring_message {
            data: bytes.as_ptr().cast(),
            len: bytes.len(),
            kind: slipring_kind::SLIPRING_KIND_MESSAGE,
        })
    }

    /// Returns the memory of the peeked message to the peer, if that is done at once. Returns whether it is done.
    #[inline(always)]
    pub(crate) fn release_at_once(&mut self) -> bool {
        let is_released = matches!(self.peeked, Peeked::AtOnce) && self.receiver.release_at_once();
        if is_released {
            self.peeked = Peeked::Nothing;
        }
        is_released
    }

    /// Receives into a buffer. Writes the length of the message, also of one that does not fit.
    #[inline(always)]
    pub(crate) fn recv(&mut self, buffer: &mut [u8], timeout: i64, out: &mut Out<usize>) -> Answer {
        match self.receive(buffer, timeout) {
            Ok(Some(len)) => {
                out.set(len);
                Ok(())
            }
            Ok(None) => Err(Failure::End),
            Err(failure) => {
                if let Some(len) = needed(&failure) {
                    out.set(len);
                }
                Err(failure)
            }
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
    pub(crate) fn peek(&mut self, timeout: i64, out: &mut Out<slipring_message>) -> Answer {
        let timeout = Timeout::new(timeout)?;
        self.peeked = Peeked::Nothing;
        let Self { receiver, peeked, .. } = self;
        // Each arm keeps its message by itself, as those of a reservation do.
        match timeout {
            Timeout::Default | Timeout::Forever => keep(receiver.peek()?, peeked, out),
            Timeout::None => keep(receiver.try_peek()?, peeked, out),
            time => self.peek_for(time, out),
        }
    }

    fn peek_for(&mut self, time: Timeout, out: &mut Out<slipring_message>) -> Answer {
        match self.receiver.try_peek().map_err(Failure::from) {
            Ok(received) => return keep(received, &mut self.peeked, out),
            Err(Failure::WouldBlock) => {}
            Err(failure) => return Err(failure),
        }
        keep(self.receiver.peek_deadline(time.deadline())?, &mut self.peeked, out)
    }

    /// Receives by one of three functions of the receiver: as long as it takes, not at all, or until a deadline.
    #[inline]
    fn receive_by<T>(
        &mut self,
        timeout: i64,
        wait: impl FnOnce(&mut Receiver) -> slipring::Result<Option<T>>,
        try_now: impl FnOnce(&mut Receiver) -> Result<Option<T>, TryRecvError>,
        wait_until: impl FnOnce(&mut Receiver, Instant) -> slipring::Result<Option<T>>,
    ) -> Answer<T> {
        let timeout = Timeout::new(timeout)?;
        let receiver = self.receiver();
        let received = match timeout {
            Timeout::Default | Timeout::Forever => wait(receiver)?,
            Timeout::None => try_now(receiver)?,
            time => match try_now(receiver).map_err(Failure::from) {
                Err(Failure::WouldBlock) => wait_until(receiver, time.deadline())?,
                received => received?,
            },
        };
        received.ok_or(Failure::End)
    }

    /// Receives a tensor. Returns its handle.
    #[inline(always)]
    pub(crate) fn recv_tensor(&mut self, timeout: i64) -> Answer<*mut slipring_tensor> {
        let timeout = Timeout::new(timeout)?;
        let receiver = self.receiver();
        // Each arm makes the handle by itself. A tensor that the arms had in common would be moved once more.
        match timeout {
            Timeout::Default | Timeout::Forever => Self::tensor(receiver.recv_tensor()?),
            Timeout::None => Self::tensor(receiver.try_recv_tensor()?),
            time => self.recv_tensor_for(time),
        }
    }

    fn recv_tensor_for(&mut self, time: Timeout) -> Answer<*mut slipring_tensor> {
        match self.receiver.try_recv_tensor().map_err(Failure::from) {
            Ok(tensor) => return Self::tensor(tensor),
            Err(Failure::WouldBlock) => {}
            Err(failure) => return Err(failure),
        }
        Self::tensor(self.receiver.recv_tensor_deadline(time.deadline())?)
    }

    #[inline(always)]
    fn tensor(received: Option<Tensor>) -> Answer<*mut slipring_tensor> {
        match received {
            Some(tensor) => Held::handle(tensor),
            None => Err(Failure::End),
        }
    }

    /// Receives a set of tensors.
    pub(crate) fn recv_tensors(&mut self, timeout: i64) -> Answer<TensorSet> {
        self.receive_by(
            timeout,
            Receiver::recv_tensors,
            Receiver::try_recv_tensors,
            Receiver::recv_tensors_deadline,
        )
    }

    /// Receives a request. Returns its number and its bytes.
    pub(crate) fn recv_request(&mut self, timeout: i64) -> Answer<(u64, *const c_void, usize)> {
        let Request { id, body, .. } = self.receive_by(
            timeout,
            Receiver::recv_request,
            Receiver::try_recv_request,
            Receiver::recv_request_deadline,
        )?;
        let (data, len) = self.keep_call(body);
        Ok((halves::number(id), data, len))
    }

    /// Receives a request with tensors. Returns its number and its tensors.
    pub(crate) fn recv_tensor_request(&mut self, timeout: i64) -> Answer<(u64, TensorSet)> {
        let TensorRequest { id, tensors, .. } = self.receive_by(
            timeout,
            Receiver::recv_tensor_request,
            Receiver::try_recv_tensor_request,
            Receiver::recv_tensor_request_deadline,
        )?;
        Ok((halves::number(id), tensors))
    }

    /// Waits for a response. Returns its bytes.
    pub(crate) fn wait(&mut self, id: u64, timeout: i64) -> Answer<(*const c_void, usize)> {
        let response = self.answer(timeout, |receiver, until| halves::wait(receiver, id, until))?;
        Ok(self.keep_call(response))
    }

    /// Waits for a response with tensors.
    pub(crate) fn wait_tensors(&mut self, id: u64, timeout: i64) -> Answer<TensorSet> {
        self.answer(timeout, |receiver, until| halves::wait_tensors(receiver, id, until))
    }

    fn answer<T>(
        &mut self,
        timeout: i64,
        wait: impl Fn(&mut Receiver, Option<Instant>) -> Result<T, TryRecvError>,
    ) -> Answer<T> {
        let time = Timeout::new(timeout)?;
        let receiver = self.receiver();
        match wait(receiver, None).map_err(Failure::from) {
            Err(Failure::WouldBlock) if !matches!(time, Timeout::None) => {}
            answer => return answer,
        }
        wait(receiver, Some(time.deadline())).map_err(|error| match error {
            TryRecvError::Failed(error) => error.into(),
            // A wait that ends by its deadline says so itself.
            TryRecvError::Empty => ErrorKind::TimedOut { after: Duration::ZERO }.into(),
        })
    }

    /// Forgets a request.
    pub(crate) fn abandon(&mut self, id: u64) -> Answer {
        self.check_process()?;
        halves::abandon(self.receiver(), id);
        Ok(())
    }

    fn keep_call(&mut self, bytes: Vec<u8>) -> (*const c_void, usize) {
        self.call = bytes;
        (self.call.as_ptr().cast(), self.call.len())
    }

    /// Returns the memory of the peeked message to the peer.
    #[inline(always)]
    pub(crate) fn release(&mut self) -> Answer {
        self.check_process()?;
        let released = match &self.peeked {
            Peeked::AtOnce => self.receiver.release_it(),
            Peeked::Message(message) => message.release(&mut self.receiver),
            Peeked::Nothing => {
                let text = "no message is peeked at: slipring_peek first";
                return Err(Failure::Border(SLIPRING_WRONG_STATE, text));
            }
        };
        self.peeked = Peeked::Nothing;
        Ok(released?)
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
        if !matches!(self.peeked, Peeked::Nothing) {
            let text = "a message is peeked at: release it first";
            return Err(Failure::Border(SLIPRING_WRONG_STATE, text));
        }
        Ok(&self.receiver)
    }

    /// Returns the receiver of a connection that ends.
    pub(crate) fn end(self) -> Receiver {
        self.receiver
    }
}

/// Keeps a peeked message, and writes what C gets of it.
#[inline(always)]
fn keep(
    received: Option<Received<'_>>,
    peeked: &mut Peeked,
    out: &mut Out<slipring_message>,
) -> Answer {
    let Some(received) = received else { return Err(Failure::End) };
    let bytes = received.bytes();
    out.set(slipring_message {
        data: bytes.as_ptr().cast::<c_void>(),
        len: bytes.len(),
        kind: kind_of(received.kind()),
    });
    *peeked = Peeked::Message(DetachedReceived::of(received));
    Ok(())
}

/// Returns a kind for C.
#[inline(always)]
pub(crate) fn kind_of(kind: MessageKind) -> slipring_kind {
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
