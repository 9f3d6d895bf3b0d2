//! How much a client may ask for.

use std::time::Duration;

/// Bytes of a body that come in a second, at least. Links of this machine, and to its neighbours, are a thousand
/// times as fast.
const SLOWEST: u64 = 16 << 10;

/// What a server takes of its clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    pub(super) request_bytes: u64,
    pub(super) response_bytes: u64,
    pub(super) json_bytes: usize,
    pub(super) bytes_in_flight: u64,
    pub(super) connections: usize,
    pub(super) stall_timeout: Duration,
    pub(super) idle_timeout: Duration,
    pub(super) shutdown_timeout: Duration,
}

impl Limits {
    /// The defaults: requests and responses of 2 GiB - 1, of requests 64 MiB JSON; 8 GiB of both at once; 1024
    /// connections; stall_timeout of 60 s, idleness of 10 minutes, a shutdown_timeout of 20 s.
    pub fn new() -> Self {
        Self {
            request_bytes: i32::MAX as u64,
            response_bytes: i32::MAX as u64,
            json_bytes: 64 << 20,
            bytes_in_flight: 8 << 30,
            connections: 1024,
            stall_timeout: Duration::from_secs(60),
            idle_timeout: Duration::from_secs(600),
            shutdown_timeout: Duration::from_secs(20),
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
    pub fn bytes_in_flight(mut self, most: u64) -> Self {
        self.bytes_in_flight = most;
        self
    }

    /// Connections of each address. For one more, the one that has had no request for longest is closed, if that
    /// is a second or more; else it waits.
    pub fn connections(mut self, most: usize) -> Self {
        self.connections = most;
        self
    }

    /// How long no byte of a request's body may come, and no byte of a response be taken, and how long a connection
    /// may be without its first request. Four times as long, and a second for each 16 KiB, all waiting for a body
    /// may take together.
    pub fn stall_timeout(mut self, longest: Duration) -> Self {
        self.stall_timeout = longest;
        self
    }

    /// How long a connection of HTTP may be without a further request. It is looked for now and then, so up to a
    /// quarter of the shorter one of this and [`stall_timeout`](Self::stall_timeout) may be added.
    pub fn idle_timeout(mut self, longest: Duration) -> Self {
        self.idle_timeout = longest;
        self
    }

    /// How long the requests that are under way when a server is told to end may take. Then their connections are
    /// closed.
    pub fn shutdown_timeout(mut self, longest: Duration) -> Self {
        self.shutdown_timeout = longest;
        self
    }

    /// How long all waiting for a body may take of which so many bytes have come.
    pub(super) fn waiting(&self, came: u64) -> Duration {
        self.stall_timeout.saturating_mul(4).saturating_add(Duration::from_secs(came / SLOWEST))
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self::new()
    }
}
