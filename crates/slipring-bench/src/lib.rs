//! Measures slipring beside the floors of the machine: slices, histograms, tables.

pub mod exchange;
pub mod floors;
pub mod machine;
pub mod many_links;
pub mod memory;
pub mod payload;
pub mod peer;
pub mod ping_pong;
pub mod reactors;
pub mod results;
pub mod rows;
pub mod runner;
pub mod state;
pub mod tables;
pub mod units;

use std::error::Error;

/// The outcome of a step of a measurement.
pub type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;
