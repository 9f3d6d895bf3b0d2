//! Every text of a refusal, in one place.
//!
//! Clients and their test suites match these texts, so they equal those of the reference server. A text repeats only
//! what the client itself has sent, and numbers.

use std::borrow::Cow;
use std::fmt;

/// The kind of a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RefusalKind {
    /// HTTP 400, `INVALID_ARGUMENT`.
    InvalidArgument,
    /// HTTP 404, `NOT_FOUND`.
    NotFound,
    /// HTTP 400, `ALREADY_EXISTS`.
    AlreadyExists,
    /// HTTP 500, `INTERNAL`.
    Internal,
    /// HTTP 503, `UNAVAILABLE`.
    Unavailable,
    /// HTTP 501, `UNIMPLEMENTED`.
    Unsupported,
}

impl RefusalKind {
    /// Returns the status of an HTTP response.
    pub fn status(self) -> u16 {
        match self {
            Self::InvalidArgument | Self::AlreadyExists => 400,
            Self::NotFound => 404,
            Self::Internal => 500,
            Self::Unavailable => 503,
            Self::Unsupported => 501,
        }
    }

    /// Returns the code of a gRPC status.
    pub fn grpc_code(self) -> i32 {
        match self {
            Self::InvalidArgument => 3,
            Self::NotFound => 5,
            Self::AlreadyExists => 6,
            Self::Unsupported => 12,
            Self::Internal => 13,
            Self::Unavailable => 14,
        }
    }
}

/// A refused request, and the text that tells the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    kind: RefusalKind,
    text: Cow<'static, str>,
}

impl Refusal {
    /// Returns a refusal with this text.
    pub fn new(kind: RefusalKind, text: impl Into<Cow<'static, str>>) -> Self {
        Self { kind, text: text.into() }
    }

    /// Returns the kind.
    pub fn kind(&self) -> RefusalKind {
        self.kind
    }

    /// Returns the text for the client.
    pub fn text(&self) -> &str {
        &self.text
    }

    pub(crate) fn invalid(text: impl Into<Cow<'static, str>>) -> Self {
        Self::new(RefusalKind::InvalidArgument, text)
    }

    pub(crate) fn internal(text: impl Into<Cow<'static, str>>) -> Self {
        Self::new(RefusalKind::Internal, text)
    }

    pub(crate) fn unavailable(text: impl Into<Cow<'static, str>>) -> Self {
        Self::new(RefusalKind::Unavailable, text)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Refusal {}

/// The kind of shared memory that an operation addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SharedMemoryKind {
    /// POSIX shared memory.
    System,
    /// GPU memory.
    Cuda,
}

impl SharedMemoryKind {
    fn lower(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::Cuda => "cuda",
        }
    }

    fn upper(self) -> &'static str {
        match self {
            Self::System => "system shared memory",
            Self::Cuda => "CUDA shared memory",
        }
    }

    fn other(self) -> Self {
        match self {
            Self::System => Self::Cuda,
            Self::Cuda => Self::System,
        }
    }
}

/// Refusals of shared-memory operations.
impl Refusal {
    pub(crate) fn switched_off() -> Self {
        Self::new(
            RefusalKind::Unsupported,
            "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable.",
        )
    }

    pub(crate) fn name_missing(memory: SharedMemoryKind) -> Self {
        let memory = memory.lower();
        Self::invalid(format!(
            "'region name' is necessary to register {memory} shared memory region"
        ))
    }

    pub(crate) fn already_registered(name: &str) -> Self {
        let text = format!("shared memory region '{name}' already in manager");
        Self::new(RefusalKind::AlreadyExists, text)
    }

    pub(crate) fn status_unknown(memory: SharedMemoryKind, name: &str) -> Self {
        let memory = memory.lower();
        let text = format!("Unable to find {memory} shared memory region: '{name}'");
        Self::new(RefusalKind::NotFound, text)
    }

    pub(crate) fn status_other_kind(wanted: SharedMemoryKind, name: &str) -> Self {
        let (is, wanted) = (wanted.other().upper(), wanted.upper());
        let text = format!("The region named '{name}' is registered as {is}, not {wanted}");
        Self::new(RefusalKind::NotFound, text)
    }

    pub(crate) fn cannot_open(key: &str) -> Self {
        Self::internal(format!("Unable to open shared memory region: '{key}'"))
    }

    pub(crate) fn register_extent(name: &str) -> Self {
        Self::invalid(format!("failed to register shared memory region '{name}': invalid args"))
    }

    pub(crate) fn register_empty(name: &str) -> Self {
        Self::invalid(format!(
            "failed to register shared memory region '{name}': unable to process address space"
        ))
    }

    pub(crate) fn register_limit(name: &str) -> Self {
        Self::unavailable(format!(
            "failed to register shared memory region '{name}': as much as this server takes is registered"
        ))
    }

    pub(crate) fn register_failed(name: &str) -> Self {
        Self::internal(format!("failed to register shared memory region '{name}'"))
    }

    pub(crate) fn register_field(field: &str) -> Self {
        Self::invalid(format!("Shared memory register request has no '{field}' field"))
    }

    pub(crate) fn cuda_handle() -> Self {
        Self::invalid("'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t")
    }

    pub(crate) fn cuda_unopened() -> Self {
        Self::invalid("failed to register shared memory region: invalid args")
    }
}

/// Refusals of a request's regions.
impl Refusal {
    pub(crate) fn region_unknown(name: &str) -> Self {
        let text = format!("Unable to find shared memory region: '{name}'");
        Self::new(RefusalKind::NotFound, text)
    }

    pub(crate) fn region_offset(name: &str) -> Self {
        Self::invalid(format!("Invalid offset for shared memory region: '{name}'"))
    }

    pub(crate) fn region_range(name: &str) -> Self {
        Self::invalid(format!("Invalid offset + byte size for shared memory region: '{name}'"))
    }

    pub(crate) fn region_overflow(name: &str, offset: u64, len: u64) -> Self {
        Self::invalid(format!(
            "Integer overflow detected: byte_size ({len}) + offset ({offset}) exceeds maximum value ({}) for region '{name}'",
            u64::MAX
        ))
    }

    pub(crate) fn region_truncated(name: &str) -> Self {
        Self::invalid(format!(
            "shared memory region '{name}' has become shorter than it was registered"
        ))
    }

    pub(crate) fn region_read_only(name: &str) -> Self {
        Self::invalid(format!("shared memory region '{name}' can not be written"))
    }

    pub(crate) fn region_out_of_reach(name: &str) -> Self {
        Self::invalid(format!(
            "shared memory region '{name}' can not be reached from the processor"
        ))
    }

    pub(crate) fn region_unguarded(name: &str) -> Self {
        Self::unavailable(format!(
            "shared memory region '{name}' can not be accessed in place: as many as this server guards are in use"
        ))
    }

    pub(crate) fn region_failed(name: &str) -> Self {
        Self::internal(format!("shared memory region '{name}' can not be accessed"))
    }

    pub(crate) fn window_incomplete(tensor: &str) -> Self {
        Self::invalid(format!(
            "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for tensor '{tensor}'"
        ))
    }

    pub(crate) fn window_without_region(parameter: &str, tensor: &str) -> Self {
        Self::invalid(format!(
            "'{parameter}' can not be specified without 'shared_memory_region' parameter for tensor '{tensor}'"
        ))
    }

    pub(crate) fn window_too_small(output: &str, is: u64, needed: usize) -> Self {
        Self::internal(format!(
            "shared memory size specified with the request for output '{output}' ({is} bytes) should be at least {needed} bytes to hold the results"
        ))
    }
}

/// Refusals of inference requests, of both protocols.
impl Refusal {
    pub(crate) fn unknown_model(model: &str) -> Self {
        let text = format!("Request for unknown model: '{model}' is not found");
        Self::new(RefusalKind::NotFound, text)
    }

    pub(crate) fn unknown_version(model: &str, version: &str) -> Self {
        let text = format!("Request for unknown model: '{model}' version {version} is not found");
        Self::new(RefusalKind::NotFound, text)
    }

    pub(crate) fn no_versions(model: &str) -> Self {
        let text = format!("Request for unknown model: '{model}' has no available versions");
        Self::new(RefusalKind::NotFound, text)
    }

    pub(crate) fn version_unready(model: &str, version: &str) -> Self {
        Self::unavailable(format!(
            "Request for unknown model: '{model}' version {version} is not at ready state"
        ))
    }

    pub(crate) fn not_ready(model: &str) -> Self {
        Self::unavailable(format!("Model '{model}' is not ready"))
    }

    /// Builds the refusal of one response by `caller`, which takes no more than that.
    pub(crate) fn decoupled(caller: &str) -> Self {
        let text = format!("{caller} doesn't support models with decoupled transaction policy");
        Self::new(RefusalKind::Unsupported, text)
    }

    pub(crate) fn stopped() -> Self {
        Self::unavailable("the request was stopped")
    }

    pub(crate) fn unknown_output(output: &str, model: &str) -> Self {
        Self::invalid(format!("unexpected inference output '{output}' for model '{model}'"))
    }

    pub(crate) fn output_twice(output: &str) -> Self {
        Self::invalid(format!("output '{output}' already exists in request"))
    }

    pub(crate) fn unknown_input(input: &str, model: &str) -> Self {
        Self::invalid(format!("unexpected inference input '{input}' for model '{model}'"))
    }

    pub(crate) fn input_twice(input: &str) -> Self {
        Self::invalid(format!("input '{input}' already exists in request"))
    }

    pub(crate) fn data_type(input: &str, is: &str, model: &str, expected: &str) -> Self {
        Self::invalid(format!(
            "inference input '{input}' data-type is '{is}', but model '{model}' expects '{expected}'"
        ))
    }

    pub(crate) fn batch_size(model: &str, most: usize) -> Self {
        Self::invalid(format!("inference request batch-size must be <= {most} for '{model}'"))
    }

    pub(crate) fn batch_empty(model: &str) -> Self {
        Self::invalid(format!("inference request batch-size must be >= 1 for '{model}', got 0"))
    }

    pub(crate) fn batch_differs(input: &str, model: &str) -> Self {
        Self::invalid(format!(
            "input '{input}' batch size does not match other inputs for '{model}'"
        ))
    }

    pub(crate) fn input_size(
        id: Option<&str>,
        input: &str,
        model: &str,
        expected: usize,
        got: u64,
    ) -> Self {
        let id = id.unwrap_or("<id_unknown>");
        Self::invalid(format!(
            "[request id: {id}] input byte size mismatch for input '{input}' for model '{model}'. Expected {expected}, got {got}"
        ))
    }

    pub(crate) fn shape_overflow(input: &str, model: &str) -> Self {
        Self::invalid(format!(
            "shape of input '{input}' for model '{model}' describes more bytes than can be"
        ))
    }

    pub(crate) fn reserved_parameter(name: &str) -> Self {
        Self::invalid(format!(
            "parameter keys starting with 'triton_' are reserved for Triton usage, got '{name}'"
        ))
    }

    pub(crate) fn strings_length(input: &str, there: usize) -> Self {
        Self::invalid(format!(
            "incomplete string length indicator for inference input '{input}', expecting 4 bytes but only {there} bytes available"
        ))
    }

    pub(crate) fn strings_data(input: &str, len: usize, there: usize) -> Self {
        Self::invalid(format!(
            "incomplete string data for inference input '{input}', expecting string of length {len} but only {there} bytes available"
        ))
    }

    pub(crate) fn strings_count(input: &str, expected: usize, got: usize) -> Self {
        Self::invalid(format!(
            "expected {expected} strings for inference input '{input}', got {got}"
        ))
    }

    pub(crate) fn output_missing(output: &str, model: &str) -> Self {
        Self::internal(format!("model '{model}' has not produced output '{output}'"))
    }

    pub(crate) fn model_panicked(model: &str) -> Self {
        Self::internal(format!("model '{model}' failed"))
    }

    pub(crate) fn version_text(version: &str) -> Self {
        Self::invalid(format!(
            "failed to get model version from specified version string '{version}', version should be an integer > 0"
        ))
    }

    pub(crate) fn inputs_count(
        model: &str,
        expected: usize,
        got: &[&str],
        missing: &[&str],
    ) -> Self {
        let list = |names: &[&str]| {
            let quoted: Vec<String> = names.iter().map(|name| format!("'{name}'")).collect();
            format!("[{}]", quoted.join(","))
        };
        let (count, got, missing) = (got.len(), list(got), list(missing));
        Self::invalid(format!(
            "expected {expected} inputs but got {count} inputs for model '{model}'. Got input(s) {got}, but missing required input(s) {missing}. Please provide all required input(s)."
        ))
    }

    pub(crate) fn shape(
        input: &str,
        model: &str,
        expected: &[i64],
        got: &[i64],
        batches: bool,
    ) -> Self {
        let list = |dims: &[i64]| {
            let dims: Vec<String> = dims.iter().map(i64::to_string).collect();
            format!("[{}]", dims.join(","))
        };
        let is_negative = got.iter().any(|dim| *dim < 0);
        let (expected, got) = (list(expected), list(got));
        let note = if is_negative {
            " NOTE: -1 stands for any length there, and a request names each length."
        } else if batches {
            " NOTE: the first dimension is that of the batch, since the model's max_batch_size is not zero."
        } else {
            ""
        };
        Self::invalid(format!(
            "unexpected shape for input '{input}' for model '{model}'. Expected {expected}, got {got}.{note}"
        ))
    }

    pub(crate) fn too_many_bytes() -> Self {
        Self::unavailable(
            "too many bytes are in flight: retry later, or raise Limits::bytes_in_flight",
        )
    }

    pub(crate) fn response_too_long(most: u64) -> Self {
        Self::invalid(format!("response of more than {most} bytes"))
    }

    pub(crate) fn queue_full(model: &str, most: usize) -> Self {
        Self::unavailable(format!(
            "Exceeds maximum queue size: {most} requests wait for model '{model}'"
        ))
    }

    pub(crate) fn output_classified() -> Self {
        Self::invalid("output can't set both 'shared_memory_region' and 'classification'")
    }

    pub(crate) fn classification_type(dtype: &str) -> Self {
        Self::invalid(format!(
            "class result not available for output due to unsupported type '{dtype}'"
        ))
    }

    pub(crate) fn classification_elements() -> Self {
        Self::invalid("classification output tensor too large")
    }

    pub(crate) fn no_memory(bytes: usize) -> Self {
        Self::unavailable(format!("no memory for a tensor of {bytes} bytes"))
    }
}

/// Refusals of loads and unloads.
impl Refusal {
    pub(crate) fn no_model_control() -> Self {
        Self::unavailable("explicit model load / unload is not allowed if polling is enabled")
    }

    pub(crate) fn repository_name() -> Self {
        Self::new(RefusalKind::Unsupported, "'repository_name' specification is not supported")
    }

    pub(crate) fn not_polled(model: &str) -> Self {
        Self::internal(format!("failed to load '{model}', failed to poll from model repository"))
    }

    /// The reason is an error of the repository, which is of the moment if it says so.
    pub(crate) fn load_failed(model: &str, reason: &Self) -> Self {
        let kind = match reason.kind {
            RefusalKind::Unavailable => RefusalKind::Unavailable,
            _ => RefusalKind::InvalidArgument,
        };
        Self::new(kind, format!("load failed for model '{model}': {}", reason.text))
    }

    pub(crate) fn too_many_loads(most: usize) -> Self {
        Self::unavailable(format!(
            "{most} loads are under way: retry later, or raise Limits::model_loads"
        ))
    }

    pub(crate) fn too_many_unloads(most: usize) -> Self {
        Self::unavailable(format!("{most} unloads are under way: retry later"))
    }

    pub(crate) fn too_many_models(most: usize) -> Self {
        Self::unavailable(format!(
            "{most} models are loaded: unload one, or raise Limits::loaded_models"
        ))
    }

    pub(crate) fn model_name(name: &str) -> Self {
        Self::invalid(format!("invalid model name '{name}'"))
    }

    pub(crate) fn model_name_long(len: usize, most: usize) -> Self {
        Self::invalid(format!("model name of {len} bytes, at most {most} may be"))
    }

    pub(crate) fn load_parameter(name: &str) -> Self {
        Self::invalid(format!("unrecognized load parameter '{name}'."))
    }

    pub(crate) fn config_override(reason: &str) -> Self {
        Self::invalid(format!("Invalid config override: {reason}"))
    }

    pub(crate) fn no_files() -> Self {
        Self::invalid(
            "the model repository takes no files: load the model without 'file:' parameters",
        )
    }

    pub(crate) fn files_without_config() -> Self {
        Self::invalid("'config' must be given together with 'file:' parameters")
    }

    pub(crate) fn too_many_files(most: usize) -> Self {
        Self::invalid(format!("more than {most} files"))
    }

    pub(crate) fn file_path(path: &str) -> Self {
        Self::invalid(format!(
            "invalid path of a file: '{path}' must be relative and stay in the model's folder"
        ))
    }
}

/// Refusals of JSON.
impl Refusal {
    pub(crate) fn json_syntax(what: &str, at: usize) -> Self {
        Self::internal(format!("failed to parse the request JSON buffer: {what} at {at}"))
    }

    pub(crate) fn json_empty() -> Self {
        Self::invalid("failed to parse the request JSON buffer: EOF while parsing a value at 0")
    }

    pub(crate) fn json_depth(most: usize) -> Self {
        Self::invalid(format!("JSON nesting depth exceeds maximum allowed limit ({most})"))
    }

    /// Builds `attempt to access JSON non-string as string` from `string`.
    pub(crate) fn json_type(wanted: &str) -> Self {
        Self::internal(format!("attempt to access JSON non-{wanted} as {wanted}"))
    }
}
