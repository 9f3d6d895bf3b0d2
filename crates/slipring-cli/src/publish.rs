//! `slipring pub`: publishes lines, files and tensors.

use std::fmt;
use std::path::PathBuf;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use slipring::broadcast::{Policy, PublishOptions, Publisher};
use slipring::message::{Metadata, Value};
use slipring::{Context, DType, ErrorKind, Shape, TensorMut};

use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::output::Output;
use crate::payload::{Payload, Source};
use crate::quantity;

/// The pause before the next look at memory or at subscribers.
const PAUSE: Duration = Duration::from_millis(2);

/// How far messages may come after their time before the later ones keep their distance instead.
const CATCH_UP: Duration = Duration::from_millis(100);

/// The arguments of `slipring pub`.
#[derive(Debug, Args)]
pub(crate) struct Publish {
    /// The address of the topic
    address: String,
    /// What to publish: the lines of a file, or the tensors of a .npy or .safetensors file. Default: the lines of standard
    /// input, which is -
    files: Vec<PathBuf>,
    /// Publish each file as one message
    #[arg(long)]
    raw: bool,
    /// Messages a second
    #[arg(short, long, value_name = "N", value_parser = rate)]
    rate: Option<f64>,
    /// End after so many messages
    #[arg(short, long, value_name = "N")]
    count: Option<u64>,
    /// Begin with the first file anew after the last one
    #[arg(long)]
    repeat: bool,
    /// A named value for each message: an integer, a float, true, false, or else a string
    #[arg(short, long, value_name = "NAME=VALUE", value_parser = named)]
    meta: Vec<(String, String)>,
    /// Wait for so many subscribers before the first message
    #[arg(short, long, value_name = "N", default_value_t = 0)]
    wait: usize,
    /// How long to wait for subscribers, for memory that they hold, and at the end for those that want every message
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = quantity::duration)]
    timeout: Duration,
    /// Messages that a new subscriber gets at first
    #[arg(long, value_name = "N", default_value_t = 0)]
    history: u32,
    /// Stay after the last message
    #[arg(short, long)]
    keep: bool,
}

fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|rate: &f64| *rate >= 1e-3 && rate.is_finite());
    rate.ok_or_else(|| "a rate is a number of at least 0.001".into())
}

fn named(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("a named value is NAME=VALUE")?;
    Ok((name.into(), value.into()))
}

/// The publisher is there.
#[derive(Debug, Serialize)]
struct Publishing {
    publishing: String,
}

impl fmt::Display for Publishing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "publishing on {}", self.publishing)
    }
}

#[derive(Debug, Serialize)]
struct Summary {
    messages: u64,
    bytes: u64,
    /// Those at the end.
    subscribers: usize,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { messages, bytes, subscribers } = self;
        write!(
            f,
            "{messages} messages and {bytes} bytes were published, to {subscribers} subscribers at the end"
        )
    }
}

impl Publish {
    pub(crate) fn run(mut self, output: Output) -> Result<(), Failure> {
        let interrupt = Interrupt::new()?;
        let metadata = metadata(&self.meta)?;
        let source = Source::new(std::mem::take(&mut self.files), self.raw, self.repeat)?;
        let context = Context::new()?;
        let options = PublishOptions::new().history(self.history);
        let mut publisher = context.publish(self.address.as_str(), options)?;
        let address = publisher.address().map_or(self.address.clone(), ToString::to_string);
        output.show(&Publishing { publishing: address })?;
        self.await_subscribers(&publisher, &interrupt)?;
        let mut bytes = 0;
        let ended =
            self.publish(source, &context, &mut publisher, &metadata, &interrupt, &mut bytes);
        if ended.is_ok() {
            while self.keep && interrupt.sleep_until(Instant::now() + Duration::from_secs(1)) {}
            self.drain(&publisher, &interrupt);
        }
        let subscribers = publisher.subscribers().len();
        output.show(&Summary { messages: publisher.sent(), bytes, subscribers })?;
        ended
    }

    fn await_subscribers(
        &self,
        publisher: &Publisher,
        interrupt: &Interrupt,
    ) -> Result<(), Failure> {
        let end = Instant::now() + self.timeout;
        loop {
            let there = publisher.subscribers().len();
            if there >= self.wait || interrupt.is_set() {
                return Ok(());
            }
            if Instant::now() >= end {
                let (wanted, after) = (self.wait, self.timeout.as_millis());
                return Err(Failure::too_late(format!(
                    "{there} of {wanted} subscribers have come in {after} ms: start them, or allow more time (--timeout)"
                )));
            }
            interrupt.sleep_until(Instant::now() + PAUSE);
        }
    }

    /// Publishes what the source gives, until it or the user ends.
    fn publish(
        &self,
        source: Source,
        context: &Context,
        publisher: &mut Publisher,
        metadata: &Metadata,
        interrupt: &Interrupt,
        bytes: &mut u64,
    ) -> Result<(), Failure> {
        let pause = self.rate.map(|rate| Duration::from_secs_f64(1.0 / rate));
        let payloads = source.start();
        let mut due = Instant::now();
        while self.count.is_none_or(|count| publisher.sent() < count) && interrupt.sleep_until(due)
        {
            let payload = loop {
                match payloads.recv_timeout(Interrupt::slice(None) - Instant::now()) {
                    Ok(payload) => break payload?,
                    Err(RecvTimeoutError::Timeout) if !interrupt.is_set() => {}
                    Err(_) => return Ok(()),
                }
            };
            let len = match payload {
                Payload::Bytes(message) => {
                    patiently(interrupt, |until| {
                        publisher.send_with_deadline(&message, metadata, until)
                    })?;
                    message.len() as u64
                }
                Payload::Tensors(file) => {
                    let mut set =
                        file.load(|dtype, shape| self.alloc(context, publisher, dtype, &shape))?;
                    set.set_metadata(metadata.clone());
                    patiently(interrupt, |until| publisher.send_tensors_deadline(&set, until))?;
                    set.iter().map(|(_, tensor)| tensor.byte_len() as u64).sum()
                }
            };
            *bytes += len;
            if let Some(pause) = pause {
                // A little delay is made up for, a long one is not.
                due = (due + pause).max(Instant::now().checked_sub(CATCH_UP).unwrap_or(due));
            }
        }
        Ok(())
    }

    /// Returns memory for a tensor. Waits for memory that subscribers hold.
    fn alloc(
        &self,
        context: &Context,
        publisher: &mut Publisher,
        dtype: DType,
        shape: &Shape,
    ) -> Result<TensorMut<u8>, Failure> {
        let end = Instant::now() + self.timeout;
        loop {
            match context.allocation().dtype(dtype, *shape) {
                Err(error)
                    if matches!(error.kind(), ErrorKind::PoolExhausted { .. })
                        && Instant::now() < end =>
                {
                    if publisher.reclaim() == 0 {
                        std::thread::sleep(PAUSE);
                    }
                }
                done => return Ok(done?),
            }
        }
    }

    /// Waits for subscribers that want every message.
    fn drain(&self, publisher: &Publisher, interrupt: &Interrupt) {
        let end = Instant::now() + self.timeout;
        let lags = || {
            let subscribers = publisher.subscribers();
            subscribers.iter().any(|one| one.policy() == Policy::Every && one.lag() > 0)
        };
        while lags() && Instant::now() < end && !interrupt.is_set() {
            interrupt.sleep_until(Instant::now() + PAUSE);
        }
    }
}

/// Sends, and lets the user end the wait for subscribers.
fn patiently(
    interrupt: &Interrupt,
    mut send: impl FnMut(Instant) -> slipring::Result<()>,
) -> Result<(), Failure> {
    loop {
        match send(Interrupt::slice(None)) {
            Err(error) if error.is_timeout() && !interrupt.is_set() => {}
            sent => return Ok(sent?),
        }
    }
}

fn metadata(named: &[(String, String)]) -> Result<Metadata, Failure> {
    let mut metadata = Metadata::new();
    for (name, text) in named {
        let value = match (text.as_str(), text.parse(), text.parse()) {
            ("true", ..) => Value::Bool(true),
            ("false", ..) => Value::Bool(false),
            (_, Ok(integer), _) => Value::Integer(integer),
            (_, _, Ok(float)) => Value::Float(float),
            (text, ..) => Value::String(text),
        };
        metadata.insert(name, value)?;
    }
    Ok(metadata)
}
