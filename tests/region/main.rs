//! A region is memory that another process owns: the registry says who may use it and for how long, and an owner that
//! truncates it causes an error, not a crash.

mod dmabuf;
mod guard;
mod registry;
#[path = "../support/mod.rs"]
mod support;
