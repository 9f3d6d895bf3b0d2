//! Made from `proto/` by `cargo run --manifest-path proto/generate/Cargo.toml`: messages, and the service as tonic
//! calls it.

// By which they decode.
use crate::grpc::codec;

#[allow(clippy::all, missing_docs)]
pub(super) mod health;
#[allow(clippy::all, missing_docs)]
pub(super) mod inference;
