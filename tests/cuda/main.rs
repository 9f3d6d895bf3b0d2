//! Tensors in GPU memory pass between processes, and a driver that fails or a peer that lies causes an error.
//!
//! The driver is `tests/fake_cuda`, which needs no GPU. With `SLIPRING_GPU` set the tests use the machine's own driver.

mod adopted;
mod containers;
mod copies;
mod descriptors;
mod dlpack;
mod errors;
mod exchange;
mod failed;
mod fake;
mod fake_misuse;
mod forged;
mod framework;
mod hangs;
mod limits;
mod peers;
mod pinned;
mod quotas;
mod sets;
mod side;
#[path = "../support/mod.rs"]
mod support;
mod threads;
mod waiting;
mod words;
