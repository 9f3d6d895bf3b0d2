//! `slipring replay`: publishes what was recorded.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use slipring::{Context, TensorSet};

use crate::escaped::Escaped;
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::outlet::{Outlet, OutletOptions};
use crate::output::Output;
use crate::recording::{Event, Head, Reader};

/// The longest message of bytes: that of a publisher by default.
const LONGEST: u64 = 1 << 30;

/// The arguments of `slipring replay`.
#[derive(Debug, Args)]
pub(crate) struct Replay {
    /// A file of slipring record, or another MCAP file without compression, whose messages are then bytes
    file: PathBuf,
    /// How much faster than it was recorded: 2, 0.5, or max
    #[arg(short, long, default_value = "1", value_parser = speed)]
    speed: Speed,
    /// Begin anew at the end
    #[arg(short, long = "loop")]
    repeat: bool,
    /// Publish a topic under another address
    #[arg(long = "as", value_name = "OLD=NEW", value_parser = renamed)]
    renamed: Vec<(String, String)>,
    #[command(flatten)]
    outlet: OutletOptions,
}

/// The most topics of a recording.
const MOST_TOPICS: usize = 256;

/// How much faster a recording is replayed. `None`: as fast as subscribers take it.
#[derive(Debug, Clone, Copy)]
struct Speed(Option<f64>);

fn speed(text: &str) -> Result<Speed, String> {
    if text == "max" {
        return Ok(Speed(None));
    }
    let speed = text.parse().ok().filter(|speed: &f64| (1e-6..=1e6).contains(speed));
    speed.map(|speed| Speed(Some(speed))).ok_or_else(|| "a speed is a number, or max".into())
}

fn renamed(text: &str) -> Result<(String, String), String> {
    let (old, new) = text.split_once('=').ok_or("a new address is OLD=NEW")?;
    let old: slipring::Address = old.parse().map_err(|error| format!("{error}"))?;
    Ok((old.to_string(), new.into()))
}

/// A topic that is replayed.
#[derive(Debug, Serialize)]
struct Replaying {
    replaying: String,
    topic: String,
}

impl fmt::Display for Replaying {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "replaying {} as {}", Escaped(self.topic.as_bytes()), self.replaying)
    }
}

#[derive(Debug, Serialize)]
struct Summary {
    messages: u64,
    bytes: u64,
    /// The recording has an end. If not, it was cut off, and what came before was replayed.
    complete: bool,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { messages, bytes, complete } = self;
        write!(f, "{messages} messages and {bytes} bytes were replayed")?;
        if *complete { Ok(()) } else { f.write_str("; the recording was cut off there") }
    }
}

/// The publishers of a replay.
#[derive(Debug)]
struct Stage {
    context: Context,
    outlets: HashMap<String, Outlet>,
    /// The topic of each channel.
    channels: HashMap<u16, String>,
    interrupt: Interrupt,
}

impl Replay {
    pub(crate) fn run(self, output: Output) -> Result<(), Failure> {
        let interrupt = Interrupt::new()?;
        let opened = Reader::open(&self.file);
        let mut reader = opened.map_err(|failure| failure.of(self.file.display()))?;
        let mut stage = Stage {
            context: Context::new()?,
            outlets: HashMap::new(),
            channels: HashMap::new(),
            interrupt,
        };
        let replayed = self.replay(&mut reader, &mut stage, output);
        stage.outlets.values().for_each(Outlet::drain);
        let (messages, bytes) = stage.sent();
        // A failure says itself how far it came.
        let complete = *replayed.as_ref().unwrap_or(&true);
        output.show(&Summary { messages, bytes, complete })?;
        replayed.map(|_| ()).map_err(|failure| failure.of(self.file.display()))
    }

    /// Replays until the end, or until the user wants it. Returns whether the recording has an end.
    fn replay(
        &self,
        reader: &mut Reader,
        stage: &mut Stage,
        output: Output,
    ) -> Result<bool, Failure> {
        let mut origin = None;
        let mut sent = 0;
        while !stage.interrupt.is_set() {
            match reader.next()? {
                Event::Channel { channel, topic } => self.open(stage, channel, topic, output)?,
                Event::Message { channel, nanos, head, bytes } => {
                    self.await_subscribers(stage, sent)?;
                    let (start, first) = *origin.get_or_insert_with(|| (Instant::now(), nanos));
                    if let Speed(Some(speed)) = self.speed {
                        let after = Duration::from_nanos(nanos.saturating_sub(first));
                        let due = Duration::try_from_secs_f64(after.as_secs_f64() / speed);
                        let due = due.ok().and_then(|due| start.checked_add(due));
                        let due = due.ok_or_else(|| Failure::new("a message is too far away"))?;
                        if !stage.interrupt.sleep_until(due) {
                            return Ok(true);
                        }
                    }
                    if !stage.send(channel, &head, bytes, reader)? {
                        return Ok(false);
                    }
                    sent += 1;
                }
                Event::Other => {}
                end @ (Event::End | Event::Cut) => {
                    // A recording without messages would be read for ever.
                    if !self.repeat || origin.is_none() {
                        return Ok(matches!(end, Event::End));
                    }
                    origin = None;
                    reader.rewind()?;
                }
            }
        }
        Ok(true)
    }

    fn open(
        &self,
        stage: &mut Stage,
        channel: u16,
        topic: String,
        output: Output,
    ) -> Result<(), Failure> {
        if !stage.outlets.contains_key(&topic) {
            let renamed = self.renamed.iter().find(|(old, _)| *old == topic);
            // A file from somebody else makes no sockets in folders, and not any number of them.
            if renamed.is_none() && topic.contains('/') {
                let fact = format!("the topic {} is a path", Escaped(topic.as_bytes()));
                return Err(Failure::new(format!("{fact}: name its address with --as")));
            }
            if stage.outlets.len() == MOST_TOPICS {
                return Err(Failure::new(format!("more than {MOST_TOPICS} topics")));
            }
            let address = renamed.map_or(&topic, |(_, new)| new);
            let (context, interrupt) = (&stage.context, &stage.interrupt);
            let outlet = Outlet::open(context, address, &self.outlet, interrupt)?;
            output.show(&Replaying { replaying: outlet.address(), topic: topic.clone() })?;
            stage.outlets.insert(topic.clone(), outlet);
        }
        stage.channels.insert(channel, topic);
        Ok(())
    }

    /// Waits before the first message for the subscribers of all topics.
    fn await_subscribers(&self, stage: &Stage, sent: u64) -> Result<(), Failure> {
        if sent > 0 {
            return Ok(());
        }
        stage.outlets.values().try_for_each(Outlet::await_subscribers)
    }
}

impl Stage {
    /// Publishes the next message of a recording. Returns whether the recording has all of it.
    fn send(
        &mut self,
        channel: u16,
        head: &Head,
        bytes: u64,
        reader: &mut Reader,
    ) -> Result<bool, Failure> {
        let at = reader.record_start();
        let topic = self.channels.get(&channel);
        let outlet = topic.and_then(|topic| self.outlets.get_mut(topic)).ok_or_else(|| {
            Failure::new(format!("the message at byte {at} is of channel {channel}, which is none"))
        })?;
        let metadata = head.metadata()?;
        let Some(described) = head.tensors() else {
            if bytes > LONGEST {
                let fact = format!("the message at byte {at} has {bytes} bytes, at most {LONGEST}");
                return Err(Failure::new(fact));
            }
            let Some(message) = read(reader, bytes)? else { return Ok(false) };
            outlet.send(&message, &metadata)?;
            return Ok(true);
        };
        let mut tensors = TensorSet::new();
        for tensor in described {
            let (dtype, shape) = tensor.parts()?;
            let mut memory = outlet.alloc(dtype, shape, tensor.bytes)?;
            if !reader.read_body(&mut memory)? {
                return Ok(false);
            }
            let shared = memory.share()?;
            if tensor.name.is_empty() {
                tensors.push(shared);
            } else {
                tensors.insert(&tensor.name, shared)?;
            }
        }
        tensors.set_metadata(metadata);
        outlet.send_tensors(&tensors)?;
        Ok(true)
    }

    fn sent(&self) -> (u64, u64) {
        let sent = self.outlets.values().map(Outlet::sent);
        sent.fold((0, 0), |(messages, bytes), one| (messages + one.0, bytes + one.1))
    }
}

/// Reads the bytes of a message, and takes no more memory than the recording has bytes. Returns `None` if it is cut off.
fn read(reader: &mut Reader, bytes: u64) -> Result<Option<Vec<u8>>, Failure> {
    /// Bytes that are read at a time.
    const CHUNK: usize = 1 << 20;
    let mut message = Vec::new();
    while (message.len() as u64) < bytes {
        let from = message.len();
        let len = CHUNK.min((bytes - from as u64) as usize);
        message.resize(from + len, 0);
        if !reader.read_body(&mut message[from..])? {
            return Ok(None);
        }
    }
    Ok(Some(message))
}
