//! The command `slipring`.
//!
//! | module | what it is |
//! |---|---|
//! | `failure` | why a command failed, and the exit code that says so |
//! | `echo` | `slipring echo`: a listener that sends each message back |

mod echo;
mod failure;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::failure::Failure;

/// Shows and tries slipring's links and topics.
#[derive(Debug, Parser)]
#[command(name = "slipring", version, about, after_help = failure::EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Listens on an address, and sends each message back to whoever sent it
    Echo(echo::Echo),
}

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("slipring: {failure}");
            failure.into()
        }
    }
}

fn run(cli: Cli) -> Result<(), Failure> {
    match cli.command {
        Command::Echo(echo) => echo.run(),
    }
}
