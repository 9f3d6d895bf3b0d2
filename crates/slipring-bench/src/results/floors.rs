//! One line of the results of `ping_pong`.

use serde::{Deserialize, Serialize};

/// A row at one size in one state of the machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FloorFigure {
    /// The mode, as `--modes` names it.
    pub mode: String,
    /// `slipring` or `floor`.
    pub kind: String,
    /// Bytes of payload.
    pub bytes: usize,
    /// `round trip`, or `message` in streams: what the times are of.
    pub unit: String,
    /// Where the CPUs were: `near` or `far`.
    pub state: String,
    /// Busy loops beside the measurement.
    pub busy: usize,
    /// The median of the slices, in nanoseconds.
    pub p50_ns: f64,
    /// The mean of everything in these slices.
    pub mean_ns: f64,
    /// Of single round trips. Their stamps include one reading of the clock.
    pub p99_ns: Option<f64>,
    /// As `p99_ns`.
    pub p999_ns: Option<f64>,
    /// The mode of the floor, and the median of its slices.
    pub floor: Option<String>,
    /// The median of the floor's slices.
    pub floor_ns: Option<f64>,
    /// `p50_ns` over `floor_ns`.
    pub ratio: Option<f64>,
    /// The bounce of the writable line in the same moments.
    pub line_ns: f64,
    /// Slices that were kept.
    pub slices: usize,
    /// The best of a floor's variants: buffers, or slots.
    pub variant: Option<u64>,
    /// The part of their speed that the busy loops kept.
    pub loops: Option<f64>,
}
