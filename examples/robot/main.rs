//! A robot's pipeline: five programs on three topics, each of which may start, die and start again at any time.
//!
//! ```text
//! cargo build --release --example robot
//! target/release/examples/robot camera                 # each in a terminal of its own, in any order
//! target/release/examples/robot detector
//! target/release/examples/robot tracker
//! target/release/examples/robot viewer
//! target/release/examples/robot logger --log robot.csv
//! ```
//!
//! The camera draws a bright disc that moves, 60 times a second. The detector finds it in the newest frame, the tracker
//! estimates its velocity, the viewer compares the track with the newest frame, and the logger writes a line for each message
//! of each topic. Expect a line a second from each: how many messages, how old their frames are, how many it missed. Kill any
//! of them (`kill -9`) and start it again: the others go on, and say so. docs/robots.md has more.

mod camera;
mod detector;
mod filter;
mod listen;
mod logger;
mod options;
mod report;
mod scene;
mod topic;
mod tracker;
mod viewer;

use std::io::{Write, stdout};
use std::process::ExitCode;

use options::{Command, Node};

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn main() -> ExitCode {
    match run() {
        Ok(()) => return ExitCode::SUCCESS,
        Err(error) => eprintln!("robot: {error:#}"),
    }
    ExitCode::FAILURE
}

fn run() -> Outcome<()> {
    let (node, options) = match options::parse(lexopt::Parser::from_env())? {
        Command::Help => return Ok(stdout().write_all(options::USAGE.as_bytes())?),
        Command::Run(node, options) => (node, options),
    };
    match node {
        Node::Camera => camera::run(&options),
        Node::Detector => detector::run(&options),
        Node::Tracker => tracker::run(&options),
        Node::Viewer => viewer::run(&options),
        Node::Logger => logger::run(&options),
    }
    .map_err(|error| format!("{}: {error:#}", node.name()).into())
}
