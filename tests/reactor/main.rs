//! A reactor serves many links on one thread: it calls back in order, sleeps when there is nothing to do, and ends one
//! link without harm to the others.

mod faults;
mod flood;
mod links;
mod memory;
mod panics;
mod regressions;
mod shares;
#[path = "../support/mod.rs"]
mod support;
mod tensors;
