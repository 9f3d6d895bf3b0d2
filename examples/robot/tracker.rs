//! The tracker: estimates position and velocity of the disc from the last detections.

use std::io::{Write, stdout};

use slipring::Context;
use slipring::broadcast::{PublishOptions, SubscribeOptions};

use crate::Outcome;
use crate::filter::Track;
use crate::options::Options;
use crate::report::{Arrival, Clock, Hop};
use crate::topic::{self, DETECTIONS, TRACKS};

/// Detections that the tracker may be behind: older ones help no estimate.
const NEWEST: u32 = 8;

pub fn run(options: &Options) -> Outcome<()> {
    let (context, name) = (Context::new()?, &options.name);
    let mut tracks = topic::publish(&context, name, TRACKS, PublishOptions::new())?;
    writeln!(stdout(), "tracker waits for {DETECTIONS} of {name}")?;
    let policy = SubscribeOptions::newest(NEWEST);
    let mut detections = topic::subscribe(&context, name, DETECTIONS, policy)?;
    let (mut clock, mut hop) = (Clock::start(), Hop::on(DETECTIONS));
    let mut track: Option<Track> = None;
    while options.count == 0 || tracks.sent() < options.count {
        match detections.recv_deadline(clock.due()) {
            Ok(Some(sample)) => {
                let arrival = Arrival::of(&sample)?;
                hop.take(&arrival);
                let sequence = arrival.head.sequence;
                if let Some([x, y, _area]) = topic::row(&sample.into_tensor()?)? {
                    let new = || Track::new(sequence, x, y);
                    track.get_or_insert_with(new).update(sequence, x, y);
                }
                let row = track.map(|track| {
                    let (x, y) = track.at(sequence);
                    [x, y, track.vx, track.vy]
                });
                topic::send(&mut tracks, &arrival.head, row)?;
            }
            Ok(None) => break,
            Err(error) if error.is_timeout() => {}
            Err(error) => return Err(error.into()),
        }
        if clock.strikes() {
            writeln!(stdout(), "tracker: {}", hop.report())?;
        }
    }
    writeln!(stdout(), "done, {} tracks were published", tracks.sent())?;
    Ok(())
}
