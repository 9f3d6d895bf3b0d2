//! One line of the results of `bench-rivals`.

use serde::{Deserialize, Serialize};

/// A system in a measure at one size, in one state of the machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figure {
    /// The measure, as `--measure` names it.
    pub measure: String,
    /// Bytes of payload.
    pub bytes: usize,
    /// Live links, of which one is used.
    pub links: usize,
    /// The system's name.
    pub system: String,
    /// `slipring`, `rival`, `kernel` or `floor`.
    pub kind: String,
    /// The version of the crate or the kernel.
    pub version: String,
    /// Where the CPUs were: `near` or `far`.
    pub state: String,
    /// Busy loops beside it, on both CPUs.
    pub busy: usize,
    /// Nanoseconds a round trip, or a message one way: the median of slices.
    pub p50_ns: Option<f64>,
    /// Nanoseconds of a round trip, or a message: the mean of all slices. Beside busy loops it counts what a median leaves out,
    /// the slices in which a loop has the CPU.
    pub mean_ns: Option<f64>,
    /// Of single round trips; their stamps include one reading of the clock.
    pub p99_ns: Option<f64>,
    /// As `p99_ns`.
    pub p999_ns: Option<f64>,
    /// Fan-in: the slowest sender's part of its fair share. Idle: percent of a CPU. Footprint: descriptors.
    pub beside: Option<f64>,
    /// Footprint: KiB.
    pub memory_kib: Option<f64>,
    /// The part of their speed alone that the loops kept.
    pub loops: Option<f64>,
    /// Slices that were kept.
    pub slices: usize,
    /// Slices during which the CPUs moved, or a side that was to sleep stayed awake.
    pub dropped: u64,
    /// The bounce of the writable line in the same moments.
    pub line_ns: Option<f64>,
    /// The best of a floor's variants: buffers, or slots.
    pub variant: Option<u64>,
    /// Which of the memory that they share both sides may write: `nothing`, `control` (what accounts for messages, not
    /// their bytes) or `all`.
    pub writable: String,
    /// Options that are not the system's defaults.
    pub options: String,
}

impl Figure {
    /// Returns whether this is the figure of a measure at a size and state, beside no loops.
    pub fn is(&self, measure: &str, bytes: usize, state: &str) -> bool {
        self.is_beside(0, measure, bytes, state)
    }

    /// Returns whether this is the figure of a measure at a size and state, beside so many busy loops.
    pub fn is_beside(&self, busy: usize, measure: &str, bytes: usize, state: &str) -> bool {
        (self.busy, self.bytes) == (busy, bytes) && self.measure == measure && self.state == state
    }

    /// Returns the messages a second.
    pub fn rate(&self) -> Option<f64> {
        self.p50_ns.map(|nanoseconds| 1e9 / nanoseconds)
    }
}
