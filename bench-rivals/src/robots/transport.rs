//! What a system does for the pipeline.

use crate::Outcome;
use crate::systems::Kind;

/// How long a receive waits before its node looks whether it is to end. Messages come far more often.
pub const PATIENCE: std::time::Duration = std::time::Duration::from_millis(100);

/// What each message says of the frame that it is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    pub sequence: u64,
    /// When the camera began to draw it, in nanoseconds of CLOCK_MONOTONIC.
    pub stamp: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Topic {
    Frames,
    Detections,
    Tracks,
}

impl Topic {
    pub fn name(self) -> &'static str {
        match self {
            Topic::Frames => "camera/frames",
            Topic::Detections => "detections",
            Topic::Tracks => "tracks",
        }
    }
}

/// Which messages a reader that is late gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Policy {
    Latest,
    Newest(usize),
}

/// Copies the bytes of a message from an offset on.
pub type Read<'a> = dyn Fn(usize, &mut [u8]) + 'a;

/// The writer of a topic.
pub trait Outlet {
    /// Sends a message of `len` bytes, which `fill` writes where the system lets it.
    fn send(&mut self, head: Head, len: usize, fill: &mut dyn FnMut(&mut [u8])) -> Outcome<()>;
}

/// What a node does with a message.
pub type Each<'a> = dyn FnMut(Head, &Read<'_>) -> Outcome<()> + 'a;

pub trait Transport: Sync {
    fn name(&self) -> &'static str;

    fn kind(&self) -> Kind {
        Kind::Rival
    }

    /// The package whose version the figures name.
    fn package(&self) -> Option<&'static str>;

    /// What is not left at its default, and how a reader waits.
    fn options(&self) -> &'static str;

    /// The nodes that run as processes, those that read before those that they read from.
    fn nodes(&self) -> &'static [&'static str] {
        &["viewer", "tracker", "detector", "camera"]
    }

    fn publish(&self, robot: &str, topic: Topic) -> Outcome<Box<dyn Outlet>>;

    /// Receives messages of a topic until the node [ends](super::record::ends).
    fn receive(
        &self,
        robot: &str,
        topic: Topic,
        policy: Policy,
        each: &mut Each<'_>,
    ) -> Outcome<()>;
}
