//! The quantiles of a measurement.

use std::fmt;

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::quantity::Nanos;

/// The longest time that a histogram tells from a longer one: an hour, in nanoseconds.
const LONGEST: u64 = 3_600_000_000_000;

/// Returns a histogram of nanoseconds, whose values are true to a thousandth.
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_max(LONGEST, 3).expect("the bounds are valid")
}

/// The quantiles of times in nanoseconds.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Latency {
    min: u64,
    p50: u64,
    p99: u64,
    p999: u64,
    max: u64,
}

impl Latency {
    /// Returns the quantiles of what was recorded, if there is something.
    pub(crate) fn of(times: &Histogram<u64>) -> Option<Self> {
        let at = |quantile| times.value_at_quantile(quantile);
        (!times.is_empty()).then(|| Self {
            min: times.min(),
            p50: at(0.5),
            p99: at(0.99),
            p999: at(0.999),
            max: times.max(),
        })
    }

    pub(crate) fn p50(&self) -> u64 {
        self.p50
    }

    /// Returns the median and what lies above it, in order.
    pub(crate) fn tail(&self) -> [u64; 4] {
        [self.p50, self.p99, self.p999, self.max]
    }
}

impl fmt::Display for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |nanos: u64| Nanos(nanos as f64);
        let Self { min, p50, p99, p999, max } = *self;
        write!(f, "min {}, p50 {}, p99 {}, ", shown(min), shown(p50), shown(p99))?;
        write!(f, "p99.9 {}, max {}", shown(p999), shown(max))
    }
}
