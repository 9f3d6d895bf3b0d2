//! The command line.

use std::path::PathBuf;

use lexopt::prelude::{Long, Short, Value, ValueExt};

use crate::Outcome;

pub const USAGE: &str = "\
usage: robot NODE [OPTION...]

  camera     publishes camera/frames          --rate 60 --height 1080 --width 1920
  detector   camera/frames -> detections      --slow 0
  tracker    detections -> tracks
  viewer     shows camera/frames and tracks
  logger     writes every message of all topics to a file  --log robot.csv

  --name robot   the robot: nodes of one name work together
  --count 0      ends the node after so many messages (logger: tracks); 0: never
  --rate 60      frames a second; 0: as fast as possible
  --slow 0       milliseconds that the detector spends on each frame beside its work
  --help         shows this
";

/// The smallest side of a frame in pixels.
const SMALLEST: usize = 64;

/// A program of the pipeline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Node {
    Camera,
    Detector,
    Tracker,
    Viewer,
    Logger,
}

impl Node {
    const ALL: [Node; 5] =
        [Node::Camera, Node::Detector, Node::Tracker, Node::Viewer, Node::Logger];

    pub fn name(self) -> &'static str {
        match self {
            Node::Camera => "camera",
            Node::Detector => "detector",
            Node::Tracker => "tracker",
            Node::Viewer => "viewer",
            Node::Logger => "logger",
        }
    }

    /// Returns whether the node reads an option. Every node reads `name` and `count`.
    fn reads(self, option: &str) -> bool {
        match option {
            "name" | "count" => true,
            "rate" | "height" | "width" => self == Node::Camera,
            "slow" => self == Node::Detector,
            "log" => self == Node::Logger,
            _ => false,
        }
    }
}

pub struct Options {
    pub name: String,
    /// Messages after which the node ends. 0: it does not.
    pub count: u64,
    pub rate: u32,
    pub height: usize,
    pub width: usize,
    /// Milliseconds.
    pub slow: u64,
    pub log: PathBuf,
}

pub enum Command {
    Help,
    Run(Node, Options),
}

pub fn parse(mut arguments: lexopt::Parser) -> Outcome<Command> {
    let mut options = Options {
        name: "robot".into(),
        count: 0,
        rate: 60,
        height: 1080,
        width: 1920,
        slow: 0,
        log: "robot.csv".into(),
    };
    let mut node = None;
    while let Some(argument) = arguments.next()? {
        match argument {
            Long("help") | Short('h') => return Ok(Command::Help),
            Value(word) if node.is_none() => node = Some(named(&word.string()?)?),
            Long(option) => {
                let option = option.to_owned();
                let node = node.ok_or("the node comes first: robot NODE [OPTION...]")?;
                if !node.reads(&option) {
                    let name = node.name();
                    return Err(format!("a {name} has no option --{option}: see --help").into());
                }
                options.set(&option, &mut arguments)?;
            }
            other => return Err(other.unexpected().into()),
        }
    }
    let node = node.ok_or_else(|| format!("no node is named, there are: {}", names()))?;
    if options.height.min(options.width) < SMALLEST {
        let Options { height, width, .. } = options;
        return Err(format!(
            "a frame of {height} x {width} pixels is too small: each side needs {SMALLEST}"
        )
        .into());
    }
    Ok(Command::Run(node, options))
}

impl Options {
    fn set(&mut self, option: &str, arguments: &mut lexopt::Parser) -> Outcome<()> {
        let value = arguments.value()?;
        match option {
            "name" => self.name = value.string()?,
            "count" => self.count = value.parse()?,
            "rate" => self.rate = value.parse()?,
            "height" => self.height = value.parse()?,
            "width" => self.width = value.parse()?,
            "slow" => self.slow = value.parse()?,
            _ => self.log = value.into(),
        }
        Ok(())
    }
}

fn named(word: &str) -> Outcome<Node> {
    let node = Node::ALL.into_iter().find(|node| node.name() == word);
    node.ok_or_else(|| format!("no node {word:?}, there are: {}", names()).into())
}

fn names() -> String {
    Node::ALL.map(Node::name).join(", ")
}
