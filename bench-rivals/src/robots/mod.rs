//! A robot's pipeline over several systems: four programs, a process each, on three topics.
//!
//! ```text
//! camera ──frames──▶ detector ──detections──▶ tracker ──tracks──▶ viewer
//!    └─────────────────────frames────────────────────────────────▶┘
//! ```
//!
//! They do what those of `examples/robot` do, by the same code: a camera draws a disc in 1080p frames, 60 a second, the
//! detector finds it in the newest frame, the tracker filters the last detections, and the viewer finds the disc in the newest
//! frame and takes the newest track. The last hop is the viewer's receive of a track.
//!
//! The systems take turns in slices of a few seconds, each round beginning with another one. A slice starts four processes,
//! lets them run in, and measures for `WINDOW`.

mod alone;
#[path = "../../../examples/robot/filter.rs"]
mod filter;
mod iceoryx2;
mod node;
mod record;
#[path = "../../../examples/robot/scene.rs"]
mod scene;
mod slice;
mod slipring;
mod transport;
#[cfg(feature = "zmq")]
mod zmq;

use std::io::{Write, stdout};
use std::path::Path;
use std::time::{Duration, Instant};

use slipring_bench::results::{Results, RobotFigure};
use slipring_bench::{machine, tables};

use crate::Outcome;
use slice::Slice;
use transport::Transport;

pub use node::run as node;

/// How long a slice measures.
const WINDOW: Duration = Duration::from_secs(3);

/// The systems, in the order of the table. The last one is the floor.
static ALL: &[&dyn Transport] = &[
    &slipring::DEFAULT,
    &slipring::ASLEEP,
    &iceoryx2::Iceoryx2,
    #[cfg(feature = "zmq")]
    &zmq::Zmq,
    &alone::Alone,
];

/// Measures for so many minutes, prints the table, and writes the figures.
pub fn measure(minutes: f64, only: Option<&[String]>, out: &Path) -> Outcome<()> {
    // A comma stands between names.
    let plain = |system: &&dyn Transport| system.name().replace(',', "");
    let names: Vec<String> = ALL.iter().map(plain).collect();
    if let Some(name) = only.into_iter().flatten().find(|name| !names.contains(name)) {
        return Err(format!("no {name:?}, there are: {}", names.join("; ")).into());
    }
    let chosen = |system: &&&dyn Transport| only.is_none_or(|only| only.contains(&plain(system)));
    let systems: Vec<&dyn Transport> = ALL.iter().filter(chosen).copied().collect();
    let facts = machine::facts();
    let deadline = Instant::now() + Duration::from_secs_f64(minutes * 60.0);
    let mut slices: Vec<Vec<Slice>> = systems.iter().map(|_| Vec::new()).collect();
    let mut round = 0;
    while round == 0 || Instant::now() < deadline {
        for place in 0..systems.len() {
            let at = (place + round) % systems.len();
            eprintln!("round {}: {}", round + 1, systems[at].name());
            slices[at].push(Slice::run(systems[at], WINDOW)?);
        }
        round += 1;
    }
    let figures: Outcome<Vec<RobotFigure>> = systems
        .iter()
        .zip(&slices)
        .map(|(system, slices)| slice::figure(*system, slices))
        .collect();
    Results { facts, figures: figures? }.write(out)?;
    write!(stdout(), "{}", tables::tables(out)?)?;
    Ok(())
}

/// Returns the system of this name.
fn named(name: &str) -> Outcome<&'static dyn Transport> {
    let found = ALL.iter().find(|system| system.name() == name);
    found.copied().ok_or_else(|| format!("no system {name:?}").into())
}
