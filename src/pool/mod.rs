//! Blocks of memory that are lent to peers.
//!
//! A message too long for the ring travels in a [`Block`] of this process's pool: written once by
//! the sender, read in place by the receiver, then given back.
//!
//! ```text
//!   free ──alloc──▶ Block (ours alone) ──lend──▶ on loan ──peer writes generation──▶ free
//!    ▲                   │ drop                     │ peer gone                        ▲
//!    └───────────────────┘                          └──────────────────────────────────┘
//! ```
//!
//! 1. Blocks lie in sealed segments of ours; a peer maps a segment read-only the first time it is
//!    lent a block of it.
//! 2. The table of loans is private. A loan has a slot in its borrower's table and a generation
//!    that is never used twice; the borrower returns it by writing the generation into the slot of
//!    an array in *its own* memory: idempotent, never full, from any thread. We look when we need
//!    blocks.
//! 3. The block handed out is the one unused for longest, within a bounded footprint: lines that
//!    the other core has just read are slow to write. How large that is depends on the machine and on
//!    where its threads run, which is measured.
//! 4. A segment of which no block is in use can be dropped whole; its number is never used again.

mod block;
mod class;
mod distance;
mod frozen;
mod loans;
#[cfg(all(test, slipring_loom))]
mod models;
mod ready;
mod shared;
mod state;
mod store;
#[cfg(test)]
mod support;
mod tuning;

pub(crate) use block::Block;
pub(crate) use frozen::{FrozenBlock, FrozenDraft};
pub(crate) use loans::{Borrower, BorrowerId, Loan, Promise};
pub(crate) use ready::{Prepared, Ready};
pub(crate) use shared::{SharedBlock, Users};
pub(crate) use store::{Exhausted, Lacking, Pool, PoolOptions};
