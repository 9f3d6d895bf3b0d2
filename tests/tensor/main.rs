//! A tensor arrives as it was sent, without a copy where the API says so. Its memory returns to the sender however the
//! receiver ends. A lie about a tensor ends the link that told it.

mod dlpack;
mod exchange;
mod lies;
mod metadata;
mod requests;
#[path = "../support/mod.rs"]
mod support;
mod wire;
