//! A publisher whose waits the user can end.

use std::time::{Duration, Instant};

use clap::Args;
use slipring::broadcast::{Policy, PublishOptions, Publisher};
use slipring::message::Metadata;
use slipring::{Context, DType, ErrorKind, Shape, TensorMut, TensorSet};

use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::quantity;

/// The pause before the next look at memory or at subscribers.
const PAUSE: Duration = Duration::from_millis(2);

/// The options of a command that publishes.
#[derive(Debug, Clone, Args)]
pub(crate) struct OutletOptions {
    /// Wait for so many subscribers of each topic before the first message
    #[arg(short, long, value_name = "N", default_value_t = 0)]
    wait: usize,
    /// How long to wait for subscribers: at the start, for memory that they hold, and for those that want every message and read
    /// nothing
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = quantity::duration)]
    timeout: Duration,
    /// Messages that a new subscriber gets at first
    #[arg(long, value_name = "N", default_value_t = 0)]
    history: u32,
}

/// A publisher of a command.
#[derive(Debug)]
pub(crate) struct Outlet {
    publisher: Publisher,
    context: Context,
    interrupt: Interrupt,
    options: OutletOptions,
    bytes: u64,
}

impl Outlet {
    /// Publishes a topic.
    pub(crate) fn open(
        context: &Context,
        address: &str,
        options: &OutletOptions,
        interrupt: &Interrupt,
    ) -> Result<Self, Failure> {
        // One that wants every message is waited for as all others are, before it is evicted.
        let topic = PublishOptions::new().history(options.history);
        let topic = topic.stall_after(options.timeout.max(PAUSE));
        let publisher = context.publish(address, topic)?;
        let (context, interrupt) = (context.clone(), interrupt.clone());
        Ok(Self { publisher, context, interrupt, options: options.clone(), bytes: 0 })
    }

    /// Returns the address, as it is written.
    pub(crate) fn address(&self) -> String {
        self.publisher.address().map(ToString::to_string).unwrap_or_default()
    }

    /// Returns how many messages and bytes were sent.
    pub(crate) fn sent(&self) -> (u64, u64) {
        (self.publisher.sent(), self.bytes)
    }

    pub(crate) fn subscribers(&self) -> usize {
        self.publisher.subscribers().len()
    }

    /// Waits until as many subscribers are there as the options say.
    pub(crate) fn await_subscribers(&self) -> Result<(), Failure> {
        let (wanted, end) = (self.options.wait, Instant::now() + self.options.timeout);
        loop {
            let there = self.subscribers();
            if there >= wanted || self.interrupt.is_set() {
                return Ok(());
            }
            if Instant::now() >= end {
                let (address, after) = (self.address(), self.options.timeout.as_millis());
                return Err(Failure::too_late(format!(
                    "{there} of {wanted} subscribers have come to {address} in {after} ms: start them, or allow more time (--timeout)"
                )));
            }
            self.interrupt.sleep_until(Instant::now() + PAUSE);
        }
    }

    /// Sends bytes. If the user wants the end while subscribers have no room, the message is not sent.
    pub(crate) fn send(&mut self, message: &[u8], metadata: &Metadata) -> Result<(), Failure> {
        let sent = |publisher: &mut Publisher, until| {
            publisher.send_with_deadline(message, metadata, until)
        };
        self.patiently(sent, message.len() as u64)
    }

    /// Sends tensors, as [`send`](Self::send) does bytes.
    pub(crate) fn send_tensors(&mut self, tensors: &TensorSet) -> Result<(), Failure> {
        let bytes = tensors.iter().map(|(_, tensor)| tensor.byte_len() as u64).sum();
        self.patiently(|publisher, until| publisher.send_tensors_deadline(tensors, until), bytes)
    }

    fn patiently(
        &mut self,
        mut send: impl FnMut(&mut Publisher, Instant) -> slipring::Result<()>,
        bytes: u64,
    ) -> Result<(), Failure> {
        loop {
            match send(&mut self.publisher, Interrupt::slice(None)) {
                Err(error) if error.is_timeout() && self.interrupt.is_set() => return Ok(()),
                Err(error) if error.is_timeout() => {}
                Err(error) => return Err(error.into()),
                Ok(()) => {
                    self.bytes += bytes;
                    return Ok(());
                }
            }
        }
    }

    /// Returns memory for a tensor, which has `len` bytes if its elements are strings. Waits for memory that subscribers hold.
    pub(crate) fn alloc(
        &mut self,
        dtype: DType,
        shape: Shape,
        len: u64,
    ) -> Result<TensorMut<u8>, Failure> {
        let end = Instant::now() + self.options.timeout;
        loop {
            let allocation = self.context.allocation();
            let memory = match dtype {
                DType::Bytes => allocation.encoded(shape, len as usize),
                _ => allocation.dtype(dtype, shape),
            };
            match memory {
                Err(error)
                    if matches!(error.kind(), ErrorKind::PoolExhausted { .. })
                        && Instant::now() < end
                        && !self.interrupt.is_set() =>
                {
                    if self.publisher.reclaim() == 0 {
                        self.interrupt.sleep_until(Instant::now() + PAUSE);
                    }
                }
                done => return Ok(done?),
            }
        }
    }

    /// Waits for subscribers that want every message.
    pub(crate) fn drain(&self) {
        let end = Instant::now() + self.options.timeout;
        let lags = || {
            let subscribers = self.publisher.subscribers();
            subscribers.iter().any(|one| one.policy() == Policy::Every && one.lag() > 0)
        };
        while lags() && Instant::now() < end && !self.interrupt.is_set() {
            self.interrupt.sleep_until(Instant::now() + PAUSE);
        }
    }
}
