//! Publishes frames to any number of viewers, which all read the same memory.
//!
//! ```text
//! cargo run --release --example camera                    # in one terminal: 60 frames a second
//! cargo run --release --example viewer                    # in another, or in several
//! cargo run --release --example camera -- --rate 1000 --height 480 --width 640 --count 5000
//! ```
//!
//! A frame is a `UINT8 [1080, 1920, 3]`, row-major, 6,220,800 bytes. Its number and the time of its making are metadata.
//! Expect a line for each viewer that comes or goes, and one a second. Kill the camera (`kill -9`) and start it again: the
//! viewers go on. A camera without viewers goes on, too.

use std::io::{Write, stdout};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

use lexopt::prelude::{Long, ValueExt};
use slipring::broadcast::PublishOptions;
use slipring::{Context, meta};

const SECOND: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    match run() {
        Ok(()) => return ExitCode::SUCCESS,
        Err(error) => eprintln!("camera: {error:#}"),
    }
    ExitCode::FAILURE
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let (mut name, mut rate, mut height, mut width, mut count) =
        ("viewers".to_owned(), 60, 1080, 1920, 0);
    let mut arguments = lexopt::Parser::from_env();
    while let Some(argument) = arguments.next()? {
        match argument {
            Long("name") => name = arguments.value()?.string()?,
            Long("rate") => rate = arguments.value()?.parse()?,
            Long("height") => height = arguments.value()?.parse()?,
            Long("width") => width = arguments.value()?.parse()?,
            Long("count") => count = arguments.value()?.parse()?,
            other => return Err(other.unexpected().into()),
        }
    }
    let pause = SECOND.checked_div(rate).unwrap_or(Duration::ZERO);
    let options = PublishOptions::new().slots(64).newest_limit(16);
    let mut camera = Context::new()?.publish(&name, options)?;
    writeln!(stdout(), "publishing as {name}")?;
    let (mut due, mut report, mut told) = (Instant::now(), Instant::now() + SECOND, 0);
    while count == 0 || camera.sent() < count {
        let number = camera.sent();
        let mut frame = camera.alloc::<u8>([height, width, 3])?;
        frame.fill(number as u8);
        let metadata = meta! { "frame" => number as i64, "stamp" => SystemTime::now() }?;
        camera.send_tensor_with(frame, &metadata)?;
        for event in camera.take_events() {
            let (pid, kind) = (event.pid().unwrap_or(0), event.kind()); // 0: in another pid namespace
            writeln!(stdout(), "viewer with pid {pid}: {kind:?}")?;
        }
        if Instant::now() >= report {
            let (sent, viewers) = (camera.sent(), camera.subscribers().len());
            writeln!(stdout(), "{sent} frames, {} a second, {viewers} viewers", sent - told)?;
            (told, report) = (sent, Instant::now() + SECOND);
        }
        due = (due + pause).max(Instant::now());
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
    writeln!(stdout(), "done, {} frames were published", camera.sent())?;
    Ok(())
}
