//! Serves models to Triton clients over HTTP and gRPC, with tensors in shared memory.
