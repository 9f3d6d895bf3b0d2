//! Many links on one thread: their latency under load and their cost at rest, beside an epoll loop.
//!
//! - Question: how late is a message, and what do its links cost the process that serves them?
//! - Unit: microseconds from a paced send to the arrival of its echo; percent of a CPU; KiB and descriptors of a link.
//! - Pinning: none. Each of the two processes serves its links by one reactor.
//! - Load: the sender writes the time to one link after the other, `--rate` times a second each. The sender sleeps in
//!   between, so several messages go at a time.
//! - Floor: the same sender, with an eventfd and a word of shared memory for each link and direction, and an epoll loop in
//!   each process. Slices of a second alternate.
//!
//! | option | meaning |
//! |---|---|
//! | `--links N` | the number of links; 1,000 without it |
//! | `--rate N` | messages a second over each link; 100 without it |
//! | `--seconds N` | slices of a second; 5 without it |
//! | `--floor no` | leaves the floor out |
//! | `--spin no` | the reactors never spin before they sleep |
//! | `--topic yes` | so many subscribers of one topic instead, whose publisher is silent for `--seconds` |

mod floor;
mod options;
mod peer;
mod run;
mod topic;

use std::process::ExitCode;

use self::options::Options;

/// Runs the program `many_links`.
pub fn main() -> ExitCode {
    let run = |options: Options| match &options.serve {
        Some(name) if options.topic => topic::serve(name, &options),
        None if options.topic => topic::measure(&options),
        Some(name) => peer::serve(name, &options),
        None => run::measure(&options),
    };
    match Options::parse().and_then(run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("many_links: {error}");
            ExitCode::FAILURE
        }
    }
}
