//! The limits for clients.

use std::time::Duration;

/// The limits that a server sets its clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    pub(crate) request_bytes: u64,
    pub(crate) response_bytes: u64,
    pub(crate) json_bytes: usize,
    pub(crate) bytes_in_flight: u64,
    pub(crate) connections: usize,
    pub(crate) stall_timeout: Duration,
    pub(crate) idle_timeout: Duration,
    pub(crate) shutdown_timeout: Duration,
    pub(crate) model_threads: usize,
    pub(crate) model_loads: usize,
    pub(crate) loaded_models: usize,
}

impl Limits {
    /// Returns the defaults: requests and responses of 2 GiB - 1, of which 64 MiB may be JSON; 8 GiB in flight; 1,024
    /// connections; a stall timeout of 60 s, an idle timeout of 10 minutes, a shutdown timeout of 20 s; 224
    /// threads that models share; 4 loads of models at a time, and 1,024 loaded models.
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
            model_threads: 224,
            model_loads: 4,
            loaded_models: 1024,
        }
    }

    /// Sets the largest request in bytes, after decompression. Tensors in shared memory do not count.
    pub fn request_bytes(mut self, most: u64) -> Self {
        self.request_bytes = most;
        self
    }

    /// Sets the largest response in bytes, before and after compression. Tensors in shared memory do not count.
    pub fn response_bytes(mut self, most: u64) -> Self {
        self.response_bytes = most;
        self
    }

    /// Sets the most JSON of a request in bytes, after decompression.
    pub fn json_bytes(mut self, most: usize) -> Self {
        self.json_bytes = most;
        self
    }

    /// Sets the most bytes in flight of all clients. They are the bytes of requests after decompression, of inline
    /// outputs, of responses as JSON and as compressed, until they are sent, and of copies that models make of
    /// regions. The server refuses a request that needs more.
    pub fn bytes_in_flight(mut self, most: u64) -> Self {
        self.bytes_in_flight = most;
        self
    }

    /// Sets the most connections of one address. A further client takes the place of the connection that has been idle
    /// longest, if that time is a second or more, or a tenth of a second before its first request. Else the client waits.
    /// All addresses of a server together have half of the descriptors of the process at most
    /// ([`raise_descriptor_limit`](crate::raise_descriptor_limit)).
    pub fn connections(mut self, most: usize) -> Self {
        self.connections = most;
        self
    }

    /// Sets the longest time without a byte of a request's body or progress of a response, and the longest time before
    /// a connection's first request. All waits for one body may take four times as long; each 16 KiB that
    /// arrive pay for a second of the waits before them.
    pub fn stall_timeout(mut self, longest: Duration) -> Self {
        self.stall_timeout = longest;
        self
    }

    /// Sets the longest time between two requests of an HTTP connection. The sweep adds at most a quarter of the
    /// shorter of this and [`stall_timeout`](Self::stall_timeout).
    pub fn idle_timeout(mut self, longest: Duration) -> Self {
        self.idle_timeout = longest;
        self
    }

    /// Sets the longest time that a server waits at its shutdown for the requests in flight. It then closes their
    /// connections.
    pub fn shutdown_timeout(mut self, longest: Duration) -> Self {
        self.shutdown_timeout = longest;
        self
    }

    /// Sets how many blocking threads all models together may occupy, beside one for each model. A slow model occupies them up
    /// to its [`instances`](crate::ModelMetadata::instances); a model that finds none free still has its own thread.
    ///
    /// The threads are those of the tokio runtime, which has 512 unless its builder's `max_blocking_threads` says otherwise.
    /// Besides these and the models' own threads, a front occupies up to 160 for loads (4 at a time by default), unloads, and
    /// long conversions of requests. The defaults leave room for 128 models; a process with more models, or with other work on blocking threads,
    /// raises `max_blocking_threads`.
    pub fn model_threads(mut self, most: usize) -> Self {
        self.model_threads = most;
        self
    }

    /// Sets the most loads of models at a time, at least 1. A load that waits for another one of its name counts. The server
    /// refuses a further load with status 503.
    pub fn model_loads(mut self, most: usize) -> Self {
        self.model_loads = most.max(1);
        self
    }

    /// Sets the most models that may be loaded. The server refuses to load a further one with status 503.
    pub fn loaded_models(mut self, most: usize) -> Self {
        self.loaded_models = most;
        self
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self::new()
    }
}
