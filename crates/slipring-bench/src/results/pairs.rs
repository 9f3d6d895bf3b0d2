//! One line of the results of `ping_pong --pairs`.

use serde::{Deserialize, Serialize};

/// A way to carry messages, over which several pairs of processes exchange them at once. Times are medians of the
/// rounds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PairFigure {
    /// Pairs that ran at once.
    pub pairs: usize,
    /// The mode, as `--modes` names it.
    pub mode: String,
    /// Bytes of payload.
    pub bytes: usize,
    /// Busy loops beside the pairs.
    pub busy: usize,
    /// The time of all pairs over the round trips of all pairs, in nanoseconds.
    pub mean_ns: f64,
    /// The mean of the pair with the least one.
    pub fastest_ns: f64,
    /// The mean of the pair with the greatest one.
    pub slowest_ns: f64,
    /// The longest round trip of all pairs.
    pub longest_ns: f64,
    /// Round trips of all pairs in a second.
    pub trips_per_s: f64,
    /// `mean_ns` over that of the bare futex.
    pub ratio: f64,
    /// Pairs that starved, in all rounds together.
    pub starved: usize,
    /// Rounds that were measured.
    pub rounds: usize,
    /// The part of their speed that the busy loops kept.
    pub loops: Option<f64>,
}
