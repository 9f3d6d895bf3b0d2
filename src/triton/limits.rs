//! How much a client may ask for.

use std::time::Duration;

/// What a server takes of its clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    pub(super) request_bytes: u64,
    pub(super) response_bytes: u64,
    pub(super) json_bytes: usize,
    pub(super) bytes_under_way: u64,
    pub(super) connections: usize,
    pub(super) patience: Duration,
    pub(super) idle: Duration,
}

impl Limits {
    /// The defaults: requests and responses of 2 GiB - 1, of requests 64 MiB JSON; 8 GiB of both at once; 1024
    /// connections; 60 s, and 10 minutes.
    pub fn new() -> Self {
        Self {
            request_bytes: i32::MAX as u64,
            response_bytes: i32::MAX as u64,
            json_bytes: 64 << 20,
            bytes_under_way: 8 << 30,
            connections: 1024,
            patience: Duration::from_secs(60),
            idle: Duration::from_secs(600),
        }
    }

    /// Bytes of a request, after decompression. Tensors in shared memory do not count.
    pub fn request_bytes(mut self, most: u64) -> Self {
        self.request_bytes = most;
        self
    }

    /// Bytes of a response, before and after compression. Tensors in shared memory do not count.
    pub fn response_bytes(mut self, most: u64) -> Self {
        self.response_bytes = most;
        self
    }

    /// Bytes of JSON in a request, after decompression.
    pub fn json_bytes(mut self, most: usize) -> Self {
        self.json_bytes = most;
        self
    }

    /// Bytes of all requests that are being read or executed, after decompression; of outputs that go into
    /// responses, as JSON and compressed, too, until they are sent; and of what models copy out of regions. Who
    /// needs more is refused.
    pub fn bytes_under_way(mut self, most: u64) -> Self {
        self.bytes_under_way = most;
        self
    }

    /// Connections of each address; more wait in the kernel's queue.
    pub fn connections(mut self, most: usize) -> Self {
        self.connections = most;
        self
    }

    /// How long no byte of a request's body may come.
    pub fn patience(mut self, longest: Duration) -> Self {
        self.patience = longest;
        self
    }

    /// How long a connection may be without a whole head of a request, after the last answer was ready. It is
    /// looked for now and then, so up to a quarter of it may be added.
    pub fn idle(mut self, longest: Duration) -> Self {
        self.idle = longest;
        self
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self::new()
    }
}
