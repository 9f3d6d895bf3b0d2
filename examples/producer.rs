//! Hands tensors to whoever consumes them: frames of a camera, or the tensors of a file.
//!
//! ```text
//! cargo run --release --example consumer                  # in one terminal
//! cargo run --release --example producer                  # in another: 60 frames a second
//! cargo run --release --example producer -- --rate 0 --height 480 --width 640 --count 5000
//! cargo run --release --example producer -- --file model.safetensors   # every tensor, once
//! ```
//!
//! A frame is a `UINT8 [1, 1080, 1920, 3]`, row-major, 6,220,800 bytes, written where the consumer reads it:
//! nothing copies it. Expect a line a second from both: the rate here, the latency there. Kill either (`kill
//! -9`) and start it again: the other says what happened and goes on. `--rate 0` is full speed.

#[path = "stream/mod.rs"]
#[expect(dead_code, reason = "shared with the consumer")]
mod stream;

use std::io::{Write, stdout};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use safetensors::SafeTensors;
use slipring::{Connection, Context, DType, ErrorKind, Shape, Tensor, TensorSet};
use stream::{HEAD, Outcome, SECOND, checksum, now};

fn main() -> ExitCode {
    match run() {
        Ok(()) => return ExitCode::SUCCESS,
        Err(error) => eprintln!("producer: {error:#}"),
    }
    ExitCode::FAILURE
}

fn run() -> Outcome<()> {
    let known = [("rate", 60), ("height", 1080), ("width", 1920), ("count", 0)];
    let stream::Options { name, file, numbers } = stream::options(known)?;
    let [rate, height, width, count] = numbers;
    let frame = Shape::from([1, height as usize, width as usize, 3]);
    let bytes = file.as_deref().map(stream::read).transpose()?;
    let file = bytes.as_deref().map(SafeTensors::deserialize).transpose()?;
    let tensors = file.as_ref().map(stream::tensors).transpose()?;
    let count = tensors.as_ref().map_or(count, |tensors| tensors.len() as u64);
    let pause = SECOND.checked_div(u32::try_from(rate)?).unwrap_or(Duration::ZERO);
    let context = Context::new()?;
    let (mut number, mut told, mut report) = (0, 0, Instant::now() + SECOND);
    loop {
        let mut link = match context.connect_retry(&name, Instant::now() + SECOND) {
            Ok(link) => link,
            Err(error) if is_absent(&error) => {
                writeln!(stdout(), "waiting for a consumer: {error:#}")?;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let pid = link.peer().pid().unwrap_or(0); // 0: in another pid namespace
        writeln!(stdout(), "consumer with pid {pid} reads from number {number} on")?;
        let mut due = Instant::now();
        let end = loop {
            if count != 0 && number == count {
                link.close()?; // the consumer gets what was sent before
                writeln!(stdout(), "done, {number} tensors were sent")?;
                return Ok(());
            }
            let sent = match &tensors {
                None => send(&context, &mut link, number, ("frame", DType::Uint8, frame), None),
                Some(tensors) => {
                    let (name, dtype, shape, bytes) = &tensors[number as usize];
                    send(&context, &mut link, number, (name, *dtype, *shape), Some(bytes))
                }
            };
            match sent {
                Ok(()) => number += 1,
                Err(error) if error.is_timeout() => writeln!(stdout(), "the consumer is stuck")?,
                Err(error) if error.is_disconnected() => break error,
                Err(error) => return Err(error.into()),
            }
            if Instant::now() >= report {
                writeln!(stdout(), "{number} tensors, {} a second", number - told)?;
                (told, report) = (number, Instant::now() + SECOND);
            }
            due += pause;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        };
        writeln!(stdout(), "{end}, {number} tensors were sent")?;
    }
}

/// Nobody is there, or not any more, or busy with another producer.
fn is_absent(error: &slipring::Error) -> bool {
    let nobody = matches!(error.kind(), ErrorKind::NobodyListens { .. });
    nobody || error.is_timeout() || error.is_disconnected()
}

/// Writes a tensor where it will be read, and hands it over with its head.
fn send(
    context: &Context,
    link: &mut Connection,
    number: u64,
    (name, dtype, shape): (&str, DType, Shape),
    bytes: Option<&[u8]>,
) -> slipring::Result<()> {
    let deadline = Instant::now() + SECOND;
    let mut tensor = context.allocation().until(deadline).dtype(dtype, shape)?;
    match bytes {
        Some(bytes) => tensor.copy_from_slice(bytes),
        // A gradient that moves.
        None => {
            tensor.chunks_mut(64).zip(number as u8..=u8::MAX).for_each(|(part, v)| part.fill(v))
        }
    }
    let sum = checksum(bytes.unwrap_or(&tensor));
    let mut set = TensorSet::new();
    set.insert(HEAD, Tensor::from_slice([3], &[number, now(), sum])?)?;
    set.insert(name, tensor.share()?)?;
    link.sender().send_tensors_deadline(&set, deadline)
}
