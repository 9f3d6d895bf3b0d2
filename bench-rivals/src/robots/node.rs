//! The programs of the pipeline, over whichever system.

use std::thread;
use std::time::{Duration, Instant};

use super::filter::Track;
use super::record::{self, Kind};
use super::scene::{Blob, Scene};
use super::transport::{Head, Outlet, Policy, Read, Topic, Transport};
use crate::Outcome;

pub const SCENE: Scene = Scene { height: 1080, width: 1920 };
/// The bytes of a frame.
pub const FRAME: usize = SCENE.height * SCENE.width * 3;
/// The time of a frame.
const PERIOD: Duration = Duration::from_nanos(1_000_000_000 / 60);
/// How far a track may be from the disc in its frame, in pixels. It is far less than that.
const TOLERANCE: f64 = 4.0;
/// Tracks from which on that is checked.
const SETTLED: u64 = 60;

/// Runs a node until its input ends.
pub fn run(system: &str, node: &str, robot: &str) -> Outcome<()> {
    let system = super::named(system)?;
    record::serve();
    let done = match node {
        "camera" => camera(system, robot),
        "detector" => detector(system, robot),
        "tracker" => tracker(system, robot),
        "viewer" => viewer(system, robot),
        "all" => all(),
        _ => Err(format!("no node {node:?}").into()),
    };
    done.map_err(|error| format!("{}, {node}: {error}", system.name()))?;
    record::write()
}

/// Calls `frame` for each frame that is due, with the time at which it begins.
pub fn at_sixty(mut frame: impl FnMut(Head) -> Outcome<()>) -> Outcome<()> {
    let mut due = Instant::now();
    for sequence in 0.. {
        if record::ends() {
            break;
        }
        frame(Head { sequence, stamp: record::now() })?;
        due = (due + PERIOD).max(Instant::now());
        thread::sleep(due.saturating_duration_since(Instant::now()));
    }
    Ok(())
}

fn camera(system: &dyn Transport, robot: &str) -> Outcome<()> {
    let mut frames = system.publish(robot, Topic::Frames)?;
    at_sixty(|head| {
        frames.send(head, FRAME, &mut |bytes| SCENE.draw(bytes, head.sequence))?;
        record::put(Kind::Sent, head);
        Ok(())
    })
}

/// Finds the disc, which every frame has.
fn find(read: &Read<'_>) -> Outcome<Blob> {
    Ok(SCENE.find(read).ok_or("a frame without a disc")?)
}

fn detector(system: &dyn Transport, robot: &str) -> Outcome<()> {
    let mut detections = system.publish(robot, Topic::Detections)?;
    system.receive(robot, Topic::Frames, Policy::Latest, &mut |head, read| {
        let blob = find(read)?;
        send(&mut *detections, head, [blob.x, blob.y, f64::from(blob.area)])
    })
}

fn tracker(system: &dyn Transport, robot: &str) -> Outcome<()> {
    let mut tracks = system.publish(robot, Topic::Tracks)?;
    let mut track: Option<Track> = None;
    system.receive(robot, Topic::Detections, Policy::Newest(8), &mut |head, read| {
        let [x, y, _area] = row(read);
        let track = track.get_or_insert_with(|| Track::new(head.sequence, x, y));
        track.update(head.sequence, x, y);
        send(&mut *tracks, head, [track.x, track.y, track.vx, track.vy])
    })
}

/// A thread for each topic, as in the example.
fn viewer(system: &'static dyn Transport, robot: &str) -> Outcome<()> {
    let name = robot.to_owned();
    let frames = thread::spawn(move || {
        system.receive(&name, Topic::Frames, Policy::Latest, &mut |head, read| {
            find(read)?;
            record::put(Kind::Shown, head);
            Ok(())
        })
    });
    let mut count = 0;
    let tracked = system.receive(robot, Topic::Tracks, Policy::Latest, &mut |head, read| {
        record::put(Kind::Track, head);
        let [x, y, _vx, _vy] = row(read);
        count += 1;
        if count > SETTLED { check(head, x, y) } else { Ok(()) }
    });
    frames.join().map_err(|_| "the thread of the frames panicked")??;
    tracked
}

/// All of it in one process and one thread: the floor.
fn all() -> Outcome<()> {
    let mut frame = vec![0; FRAME];
    let mut track: Option<Track> = None;
    at_sixty(|head| {
        SCENE.draw(&mut frame, head.sequence);
        record::put(Kind::Sent, head);
        let read = |offset: usize, to: &mut [u8]| to.copy_from_slice(&frame[offset..][..to.len()]);
        let blob = find(&read)?;
        let track = track.get_or_insert_with(|| Track::new(head.sequence, blob.x, blob.y));
        track.update(head.sequence, blob.x, blob.y);
        record::put(Kind::Track, head);
        find(&read)?;
        record::put(Kind::Shown, head);
        if head.sequence > SETTLED { check(head, track.x, track.y) } else { Ok(()) }
    })
}

fn check(head: Head, x: f64, y: f64) -> Outcome<()> {
    let (true_x, true_y) = SCENE.position(head.sequence);
    let off = (x - true_x).hypot(y - true_y);
    if off < TOLERANCE {
        return Ok(());
    }
    let sequence = head.sequence;
    Err(format!("the track of frame {sequence} is {off:.1} pixels off, at most {TOLERANCE}").into())
}

fn send<const N: usize>(outlet: &mut dyn Outlet, head: Head, row: [f64; N]) -> Outcome<()> {
    outlet.send(head, N * size_of::<f32>(), &mut |bytes| {
        for (bytes, value) in bytes.chunks_exact_mut(size_of::<f32>()).zip(row) {
            bytes.copy_from_slice(&(value as f32).to_ne_bytes());
        }
    })
}

fn row<const N: usize>(read: &Read<'_>) -> [f64; N] {
    std::array::from_fn(|at| {
        let mut bytes = [0; size_of::<f32>()];
        read(at * bytes.len(), &mut bytes);
        f64::from(f32::from_ne_bytes(bytes))
    })
}
