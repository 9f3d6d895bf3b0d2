//! The rows that two processes measure together.

use crate::Outcome;
use crate::exchange::{Exchange, Setup};
use crate::runner::Pace;

/// The rows that a program measures, by index. Both processes run the same program, so both have the
/// same rows.
pub trait Rows: Sync {
    /// Returns the program's name, for error texts.
    fn program(&self) -> &'static str;

    /// Returns how the slices of a row are made.
    fn pace(&self, index: usize) -> Pace;

    /// Returns the values that [`Exchange::tune`] may be given. The best of them is the row's figure.
    fn variants(&self, index: usize, bytes: usize) -> Vec<u64>;

    /// Sets up one side of a row.
    fn open(&self, index: usize, setup: &Setup) -> Outcome<Box<dyn Exchange>>;
}
