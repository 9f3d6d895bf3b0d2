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
//! | `stamp` | a time of the clock, as it is printed |
//! | `topic` | a subscription, as the commands ask for it |
//! | `message` | what a line tells of a message |
//! | `npy`, `safetensors` | the heads of files of tensors |
//! | `payload` | what `pub` sends |
//! | `outlet` | a publisher whose waits the user can end |
//! | `recording` | files of recorded topics |
//! | `store` | messages as files of a folder |
//! | `latency` | the quantiles of a measurement |
//! | `round_trip` | messages that go to an `echo` end and come back |
//! | `floor` | round trips over a socket pair |
//! | `look` | what status pages and `/proc` tell of all processes |
//! | `echo`, `ping`, `bench`, `publish`, `subscribe`, `hz`, `record`, `replay`, `doctor`, `ls`, `top`, `why` | the commands |
//! | `generate` | `completions` and `man`, which describe the commands |

mod bench;
mod doctor;
mod echo;
mod escaped;
mod failure;
mod floor;
mod generate;
mod hz;
mod interrupt;
mod latency;
mod look;
mod ls;
mod message;
mod npy;
mod outlet;
mod output;
mod payload;
mod ping;
mod process;
mod publish;
mod quantity;
mod record;
mod recording;
mod replay;
mod round_trip;
mod safetensors;
mod stamp;
mod store;
mod subscribe;
mod top;
mod topic;
mod why;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use crate::escaped::Line;
use crate::failure::Failure;
use crate::output::Output;

/// Shows and tries slipring's links and topics.
#[derive(Debug, Parser)]
#[command(name = "slipring", version, after_help = failure::EXIT_CODES)]
struct Cli {
    /// Print JSON, one object a line
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List listeners, topics and links of this machine, and what each side does
    Ls(ls::Ls),
    /// Show what passes through links and topics, live
    Top(top::Top),
    /// Tell who waits for whom, since when, and where that ends
    Why(why::Why),
    /// Listen on an address, and send each message back to its sender
    Echo(echo::Echo),
    /// Send messages to a `slipring echo`, and tell how long each takes there and back
    Ping(ping::Ping),
    /// Measure latency and rate to a `slipring echo`, beside a Unix socket pair in the same moments
    Bench(bench::Bench),
    /// Publish lines of standard input, files, or tensors of .npy and .safetensors files
    Pub(publish::Publish),
    /// Print a line for each message of a topic, or store them
    Sub(subscribe::Subscribe),
    /// Tell how often the messages of a topic come
    Hz(hz::Hz),
    /// Record topics into a file, with time stamps, metadata and tensors
    Record(record::Record),
    /// Publish what was recorded, with its distances in time
    Replay(replay::Replay),
    /// Tell what the machine lets slipring do, and try a handshake with an address
    Doctor(doctor::Doctor),
    /// Print completions for a shell, to be sourced
    Completions(generate::Completions),
    /// Print the man page of the program or of a command
    Man(generate::ManPage),
}

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if failure.is_told() {
                eprintln!("slipring: {}", Line(&failure.to_string()));
            }
            failure.into()
        }
    }
}

fn run(cli: Cli) -> Result<(), Failure> {
    let output = Output::new(cli.json);
    match cli.command {
        Command::Ls(ls) => ls.run(output),
        Command::Top(top) => top.run(output),
        Command::Why(why) => why.run(output),
        Command::Echo(echo) => echo.run(output),
        Command::Ping(ping) => ping.run(output),
        Command::Bench(bench) => bench.run(output),
        Command::Pub(publish) => publish.run(output),
        Command::Sub(subscribe) => subscribe.run(output),
        Command::Hz(hz) => hz.run(output),
        Command::Record(record) => record.run(output),
        Command::Replay(replay) => replay.run(output),
        Command::Doctor(doctor) => doctor.run(output),
        Command::Completions(completions) => completions.run(Cli::command(), output),
        Command::Man(man) => man.run(Cli::command(), output),
    }
}
