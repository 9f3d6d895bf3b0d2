//! Tensors: what bytes mean, and how they are handed over without being copied.

pub mod codec;
pub mod dlpack;
mod dtype;
mod element;
mod shape;

pub use dtype::DType;
pub use element::Element;
pub use shape::Shape;
