//! The status page tells what the links, listeners, topics and pools of this process do, to those who may look into it.
//!
//! One memfd of the process, named [`NAME`], which only tools and `metrics` read: by `/proc/PID/fd`, for which the kernel asks as for a
//! look into the process (`PTRACE_MODE_READ`). No peer gets it.
//!
//! ```text
//!   0        512       1024      1536
//!   │ head   │ spare   │ row     │ row     │ …        `layout` names the words
//! ```
//!
//! 1. Each row belongs to one object. Its facts are stored once, and then its stamp; the drop of the object stores stamp 0.
//! 2. Each line of counters has one writer at a time. A counter costs a store to a line that no peer loads.
//! 3. No decision of this process depends on the page. A write to it changes no more than what a tool shows.
//! 4. An object without a row of its own writes to the spare row: the page then says less, and nothing else fails.

#[cfg(feature = "metrics")]
pub(crate) mod census;
pub(crate) mod layout;
mod page;
mod row;
mod snapshot;
mod words;

use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) use row::{Facts, Half, Line, Row};
pub use snapshot::{HalfSnapshot, Snapshot, owner, rows};
pub use words::{Awaited, Health, Kind, Role, State};

/// The most bytes of a page.
pub const MOST_BYTES: usize = (layout::MOST_ROWS + 1) * layout::ROW;

/// The bytes of the head of a page, and of a row.
pub const ROW_BYTES: usize = layout::ROW;

/// Returns the number of a new context, which no other of this process has.
pub(crate) fn next_context() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The name of the page's memfd.
pub const NAME: &str = "slipring.status";

#[cfg(all(test, not(slipring_loom)))]
mod tests;
