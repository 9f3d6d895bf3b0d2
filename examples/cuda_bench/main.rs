//! How long a tensor on a GPU takes to another process: handed over, through the host, and by two copies on the GPU.
//!
//! ```text
//! cargo run --release --features cuda --example cuda_bench
//! cargo run --release --features cuda --example cuda_bench -- --sizes 4096,1073741824 --rounds 200 --json
//! ```
//!
//! - Question: from the first call that hands a tensor over to the moment at which the other process has it open for its
//!   stream and the answer is back, how long is it, by size?
//! - Unit: microseconds a round trip, median and p99; the answer is an empty message, whose own round trip is the floor.
//! - The modes take turns, round by round, between the same two processes:
//!   `handle`: `send_tensor`, `Device::open`, the view dropped: no copy, nobody waits for the GPU.
//!   `words`, `written`: the same of memory that travels as a file descriptor, ordered by words or synchronized before.
//!   `import`: the same of memory that the other process does not know yet; up to 1 GiB, 8 rounds.
//!   `host`: copied to the host's shared memory, sent, copied to the other side's own memory of the GPU.
//!   `staged`: TensorPipe's design: copied to a staging buffer on the GPU, waited for, copied out of it, waited for.
//! - The last rows have a set of 19,500 tensors, as many as a mixture of experts of 30 billion parameters has, of 512 B each in one
//!   allocation: `made` is until the set is on its way, `set` until the other process has opened and dropped all of them and the
//!   answer is back. Of so few rounds the p99 is the longest.
//!
//! Expect a line a size and mode. `handle`, `words` and `written` are flat; the last two modes grow with the size.

use std::error::Error;
use std::process::{Child, Command, ExitCode};
use std::time::Instant;

use hdrhistogram::Histogram;
use slipring::cuda::{Device, Export, Order, Pool, PoolOptions, Stream};
use slipring::{Address, Connection, Context, DType, Tensor, TensorSet};

type Outcome<T> = Result<T, Box<dyn Error>>;

const MODES: [&str; 7] = ["floor", "handle", "words", "written", "import", "host", "staged"];

/// The rounds of `import`, and its longest tensor: the other process keeps what it has imported.
const IMPORTS: (u32, usize) = (8, 1 << 30);

/// The tensors of a set, and the bytes from the start of one to that of the next.
const SET: (usize, usize) = (19_500, 512);

/// The rounds of it.
const SETS: u32 = 10;

struct Options {
    sizes: Vec<usize>,
    rounds: u32,
    json: bool,
    /// Hidden: this is the other process, at this address.
    follow: Option<String>,
}

fn main() -> ExitCode {
    let done = options().and_then(|options| match &options.follow {
        Some(name) => follow(name),
        None => lead(&options),
    });
    if let Err(error) = done {
        eprintln!("cuda_bench: {error:#}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn options() -> Outcome<Options> {
    use lexopt::prelude::*;
    let sizes = (12..=32).step_by(4).map(|shift| 1 << shift).collect();
    let mut options = Options { sizes, rounds: 100, json: false, follow: None };
    let mut parser = lexopt::Parser::from_env();
    while let Some(argument) = parser.next()? {
        match argument {
            Long("sizes") => {
                let list = parser.value()?.string()?;
                let sizes: Result<_, _> = list.split(',').map(str::parse).collect();
                options.sizes = sizes?;
            }
            Long("rounds") => options.rounds = parser.value()?.parse()?,
            Long("json") => options.json = true,
            Long("follow") => options.follow = Some(parser.value()?.string()?),
            other => return Err(other.unexpected().into()),
        }
    }
    Ok(options)
}

/// What one side works with.
struct Side {
    link: Connection,
    device: Device,
    pool: Pool,
    stream: Stream,
    context: Context,
}

impl Side {
    fn new(context: Context, link: Connection) -> Outcome<Self> {
        let device = Device::new(0)?;
        let (pool, stream) = (device.pool(), device.stream()?);
        Ok(Self { link, device, pool, stream, context })
    }

    /// A tensor for a mode, in a chunk that no other mode has.
    fn tensor(&self, mode: &str, size: usize) -> Outcome<Tensor> {
        let options = PoolOptions::new().chunk(size as u64).export(Export::FileDescriptor);
        let pool = match mode {
            "words" | "import" => &self.device.pool_with(options.order(Order::Words))?,
            "written" => &self.device.pool_with(options.order(Order::Synchronized))?,
            _ => &self.pool,
        };
        let mut draft = pool.alloc::<u8>([size], &self.stream)?;
        draft.fill(1)?;
        Ok(draft.share()?)
    }

    /// One tensor's way, there and back.
    fn lead(&mut self, mode: &str, tensor: &Tensor) -> Outcome<()> {
        self.link.send(mode.as_bytes())?;
        match mode {
            "floor" => {}
            "handle" | "words" | "written" | "import" => self.link.send_tensor(tensor)?,
            "host" => {
                let mut room =
                    self.context.allocation().dtype(DType::Uint8, [tensor.byte_len()])?;
                self.device.open(tensor, &self.stream)?.read(&mut room)?;
                self.link.send_tensor(room)?;
            }
            _ => {
                let mut staging = self.pool.alloc::<u8>([tensor.byte_len()], &self.stream)?;
                staging.copy_from(&self.device.open(tensor, &self.stream)?)?;
                let staging = staging.share()?;
                self.stream.synchronize()?;
                self.link.send_tensor(staging)?;
            }
        }
        self.link.recv()?.ok_or("the other side has closed")?;
        Ok(())
    }

    /// A set of tensors that lie in `whole`, there and back. Returns when it was on its way.
    fn lead_set(&mut self, whole: &Tensor) -> Outcome<Instant> {
        self.link.send(b"set")?;
        let mut set = TensorSet::new();
        for at in 0..SET.0 {
            let part = self.device.part(whole, (at * SET.1) as u64, DType::Bf16, [16, 16])?;
            set.insert(&format!("layers.{}.experts.{}.up_proj", at / 384, at % 384), part)?;
        }
        self.link.sender().send_tensors(&set)?;
        let sent = Instant::now();
        self.link.recv()?.ok_or("the other side has closed")?;
        Ok(sent)
    }

    fn follow_set(&mut self) -> Outcome<()> {
        let set = self.link.receiver().recv_tensors()?.ok_or("the other side has closed")?;
        let views = self.device.open_all(set.iter().map(|(_, tensor)| tensor), &self.stream)?;
        if views.len() != SET.0 {
            return Err(format!("a set of {} tensors", views.len()).into());
        }
        drop((views, set));
        Ok(self.link.send(b"")?)
    }

    fn follow(&mut self, mode: &str) -> Outcome<()> {
        if mode == "set" {
            return self.follow_set();
        }
        if mode != "floor" {
            let tensor = self.link.recv_tensor()?.ok_or("the other side has closed")?;
            match mode {
                "handle" | "words" | "written" | "import" => {
                    drop(self.device.open(&tensor, &self.stream)?)
                }
                "host" => drop(self.pool.copy_of(&tensor, &self.stream)?),
                _ => {
                    let mut own = self.pool.alloc::<u8>([tensor.byte_len()], &self.stream)?;
                    own.copy_from(&self.device.open(&tensor, &self.stream)?)?;
                    self.stream.synchronize()?;
                }
            }
        }
        Ok(self.link.send(b"")?)
    }
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn lead(options: &Options) -> Outcome<()> {
    let (context, address) = (Context::new()?, Address::fresh());
    let mut listener = context.listen(&address)?;
    let name = address.to_string();
    let own = std::env::current_exe()?;
    let follow = ["--follow", name.trim_start_matches('@')];
    let _other = Killed(Command::new(own).args(follow).spawn()?);
    let link = listener.accept_deadline(Instant::now() + std::time::Duration::from_secs(20))?;
    let mut side = Side::new(context, link)?;
    println!("# {:?}, {} rounds", side.device, options.rounds);
    for &size in &options.sizes {
        let tensor = match side.tensor("handle", size) {
            Ok(tensor) => tensor,
            Err(error) => {
                println!("# {size} B left out: {error:#}");
                continue;
            }
        };
        let [words, written] = ["words", "written"].map(|mode| side.tensor(mode, size));
        let (words, written) = (words?, written?);
        let mut times: Vec<Histogram<u64>> = Vec::new();
        times.resize(MODES.len(), Histogram::new(3)?);
        for round in 0..options.rounds + 3 {
            for (mode, times) in MODES.into_iter().zip(&mut times) {
                let fresh = match mode {
                    "import" if round >= 3 + IMPORTS.0 || size > IMPORTS.1 => continue,
                    "import" => Some(side.tensor(mode, size)?),
                    _ => None,
                };
                let tensor = match mode {
                    "words" => &words,
                    "written" => &written,
                    _ => fresh.as_ref().unwrap_or(&tensor),
                };
                side.stream.synchronize()?;
                let start = Instant::now();
                side.lead(mode, tensor)?;
                // The first ones open what stays open.
                if round >= 3 {
                    times.record(start.elapsed().as_nanos() as u64)?;
                }
            }
        }
        for (mode, times) in MODES.into_iter().zip(&times).filter(|(_, times)| !times.is_empty()) {
            show(options, mode, size, times);
        }
    }
    lead_sets(options, &mut side)?;
    Ok(side.link.close()?)
}

fn lead_sets(options: &Options, side: &mut Side) -> Outcome<()> {
    let whole = side.tensor("words", SET.0 * SET.1)?;
    let mut times = Histogram::<u64>::new(3)?;
    let mut made = Histogram::<u64>::new(3)?;
    for round in 0..options.rounds.min(SETS) + 1 {
        let start = Instant::now();
        let sent = side.lead_set(&whole)?;
        if round > 0 {
            times.record(start.elapsed().as_nanos() as u64)?;
            made.record((sent - start).as_nanos() as u64)?;
        }
    }
    show(options, "made", SET.0 * SET.1, &made);
    show(options, "set", SET.0 * SET.1, &times);
    Ok(())
}

/// Prints a row.
fn show(options: &Options, mode: &str, size: usize, times: &Histogram<u64>) {
    let [p50, p99] = [0.5, 0.99].map(|at| times.value_at_quantile(at) as f64 / 1e3);
    if options.json {
        let row = serde_json::json!({
            "what": "cuda", "mode": mode, "bytes": size, "p50_us": p50, "p99_us": p99,
        });
        println!("{row}");
    } else {
        println!("{size:>12} B  {mode:<7} p50 {p50:>10.2} us  p99 {p99:>10.2} us");
    }
}

fn follow(name: &str) -> Outcome<()> {
    let context = Context::new()?;
    let link = context.connect(name)?;
    let mut side = Side::new(context, link)?;
    while let Some(mode) = side.link.recv()? {
        side.follow(std::str::from_utf8(&mode)?)?;
    }
    Ok(())
}
