//! `slipring pub`: publishes lines, files and tensors.

use std::fmt;
use std::path::PathBuf;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use slipring::Context;
use slipring::message::{Metadata, Value};

use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::outlet::{Outlet, OutletOptions};
use crate::output::Output;
use crate::payload::{Payload, Source};

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
    #[command(flatten)]
    outlet: OutletOptions,
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
        let mut outlet = Outlet::open(&context, &self.address, &self.outlet, &interrupt)?;
        output.show(&Publishing { publishing: outlet.address() })?;
        outlet.await_subscribers()?;
        let ended = self.publish(source, &mut outlet, &metadata, &interrupt);
        if ended.is_ok() {
            while self.keep && interrupt.sleep_until(Instant::now() + Duration::from_secs(1)) {}
            outlet.drain();
        }
        let (messages, bytes) = outlet.sent();
        output.show(&Summary { messages, bytes, subscribers: outlet.subscribers() })?;
        ended
    }

    /// Publishes what the source gives, until it or the user ends.
    fn publish(
        &self,
        source: Source,
        outlet: &mut Outlet,
        metadata: &Metadata,
        interrupt: &Interrupt,
    ) -> Result<(), Failure> {
        let pause = self.rate.map(|rate| Duration::from_secs_f64(1.0 / rate));
        let payloads = source.start();
        let mut due = Instant::now();
        let is_over = |outlet: &Outlet| self.count.is_some_and(|count| outlet.sent().0 >= count);
        while !is_over(outlet) && interrupt.sleep_until(due) {
            let payload = loop {
                match payloads.recv_timeout(Interrupt::slice(None) - Instant::now()) {
                    Ok(payload) => break payload?,
                    Err(RecvTimeoutError::Timeout) if !interrupt.is_set() => {}
                    Err(_) => return Ok(()),
                }
            };
            match payload {
                Payload::Bytes(message) => outlet.send(&message, metadata)?,
                Payload::Tensors(file) => {
                    let mut tensors = file.load(outlet)?;
                    tensors.set_metadata(metadata.clone());
                    outlet.send_tensors(&tensors)?;
                }
            }
            if let Some(pause) = pause {
                // A little delay is made up for, a long one is not.
                due = (due + pause).max(Instant::now().checked_sub(CATCH_UP).unwrap_or(due));
            }
        }
        Ok(())
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
