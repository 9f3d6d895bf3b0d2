//! A ring: one writer, one reader, records in order.
//!
//! ```text
//!                   position (reader's segment)        head (private to the writer)
//!                      ▼                                  ▼
//!   ────────┬──────────┬───────────┬──────────┬───────────┬────────┬───────────
//!    given  │ header│payload       │ header│payload       │ 0      │ not yet
//!    back   │ (read, not released) │ (published)          │        │ written
//!   ────────┴──────────┴───────────┴──────────┴───────────┴────────┴───────────
//!            └ whole lines, or tight ─┘                    └ next header: invalid
//! ```
//!
//! The data section is the writer's memory. A record is `header | payload`. The header is one word in band, so
//! a message of up to 56 bytes moves one cache line. A payload of 57 to 512 bytes follows its header tightly,
//! so that a stream of them moves few lines. A longer one starts in a line of its own, away from the header
//! that the reader polls. The reader's position stands in the reader's memory.
//!
//! 1. Positions count bytes since creation. They never wrap (2⁶⁴ bytes take 58 years at 10 GB/s, and the
//!    arithmetic wraps anyway), and map to the ring by `position mod capacity`.
//! 2. Before a header is published, the word of the next header is zero. A reader that has consumed everything
//!    reads zero, never old payload.
//! 3. A header is stored last, and a batch stores its first header last.
//! 4. The writer never passes `position + capacity` and keeps one line free after the record.
//! 5. Each side treats the other's words as input: an impossible value ends the link.
//!
//! [`ProducerCursor`](cursor::ProducerCursor) and [`ConsumerCursor`](cursor::ConsumerCursor) hold the
//! arithmetic and know no memory. [`Producer`] and [`Consumer`] do the loads and stores over any memory that
//! has words, so that loom runs the shipped code.

mod consumer;
mod cursor;
mod header;
mod producer;

#[cfg(all(test, slipring_loom))]
mod models;
#[cfg(all(test, not(slipring_loom)))]
mod tsan;

pub(crate) use consumer::{Consumer, Record};
pub(crate) use cursor::{Full, LINE, SHORT, batch_limit, largest_payload};
pub(crate) use header::{Header, Kind};
pub(crate) use producer::{BatchSlot, PlainRoom, Producer};
