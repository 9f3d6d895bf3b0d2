//! Promises of both protocols: execution of models, the end of connections, equal answers.

mod connections;
mod descriptors;
mod execution;
#[path = "../served/grpc.rs"]
mod grpc_served;
#[path = "../served/http.rs"]
mod http_served;
mod instances;
#[path = "../served/loadable.rs"]
mod loadable;
mod metrics;
mod protocol;
mod repository;
#[path = "../../../../tests/support/mod.rs"]
mod support;
