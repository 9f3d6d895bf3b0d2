//! Receives the messages of `producer`, checks each, and says how late they are.
//!
//! ```text
//! cargo run --release --example consumer                    # in one terminal
//! cargo run --release --example producer                    # in another
//! cargo run --release --example consumer -- --count 5000 --name numbers
//! ```
//!
//! Expect a line a second: messages, rate, median and 99th percentile of the time from being
//! written to being read (at full speed, the time in a full ring; try `--rate 1000`). Kill either
//! (`kill -9`) and start it again: the other says what happened and goes on. A missing number or a
//! wrong checksum is told, and ends in exit code 1.

#[path = "stream/message.rs"]
mod message;

use std::error::Error;
use std::io::{Write, stdout};
use std::process::ExitCode;
use std::time::Instant;

use hdrhistogram::Histogram;
use message::{Head, SECOND, checksum, now};
use slipring::Context;
use zerocopy::FromBytes;

fn main() -> ExitCode {
    match run() {
        Ok(()) => return ExitCode::SUCCESS,
        Err(error) => eprintln!("consumer: {error}"),
    }
    ExitCode::FAILURE
}

fn run() -> Result<(), Box<dyn Error>> {
    let (name, [count]) = message::options([("count", 0)])?;
    let mut listener = Context::new()?.listen(&name)?;
    writeln!(stdout(), "listening on {name}")?;
    let mut late = Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 3)?; // nanoseconds
    let (mut message, mut total, mut wrong) = (Vec::new(), 0, 0);
    while count == 0 || total < count {
        let mut link = listener.accept()?;
        let pid = link.peer().pid().unwrap_or(0); // 0: in another pid namespace
        writeln!(stdout(), "producer with pid {pid} came")?;
        let (mut due, mut report) = (None, Instant::now() + SECOND);
        let end = loop {
            if count != 0 && total == count {
                break "that is enough".to_owned();
            }
            match link.receiver().recv_into_deadline(&mut message, report) {
                Ok(Some(_)) => {
                    total += 1;
                    match check(&message, &mut due) {
                        Ok(head) => late.saturating_record(now().saturating_sub(head.stamp)),
                        Err(fault) => {
                            wrong += 1;
                            writeln!(stdout(), "{fault}")?;
                        }
                    }
                }
                Ok(None) => break "the producer closed in order".to_owned(),
                Err(error) if error.is_timeout() => {}
                Err(error) => break error.to_string(),
            }
            if Instant::now() >= report {
                let [p50, p99] = [0.5, 0.99].map(|part| late.value_at_quantile(part) as f64 / 1e3);
                let rate = late.len();
                writeln!(
                    stdout(),
                    "{total} messages, {rate} a second, p50 {p50} µs, p99 {p99} µs"
                )?;
                late.reset();
                report = Instant::now() + SECOND;
            }
        };
        writeln!(stdout(), "{end}, {total} messages were received")?;
    }
    if wrong > 0 { Err(format!("{wrong} of {total} messages were wrong").into()) } else { Ok(()) }
}

/// The head of a message that is whole and has the number that is due; then the next one is. A
/// producer's first message has any number: the ones before went to another consumer.
fn check(message: &[u8], due: &mut Option<u64>) -> Result<Head, String> {
    let (head, body) = Head::read_from_prefix(message).map_err(|_| "a message without a head")?;
    let sum = checksum(head.number, head.stamp, body);
    if sum != head.checksum {
        return Err(format!("checksum {:#x} where {sum:#x} was due", head.checksum));
    }
    match due.replace(head.number.wrapping_add(1)) {
        Some(due) if due != head.number => {
            Err(format!("number {} where {due} was due", head.number))
        }
        _ => Ok(head),
    }
}
