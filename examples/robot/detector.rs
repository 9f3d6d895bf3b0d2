//! The detector: finds the disc in the newest frame, and publishes where it is.

use std::io::{Write, stdout};
use std::thread;
use std::time::Duration;

use slipring::broadcast::{PublishOptions, SubscribeOptions};
use slipring::{Context, DType, Tensor};

use crate::Outcome;
use crate::options::Options;
use crate::report::{Arrival, Clock, Hop};
use crate::scene::{Blob, Scene};
use crate::topic::{self, DETECTIONS, FRAMES};

pub fn run(options: &Options) -> Outcome<()> {
    let (context, name) = (Context::new()?, &options.name);
    let mut detections = topic::publish(&context, name, DETECTIONS, PublishOptions::new())?;
    writeln!(stdout(), "detector waits for {FRAMES} of {name}")?;
    let mut frames = topic::subscribe(&context, name, FRAMES, SubscribeOptions::latest())?;
    let (mut clock, mut hop) = (Clock::start(), Hop::on(FRAMES));
    while options.count == 0 || detections.sent() < options.count {
        match frames.recv_deadline(clock.due()) {
            Ok(Some(sample)) => {
                let arrival = Arrival::of(&sample)?;
                hop.take(&arrival);
                let found = find(&sample.into_tensor()?)?;
                thread::sleep(Duration::from_millis(options.slow));
                let row = found.map(|blob| [blob.x, blob.y, f64::from(blob.area)]);
                topic::send(&mut detections, &arrival.head, row)?;
            }
            Ok(None) => break,
            Err(error) if error.is_timeout() => {}
            Err(error) => return Err(error.into()),
        }
        if clock.strikes() {
            writeln!(stdout(), "detector: {}", hop.report())?;
        }
    }
    writeln!(stdout(), "done, {} detections were published", detections.sent())?;
    Ok(())
}

/// Finds the disc in a frame, in place.
pub fn find(frame: &Tensor) -> Outcome<Option<Blob>> {
    let scene = match (frame.dtype(), frame.shape().dims()) {
        (DType::Uint8, &[height, width, 3]) => Scene { height, width },
        (dtype, dims) => {
            return Err(format!("a frame of {dtype} {dims:?}, expected UINT8 [h, w, 3]").into());
        }
    };
    let bytes = frame.bytes()?;
    Ok(scene.find(|offset, row| bytes.slice(offset, row.len()).copy_to(row)))
}
