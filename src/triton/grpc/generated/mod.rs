//! Made from `proto/` by `cargo run --manifest-path proto/generate/Cargo.toml`: messages, and the service as tonic
//! calls it. Clients are made, too, for tests and benches, which include these files.

#[allow(clippy::all, dead_code, missing_docs, unused_qualifications)]
pub(super) mod health;
#[allow(clippy::all, dead_code, missing_docs, unused_qualifications)]
pub(super) mod inference;
