//! One line of the results of `bench-rivals robots`.

use serde::{Deserialize, Serialize};

/// A system that carries the messages of a robot's pipeline: camera, detector, tracker, viewer. CPU times and memory are
/// medians of slices, ages are quantiles of all frames.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RobotFigure {
    /// The system's name.
    pub system: String,
    /// `slipring`, `rival` or `floor`.
    pub kind: String,
    /// The version of the package.
    pub version: String,
    /// The camera's user and system time, in percent of a CPU.
    pub camera_percent: Option<f64>,
    /// The detector's.
    pub detector_percent: Option<f64>,
    /// The tracker's.
    pub tracker_percent: Option<f64>,
    /// The viewer's.
    pub viewer_percent: Option<f64>,
    /// That of all processes together.
    pub cpu_percent: Option<f64>,
    /// From the start of a frame's drawing to the viewer's receive of its track, in nanoseconds.
    pub age_p50_ns: Option<f64>,
    /// As `age_p50_ns`.
    pub age_p99_ns: Option<f64>,
    /// Frames that the camera sent in all slices together.
    pub sent: usize,
    /// Frames of these whose track did not reach the viewer.
    pub untracked: usize,
    /// Frames of these that did not reach the viewer.
    pub unseen: usize,
    /// The proportional set sizes of all processes together, in KiB.
    pub memory_kib: Option<f64>,
    /// Slices that were measured.
    pub slices: usize,
    /// Options that are not the system's defaults, and how a reader waits.
    pub options: String,
}
