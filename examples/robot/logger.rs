//! The logger: writes a line for each message of each topic.

use std::fs::File;
use std::io::{Write, stdout};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Instant;

use slipring::Context;
use slipring::broadcast::SubscribeOptions;

use crate::Outcome;
use crate::listen::{Message, listen};
use crate::options::Options;
use crate::report::{Clock, Hop};
use crate::topic::{self, DETECTIONS, FRAMES, TRACKS};

/// The columns of the log. The numbers of a tensor follow.
const HEAD: &str = "topic,sequence,age_us,missed,restarted,x,y,vx,vy\n";

pub fn run(options: &Options) -> Outcome<()> {
    let (context, name) = (Context::new()?, &options.name);
    let mut log = open(options)?;
    let (to, messages) = mpsc::channel();
    let every = SubscribeOptions::every;
    listen(&context, name, FRAMES, every(), &to, |_| Ok(Vec::new()));
    listen(&context, name, DETECTIONS, every(), &to, |tensor| {
        let row = topic::row::<3>(&tensor)?;
        Ok(row.map_or(Vec::new(), |[x, y, _area]| vec![x, y]))
    });
    listen(&context, name, TRACKS, every(), &to, |tensor| {
        Ok(topic::row::<4>(&tensor)?.map_or(Vec::new(), |row| row.to_vec()))
    });
    writeln!(stdout(), "logger waits for {FRAMES}, {DETECTIONS} and {TRACKS} of {name}")?;
    let mut hops = [FRAMES, DETECTIONS, TRACKS].map(|topic| (topic, Hop::on(topic)));
    let (mut clock, mut tracks) = (Clock::start(), 0);
    while options.count == 0 || tracks < options.count {
        match messages.recv_timeout(clock.due().saturating_duration_since(Instant::now())) {
            Ok(message) => {
                let message = message?;
                // At once: a logger that is killed has written what it received.
                log.write_all(line(&message).as_bytes())?;
                for (_, hop) in hops.iter_mut().filter(|(topic, _)| *topic == message.topic) {
                    hop.take(&message.arrival);
                }
                tracks += u64::from(message.topic == TRACKS);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        if clock.strikes() {
            for (_, hop) in &mut hops {
                writeln!(stdout(), "logger: {}", hop.report())?;
            }
        }
    }
    writeln!(stdout(), "done, {tracks} tracks are in {}", options.log.display())?;
    Ok(())
}

/// Opens the log at its end, so that a logger that starts again goes on.
fn open(options: &Options) -> Outcome<File> {
    let path = &options.log;
    let open = || -> std::io::Result<File> {
        let mut log = File::options().create(true).append(true).open(path)?;
        if log.metadata()?.len() == 0 {
            log.write_all(HEAD.as_bytes())?;
        }
        Ok(log)
    };
    open().map_err(|error| format!("{}: {error}", path.display()).into())
}

fn line(message: &Message<Vec<f64>>) -> String {
    let Message { topic, arrival, content } = message;
    let mut line = format!(
        "{topic},{},{},{},{}",
        arrival.head.sequence,
        arrival.age.as_micros(),
        arrival.missed,
        u8::from(arrival.restarted)
    );
    for column in 0..4 {
        line += &content.get(column).map_or(",".into(), |value| format!(",{value:.3}"));
    }
    line + "\n"
}
