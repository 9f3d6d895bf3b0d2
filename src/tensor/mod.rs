//! Tensors: what bytes mean, and how they are handed over without being copied.
//!
//! ```text
//!   TensorMut ──share──▶ Tensor ──send──▶ descriptor in the ring ‖ border ‖ Tensor ──drop──▶ back
//!   (a slice:            (read; to        32 bytes a block,                (a view: copy out,
//!    ours alone)          many links)     and shape and type                chunks, or trust)
//! ```
//!
//! Nothing of this copies bytes: handing over a gigabyte costs what handing over eight bytes costs.

mod allocation;
pub mod codec;
mod connection;
mod descriptor;
pub mod dlpack;
mod dtype;
mod element;
mod exchange;
// What only the driver of a GPU calls.
#[cfg_attr(not(feature = "cuda"), allow(dead_code, unused_imports))]
mod gpu;
mod outgoing;
mod set;
mod shape;
mod view;
mod writable;

pub use allocation::Allocation;
pub use connection::TrustedConnection;
pub use descriptor::{Descriptor, Place};
pub use dtype::DType;
pub use element::Element;
pub use gpu::GpuPlace;
#[cfg_attr(not(feature = "cuda"), allow(unused_imports))]
pub(crate) use gpu::{Fate, GpuBorrower, GpuLoan, GpuMemory, GpuParcel, OnGpu, Ticket};
pub use outgoing::Outgoing;
pub use set::TensorSet;
pub use shape::Shape;
pub use view::Tensor;
pub use writable::TensorMut;
