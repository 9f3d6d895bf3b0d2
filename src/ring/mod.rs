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
//! The data section is the writer's memory. A record is `header | payload`; the header is one word
//! in band, so a message of up to 56 bytes moves one cache line. Payloads of 57 to 512 bytes follow
//! their header tightly, so that a stream of them moves few lines; longer ones start in a line of
//! their own, away from the header that the reader polls. What the reader has to say, how far it has
//! read, stands in the reader's memory.
//!
//! 1. Positions count bytes since creation, never wrap (2⁶⁴ bytes are 58 years at 10 GB/s, and the
//!    arithmetic wraps anyway), and map to the ring by `position mod capacity`.
//! 2. Before a header is published, the word where the next header will stand is zero. So a reader
//!    that has consumed everything looks at zero, never at old payload.
//! 3. A header is stored last, and a batch stores its first header last.
//! 4. The writer never passes `position + capacity`, and keeps one line free beyond the record.
//! 5. What either side reads of the other is input: a value that cannot be ends the link.
//!
//! [`ProducerCursor`](cursor::ProducerCursor) and [`ConsumerCursor`](cursor::ConsumerCursor) hold
//! the arithmetic and know no memory; [`Producer`] and [`Consumer`] do the loads and stores, over
//! any memory that has words, so that loom runs the very code that ships.

mod consumer;
mod cursor;
mod header;
mod producer;

#[cfg(all(test, slipring_loom))]
mod models;
#[cfg(all(test, not(slipring_loom)))]
mod tsan;

pub(crate) use consumer::{Consumer, Record};
pub(crate) use cursor::{BESIDE, Full, LINE, SHORT, batch_limit, largest_payload};
pub(crate) use header::{Header, Kind};
pub(crate) use producer::{BatchSlot, Beside, Producer};
