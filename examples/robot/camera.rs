//! The camera: draws and publishes frames.

use std::io::{Write, stdout};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use slipring::Context;
use slipring::broadcast::PublishOptions;

use crate::Outcome;
use crate::options::Options;
use crate::report::Clock;
use crate::scene::Scene;
use crate::topic::{self, FRAMES, Head};

/// Frames that the logger may be behind, plus one: half a second at 60 a second.
const SLOTS: u32 = 32;

pub fn run(options: &Options) -> Outcome<()> {
    let scene = Scene { height: options.height, width: options.width };
    let pause = Duration::from_secs(1).checked_div(options.rate).unwrap_or(Duration::ZERO);
    let slots = PublishOptions::new().slots(SLOTS);
    let mut camera = topic::publish(&Context::new()?, &options.name, FRAMES, slots)?;
    writeln!(stdout(), "camera publishes {FRAMES} of {}", options.name)?;
    let (mut due, mut clock, mut told) = (Instant::now(), Clock::start(), 0);
    while options.count == 0 || camera.sent() < options.count {
        let head = Head { sequence: camera.sent(), stamp: SystemTime::now() };
        let mut frame = camera.alloc::<u8>([scene.height, scene.width, 3])?;
        scene.draw(&mut frame, head.sequence);
        camera.send_tensor_with(frame, &head.metadata()?)?;
        for event in camera.take_events() {
            let (pid, kind) = (event.pid().unwrap_or(0), event.kind()); // 0: in another pid namespace
            writeln!(stdout(), "camera: subscriber with pid {pid}: {kind:?}")?;
        }
        if clock.strikes() {
            let (sent, subscribers) = (camera.sent(), camera.subscribers().len());
            writeln!(stdout(), "camera: {} frames, {subscribers} subscribers", sent - told)?;
            told = sent;
        }
        due = (due + pause).max(Instant::now());
        thread::sleep(due.saturating_duration_since(Instant::now()));
    }
    writeln!(stdout(), "done, {} frames were published", camera.sent())?;
    Ok(())
}
