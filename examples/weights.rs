//! Weights that are in memory once, however many processes read them.
//!
//! ```text
//! cargo run --release --example weights                                # 256 MiB of made-up weights
//! cargo run --release --example weights -- --file model.safetensors --readers 10
//! ```
//!
//! One process loads the tensors into frozen memory and starts the readers; each maps them, read-only, and sums
//! them as slices. Frozen memory can be written by nobody any more, so that is safe. Expect a table: what
//! each process has mapped (RSS), and its share of it (PSS); the shares add up to about the file's size.

#[path = "stream/mod.rs"]
#[expect(dead_code, reason = "shared with the producer")]
mod stream;

use std::io::{BufRead, BufReader, Write, stdout};
use std::process::{Child, Command, ExitCode, Stdio};

use safetensors::SafeTensors;
use slipring::{Address, Context, Tensor, TensorSet};
use stream::{Outcome, checksum};

/// Tensors of one set, so that its names fit into the ring.
const PART: usize = 64;

fn main() -> ExitCode {
    match run() {
        Ok(()) => return ExitCode::SUCCESS,
        Err(error) => eprintln!("weights: {error:#}"),
    }
    ExitCode::FAILURE
}

fn run() -> Outcome<()> {
    let known = [("readers", 10), ("mib", 256), ("read", 0)];
    let stream::Options { name, file, numbers: [readers, mib, read] } = stream::options(known)?;
    if read == 1 {
        return reader(&name);
    }
    let context = Context::new()?;
    let weights = match file {
        Some(path) => load(&context, &stream::read(&path)?)?,
        None => made_up(&context, mib as usize)?,
    };
    let len: usize = weights.iter().map(|(_, tensor)| tensor.byte_len()).sum();
    writeln!(stdout(), "{} tensors, {:.1} MiB, frozen", weights.len(), len as f64 / 1048576.0)?;
    let address = Address::fresh();
    let mut listener = context.listen(&address)?;
    let mut children = Vec::new();
    for _ in 0..readers {
        let name = address.to_string();
        let child = Command::new(std::env::current_exe()?)
            .args(["--read", "1", "--name", name.trim_start_matches('@')])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut link = listener.accept()?;
        for part in weights.chunks(PART) {
            let mut set = TensorSet::new();
            for (name, tensor) in part {
                set.insert(name, tensor.try_clone().ok_or("weights are frozen")?)?;
            }
            link.sender().send_tensors(&set)?;
        }
        link.close()?;
        children.push(child);
    }
    let sum = weights
        .iter()
        .fold(0u64, |sum, (_, tensor)| sum ^ checksum(tensor.as_bytes().unwrap_or(&[])));
    report(children, sum)
}

/// The tensors of a file.
fn load(context: &Context, bytes: &[u8]) -> Outcome<Vec<(String, Tensor)>> {
    let file = SafeTensors::deserialize(bytes)?;
    let tensors = stream::tensors(&file)?;
    let parts = tensors.iter().map(|(name, dtype, shape, bytes)| (&**name, *dtype, *shape, *bytes));
    // One piece of memory for all of them: a file may have more tensors than a process may open files.
    let frozen = context.freeze(parts)?;
    Ok(frozen.into_iter().map(|(name, tensor)| (name.into(), tensor)).collect())
}

/// Some layers of a transformer, without meaning.
fn made_up(context: &Context, mib: usize) -> Outcome<Vec<(String, Tensor)>> {
    let layer = |number: usize| {
        let mut tensor = context.alloc_frozen::<f32>([1024, 4096])?; // [in, out], 16 MiB
        tensor.iter_mut().enumerate().for_each(|(at, weight)| *weight = (at * number) as f32);
        Ok((format!("layers.{number}.weight"), tensor.share()?))
    };
    (0..mib.div_ceil(16)).map(layer).collect()
}

/// Receives all weights, reads them, says what it saw, and keeps them until its input ends.
fn reader(name: &str) -> Outcome<()> {
    let mut link = Context::new()?.connect(name)?;
    let mut sets = Vec::new();
    while let Some(set) = link.receiver().recv_tensors()? {
        sets.push(set);
    }
    let mut sum = 0;
    for (_, tensor) in sets.iter().flat_map(TensorSet::iter) {
        sum ^= checksum(tensor.as_bytes()?);
    }
    writeln!(stdout(), "{sum}")?;
    stdout().flush()?;
    std::io::stdin().lines().for_each(drop);
    Ok(())
}

/// Waits until every reader has read, and tells what each process has mapped.
fn report(mut children: Vec<Child>, sum: u64) -> Outcome<()> {
    for child in &mut children {
        let mut said = String::new();
        BufReader::new(child.stdout.take().ok_or("no output")?).read_line(&mut said)?;
        if said.trim() != sum.to_string() {
            return Err(format!("a reader saw other weights: {said:?}").into());
        }
    }
    writeln!(stdout(), "process       RSS MiB   PSS MiB")?;
    let pids = std::iter::once(std::process::id()).chain(children.iter().map(Child::id));
    let mut total = 0.0;
    for (number, pid) in pids.enumerate() {
        let who = if number == 0 { "loader".into() } else { format!("reader {number}") };
        let [rss, pss] = mapped(pid)?;
        total += pss;
        writeln!(stdout(), "{who:<11}{rss:>10.1}{pss:>10.1}")?;
    }
    writeln!(stdout(), "all together: {total:.1} MiB")?;
    for child in &mut children {
        drop(child.stdin.take());
        child.wait()?;
    }
    Ok(())
}

/// Resident memory of a process, and its share of it, in MiB.
fn mapped(pid: u32) -> Outcome<[f64; 2]> {
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let kib = |key: &str| -> Outcome<f64> {
        let line = rollup.lines().find_map(|line| line.strip_prefix(key)).ok_or("no such line")?;
        Ok(line.trim().trim_end_matches(" kB").parse()?)
    };
    Ok([kib("Rss:")? / 1024.0, kib("Pss:")? / 1024.0])
}
