//! Round trips between two processes: slipring beside the floors of the machine.
//!
//! - Question: how long is a round trip, or a message one way, beside a floor that the same two processes measure in the
//!   same moments?
//! - Unit: nanoseconds, as the median of slices. p99 and p99.9 are of single round trips, whose stamps include one reading
//!   of the clock.
//! - Pinning: each process has one CPU of its own. With `--pairs`, all processes may run on both CPUs.
//!
//! | option | meaning |
//! |---|---|
//! | `--modes a,b` | only these rows; a wrong name lists all |
//! | `--sizes 8,48` | only these payloads, in bytes |
//! | `--seconds S` | the time of a row; without it up to 3, so that all rows together take less than a minute |
//! | `--cpus A,B` | the two CPUs; 0,1 without it |
//! | `--busy N` | N busy loops on both CPUs during the whole run |
//! | `--pairs N` | N pairs of processes at once, over a futex, eventfds, a socket, and slipring |
//! | `--json` | one JSON object a line |
//! | `--csv FILE` | writes the results to a file, too |
//!
//! `--features slipring-bench/tokio` at the build adds the rows `tokio` and `tokio-uds`.
//!
//! ```text
//! options -> rows -> harness -> peer process      rows: subjects, tensors, reactors, …, and the floors
//!                       |
//!                    loops      busy loops beside it
//! options -> pairs -> two processes a pair
//! ```

mod broadcasts;
mod calls;
mod commits;
mod harness;
mod neighbours;
mod options;
mod pairs;
mod registered;
mod report;
mod rows;
mod run;
#[cfg(feature = "tokio")]
mod runtimes;
mod subjects;
mod tensors;
mod wakes;

use std::process::ExitCode;

use self::options::Options;

/// Runs the program `ping_pong`.
pub fn main() -> ExitCode {
    match Options::parse().and_then(run::run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ping_pong: {error}");
            ExitCode::FAILURE
        }
    }
}
