//! The C interface of slipring: what `include/slipring.h` declares and `libslipring` has. `docs/c.md` is for its
//! users.
//!
//! # The design
//!
//! **Names.** Functions on an object are `slipring_OBJECT_VERB`. Those that make one or move messages over a
//! connection have the verb alone, as sockets do: `slipring_connect`, `slipring_send`, `slipring_peek`. Types and
//! constants have here the names that they have in C.
//!
//! **Handles.** A `Handle` has a word at its head that says what it is. The functions read it first, so NULL, another
//! kind of handle, and one that was freed give `SLIPRING_INVALID_HANDLE`. Each handle is freed by the one function
//! that its maker's text names. Nothing else that the caller gets is freed.
//!
//! **Threads.** A connection has a sending and a receiving half. One thread uses a half at a time, and two threads
//! may use the two halves at once. A `Half` notes that a thread is in it, with plain stores, so that it costs no
//! locked instruction: a second thread gets `SLIPRING_BUSY`, unless both enter within the same nanoseconds. A context
//! is for any number of threads.
//!
//! **Lifetimes.** In Rust a reservation, a batch and a received message borrow their half. In C the half keeps them:
//! what `slipring_reserve` returned stays valid until `slipring_publish` or `slipring_discard`, what `slipring_peek`
//! returned until `slipring_release` or the next receiving call. Each half has at most one open, and a call in the
//! wrong state gives `SLIPRING_WRONG_STATE` and changes nothing.
//!
//! **Tensors.** A function that sends a tensor or a set takes the handle only with `SLIPRING_OK`. With any other status
//! the tensor stays the caller's, so no send loses memory.
//!
//! **Callbacks.** Each callback of a link holds a share of its `User`, whose drop calls the caller's `drop`. The `User` has a
//! handle of the link of its own, so a callback's `link` is valid whatever the caller has freed.
//!
//! **Waiting.** Each function that may wait takes a time in nanoseconds. It reads the clock only when it has to wait.
//! `0` (`SLIPRING_NONBLOCK`) does not wait.
//!
//! **Answers.** Each function that can fail returns a `slipring_status`. Three of them are no errors: `SLIPRING_OK`,
//! `SLIPRING_WOULD_BLOCK` and `SLIPRING_END`. Every other one leaves its text for `slipring_last_error` of the same
//! thread, which is put together when it is asked for.
//!
//! **Panics.** No panic crosses the border: each function ends it, returns `SLIPRING_PANIC`, and the half in which it
//! happened answers `SLIPRING_PANIC` from then on.
//!
//! **Cost.** A call that moves a message takes its arguments as words and keeps what is open by its parts, so nothing
//! is moved through memory in another width than it was stored in. `benches/border.rs` compares each call to Rust's.
//!
//! **Forks.** In a forked child what would use the parent's connections returns `SLIPRING_FORKED`, and freeing a
//! handle changes nothing of the parent's.

#![allow(
    clippy::missing_safety_doc,
    reason = "the documentation is that of the header: what C demands of each pointer stands there once"
)]
#![allow(non_camel_case_types, reason = "types have the names of the header")]

mod batch;
mod calls;
mod connection;
mod context;
mod dlpack;
mod failure;
mod half;
mod handle;
mod last_error;
mod listener;
mod messages;
mod options;
mod pointers;
mod publisher;
mod reactor;
mod receiving;
mod sending;
mod status;
mod subscriber;
mod tensor;
mod tensor_messages;
mod tensor_set;
mod timeout;
