//! The Triton front: models served to unmodified clients of the KServe v2 protocol, over HTTP and gRPC.
//!
//! ```text
//!   bytes ─▶ http, grpc ─▶ InferRequest ─▶ check ─▶ leases ─▶ Model::infer ─▶ InferResponse ─▶ http, grpc ─▶ bytes
//!            (a wire)       (no wire)       (pure)   (region)   Inputs, Outputs
//! ```
//!
//! A tensor comes with its request, or lies in a region of shared memory that the client has registered before, and
//! so do outputs. Both wires make the same [`InferRequest`] and call the same verbs, so they mean the same.
//!
//! 1. What a client sends is input: counted, bounded, and refused by one of the texts in `refusal`.
//! 2. A client's region is leased by a request for as long as it runs, whatever is unregistered meanwhile.
//! 3. Memory that its owner can truncate is touched by the kernel alone, unless the application has installed the
//!    [`SigbusGuard`](slipring::region::SigbusGuard) and says [`in_place`](FrontBuilder::in_place). Either way the request of
//!    who truncates fails, and nothing else.
//! 4. No text tells a key, path or address that its reader has not sent.

mod budget;
mod connections;
mod description;
mod error;
mod execution;
mod front;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
mod grpc;
mod http;
mod idle;
mod inputs;
mod json;
mod limits;
mod listener;
mod metadata;
mod model;
mod model_error;
mod outputs;
mod refusal;
mod repository;
mod request;
mod server;
mod shared_memory;
mod shutdown;
mod statistics;
mod strings;
mod validation;

pub use description::{
    IndexEntry, ModelDescription, ModelStatistics, ServerDescription, TensorDescription,
};
pub use error::BuildError;
pub use front::{Front, FrontBuilder};
pub use grpc::{GrpcHealth, GrpcService};
pub use http::router as http_router;
pub use inputs::{Input, Inputs};
pub use limits::Limits;
pub use metadata::{ModelMetadata, TensorSpec};
pub use model::{AsyncModel, Inferring, Model};
pub use model_error::ModelError;
pub use outputs::{Output, Outputs};
pub use refusal::{Refusal, RefusalKind};
pub use request::{
    InferRequest, InferResponse, InputData, Parameter, RegionWindow, RequestInput, RequestedOutput,
    ResponseOutput,
};
pub use server::{Bound, Server, Wire};
pub use shared_memory::{CudaRegion, OpenGpu, SharedMemory, SystemRegion};
pub use statistics::{BatchStatistics, Counts, Tally};
pub use strings::Strings;
