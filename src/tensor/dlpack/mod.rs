//! DLPack: exchanging tensors with other libraries of this process, without a copy.
//!
//! NumPy, PyTorch, JAX, CuPy, TVM and others exchange tensors as a C structure, the
//! [`DLManagedTensorVersioned`] of DLPack 1.x: a pointer to the bytes, data type and shape, and a `deleter`
//! that the holder of the structure calls at the end.
//!
//! ```text
//!   DLManagedTensorVersioned::export(owner, ..) ──▶ *mut DLManagedTensorVersioned ──▶ Imported::from_raw(..)
//!                          │ deleter, once                    │ drop: calls the deleter
//!                          ▼                                  ▼
//!                         drops the owner                    the other library frees its tensor
//! ```
//!
//! 1. The pointer owns the tensor. It has one holder, and the holder calls the deleter once, on any thread.
//! 2. An exported structure lies in one allocation. The deleter frees it together with the owner.
//! 3. An imported structure is copied and then checked. It must be contiguous in row-major order, and of a data type that
//!    has a [`DType`](crate::DType). Otherwise the deleter is called and the import is an error.
//! 4. [`Imported`] is in memory of the host. A tensor in memory of a GPU is adopted there, to be sent
//!    (`cuda::Device::adopt_dlpack`), and exported from there (`cuda::GpuView::into_dlpack`).
//!
//! Structures and their fields have the names of `dlpack.h`.

mod abi;
mod export;
mod import;
mod judged;
mod on_gpu;
mod tensor;
mod unversioned;

pub use abi::DLManagedTensorVersioned;
#[doc(hidden)]
pub use abi::{DLDataType, DLDevice, DLPackVersion, DLTensor};
#[doc(hidden)]
pub use export::export_on;
pub use import::Imported;
#[doc(hidden)]
pub use on_gpu::ImportedOnGpu;
pub use unversioned::DLManagedTensor;
