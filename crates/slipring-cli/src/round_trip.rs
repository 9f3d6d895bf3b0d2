//! Messages that go to an `echo` end and come back.

use std::time::{Duration, Instant};

use slipring::message::MessageKind;
use slipring::{Connection, Context, TensorSet};

use crate::failure::Failure;
use crate::process::Process;

/// Bytes of a message's number, at its start.
const NUMBER: usize = size_of::<u64>();

/// A link to an `echo` end.
#[derive(Debug)]
pub(crate) struct EchoLink {
    link: Connection,
    context: Context,
    timeout: Duration,
    sent: u64,
    received: u64,
    message: Vec<u8>,
    reply: Vec<u8>,
}

impl EchoLink {
    /// Connects. Each wait, also those of the round trips, lasts `timeout` at most.
    pub(crate) fn connect(address: &str, timeout: Duration) -> Result<Self, Failure> {
        let context = Context::new()?;
        let link = context.connect_deadline(address, Instant::now() + timeout)?;
        let (message, reply) = (Vec::new(), Vec::new());
        Ok(Self { link, context, timeout, sent: 0, received: 0, message, reply })
    }

    /// Returns the process at the other end.
    pub(crate) fn process(&self) -> Process {
        Process::of(self.link.peer())
    }

    /// Sends a message of `len` bytes and waits until it is back. Returns how long that took.
    pub(crate) fn round(&mut self, len: usize) -> Result<Duration, Failure> {
        self.message.resize(len, 0);
        let start = Instant::now();
        self.send()?;
        self.receive()?;
        Ok(start.elapsed())
    }

    /// Sends a message of `len` bytes and waits for none.
    pub(crate) fn send_ahead(&mut self, len: usize) -> Result<(), Failure> {
        self.message.resize(len, 0);
        self.send()
    }

    /// Waits for the next message to come back.
    pub(crate) fn take_back(&mut self) -> Result<(), Failure> {
        self.receive()
    }

    /// Sends a tensor of `len` bytes and waits until it is back. Returns how long that took.
    pub(crate) fn round_of_tensor(&mut self, len: usize) -> Result<Duration, Failure> {
        let mut tensor = self.context.alloc::<u8>([len])?;
        let number = self.sent.to_le_bytes();
        let marked = len.min(NUMBER);
        tensor[..marked].copy_from_slice(&number[..marked]);
        let start = Instant::now();
        let deadline = start + self.timeout;
        let sent = self.link.sender().send_tensor_deadline(tensor, deadline);
        sent.map_err(|error| self.explain(error))?;
        self.sent += 1;
        let received = self.link.receiver().recv_tensors_deadline(deadline);
        let back = received.map_err(|error| self.explain(error))?;
        let time = start.elapsed();
        let back = back.ok_or_else(closed)?;
        let is_same = |back: &TensorSet| -> Option<bool> {
            let tensor = back.at(0).filter(|tensor| back.len() == 1 && tensor.byte_len() == len)?;
            Some(tensor.bytes().ok()?.slice(0, marked).to_vec() == number[..marked])
        };
        if is_same(&back) != Some(true) {
            return Err(self.is_no_echo());
        }
        self.received += 1;
        Ok(time)
    }

    fn send(&mut self) -> Result<(), Failure> {
        let marked = self.message.len().min(NUMBER);
        self.message[..marked].copy_from_slice(&self.sent.to_le_bytes()[..marked]);
        let deadline = Instant::now() + self.timeout;
        let sent = self.link.sender().send_deadline(&self.message, deadline);
        sent.map_err(|error| self.explain(error))?;
        self.sent += 1;
        Ok(())
    }

    fn receive(&mut self) -> Result<(), Failure> {
        let deadline = Instant::now() + self.timeout;
        let Self { link, reply, message, .. } = self;
        let taken = link.receiver().peek_deadline(deadline).and_then(|next| {
            let Some(next) = next else { return Ok(None) };
            let fits = next.kind() == MessageKind::Message && next.len() == message.len();
            reply.resize(if fits { message.len() } else { 0 }, 0);
            if fits {
                next.bytes().copy_to(reply);
            }
            next.release()?;
            Ok(Some(fits))
        });
        let fits = taken.map_err(|error| self.explain(error))?.ok_or_else(closed)?;
        let marked = self.message.len().min(NUMBER);
        if !fits || self.reply[..marked] != self.received.to_le_bytes()[..marked] {
            return Err(self.is_no_echo());
        }
        self.received += 1;
        Ok(())
    }

    fn is_no_echo(&self) -> Failure {
        let process = self.process();
        Failure::new(format!("{process} sends something else back: it must be a slipring echo"))
    }

    /// Returns the failure with the other process and its state, if it is late.
    fn explain(&self, error: slipring::Error) -> Failure {
        if !error.is_timeout() {
            return Failure::from(error).of(self.process());
        }
        let process = self.process();
        let state = process.state().map_or(String::new(), |state| format!(", which {state}"));
        Failure::too_late(format!(
            "nothing came back for {} ms from {process}{state}",
            self.timeout.as_millis()
        ))
    }
}

fn closed() -> Failure {
    slipring::Error::from(slipring::ErrorKind::PeerClosed).into()
}
