//! Sends numbered, checksummed messages for as long as somebody consumes them.
//!
//! ```text
//! cargo run --release --example consumer                    # in one terminal
//! cargo run --release --example producer                    # in another: at full speed
//! cargo run --release --example producer -- --rate 1000 --size 4096 --count 5000 --name numbers
//! ```
//!
//! Expect a line a second from both: the rate here, the latency there. Kill either (`kill -9`) and
//! start it again: the other says what happened and goes on. What was under way to a consumer that
//! died is lost with it: the next one starts at a later number.

#[path = "stream/message.rs"]
mod message;

use std::error::Error;
use std::io::{Write, stdout};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use message::{Head, SECOND, checksum, now};
use slipring::{Context, ErrorKind, Sender};
use zerocopy::IntoBytes;

fn main() -> ExitCode {
    match run() {
        Ok(()) => return ExitCode::SUCCESS,
        Err(error) => eprintln!("producer: {error}"),
    }
    ExitCode::FAILURE
}

fn run() -> Result<(), Box<dyn Error>> {
    let (name, [size, rate, count]) = message::options([("size", 64), ("rate", 0), ("count", 0)])?;
    let pause = SECOND.checked_div(u32::try_from(rate)?).unwrap_or(Duration::ZERO);
    let context = Context::new()?;
    let (mut number, mut told, mut report) = (0, 0, Instant::now() + SECOND);
    loop {
        let mut link = match context.connect_retry(&name, Instant::now() + SECOND) {
            Ok(link) => link,
            Err(error) if is_absent(&error) => {
                writeln!(stdout(), "waiting for a consumer: {error}")?;
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
                writeln!(stdout(), "done, {number} messages were sent")?;
                return Ok(());
            }
            match send(link.sender(), number, size.try_into()?) {
                Ok(()) => number += 1,
                Err(error) if error.is_timeout() => writeln!(stdout(), "the consumer is stuck")?,
                Err(error) if error.is_disconnected() => break error,
                Err(error) => return Err(error.into()),
            }
            if Instant::now() >= report {
                writeln!(stdout(), "{number} messages, {} a second", number - told)?;
                (told, report) = (number, Instant::now() + SECOND);
            }
            due += pause;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        };
        writeln!(stdout(), "{end}, {number} messages were sent")?;
    }
}

/// Nobody is there, or not any more, or busy with another producer.
fn is_absent(error: &slipring::Error) -> bool {
    let nobody = matches!(error.kind(), ErrorKind::NobodyListens { .. });
    nobody || error.is_timeout() || error.is_disconnected()
}

/// Writes a message where it will lie, no shorter than its head, and publishes it.
fn send(sender: &mut Sender, number: u64, size: usize) -> slipring::Result<()> {
    let size = size.max(size_of::<Head>());
    let mut message = sender.reserve_deadline(size, Instant::now() + SECOND)?;
    let (head, body) = message.split_at_mut(size_of::<Head>());
    for (index, word) in body.chunks_mut(8).enumerate() {
        let value = number.wrapping_add(index as u64).to_le_bytes();
        word.copy_from_slice(&value[..word.len()]);
    }
    let stamp = now();
    let checksum = checksum(number, stamp, body);
    head.copy_from_slice(Head { number, stamp, checksum }.as_bytes());
    message.publish()
}
