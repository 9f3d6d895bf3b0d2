//! The command `slipring`.
//!
//! | module | what it is |
//! |---|---|
//! | `failure` | why a command failed, and the exit code that says so |
//! | `output` | standard output: lines for people, or JSON |
//! | `escaped` | text of peers, as it may be printed |
//! | `interrupt` | the wish of the user that a command ends |
//! | `quantity` | times and lengths, as a person writes and reads them |
//! | `process` | what `/proc` tells of a process |
//! | `latency` | the quantiles of a measurement |
//! | `round_trip` | messages that go to an `echo` end and come back |
//! | `floor` | round trips over a socket pair |
//! | `echo`, `ping`, `bench` | the commands of these names |

mod bench;
mod echo;
mod escaped;
mod failure;
mod floor;
mod interrupt;
mod latency;
mod output;
mod ping;
mod process;
mod quantity;
mod round_trip;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::failure::Failure;
use crate::output::Output;

/// Shows and tries slipring's links and topics.
#[derive(Debug, Parser)]
#[command(name = "slipring", version, about, after_help = failure::EXIT_CODES)]
struct Cli {
    /// Print JSON, one object a line
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Listen on an address, and send each message back to whoever sent it
    Echo(echo::Echo),
    /// Send messages to a `slipring echo`, and tell how long each takes there and back
    Ping(ping::Ping),
    /// Measure latency and rate to a `slipring echo`, beside a Unix socket pair in the same moments
    Bench(bench::Bench),
}

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if failure.is_told() {
                eprintln!("slipring: {failure}");
            }
            failure.into()
        }
    }
}

fn run(cli: Cli) -> Result<(), Failure> {
    let output = Output::new(cli.json);
    match cli.command {
        Command::Echo(echo) => echo.run(output),
        Command::Ping(ping) => ping.run(output),
        Command::Bench(bench) => bench.run(output),
    }
}
