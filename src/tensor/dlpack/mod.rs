//! DLPack: tensors for and from the other libraries of this process, without a copy.
//!
//! NumPy, PyTorch, JAX, CuPy, TVM and others hand tensors to each other as a C structure, the
//! [`DLManagedTensorVersioned`] of DLPack 1.x: a pointer to the bytes, type and shape, and a `deleter` that
//! whoever holds the structure calls when it is done.
//!
//! ```text
//!   export(owner, ..) ──▶ *mut DLManagedTensorVersioned ──▶ Imported::from_raw(..)
//!                          │ deleter, once                    │ drop: calls the deleter
//!                          ▼                                  ▼
//!                         drops the owner                    the other library frees its tensor
//! ```
//!
//! 1. The pointer owns the tensor. It has one holder, and the holder calls the deleter once, on any thread.
//! 2. What is exported lies in one allocation, freed by the deleter together with the owner.
//! 3. What is imported is judged from a copy of the structure. It is memory of the host, row-major, without
//!    gaps, and of a data type that has a [`DType`](crate::DType); all else is an error, and was given back.
//!
//! Structures and their fields have the names of `dlpack.h`.

mod abi;
mod export;
mod import;
mod tensor;

pub use abi::DLManagedTensorVersioned;
#[doc(hidden)]
pub use abi::{DLDataType, DLDevice, DLPackVersion, DLTensor};
#[cfg_attr(not(feature = "cuda"), allow(unused_imports))]
pub(crate) use export::export_on;
pub use export::{export, export_raw};
pub use import::Imported;
