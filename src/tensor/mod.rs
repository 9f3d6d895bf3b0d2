//! Tensors: data types, shapes, and handing memory over without a copy.
//!
//! ```text
//!   TensorMut ──share──▶ Tensor ──send──▶ descriptor in the ring ‖ border ‖ Tensor ──drop──▶ back
//!   (a slice:            (read; to        32 bytes a block,                (a view: copy out,
//!    ours alone)          many links)     and shape and type                chunks, or trust)
//! ```
//!
//! Sending copies no bytes: a gigabyte costs as much as eight bytes.

mod allocation;
pub(crate) mod codec;
mod connection;
mod copies;
mod descriptor;
pub mod dlpack;
mod dtype;
mod element;
mod exchange;
mod gpu;
#[doc(hidden)]
pub mod halves;
mod outgoing;
mod request;
mod set;
mod shape;
mod view;
mod writable;

pub use allocation::Allocation;
pub use codec::{BytesBuilder, BytesElements};
#[doc(hidden)]
pub use descriptor::{Descriptor, Location};
#[doc(no_inline)]
pub use dtype::DType;
pub use element::Element;
pub(crate) use exchange::{SingleTensor, TENSORS, open_set};
#[cfg(feature = "cuda")]
pub(crate) use gpu::ALIGNMENT as GPU_ALIGNMENT;
pub(crate) use gpu::WORDS;
#[doc(hidden)]
pub use gpu::{
    Fate, GpuBorrower, GpuHandle, GpuLoan, GpuLoans, GpuMemory, GpuOrder, GpuParcel, GpuPlace,
    GpuShare, GpuShared, OnGpu, SentTicket, Settled, Ticket,
};
pub(crate) use outgoing::Described;
#[doc(hidden)]
pub use outgoing::Outgoing;
#[doc(hidden)]
pub use request::{Response, TensorRequest};
#[doc(no_inline)]
pub use set::TensorSet;
#[doc(no_inline)]
pub use shape::Shape;
#[doc(no_inline)]
pub use view::Tensor;
#[doc(no_inline)]
pub use writable::TensorMut;
