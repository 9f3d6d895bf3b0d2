//! Blocks of memory that a process lends to its peers.
//!
//! A message too long for the ring travels in a [`Block`] of the sender's pool. The sender writes it once, the receiver
//! reads it in place, and then returns it.
//!
//! ```text
//!   free ──alloc──▶ Block (this process's alone) ──lend──▶ on loan ──peer writes generation──▶ free
//!    ▲                   │ drop                               │ peer gone                        ▲
//!    └───────────────────┘                                    └──────────────────────────────────┘
//! ```
//!
//! 1. Blocks lie in sealed segments of this process. A peer maps a segment read-only when it first borrows a block of it.
//! 2. The table of loans is private. A loan has a slot in its borrower's table and a generation that is never used twice.
//!    The borrower returns the loan by writing the generation into the slot of an array in *its own* memory. This write
//!    is idempotent, always has room, and may come from any thread. The pool checks the array when it needs blocks.
//! 3. The pool hands out the block that was unused for longest, within a footprint: [`class`] says why, and [`distance`]
//!    which of two footprints.
//! 4. The pool can drop a segment of which no block is in use. It never uses the segment's number twice.

mod block;
mod class;
mod distance;
mod frozen;
mod holders;
mod limits;
mod loans;
#[cfg(all(test, slipring_loom))]
mod models;
mod piece;
// The folder is named after its chief object.
#[expect(clippy::module_inception)]
mod pool;
mod processor;
mod ready;
mod shared;
#[cfg(test)]
mod support;
mod tables;

pub(crate) use block::Block;
pub(crate) use frozen::{FrozenBlock, FrozenDraft};
pub(crate) use holders::Holder;
pub(crate) use limits::{Exhausted, Lacking, LoanLimit, PoolOptions};
pub(crate) use loans::{Borrower, BorrowerId, Loan, Promise};
pub(crate) use pool::Pool;
pub(crate) use processor::has_grouped_caches;
pub(crate) use ready::{Prepared, Ready};
pub(crate) use shared::{SharedBlock, Users};
