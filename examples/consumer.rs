//! Reads the tensors of `producer` where they lie, checks each, and says how late they are.
//!
//! ```text
//! cargo run --release --example consumer                  # in one terminal
//! cargo run --release --example producer                  # in another
//! cargo run --release --example consumer -- --file model.safetensors   # compares with the file
//! ```
//!
//! Expect a line a second: tensors, rate, bytes, median and 99th percentile of the time from being sent to
//! being received. Kill either (`kill -9`) and start it again: the other says what happened and goes on. A
//! missing number or a wrong checksum is told, and ends in exit code 1 (after `--count` tensors, or
//! when the file is complete).

#[path = "stream/mod.rs"]
mod stream;

use std::collections::HashMap;
use std::io::{Write, stdout};
use std::process::ExitCode;
use std::time::Instant;

use hdrhistogram::Histogram;
use safetensors::SafeTensors;
use slipring::message::Bytes;
use slipring::{Context, TensorSet};
use stream::{CHECKSUM, Checksum, HEAD, NUMBER, Outcome, SECOND, STAMP, checksum, now};

fn main() -> ExitCode {
    match run() {
        Ok(()) => return ExitCode::SUCCESS,
        Err(error) => eprintln!("consumer: {error:#}"),
    }
    ExitCode::FAILURE
}

fn run() -> Outcome<()> {
    let stream::Options { name, file, numbers: [count] } = stream::options([("count", 0)])?;
    let bytes = file.as_deref().map(stream::read).transpose()?;
    let file = bytes.as_deref().map(SafeTensors::deserialize).transpose()?;
    let mut sums = HashMap::new();
    if let Some(file) = &file {
        for (name, _, _, bytes) in stream::tensors(file)? {
            sums.insert(name, checksum(bytes));
        }
    }
    let count = if file.is_some() { sums.len() as u64 } else { count };
    let mut listener = Context::new()?.listen(&name)?;
    writeln!(stdout(), "listening on {name}")?;
    let mut late = Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 3)?; // nanoseconds
    let (mut total, mut moved, mut wrong) = (0, 0, 0);
    while count == 0 || total < count {
        let mut link = listener.accept()?;
        let pid = link.peer().pid().unwrap_or(0); // 0: in another pid namespace
        writeln!(stdout(), "producer with pid {pid} came")?;
        let (mut due, mut report) = (None, Instant::now() + SECOND);
        let end = loop {
            if count != 0 && total == count {
                break "that is enough".to_owned();
            }
            match link.receiver().recv_tensors_deadline(report) {
                Ok(Some(set)) => {
                    let came = now();
                    total += 1;
                    match check(&set, &mut due, &sums) {
                        Ok((stamp, len)) => {
                            moved += len;
                            late.saturating_record(came.saturating_sub(stamp));
                        }
                        Err(fault) => {
                            wrong += 1;
                            writeln!(stdout(), "{fault}")?;
                        }
                    }
                }
                Ok(None) => break "the producer closed in order".to_owned(),
                Err(error) if error.is_timeout() => {}
                Err(error) => break format!("{error:#}"),
            }
            if Instant::now() >= report {
                let [p50, p99] = [0.5, 0.99].map(|part| late.value_at_quantile(part) as f64 / 1e3);
                let (rate, gb) = (late.len(), moved as f64 / 1e9);
                writeln!(
                    stdout(),
                    "{total} tensors, {rate} a second, {gb:.2} GB/s, p50 {p50} µs, p99 {p99} µs"
                )?;
                late.reset();
                (moved, report) = (0, Instant::now() + SECOND);
            }
        };
        writeln!(stdout(), "{end}, {total} tensors were received")?;
    }
    if wrong > 0 { Err(format!("{wrong} of {total} tensors were wrong").into()) } else { Ok(()) }
}

/// Stamp and bytes of a tensor that is whole and has the number that is due; then the next one is. A
/// producer's first one has any number: those before went to another consumer.
fn check(
    set: &TensorSet,
    due: &mut Option<u64>,
    sums: &HashMap<String, u64>,
) -> Result<(u64, usize), String> {
    let head =
        set.get(HEAD).and_then(|head| head.to_vec::<u64>().ok()).ok_or("a set without a head")?;
    let [number, stamp, said] =
        [NUMBER, STAMP, CHECKSUM].map(|at| head.get(at).copied().unwrap_or(0));
    let (name, tensor) =
        set.iter().find(|(name, _)| *name != HEAD).ok_or("a head without a tensor")?;
    let sum = sum(tensor.bytes().map_err(|error| format!("{error:#}"))?);
    if sum != said {
        return Err(format!("checksum {said:#x} where {sum:#x} was due"));
    }
    match sums.get(name) {
        Some(own) if *own != sum => return Err(format!("{name} is not what the file has")),
        None if !sums.is_empty() => return Err(format!("{name} is not in the file")),
        _ => {}
    }
    match due.replace(number.wrapping_add(1)) {
        Some(due) if due != number => Err(format!("number {number} where {due} was due")),
        _ => Ok((stamp, tensor.byte_len())),
    }
}

/// The checksum of bytes where they lie, in the producer's memory.
fn sum(bytes: Bytes<'_>) -> u64 {
    let lines = bytes.lines();
    let rest = lines.remainder().to_vec();
    let mut sum = Checksum::new();
    lines.for_each(|line| sum.line(line));
    sum.finish(&rest)
}
