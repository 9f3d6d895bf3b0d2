//! The Python package `slipring`: messages and tensors between processes of one Linux machine.
//!
//! ```text
//!   user's code ─▶ python/slipring ─▶ this module ─▶ crate slipring
//!                  names, asyncio      handles, locks,
//!                                      buffers, DLPack
//! ```
//!
//! 1. A thread that waits is not attached to the interpreter. It looks for signals every 40 ms.
//! 2. A lock is free, or held by a thread that does not wait for the interpreter.
//! 3. What a peer can write is passed on by its address. No Rust code here forms a slice of it.
//! 4. No panic leaves a function: PyO3 makes an exception of it.

mod arrays;
mod buffer;
mod calls;
mod connection;
mod context;
mod deadline;
mod detached;
mod dlpack;
mod dtype;
mod error;
mod event_loop;
mod gpu;
mod handle;
mod inbox;
mod integer;
mod listener;
mod memory;
mod message;
mod metadata;
mod opened;
mod outgoing;
mod peer;
mod peer_memory;
mod process;
mod publisher;
mod request;
mod sample;
mod shape;
mod stats;
mod stream;
mod subscriber;
mod tensor;
mod tensor_set;

use pyo3::prelude::*;
use slipring::DType;
use slipring::tensor::BytesBuilder;

use crate::error::raise;

/// Returns a tensor of strings, dtype "bytes": `bytes` or `str` elements in row-major order. The shape is that of a vector
/// unless another one is given.
///
/// Raises `InvalidTensor` if the shape has another number of elements.
#[pyfunction]
#[pyo3(signature = (elements, shape = None))]
fn strings(
    elements: &Bound<'_, PyAny>,
    shape: Option<&Bound<'_, PyAny>>,
) -> PyResult<tensor::Tensor> {
    let mut encoded = BytesBuilder::new();
    for element in elements.try_iter()? {
        let element = element?;
        match element.extract::<&str>() {
            Ok(text) => encoded.push(text.as_bytes()).map_err(raise)?,
            Err(_) => encoded.push(element.extract::<&[u8]>()?).map_err(raise)?,
        }
    }
    let shape = match shape {
        Some(shape) => shape::parse(shape)?,
        None => slipring::Shape::from([encoded.count()]),
    };
    let bytes = encoded.finish();
    DType::Bytes.check(&shape, &bytes).map_err(raise)?;
    slipring::Tensor::from_bytes(DType::Bytes, shape, &bytes)
        .map(tensor::Tensor::ready)
        .map_err(raise)
}

#[pymodule(gil_used = false, name = "_slipring")]
fn init(this: &Bound<'_, PyModule>) -> PyResult<()> {
    process::register(this)?;
    this.add("__version__", env!("CARGO_PKG_VERSION"))?;
    this.add_class::<connection::Connection>()?;
    this.add_class::<connection::TensorIterator>()?;
    this.add_class::<context::Context>()?;
    this.add_class::<listener::Listener>()?;
    this.add_class::<message::Message>()?;
    this.add_class::<peer::Peer>()?;
    this.add_class::<peer_memory::PeerMemory>()?;
    this.add_class::<calls::Pending>()?;
    this.add_class::<publisher::Publisher>()?;
    this.add_class::<request::Request>()?;
    this.add_class::<sample::Sample>()?;
    this.add_class::<subscriber::Subscriber>()?;
    this.add_class::<tensor::Tensor>()?;
    this.add_class::<tensor_set::Tensors>()?;
    this.add_function(wrap_pyfunction!(strings, this)?)?;
    this.add_function(wrap_pyfunction!(gpu::from_dlpack, this)?)?;
    this.add_function(wrap_pyfunction!(gpu::pin, this)?)?;
    this.add_function(wrap_pyfunction!(gpu::trim_gpus, this)?)
}
