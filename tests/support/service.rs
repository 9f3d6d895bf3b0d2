//! A service of committed buffers that counts its calls. The bytes of a model are its name, which says what it does.
//!
//! | model | buffers | what it does |
//! |---|---|---|
//! | `echo` | input `x`, output `y`, 8 bytes each, both able to be updated | `y = x + 1`, byte by byte |
//! | `classifier` | the document's | the sum of the image's bytes in the first output |
//! | `many N` | N inputs of 16 bytes, output `sum` of 8 | the sum of their first bytes |
//! | `shared` | inputs `low` (8 at 0) and `high` (16 at 16) of one region of 32, output of 24 | copies both |
//! | `inline` | as `echo` | runs inline |
//! | `inline MS` | as `echo` | runs inline, and sleeps first |
//! | `ext` | as `echo`, with an ext buffer of 16 bytes that counts executions | |
//! | `slow MS` | as `echo` | sleeps first |
//! | `slowly MS` | as `echo` | sleeps in commits, updates and releases instead |
//! | `gate N` | as `echo` | waits until N of it run |
//! | `hold` | as `echo` | where `x` starts with 255: waits until [`Counts::let_go`] |
//! | `fail`, `panic` | as `echo` | |
//! | `fail N` | as `echo` | fails with a text of N bytes |
//! | `thirteen` | as `echo` | fails where `x` starts with 13 |
//! | `scribble` | as `echo` | writes its input, or says why not |
//! | `jumpy` | as `echo` | panics in updates, releases and unloads |
//! | `twins` | inputs of 8 and 16 bytes, output of 8, all labelled `x` | nothing |
//! | `refuse`, `startle` | as `echo` | its commits are refused, or panic |
//! | `bad` | a description that cannot be | |

#![cfg(feature = "commit")]

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use slipring::commit::{
    BufferInfo, Buffers, Caller, Client, Description, Direction, ModelSource, Refused, RegionInfo,
    Server, ServerOptions, Service,
};
use slipring::{Context, DType, Error, ErrorKind, Options};

use super::{HANG, unique_name};

#[derive(Debug, Default)]
pub struct Counts {
    counts: Mutex<HashMap<&'static str, usize>>,
    gate: (Mutex<usize>, Condvar),
    /// The errors that clients' links ended with, in order.
    pub ends: Mutex<Vec<Option<ErrorKind>>>,
}

impl Counts {
    fn count(&self, what: &'static str) {
        *self.counts.lock().unwrap().entry(what).or_default() += 1;
    }

    /// Lets all held executions go on, and holds no later ones.
    pub fn let_go(&self) {
        *self.gate.0.lock().unwrap() = usize::MAX;
        self.gate.1.notify_all();
    }

    /// Returns how often a function was called: `load`, `commit`, `update`, `execute`, `release`, `unload`, `gone`.
    pub fn of(&self, what: &str) -> usize {
        self.counts.lock().unwrap().get(what).copied().unwrap_or_default()
    }
}

#[derive(Debug, Clone, Default)]
pub struct Calculator {
    pub counts: Arc<Counts>,
}

fn bytes(label: &str, direction: Direction, len: usize) -> BufferInfo {
    BufferInfo::new(label, direction, DType::Uint8, [len])
}

pub fn classifier() -> Description {
    let ext = |label, dtype| BufferInfo::new(label, Direction::Ext, dtype, [1, 1000]);
    let image = BufferInfo::new("IFM", Direction::In, DType::Uint8, [1, 299, 299, 3]);
    Description::new()
        .with_own_region(image.buffer_type(3))
        .with_own_region(ext("691", DType::Uint8).buffer_type(9))
        .with_own_region(ext("689", DType::Fp32).index(1))
        .with_own_region(BufferInfo::new("690", Direction::Out, DType::Fp32, [1, 1000]))
}

fn describe(name: &str) -> Description {
    let echo = Description::new()
        .with_own_region(bytes("x", Direction::In, 8).updatable())
        .with_own_region(bytes("y", Direction::Out, 8).updatable());
    let words: Vec<&str> = name.split(' ').collect();
    match words[..] {
        ["classifier"] => classifier(),
        ["many", count] => {
            let count: u32 = count.parse().unwrap();
            let inputs = (0..count).map(|index| bytes("", Direction::In, 16).index(index));
            let inputs = inputs.fold(Description::new(), Description::with_own_region);
            inputs.with_own_region(bytes("sum", Direction::Out, 8))
        }
        ["shared"] => Description::new()
            .with_region(RegionInfo::new(32).name("both").attributes(7))
            .with_buffer(bytes("low", Direction::In, 8))
            .with_buffer(bytes("high", Direction::In, 16).index(1).region(0, 16))
            .with_own_region(bytes("copy", Direction::Out, 24)),
        ["twins"] => Description::new()
            .with_own_region(bytes("x", Direction::In, 8))
            .with_own_region(bytes("x", Direction::In, 16).index(1))
            .with_own_region(bytes("x", Direction::Out, 8)),
        ["ext"] => echo.with_own_region(bytes("scratch", Direction::Ext, 16)),
        ["bad"] => echo.with_buffer(bytes("z", Direction::In, 8).index(7)),
        _ => echo,
    }
}

/// Sleeps, for the model `slowly MS`.
fn dawdle(model: &str) {
    if let Some(ms) = model.strip_prefix("slowly ") {
        std::thread::sleep(Duration::from_millis(ms.parse().unwrap()));
    }
}

impl Service for Calculator {
    type Model = String;
    type Commit = u64;

    fn load(&self, _: &Caller, source: ModelSource<'_>) -> Result<(String, Description), Refused> {
        self.counts.count("load");
        let name = String::from_utf8(source.to_vec()?).map_err(|error| error.to_string())?;
        let description = describe(&name);
        if name == "unknown" {
            Err(Refused::new(404, "no such model"))
        } else {
            Ok((name, description))
        }
    }

    fn runs_inline(&self, model: &String) -> bool {
        model.starts_with("inline")
    }

    fn commit(&self, model: &String, _: &Buffers) -> Result<u64, Refused> {
        self.counts.count("commit");
        dawdle(model);
        match model.as_str() {
            "refuse" => Err(Refused::new(7, "not today")),
            "startle" => panic!("a service that panics in a commit"),
            _ => Ok(0),
        }
    }

    fn update(&self, model: &String, _: &mut u64, buffers: &Buffers) -> Result<(), Refused> {
        self.counts.count("update");
        dawdle(model);
        assert_ne!(model, "jumpy", "a service that panics in an update");
        let refused = model == "echo" && buffers.input(0)?.to_vec()?[0] == 13;
        if refused { Err("thirteen".into()) } else { Ok(()) }
    }

    fn execute(&self, model: &String, runs: &mut u64, buffers: &Buffers) -> Result<(), Refused> {
        self.counts.count("execute");
        *runs += 1;
        let words: Vec<&str> = model.split(' ').collect();
        match words[..] {
            ["fail"] => return Err(Refused::new(5, "it fails")),
            ["fail", len] => return Err(Refused::new(5, "x".repeat(len.parse().unwrap()))),
            ["panic"] => panic!("a service that panics"),
            ["scribble"] => return Ok(buffers.input(0)?.write_at(0, &[9; 8])?),
            ["thirteen"] if buffers.input(0)?.bytes()?.byte(0) == 13 => {
                return Err(Refused::new(13, "thirteen"));
            }
            ["slow" | "inline", ms] => {
                std::thread::sleep(Duration::from_millis(ms.parse().unwrap()))
            }
            ["gate", count] => {
                let (inside, more) = &self.counts.gate;
                let (count, mut inside) = (count.parse().unwrap(), inside.lock().unwrap());
                *inside += 1;
                more.notify_all();
                let all = more.wait_timeout_while(inside, HANG, |inside| *inside < count).unwrap();
                assert!(!all.1.timed_out(), "not all of them run at once");
            }
            ["hold"] if buffers.input(0)?.bytes()?.byte(0) == 255 => {
                let (let_go, more) = &self.counts.gate;
                let held = let_go.lock().unwrap();
                let all = more.wait_timeout_while(held, HANG, |held| *held != usize::MAX).unwrap();
                assert!(!all.1.timed_out(), "nobody lets go");
            }
            ["classifier"] => {
                let sum: u64 = buffers.labelled("IFM")?.to_vec()?.into_iter().map(u64::from).sum();
                return Ok(buffers.output(0)?.write_at(0, &(sum as f32).to_le_bytes())?);
            }
            ["many", count] => {
                let mut sum = 0;
                for index in 0..count.parse().unwrap() {
                    sum += u64::from(buffers.input(index)?.bytes()?.byte(0));
                }
                return Ok(buffers.output(0)?.write_at(0, &sum.to_le_bytes())?);
            }
            ["shared"] => {
                let both = [buffers.input(0)?.to_vec()?, buffers.labelled("high")?.to_vec()?];
                return Ok(buffers.output(0)?.write_at(0, &both.concat())?);
            }
            ["ext"] => buffers.ext(0)?.write_at(8, &runs.to_le_bytes())?,
            _ => {}
        }
        let mut bytes = buffers.input(0)?.to_vec()?;
        bytes.iter_mut().for_each(|byte| *byte = byte.wrapping_add(1));
        Ok(buffers.output(0)?.write_at(0, &bytes)?)
    }

    fn release(&self, model: &String, _: u64) {
        self.counts.count("release");
        dawdle(model);
        assert_ne!(model, "jumpy", "a service that panics in a release");
    }

    fn unload(&self, model: String) {
        self.counts.count("unload");
        assert_ne!(model, "jumpy", "a service that panics in an unload");
    }

    fn client_gone(&self, _: &Caller, why: Option<&Error>) {
        self.counts.ends.lock().unwrap().push(why.map(|error| error.kind().clone()));
        self.counts.count("gone");
    }
}

/// A server of a [`Calculator`], and its address.
pub struct Stage {
    pub context: Context,
    pub server: Server,
    pub counts: Arc<Counts>,
    pub name: String,
}

impl Stage {
    pub fn new() -> Self {
        Self::with(ServerOptions::new().workers(4))
    }

    pub fn with(options: ServerOptions) -> Self {
        Self::at(&unique_name(), options)
    }

    pub fn at(name: &str, options: ServerOptions) -> Self {
        // A machine with other work gives a CPU late.
        let context = Options::new().handshake_timeout(HANG);
        Self::of(Context::with_options(context).unwrap(), name, options)
    }

    pub fn of(context: Context, name: &str, options: ServerOptions) -> Self {
        let service = Calculator::default();
        let (counts, name) = (service.counts.clone(), name.to_owned());
        let listener = context.listen(&name).unwrap();
        let server = Server::with_options(&context, listener, service, options).unwrap();
        Self { context, server, counts, name }
    }

    pub fn client(&self) -> Client {
        Client::connect(&self.context, &self.name).unwrap()
    }
}
