//! slipring itself, as the harness drives it: one `Exchange` and one line of `ROWS` a mode.

use crate::rows::Row;

/// Measured first, each beside its floor. A line looks like this (mode, sizes, exchange, floor):
///
/// ```text
/// Row { what: What::Slipring, mode: "direct", sizes: &[8, 48], open: Direct::open, variants: one,
///       pace: Pace::Batches, floor: Some("line-ro"), shown: true },
/// ```
pub static ROWS: &[Row] = &[];
