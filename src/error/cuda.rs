//! What can be wrong with a GPU, its driver, or what a peer says of its memory.

/// Why something cannot be done on a GPU.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CudaFault {
    /// There is no driver. The source says what the loader found.
    #[error("libcuda.so.1 cannot be loaded: this machine or container has no NVIDIA driver")]
    NoLibrary,
    /// The driver lacks a call.
    #[error("the driver has no {symbol}")]
    MissingSymbol {
        /// The call's name.
        symbol: &'static str,
    },
    /// The driver is older than what is needed.
    #[error("the driver speaks CUDA {}.{}, {}.{} is needed", version / 1000, version % 1000 / 10, needed / 1000, needed % 1000 / 10)]
    DriverTooOld {
        /// 1000 times the major version, and 10 times the minor one.
        version: i32,
        /// The oldest that does, written likewise.
        needed: i32,
    },
    /// There is a driver, and no GPU that this process may use.
    #[error("the driver finds no GPU (CUDA_VISIBLE_DEVICES may hide it)")]
    NoDevice,
    /// There is no GPU of this number.
    #[error("there is no GPU {ordinal}, the driver finds {count}")]
    Ordinal {
        /// The number.
        ordinal: u32,
        /// How many there are.
        count: u32,
    },
    /// The GPU has no handles or events that other processes can open.
    #[error("GPU {ordinal} has no handles that another process can open")]
    NoIpc {
        /// Its number.
        ordinal: u32,
    },
    /// A call of the driver failed.
    #[error("{call}: {name} ({code})")]
    Driver {
        /// The call.
        call: &'static str,
        /// What it returned.
        code: u32,
        /// The driver's name of that.
        name: String,
    },
    /// The tensor lies on another GPU than the one that is to read it.
    #[error("the tensor lies on GPU {is}, not on {asked}")]
    OtherDevice {
        /// The UUID of the tensor's.
        is: Uuid,
        /// The UUID of the one that was asked.
        asked: Uuid,
    },
    /// The tensor lies on a GPU that this process does not see: its container has others, or `CUDA_VISIBLE_DEVICES`
    /// hides it.
    #[error("the tensor lies on GPU {is}, which this process does not see")]
    HiddenDevice {
        /// The UUID of the tensor's.
        is: Uuid,
    },
    /// A peer's memory or event cannot be opened, and the peer lives in another namespace, as another container's
    /// processes do: CUDA opens handles within one. The source says what the driver said.
    #[error(
        "the peer has another {namespace} namespace, and CUDA opens what lies within one (docker run --{namespace})"
    )]
    OtherNamespace {
        /// `pid` or `ipc`, as `/proc/pid/ns` names it.
        namespace: &'static str,
    },
    /// The stream belongs to another GPU.
    #[error("the stream belongs to another GPU")]
    OtherStream,
    /// The stream is being captured into a graph, which is replayed: what is lent is lent once.
    #[error("the stream is being captured into a graph")]
    Capturing,
    /// Another stream was to do it.
    #[error("the draft and the view are of two streams")]
    TwoStreams,
    /// A handle is still being closed, which waits for the GPU.
    #[error("the memory is still being closed: try again")]
    Closing,
    /// The tensor lies in memory of the host.
    #[error("the tensor does not lie on a GPU")]
    OnHost,
    /// An allocation is shorter than its owner says.
    #[error("the allocation holds {len} bytes, {claimed} were claimed")]
    Allocation {
        /// Its length in bytes, as the driver knows it.
        len: u64,
        /// Its length in bytes, as its owner says.
        claimed: u64,
    },
    /// The pool may not have as much memory.
    #[error(
        "pool of the GPU has {used} of {quota} bytes and needs {needed} more (PoolOptions::quota)"
    )]
    Exhausted {
        /// Bytes that are lacking.
        needed: u64,
        /// Bytes that it has.
        used: u64,
        /// Bytes that it may have.
        quota: u64,
    },
}

/// A GPU's UUID, as `cuDeviceGetUuid_v2` gives it, written as `nvidia-smi -L` writes that of a whole GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Uuid(pub [u8; 16]);

impl core::fmt::Display for Uuid {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "GPU-{}", uuid::Uuid::from_bytes(self.0).hyphenated())
    }
}
