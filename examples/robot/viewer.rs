//! The viewer: takes the newest frame and the newest track, and shows how far they are from each other.

use std::io::{Write, stdout};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Instant;

use slipring::Context;
use slipring::broadcast::SubscribeOptions;

use crate::Outcome;
use crate::detector;
use crate::filter::Track;
use crate::listen::listen;
use crate::options::Options;
use crate::report::{Clock, Hop};
use crate::scene::Blob;
use crate::topic::{self, FRAMES, TRACKS};

/// What a message shows.
enum Content {
    Frame(Option<Blob>),
    Track(Option<[f64; 4]>),
}

pub fn run(options: &Options) -> Outcome<()> {
    let (context, name) = (Context::new()?, &options.name);
    let (to, messages) = mpsc::channel();
    let latest = SubscribeOptions::latest();
    listen(&context, name, FRAMES, latest, &to, |tensor| {
        Ok(Content::Frame(detector::find(&tensor)?))
    });
    let latest = SubscribeOptions::latest();
    listen(&context, name, TRACKS, latest, &to, |tensor| Ok(Content::Track(topic::row(&tensor)?)));
    writeln!(stdout(), "viewer waits for {FRAMES} and {TRACKS} of {name}")?;
    let (mut frames, mut tracks) = (Hop::on(FRAMES), Hop::on(TRACKS));
    let (mut clock, mut seen) = (Clock::start(), 0);
    let (mut disc, mut track) = (None, None);
    while options.count == 0 || seen < options.count {
        match messages.recv_timeout(clock.due().saturating_duration_since(Instant::now())) {
            Ok(message) => {
                let message = message?;
                let sequence = message.arrival.head.sequence;
                match message.content {
                    Content::Frame(found) => {
                        frames.take(&message.arrival);
                        disc = found.map(|blob| (sequence, blob));
                        seen += 1;
                    }
                    Content::Track(row) => {
                        tracks.take(&message.arrival);
                        track = row.map(|[x, y, vx, vy]| Track { sequence, x, y, vx, vy });
                    }
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        if clock.strikes() {
            let (frames, tracks) = (frames.report(), tracks.report());
            writeln!(stdout(), "viewer: {frames}\n        {tracks}")?;
            match (disc, &track) {
                (Some((sequence, blob)), Some(track)) => show(sequence, &blob, track)?,
                _ => writeln!(stdout(), "        no track")?,
            }
        }
    }
    writeln!(stdout(), "done, {seen} frames were seen")?;
    Ok(())
}

/// Shows the disc of a frame beside the track, as the track expects it in that frame.
fn show(sequence: u64, blob: &Blob, track: &Track) -> Outcome<()> {
    let (x, y) = track.at(sequence);
    let off = (x - blob.x).hypot(y - blob.y);
    let behind = sequence as i64 - track.sequence as i64;
    let (seen_x, seen_y) = (blob.x, blob.y);
    writeln!(
        stdout(),
        "        frame {sequence}: disc at {seen_x:.1}, {seen_y:.1}; track {behind} frames behind, {off:.1} pixels off"
    )?;
    Ok(())
}
