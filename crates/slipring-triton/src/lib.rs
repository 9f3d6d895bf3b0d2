//! Serves models to unmodified clients of the KServe v2 protocol, over HTTP and gRPC.
//!
//! ```text
//!   bytes ─▶ http, grpc ─▶ InferRequest ─▶ validation ─▶ leases ─▶ Model::infer ─▶ InferResponse ─▶ http, grpc ─▶ bytes
//!            (protocol)    (no protocol)   (pure)        (region)  Inputs, Outputs
//! ```
//!
//! A tensor travels with its request, or lies in a region of shared memory that the client has registered. The same
//! holds for outputs. Both protocols build the same [`InferRequest`] and call the same methods of [`Front`], so both
//! behave alike.
//!
//! 1. The front treats every byte of a client as input. It counts the bytes, bounds them, and refuses a bad request
//!    with
//!    a text of `refusal`.
//! 2. A running request leases its regions. A client that unregisters a region does not disturb the requests that use
//!    it.
//! 3. The kernel alone touches memory that its owner can truncate, unless the application installs the
//!    [`SigbusGuard`](slipring::region::SigbusGuard) and sets [`in_place`](FrontBuilder::in_place). In both modes a client that
//!    truncates its memory fails its own request and no other.
//! 4. A text never tells a key, a path or an address that its reader has not sent.
//!
//! # Examples
//!
//! ```no_run
//! use slipring_triton::{Front, Inputs, Model, ModelError, ModelMetadata, Outputs, Server, TensorSpec, Protocol};
//!
//! /// Copies `X` to `Y`.
//! struct Copy(ModelMetadata);
//!
//! impl Model for Copy {
//!     fn metadata(&self) -> &ModelMetadata {
//!         &self.0
//!     }
//!
//!     fn infer(&self, inputs: &Inputs, outputs: &mut Outputs) -> Result<(), ModelError> {
//!         let x = inputs.input("X")?;
//!         outputs.output("Y", *x.shape())?.copy_from(&x)
//!     }
//! }
//!
//! # async fn serve() -> Result<(), Box<dyn std::error::Error>> {
//! let tensor = |name| TensorSpec::new(name, slipring::DType::Fp32, [None]);
//! let metadata = ModelMetadata::new("copy").input(tensor("X")).output(tensor("Y"));
//! let front = Front::builder().model(Copy(metadata)).build()?;
//! let mut server = Server::new(front);
//! server.listen(Protocol::Http, "127.0.0.1:8000").await?;
//! server.listen(Protocol::Grpc, "127.0.0.1:8001").await?;
//! server.serve(std::future::pending()).await?;
//! # Ok(())
//! # }
//! ```

mod blocking;
mod budget;
mod classification;
mod connections;
mod decompress;
mod decoupled;
mod description;
mod descriptors;
mod error;
mod execution;
mod front;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
mod grpc;
mod held_model;
mod http;
mod idle;
mod inputs;
mod instances;
mod json;
mod limits;
mod listener;
mod load_parameters;
mod metadata;
mod metrics;
mod model;
mod model_control;
mod model_error;
mod model_repository;
mod outputs;
mod pages;
mod patience;
mod refusal;
mod repository;
mod request;
mod responses;
mod server;
mod shared_memory;
mod shutdown;
#[cfg(feature = "traces")]
mod spans;
#[cfg(not(feature = "traces"))]
#[path = "spans/off.rs"]
mod spans;
mod statistics;
mod strings;
mod threads;
mod turns;
mod validation;

pub use description::{
    IndexEntry, ModelDescription, ModelStatistics, ServerDescription, TensorDescription,
};
pub use descriptors::raise_descriptor_limit;
pub use error::BuildError;
pub use front::{Front, FrontBuilder};
pub use grpc::{GrpcHealth, GrpcService};
pub use http::router as http_router;
pub use inputs::{Input, Inputs};
pub use limits::Limits;
pub use load_parameters::LoadParameters;
pub use metadata::{DTYPES, ModelMetadata, TensorSpec};
pub use model::{AsyncModel, DecoupledModel, Inferring, Model};
pub use model_error::ModelError;
pub use model_repository::{LoadedModel, ModelRepository};
pub use outputs::{Output, Outputs};
pub use refusal::{Refusal, RefusalKind};
pub use repository::ModelState;
pub use request::{
    InferRequest, InferResponse, InputData, Parameter, RegionWindow, RequestInput, RequestedOutput,
    ResponseOutput,
};
pub use responses::Responses;
pub use server::{Bound, Protocol, Server};
pub use shared_memory::{CudaRegion, OpenGpu, SharedMemory, SystemRegion};
pub use statistics::{BatchStatistics, Counts, Tally};
pub use strings::Strings;
