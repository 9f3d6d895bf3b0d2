//! Shows the frames of `camera`: how many, how old, how many it missed.
//!
//! ```text
//! cargo run --release --example camera                    # in one terminal
//! cargo run --release --example viewer                    # in another: always the newest frame
//! cargo run --release --example viewer -- --policy newest=4 --slow 50     # 50 ms for each frame
//! cargo run --release --example viewer -- --policy every
//! ```
//!
//! Expect a line a second. A slow viewer that asks for the latest frame misses frames, and those that it gets are new. The
//! camera waits for one that asks for every frame, and evicts it after a second without progress. Kill either (`kill -9`) and
//! start it again: the other goes on.

use std::io::{Write, stdout};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use lexopt::prelude::{Long, ValueExt};
use slipring::Context;
use slipring::broadcast::{Sample, SubscribeOptions};
use slipring::message::Value;

const SECOND: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    match run() {
        Ok(()) => return ExitCode::SUCCESS,
        Err(error) => eprintln!("viewer: {error:#}"),
    }
    ExitCode::FAILURE
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let (mut name, mut options, mut slow, mut count) =
        ("viewers".to_owned(), SubscribeOptions::latest(), 0, 0);
    let mut arguments = lexopt::Parser::from_env();
    while let Some(argument) = arguments.next()? {
        match argument {
            Long("name") => name = arguments.value()?.string()?,
            Long("policy") => options = arguments.value()?.parse_with(policy)?,
            Long("slow") => slow = arguments.value()?.parse()?,
            Long("count") => count = arguments.value()?.parse()?,
            other => return Err(other.unexpected().into()),
        }
    }
    writeln!(stdout(), "waiting for {name}")?;
    let mut viewer = Context::new()?.subscribe(&name, options.wait_for_publisher(Duration::MAX))?;
    let (mut seen, mut told, mut oldest) = (0, (0, 0), Duration::ZERO);
    let mut report = Instant::now() + SECOND;
    while count == 0 || seen < count {
        match viewer.recv_deadline(report) {
            Ok(Some(sample)) => {
                if sample.restarted() {
                    writeln!(stdout(), "another camera came")?;
                }
                seen += 1;
                oldest = oldest.max(look(sample)?);
                std::thread::sleep(Duration::from_millis(slow));
            }
            Ok(None) => break,
            Err(error) if error.is_timeout() => {}
            Err(error) => return Err(error.into()),
        }
        if Instant::now() >= report {
            let (received, missed) = viewer.counts();
            let rate = received - told.0;
            let ms = oldest.as_secs_f64() * 1e3;
            let lost = missed - told.1;
            writeln!(stdout(), "{rate} frames a second, at most {ms:.2} ms old, {lost} missed")?;
            (told, oldest, report) = ((received, missed), Duration::ZERO, Instant::now() + SECOND);
        }
    }
    writeln!(stdout(), "done, {seen} frames were seen")?;
    Ok(())
}

/// Checks a frame. Returns its age.
fn look(sample: Sample<'_>) -> Result<Duration, Box<dyn std::error::Error>> {
    let metadata = sample.metadata();
    let (Some(Value::Integer(number)), Some(Value::Time(stamp))) =
        (metadata.get("frame"), metadata.get("stamp"))
    else {
        return Err("a frame without a number or a stamp".into());
    };
    let age = stamp.elapsed().unwrap_or_default(); // the clock may have been set back
    let frame = sample.into_tensor()?;
    let bytes = frame.bytes()?.to_vec();
    if bytes.iter().any(|byte| *byte != number as u8) {
        return Err(format!("frame {number} has bytes of another one").into());
    }
    Ok(age)
}

fn policy(text: &str) -> Result<SubscribeOptions, String> {
    match text {
        "latest" => Ok(SubscribeOptions::latest()),
        "every" => Ok(SubscribeOptions::every()),
        _ => {
            let count = text.strip_prefix("newest=").and_then(|count| count.parse().ok());
            Ok(SubscribeOptions::newest(count.ok_or("a policy is latest, newest=N or every")?))
        }
    }
}
