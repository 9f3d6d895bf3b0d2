//! Tensors: what bytes mean, and how they are handed over without being copied.

pub mod codec;
mod dtype;
mod element;
mod shape;

pub use dtype::DType;
pub use element::Element;
pub use shape::Shape;
