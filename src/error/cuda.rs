//! The reasons why an operation on a GPU fails.

/// The reasons why an operation on a GPU fails.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CudaFault {
    /// The loader finds no driver. The source says why.
    #[error("libcuda.so.1 cannot be loaded: this machine or container has no NVIDIA driver")]
    NoLibrary,
    /// The driver is too old for a call.
    #[error("the driver has no {symbol}: update it")]
    MissingSymbol {
        /// The call's name.
        symbol: &'static str,
    },
    /// The driver is too old.
    #[error("the driver speaks CUDA {}.{}, {}.{} is needed", version / 1000, version % 1000 / 10, needed / 1000, needed % 1000 / 10)]
    DriverTooOld {
        /// 1000 times the major version plus 10 times the minor one.
        version: i32,
        /// The oldest version that works, in the same form.
        needed: i32,
    },
    /// The driver finds no GPU that this process may use.
    #[error("the driver finds no GPU (CUDA_VISIBLE_DEVICES may hide it)")]
    NoDevice,
    /// No GPU has this number.
    #[error("there is no GPU {ordinal}, the driver finds {count}")]
    Ordinal {
        /// The number.
        ordinal: u32,
        /// GPUs that the driver finds.
        count: u32,
    },
    /// Other processes cannot open the GPU's memory or events.
    #[error("no other process can open memory of GPU {ordinal} (no CUDA IPC)")]
    NoIpc {
        /// Its number.
        ordinal: u32,
    },
    /// A call of the driver failed.
    #[error("{call}: {name} ({code})")]
    Driver {
        /// The call.
        call: &'static str,
        /// The code that it returned.
        code: u32,
        /// The driver's name of the code.
        name: String,
    },
    /// The tensor lies on another GPU than the caller named.
    #[error("the tensor lies on {is}, not on {asked}")]
    OtherDevice {
        /// The UUID of the tensor's GPU.
        is: GpuUuid,
        /// The UUID of the GPU that the caller named.
        asked: GpuUuid,
    },
    /// The tensor lies on another GPU than the one that is to read it, and its memory or its order travels by handles, which
    /// are for one GPU, or another library has mapped it.
    #[error(
        "the tensor lies on {is}, and {asked} cannot use it: that takes memory of a Pool with \
         Export::FileDescriptor, and Order::Words or Order::Synchronized"
    )]
    OneDevice {
        /// The UUID of the tensor's GPU.
        is: GpuUuid,
        /// The UUID of the GPU that was to read it.
        asked: GpuUuid,
    },
    /// The GPU that is to read the tensor cannot use memory of the tensor's GPU: the driver allows none, or the topology has no
    /// way between them.
    #[error(
        "the tensor lies on {is}, whose memory {asked} cannot use (cuDeviceCanAccessPeer): open it on {is}, and copy it"
    )]
    NoPeerAccess {
        /// The UUID of the tensor's GPU.
        is: GpuUuid,
        /// The UUID of the GPU that was to read it.
        asked: GpuUuid,
    },
    /// The tensor lies on a GPU that this process does not see: its container has other ones, or
    /// `CUDA_VISIBLE_DEVICES` hides it.
    #[error(
        "the tensor lies on {is}, which this process does not see (CUDA_VISIBLE_DEVICES, the container's GPUs)"
    )]
    HiddenDevice {
        /// The UUID of the tensor's GPU.
        is: GpuUuid,
    },
    /// The driver cannot open a peer's memory or event, and the peer lives in another namespace, such as another
    /// container's. CUDA opens handles within one namespace. The source says what the driver said.
    #[error(
        "the peer has another {namespace} namespace, and CUDA opens handles within one (docker run --{namespace})"
    )]
    OtherNamespace {
        /// `pid` or `ipc`, as `/proc/pid/ns` names it.
        namespace: &'static str,
    },
    /// The GPU exports no memory as file descriptors.
    #[error("no memory of GPU {ordinal} is exported as a file descriptor: use Export::IpcHandle")]
    NoDescriptors {
        /// Its number.
        ordinal: u32,
    },
    /// Memory that another library allocated cannot be exported to other processes. The source, if there is one, says what
    /// the driver said.
    #[error("the memory cannot be exported to other processes: {why}")]
    NotExportable {
        /// Why.
        why: &'static str,
    },
    /// The streams of the GPU neither write nor await words in memory, or the driver is older than CUDA 11.7.
    #[error("streams of GPU {ordinal} cannot wait for words in memory: use Order::Synchronized")]
    NoWords {
        /// Its number.
        ordinal: u32,
    },
    /// The peer's file descriptor is no allocation of a GPU that this process sees. The source says what the driver
    /// said.
    #[error("the peer's file descriptor is no allocation of this process's GPUs")]
    NotAllocation,
    /// The peer's file descriptor is an allocation of another GPU than the peer says.
    #[error("the peer's allocation lies on another GPU than {said}, as the peer says")]
    WrongDevice {
        /// The UUID that the peer says.
        said: GpuUuid,
    },
    /// The peer's allocation has fewer bytes than the peer says: the driver cannot map so many, and the source says what the
    /// driver said, or the whole GPU has fewer.
    #[error("the peer's allocation has fewer than {claimed} bytes, as the peer says")]
    ShortAllocation {
        /// Its length in bytes, as the peer says.
        claimed: u64,
    },
    /// The peer keeps as many file descriptors of GPU memory of this process as it may.
    #[error(
        "the peer has file descriptors of {limit} allocations: use longer chunks (PoolOptions::chunk)"
    )]
    Announced {
        /// How many it may keep.
        limit: usize,
    },
    /// The stream belongs to another GPU.
    #[error("the stream belongs to another GPU")]
    OtherStream,
    /// No stream has the number that a library passed by DLPack.
    #[error(
        "stream {number} of DLPack is none of CUDA's: 1 is the default, 2 that of a thread, -1 asks for no order, others are addresses"
    )]
    StreamNumber {
        /// The number.
        number: i64,
    },
    /// The stream is being captured into a graph. A graph is replayed, and a tensor is lent once.
    #[error("the stream is being captured into a graph: send outside of the capture")]
    Capturing,
    /// The memory of the host cannot be pinned.
    #[error("the memory cannot be pinned: {why}")]
    NotPinnable {
        /// Why.
        why: &'static str,
    },
    /// The process has too much memory of the host pinned.
    #[error(
        "{used} of {limit} bytes are pinned, and the tensor's segment has {needed} more: allow more (Device::pin)"
    )]
    PinLimit {
        /// Bytes that are pinned.
        used: u64,
        /// Bytes of the tensor's segment.
        needed: u64,
        /// Bytes that may be pinned.
        limit: u64,
    },
    /// The draft and the view belong to two streams.
    #[error("the draft and the view are of two streams")]
    TwoStreams,
    /// A handle of the memory is still being closed, which waits for the GPU.
    #[error("the memory is still being closed: try again")]
    Closing,
    /// The tensor lies in memory of the host.
    #[error("the tensor lies in memory of the host: copy it (Pool::copy_of)")]
    OnHost,
    /// An allocation is shorter than its owner claims.
    #[error("the allocation holds {len} bytes, its owner claims {claimed}")]
    Allocation {
        /// Its length in bytes, as the driver reports it.
        len: u64,
        /// Its length in bytes, as its owner claims.
        claimed: u64,
    },
    /// The pool's quota has no room for the tensor.
    #[error(
        "pool of the GPU has {used} of {quota} bytes and needs {needed} more: drop some tensors, or allow more (PoolOptions::quota)"
    )]
    Exhausted {
        /// Bytes that the request needs.
        needed: u64,
        /// Bytes that the pool has.
        used: u64,
        /// Bytes that the pool may have.
        quota: u64,
    },
}

/// A GPU's UUID, as `cuDeviceGetUuid_v2` returns it. Prints as `nvidia-smi -L` prints that of a whole GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GpuUuid(pub [u8; 16]);

impl core::fmt::Display for GpuUuid {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "GPU-{}", uuid::Uuid::from_bytes(self.0).hyphenated())
    }
}
